// The CTC loss. PyTorch hands over the lengths of the sequences as numbers on the host, other ones
// for every batch: they become arguments of one program rather than part of many.
#include "lowering/ctc.h"

#include <ATen/core/Tensor.h>
#include <torch/library.h>

#include <algorithm>
#include <numeric>

#include "aten/kernel.h"
#include "aten/storage.h"
#include "trace/runtime.h"
#include "trace/signature.h"
#include "trace/trace.h"

namespace torch_tpu::aten {
namespace {

using stablehlo::Value;
using stablehlo::Values;
using trace::Type;
using trace::ValuePtr;

// What the programs depend on beside the types of their inputs.
struct Settings {
  int64_t blank = 0;
  int64_t longest = 0;
  bool zero_infinity = false;
};

// inputs: log_probs, targets, the lengths; of the gradient also grad, loss and log_alpha.
using Program = Values (*)(const Values& inputs, const Settings& settings);

lowering::CtcArguments ArgumentsOf(const Values& inputs, const Settings& settings) {
  return {inputs[0], inputs[1], inputs[2], inputs[3], settings.blank, settings.longest};
}

Values Forward(const Values& inputs, const Settings& settings) {
  const lowering::CtcResult result = lowering::CtcLoss(ArgumentsOf(inputs, settings));
  return {result.loss, result.log_alpha};
}

Values Backward(const Values& inputs, const Settings& settings) {
  return {lowering::CtcLossGradient(ArgumentsOf(inputs, settings), inputs[4],
                                    {inputs[5], inputs[6]}, settings.zero_infinity)};
}

std::shared_ptr<trace::Operation> OperationOf(const char* name, Program program,
                                              std::vector<const Type*> types,
                                              const Settings& settings) {
  static auto* cache = new trace::SignatureCache<std::shared_ptr<trace::Operation>>;
  trace::Signature signature;
  signature.Clear();
  signature.Add(reinterpret_cast<uint64_t>(program));
  for (const Type* type : types) signature.Add(reinterpret_cast<uint64_t>(type));
  signature.Add(static_cast<uint64_t>(settings.blank));
  signature.Add(static_cast<uint64_t>(settings.longest));
  signature.Add(settings.zero_infinity ? 1 : 0);
  return cache->FindOrMake(signature, [&] {
    auto lower = [name, program, settings](stablehlo::Builder& builder, const Values& inputs) {
      builder.SetLocation(std::string("aten.") + name);
      return trace::Lowered{program(inputs, settings), {}};
    };
    return std::make_shared<trace::Operation>(name, std::move(types), std::move(lower));
  });
}

ValuePtr LengthsOnDevice(c10::IntArrayRef lengths, c10::DeviceIndex index) {
  const Type* type =
      trace::Intern({stablehlo::DType::kS64, {static_cast<int64_t>(lengths.size())}});
  return DeviceAt(index).FromHost(type, lengths.data());
}

// Runs a program on log_probs, targets, the lengths and what else it takes.
std::vector<at::Tensor> Run(const char* name, Program program, const Settings& settings,
                            c10::IntArrayRef input_lengths, c10::IntArrayRef target_lengths,
                            at::TensorList tensors, size_t num_results) {
  const at::Tensor& log_probs = tensors[0];
  const c10::DeviceIndex index = log_probs.device().index();
  return Guarded(
      [&] {
        std::vector<ValuePtr> inputs;
        for (const at::Tensor& tensor : tensors) inputs.push_back(Materialize(tensor));
        inputs.insert(inputs.begin() + 2, {LengthsOnDevice(input_lengths, index),
                                           LengthsOnDevice(target_lengths, index)});
        std::vector<const Type*> types;
        for (const ValuePtr& input : inputs) types.push_back(input->type());
        std::vector<ValuePtr> values(num_results);
        trace::Run(OperationOf(name, program, std::move(types), settings), DeviceAt(index), inputs,
                   false, values.data());
        std::vector<at::Tensor> results;
        for (ValuePtr& value : values) {
          const Type& type = *value->type();
          results.push_back(
              MakeTensor(type.dims, {}, log_probs.dtype(), index, type.bytes(), std::move(value)));
        }
        return results;
      },
      std::string("aten::") + name);
}

// PyTorch's checks; the longest target there may be.
int64_t Check(const at::Tensor& log_probs, const at::Tensor& targets,
              c10::IntArrayRef input_lengths, c10::IntArrayRef target_lengths, int64_t blank) {
  constexpr char kWhile[] = " (while checking arguments for ctc_loss_allocate_outputs)";
  TORCH_CHECK(targets.device() == log_probs.device(),
              "Expected all tensors to be on the same device, but found at least two devices, ",
              log_probs.device(), " and ", targets.device(), "!");
  TORCH_CHECK_NOT_IMPLEMENTED(
      log_probs.scalar_type() == at::kFloat || log_probs.scalar_type() == at::kDouble,
      "\"ctc_loss_cpu\" not implemented for '", log_probs.scalar_type(), "'");
  TORCH_CHECK(targets.scalar_type() == at::kLong || targets.scalar_type() == at::kInt,
              "Expected tensor for argument #2 'targets' to have scalar type Int; but got ",
              targets.toString(), " instead", kWhile);
  TORCH_CHECK(log_probs.dim() == 3, "Expected 3-dimensional tensor, but got ", log_probs.dim(),
              "-dimensional tensor for argument #1 'log_probs'", kWhile);
  TORCH_CHECK(targets.dim() == 1 || targets.dim() == 2, "Expected 1 to 2 dimensions, but got ",
              targets.dim(), "-dimensional tensor for argument #2 'targets'", kWhile);
  const int64_t time = log_probs.size(0), batch = log_probs.size(1), classes = log_probs.size(2);
  TORCH_CHECK(0 <= blank && blank < classes, "blank must be in label range");
  TORCH_CHECK(static_cast<int64_t>(input_lengths.size()) == batch,
              "input_lengths must be of size batch_size");
  TORCH_CHECK(static_cast<int64_t>(target_lengths.size()) == batch,
              "target_lengths must be of size batch_size");
  int64_t longest = 0, total = 0;
  for (int64_t length : target_lengths) {
    TORCH_CHECK(length >= 0, "Expected target_lengths to have value at least 0, but got value ",
                length, kWhile);
    longest = std::max(longest, length);
    total += length;
  }
  const bool padded = targets.dim() == 2;
  const int64_t expected = padded ? batch : total;
  TORCH_CHECK(targets.size(0) == expected, "Expected tensor to have size ", expected,
              " at dimension 0, but got size ", targets.size(0), " for argument #2 'targets'",
              kWhile);
  TORCH_CHECK(!padded || targets.size(1) >= longest, "Expected tensor to have size at least ",
              longest, " at dimension 1, but got size ", padded ? targets.size(1) : 0,
              " for argument #2 'targets'", kWhile);
  for (int64_t length : input_lengths) {
    TORCH_CHECK(length >= 0, "Expected input_lengths to have value at least 0, but got value ",
                length, kWhile);
    TORCH_CHECK(length <= time, "Expected input_lengths to have value at most ", time,
                ", but got value ", length, kWhile);
  }
  // The padded width, so that one program serves batches of any lengths.
  return padded ? targets.size(1) : longest;
}

std::tuple<at::Tensor, at::Tensor> CtcLoss(const at::Tensor& log_probs, const at::Tensor& targets,
                                           c10::IntArrayRef input_lengths,
                                           c10::IntArrayRef target_lengths, int64_t blank,
                                           bool zero_infinity) {
  Settings settings{.blank = blank};
  settings.longest = Check(log_probs, targets, input_lengths, target_lengths, blank);
  const std::vector<at::Tensor> results =
      Run("_ctc_loss", &Forward, settings, input_lengths, target_lengths, {log_probs, targets}, 2);
  return {results[0], results[1]};
}

at::Tensor CtcLossBackward(const at::Tensor& grad, const at::Tensor& log_probs,
                           const at::Tensor& targets, c10::IntArrayRef input_lengths,
                           c10::IntArrayRef target_lengths, const at::Tensor& loss,
                           const at::Tensor& log_alpha, int64_t blank, bool zero_infinity) {
  Settings settings{.blank = blank, .zero_infinity = zero_infinity};
  settings.longest = Check(log_probs, targets, input_lengths, target_lengths, blank);
  return Run("_ctc_loss_backward", &Backward, settings, input_lengths, target_lengths,
             {log_probs, targets, grad, loss, log_alpha}, 1)[0];
}

// Lengths in tensors, most often on the CPU.
std::vector<int64_t> OnHost(const at::Tensor& lengths) {
  TORCH_CHECK(at::isIntegralType(lengths.scalar_type(), /*includeBool=*/false),
              "input_lengths and target_lengths must be integral");
  const at::Tensor host = lengths.to(at::kCPU, at::kLong).contiguous();
  const int64_t* data = host.const_data_ptr<int64_t>();
  return {data, data + host.numel()};
}

std::tuple<at::Tensor, at::Tensor> CtcLossOfTensors(const at::Tensor& log_probs,
                                                    const at::Tensor& targets,
                                                    const at::Tensor& input_lengths,
                                                    const at::Tensor& target_lengths, int64_t blank,
                                                    bool zero_infinity) {
  return CtcLoss(log_probs, targets, OnHost(input_lengths), OnHost(target_lengths), blank,
                 zero_infinity);
}

at::Tensor CtcLossBackwardOfTensors(const at::Tensor& grad, const at::Tensor& log_probs,
                                    const at::Tensor& targets, const at::Tensor& input_lengths,
                                    const at::Tensor& target_lengths, const at::Tensor& loss,
                                    const at::Tensor& log_alpha, int64_t blank,
                                    bool zero_infinity) {
  return CtcLossBackward(grad, log_probs, targets, OnHost(input_lengths), OnHost(target_lengths),
                         loss, log_alpha, blank, zero_infinity);
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("_ctc_loss", &Kernel<&CtcLoss>::Run);
  m.impl("_ctc_loss.Tensor", &Kernel<&CtcLossOfTensors>::Run);
  m.impl("_ctc_loss_backward", &Kernel<&CtcLossBackward>::Run);
  m.impl("_ctc_loss_backward.Tensor", &Kernel<&CtcLossBackwardOfTensors>::Run);
}

}  // namespace
}  // namespace torch_tpu::aten
