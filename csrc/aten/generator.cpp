#include "aten/generator.h"

#include <ATen/Utils.h>
#include <ATen/ops/empty.h>

#include <array>
#include <cstring>
#include <mutex>

#include "aten/guard.h"

namespace torch_tpu::aten {
namespace {
constexpr size_t kStateBytes = 16;
}

PhiloxGenerator::PhiloxGenerator(c10::DeviceIndex device)
    : c10::GeneratorImpl(c10::Device(c10::DeviceType::PrivateUse1, device),
                         c10::DispatchKeySet(c10::DispatchKey::PrivateUse1)) {}

void PhiloxGenerator::set_current_seed(uint64_t seed) {
  seed_ = seed;
  offset_ = 0;
}

void PhiloxGenerator::set_offset(uint64_t offset) {
  TORCH_CHECK(offset % 4 == 0, "offset must be a multiple of 4, got ", offset);
  offset_ = offset;
}

uint64_t PhiloxGenerator::seed() {
  const uint64_t random = c10::detail::getNonDeterministicRandom(true);
  set_current_seed(random);
  return random;
}

void PhiloxGenerator::set_state(const c10::TensorImpl& state) {
  at::detail::check_rng_state(state);
  TORCH_CHECK(state.numel() == kStateBytes, "RNG state is wrong size: a tpu generator's state has ",
              kStateBytes, " bytes, got ", state.numel());
  uint64_t words[2];
  std::memcpy(words, state.data(), kStateBytes);
  seed_ = words[0];
  set_offset(words[1]);
}

c10::intrusive_ptr<c10::TensorImpl> PhiloxGenerator::get_state() const {
  at::Tensor state =
      at::empty({kStateBytes}, at::TensorOptions().dtype(at::kByte).device(at::kCPU));
  const uint64_t words[2] = {seed_, offset_};
  std::memcpy(state.mutable_data_ptr(), words, kStateBytes);
  return state.getIntrusivePtr();
}

std::pair<uint64_t, uint64_t> PhiloxGenerator::Draw(uint64_t draws) {
  const auto before = std::make_pair(seed_, offset_);
  offset_ += draws;
  return before;
}

PhiloxGenerator* PhiloxGenerator::clone_impl() const {
  auto* copy = new PhiloxGenerator(device().index());
  copy->seed_ = seed_;
  copy->offset_ = offset_;
  return copy;
}

const at::Generator& DefaultGenerator(c10::DeviceIndex device) {
  constexpr int kMaxDevices = 128;
  static auto* generators = new std::array<at::Generator, kMaxDevices>;
  static auto* mutex = new std::mutex;
  if (device < 0) device = CurrentDevice();
  device = DeviceMeant(device);
  std::lock_guard guard(*mutex);
  at::Generator& generator = (*generators)[device];
  if (!generator.defined()) generator = at::make_generator<PhiloxGenerator>(device);
  return generator;
}

std::pair<uint64_t, uint64_t> DrawPhilox(const std::optional<at::Generator>& generator,
                                         c10::DeviceIndex device, uint64_t draws) {
  at::Generator chosen = generator && generator->defined() ? *generator : DefaultGenerator(device);
  TORCH_CHECK(chosen.device().is_privateuseone(),
              "Expected a 'tpu' device type for generator but found '",
              c10::DeviceTypeName(chosen.device().type(), true), "'");
  std::lock_guard guard(chosen.mutex());
  return static_cast<PhiloxGenerator*>(chosen.unsafeGetGeneratorImpl())->Draw(draws);
}

}  // namespace torch_tpu::aten
