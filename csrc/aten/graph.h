#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "aten/miss_reason.h"
#include "trace/operation.h"
#include "trace/signature.h"
#include "trace/spin_lock.h"

namespace torch_tpu::aten {

// A function over tensors that runs as one program. It is captured once for each signature of its
// inputs (dtypes, geometry, which of them share storages): the body runs over placeholders, its
// operators are recorded, and the trace is kept as one operation.
//
// Inputs are tensors of one tpu device and 0-d CPU tensors, whose numbers are run-time arguments.
// Inputs that the body writes to are written to when the program runs, in place where nobody else
// holds their buffers. Outputs may be views of inputs or of one another.
class Graph {
 public:
  // Computes outputs (undefined tensors allowed) from placeholders that stand for the inputs, all
  // of them on the device.
  using Body = std::function<std::vector<at::Tensor>(const std::vector<at::Tensor>&)>;

  // `donated`: inputs whose buffers the program may take over if the caller holds them alone.
  // `functional`: the caller does not mind if an output that is a view of an input shares memory
  // with a copy of it instead.
  Graph(std::string name, Body body, std::vector<int> donated, bool functional);
  ~Graph();

  // Empties `inputs` before it runs the program, so that buffers which nobody else holds can be
  // donated. Throws what the body throws, and trace::CaptureAborted where the body cannot be
  // captured; `inputs` is as it was then.
  std::vector<at::Tensor> Run(std::vector<at::Tensor>& inputs);

  // Captures the program for inputs like these, which count as written to, before there are any.
  void Prepare(std::vector<at::Tensor> inputs);

  // The program written out for a platform. Inputs that hold nothing count as written to, so that
  // `torch.empty` tensors can stand for inputs that do not exist.
  struct Written {
    std::string module;
    struct Parameter {
      int input = -1;  // -1: the generator's seed or offset, or a constant
      const trace::Type* type;
      trace::ValuePtr constant;
      bool used;
    };
    std::vector<Parameter> parameters;
    // What becomes of each of the module's results: outputs by position, then writes to inputs.
    std::vector<const trace::Type*> results;
    std::vector<std::pair<int, int>> outputs;    // (output, result); -1: a view of an input
    std::vector<std::pair<int, int>> mutations;  // (input, result)
  };
  Written Write(std::vector<at::Tensor> inputs, stablehlo::Platform platform);

  // Signatures seen.
  size_t variants() const { return variants_.size(); }

 private:
  struct Inputs;
  struct Variant;
  void BuildSignature(const Inputs& inputs, trace::Signature& signature) const;
  bool IsSlice(const Inputs& inputs, size_t i) const;
  std::unique_ptr<Variant> Capture(const Inputs& inputs) const;
  // What differs from the inputs that were captured last.
  std::string WhyCaptured(const Inputs& inputs) const;

  const std::string name_;
  const Body body_;
  const std::vector<int> donated_;
  const bool functional_;
  trace::SignatureCache<Variant> variants_;
  // Inputs that are written to or returned, so that a copy would not do; noticed at a capture.
  mutable trace::SpinLock by_reference_lock_;
  std::vector<bool> by_reference_;
  // Of the inputs that were captured last, for the compile log.
  mutable std::mutex last_mutex_;
  mutable std::optional<std::vector<SignaturePart>> last_;
};

// The state from which the capture of this thread draws random numbers next: int64[2], seed and
// offset.
at::Tensor CapturedRandomState();
// From now on it draws from this state; an undefined tensor: from the generator again.
void DrawCapturedFrom(const at::Tensor& state);

}  // namespace torch_tpu::aten
