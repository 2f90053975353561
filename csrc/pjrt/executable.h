#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "pjrt/event.h"
#include "pjrt/plugin.h"
#include "pjrt/program.h"

namespace torch_tpu::pjrt {

// A loaded executable. Thread-safe.
class Executable {
 public:
  // Takes ownership of `executable` and keeps `owner` (its client) alive.
  Executable(const Plugin* plugin, PJRT_LoadedExecutable* executable,
             std::shared_ptr<const void> owner = nullptr);
  ~Executable();
  Executable(const Executable&) = delete;
  Executable& operator=(const Executable&) = delete;

  size_t num_outputs() const { return outputs_.size(); }
  const std::vector<TensorType>& outputs() const { return outputs_; }
  const std::string& name() const { return name_; }
  const std::string& fingerprint() const { return fingerprint_; }  // "" if unsupported

  // Runs on one device: `device`, or the one it was compiled for (a portable executable needs
  // `device`). `arguments` are checked for count, deleted buffers and, if SetParameters was called,
  // against `parameters` (dtype and shape); kInvalidArgument names the offending one. Arguments
  // whose index is not in `non_donatable` may be donated where the module aliases them. `outputs`
  // receives num_outputs() owned buffers. If `complete` is given it receives the completion event.
  void Execute(std::span<PJRT_Buffer* const> arguments, std::span<PJRT_Buffer*> outputs,
               std::span<const int64_t> non_donatable = {}, PJRT_Device* device = nullptr,
               Event* complete = nullptr) const;
  // The hot path: the same without any check of ours; the caller knows that the arguments fit
  // because the executable was compiled for exactly their types. (Deleted arguments and a wrong
  // count are still errors of the plugin; another dtype or shape of the same byte size is not
  // noticed.)
  void ExecuteUnchecked(PJRT_Buffer* const* arguments, size_t num_arguments, PJRT_Buffer** outputs,
                        std::span<const int64_t> non_donatable, PJRT_Device* device) const;
  // Runs a program of several partitions on those of its devices that this process has, in the
  // order of device_ids(): arguments and (filled in) outputs of each. `non_donatable` as for
  // Execute.
  void ExecutePartitions(const std::vector<std::vector<PJRT_Buffer*>>& arguments,
                         std::vector<std::vector<PJRT_Buffer*>>& outputs,
                         std::span<const int64_t> non_donatable) const;
  // Global ids of the devices of this process that the program was compiled for.
  std::vector<int> device_ids() const;
  // Call before the executable is shared between threads.
  void SetParameters(std::vector<TensorType> parameters) { parameters_ = std::move(parameters); }

  // The program that is loaded.
  Program program() const;

 private:
  // One list of arguments and one of outputs for each device that it runs on.
  void Run(std::span<PJRT_Buffer* const* const> arguments, size_t num_arguments,
           PJRT_Buffer** const* outputs, std::span<const int64_t> non_donatable,
           PJRT_Device* device, PJRT_Event** complete) const;

  const Plugin* plugin_;
  std::shared_ptr<const void> owner_;
  PJRT_LoadedExecutable* executable_;
  std::optional<std::vector<TensorType>> parameters_;
  std::vector<TensorType> outputs_;
  std::string name_, fingerprint_;
};

}  // namespace torch_tpu::pjrt
