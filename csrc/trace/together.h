#pragma once

#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "trace/value.h"

namespace torch_tpu::trace {

class Operation;

// Ranks have recorded different programs, which cannot run as one.
class ProgramsDiffer : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// The ranks that run a program together, each of them a partition of it. Every rank records the
// program for itself; a trace has such ranks as soon as something is exchanged in it.
class Together {
 public:
  virtual ~Together() = default;
  // Global ids of their devices, by partition.
  virtual std::vector<int> device_ids() const = 0;
  // Makes sure, before its first run, that all ranks have recorded the same program; throws
  // ProgramsDiffer, on all of them, if they have not. Waits for the others to come.
  virtual void Agree(Operation& operation) = 0;
  // Does this rank's part of running `operation`, like trace::Run: `inputs` has one value for each
  // parameter and is taken over. May wait for the others to come.
  virtual void Run(Operation& operation, Device& device, std::span<ValuePtr> inputs, bool donate,
                   ValuePtr* results) = 0;
};

}  // namespace torch_tpu::trace
