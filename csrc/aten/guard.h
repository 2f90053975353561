#pragma once

#include <c10/core/Device.h>

#include <cstddef>
#include <utility>

namespace torch_tpu::aten {

// This thread's current tpu device.
c10::DeviceIndex CurrentDevice();
// Checks the index; returns the previous device.
c10::DeviceIndex ExchangeDevice(c10::DeviceIndex device);
// Raises unless there is such a device.
void CheckDeviceIndex(c10::DeviceIndex device);

// Free and total bytes: the plugin's figures where it keeps them, else host memory and our
// accounting.
std::pair<size_t, size_t> DeviceMemoryInfo(c10::DeviceIndex device);

}  // namespace torch_tpu::aten
