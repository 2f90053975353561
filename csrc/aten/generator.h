#pragma once

#include <ATen/core/Generator.h>

#include <cstdint>
#include <optional>
#include <utility>

namespace torch_tpu::aten {

// Counter-based generator: (seed, offset) are arguments of the programs that draw, so the same
// state gives the same numbers on every device and in every mode. The state is 16 bytes: seed, then
// offset.
class PhiloxGenerator final : public c10::GeneratorImpl {
 public:
  explicit PhiloxGenerator(c10::DeviceIndex device);
  static c10::DeviceType device_type() { return c10::DeviceType::PrivateUse1; }

  void set_current_seed(uint64_t seed) override;
  void set_offset(uint64_t offset) override;
  uint64_t get_offset() const override { return offset_; }
  uint64_t current_seed() const override { return seed_; }
  uint64_t seed() override;
  void set_state(const c10::TensorImpl& state) override;
  c10::intrusive_ptr<c10::TensorImpl> get_state() const override;

  // The state before `draws` numbers are taken; moves the offset on. Call with mutex_ held.
  std::pair<uint64_t, uint64_t> Draw(uint64_t draws);

 private:
  PhiloxGenerator* clone_impl() const override;
  uint64_t seed_ = c10::default_rng_seed_val;
  uint64_t offset_ = 0;
};

const at::Generator& DefaultGenerator(c10::DeviceIndex device);

// Takes `draws` numbers from `generator`, or from the device's default generator.
std::pair<uint64_t, uint64_t> DrawPhilox(const std::optional<at::Generator>& generator,
                                         c10::DeviceIndex device, uint64_t draws);

}  // namespace torch_tpu::aten
