#pragma once

#include <c10/core/Device.h>

#include <cstddef>
#include <utility>

namespace torch_tpu::aten {

// This thread's current tpu device.
c10::DeviceIndex CurrentDevice();
// Checks the index; returns the previous device.
c10::DeviceIndex ExchangeDevice(c10::DeviceIndex device);
// The device that an index means; raises if there is none. A process that torchrun started has one
// chip, which is number 0. Programs written for GPUs, where each process sees all of them, name
// theirs by LOCAL_RANK, and so do PyTorch's DeviceMesh and barrier.
c10::DeviceIndex DeviceMeant(c10::DeviceIndex device);

// Free and total bytes: the plugin's figures where it keeps them, else host memory and our
// accounting.
std::pair<size_t, size_t> DeviceMemoryInfo(c10::DeviceIndex device);

}  // namespace torch_tpu::aten
