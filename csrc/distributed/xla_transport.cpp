#include "distributed/xla_transport.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <numeric>
#include <span>

#include "aten/errors.h"
#include "aten/storage.h"
#include "distributed/partitions.h"

namespace torch_tpu::distributed {
namespace {

using c10d::OpType;
using Kind = SpmdProgram::Kind;

}  // namespace

XlaTransport::XlaTransport(Group group)
    : group_(std::move(group)),
      everyone_(group_.size),
      meeting_(Meeting::Of(group_.name)),
      timeout_(group_.timeout) {
  std::iota(everyone_.begin(), everyone_.end(), 0);
}

void XlaTransport::Start(const std::string& call, std::string what, const std::vector<int>& ranks,
                         std::vector<Step> steps, c10::intrusive_ptr<TpuWork> work,
                         std::chrono::milliseconds timeout) {
  std::vector<SpmdProgram> programs;
  std::vector<std::pair<std::vector<at::Tensor>, std::vector<int64_t>>> outputs;
  Values values;
  for (Step& step : steps) {
    programs.push_back(std::move(step.program));
    outputs.emplace_back(std::move(step.outputs), std::move(step.lengths));
    values.push_back(std::move(step.input));
  }
  std::vector<int> devices;
  for (int rank : ranks) devices.push_back(group_.device_ids[rank]);
  auto together = [programs = std::move(programs),
                   devices = std::move(devices)](const std::vector<Values>& all) {
    std::vector<Values> results(all.size());
    aten::Guarded(
        [&] {
          for (size_t step = 0; step < programs.size(); ++step) {
            Values column;
            for (const Values& of_rank : all) column.push_back(of_rank[step]);
            column = RunSpmd(programs[step], devices, column);
            for (size_t i = 0; i < all.size(); ++i) results[i].push_back(std::move(column[i]));
          }
        },
        "tpu_dist");
    return results;
  };
  auto then = [outputs = std::move(outputs), work](Values results, std::exception_ptr error) {
    const c10::NoGradGuard no_grad;
    try {
      if (error) std::rethrow_exception(error);
      for (size_t i = 0; i < outputs.size(); ++i) {
        WriteTo(std::move(results[i]), outputs[i].first, outputs[i].second);
      }
      work->Complete();
    } catch (...) {
      work->Complete(std::current_exception());
    }
  };
  const auto limit = timeout.count() > 0 ? timeout : this->timeout();
  meeting_->Arrive(call, group_.one_process ? ranks : std::vector<int>{group_.rank},
                   {group_.rank, std::move(what), std::move(values), std::move(then),
                    Meeting::Clock::now() + limit},
                   together);
}

void XlaTransport::Run(Collective collective, c10::intrusive_ptr<TpuWork> work) {
  const c10::NoGradGuard no_grad;
  const std::string call = "collective " + std::to_string(collective.sequence);
  Start(call, collective.Describe(), everyone_, StepsOf(collective), std::move(work),
        collective.timeout);
}

std::vector<Step> XlaTransport::StepsOf(const Collective& collective) {
  std::vector<Step> steps;
  if (collective.type == OpType::BARRIER && !group_.one_process) {
    // What others have come to is known when something of theirs has arrived.
    const at::Tensor one = at::zeros({1}, at::TensorOptions(at::kInt).device(at::kPrivateUse1));
    Part part{.inputs = {one}, .outputs = {one}, .dtype = at::kInt};
    Collective sum{.type = OpType::ALLREDUCE, .reduce = c10d::ReduceOp::SUM};
    AppendStep(sum, part, group_.rank, group_.size, steps);
  }
  for (const Part& part : collective.parts) {
    if (collective.type == OpType::ALLTOALL || collective.type == OpType::ALLTOALL_BASE) {
      AppendAllToAll(collective, part, steps);
    } else {
      AppendStep(collective, part, group_.rank, group_.size, steps);
    }
  }
  return steps;
}

void XlaTransport::AppendAllToAll(const Collective& collective, const Part& part,
                                  std::vector<Step>& steps) {
  const at::Device device =
      part.inputs.empty() ? part.outputs[0].device() : part.inputs[0].device();
  const int64_t size = group_.size;
  // Everybody's lengths, [from, to].
  const at::Tensor mine = at::tensor(part.sent, at::kLong).to(device);
  const at::Tensor all = at::zeros({size, size}, at::TensorOptions(at::kLong).device(device));
  uint64_t number;
  {
    std::lock_guard lock(mutex_);
    number = exchanges_++;
  }
  auto exchange =
      c10::make_intrusive<TpuWork>(group_.rank, OpType::ALLGATHER, 0, "the lengths of all_to_all",
                                   std::vector{mine}, std::vector{all});
  std::vector<Step> lengths;
  AppendStep({.type = OpType::ALLGATHER}, {.inputs = {mine}, .outputs = {all}}, group_.rank,
             group_.size, lengths);
  Start("lengths " + std::to_string(number), collective.Describe(), everyone_, std::move(lengths),
        exchange, collective.timeout);
  exchange->wait();
  const at::Tensor host = all.cpu();
  const std::span<const int64_t> counts(host.const_data_ptr<int64_t>(), size * size);
  for (int64_t r = 0; r < size; ++r) {
    const int64_t offered = counts[r * size + group_.rank];
    TORCH_CHECK(offered == part.received[r], "tpu_dist: rank ", r, " sends ", offered,
                " elements to rank ", group_.rank, ", which expects ", part.received[r]);
  }
  const int64_t longest = *std::ranges::max_element(counts);
  if (longest == 0) return;
  const at::Tensor flat = part.inputs.empty() ? at::zeros({0}, part.outputs[0].options())
                                              : Joined(part.inputs).reshape(-1);
  std::vector<at::Tensor> blocks;
  int64_t offset = 0;
  for (int64_t length : part.sent) {
    blocks.push_back(at::constant_pad_nd(flat.narrow(0, offset, length), {0, longest - length}));
    offset += length;
  }
  Step step;
  step.program = {.kind = Kind::kAllToAll, .size = group_.size};
  const at::Tensor input = at::cat(blocks);
  step.program.input = step.program.output = *aten::LogicalType(input);
  step.input = aten::Materialize(input);
  step.outputs = part.outputs;
  if (std::ranges::any_of(part.received, [&](int64_t n) { return n != longest; })) {
    step.lengths = part.received;
  }
  steps.push_back(std::move(step));
}

void XlaTransport::Message(bool send, const at::Tensor& tensor, int peer, int tag,
                           c10::intrusive_ptr<TpuWork> work) {
  const c10::NoGradGuard no_grad;
  const int from = send ? group_.rank : peer, to = send ? peer : group_.rank;
  uint64_t number;
  {
    std::lock_guard lock(mutex_);
    number = (send ? sent_ : received_)[{peer, tag}]++;
  }
  if (tensor.numel() == 0) {
    work->Complete();
    return;
  }
  Step step;
  step.program = {.kind = Kind::kSend, .size = 2};
  step.program.input = step.program.output = *aten::LogicalType(tensor);
  // Who receives brings what the tensor holds now, which the program does not look at.
  step.input = aten::Materialize(tensor);
  if (!send) step.outputs = {tensor};
  const std::string call = c10::str("message ", from, " ", to, " ", tag, " ", number);
  const std::string what =
      c10::str("send/recv(", DescribeArray(tensor.scalar_type(), ShapeOf(tensor)), ", from rank ",
               from, " to rank ", to, ")");
  std::vector<Step> steps;
  steps.push_back(std::move(step));
  Start(call, what, {from, to}, std::move(steps), std::move(work), timeout());
}

void XlaTransport::Send(const at::Tensor& tensor, int peer, int tag,
                        c10::intrusive_ptr<TpuWork> work) {
  RaiseFailure();
  Message(true, tensor, peer, tag, std::move(work));
}

void XlaTransport::Receive(const at::Tensor& tensor, int peer, int tag,
                           c10::intrusive_ptr<TpuWork> work) {
  RaiseFailure();
  TORCH_CHECK_NOT_IMPLEMENTED(peer >= 0,
                              "tpu_dist: recv() from any rank needs the transport by way of the "
                              "host (TORCH_TPU_TRANSPORT=host); name the rank");
  work->set_source_rank(peer);
  Message(false, tensor, peer, tag, std::move(work));
}

void XlaTransport::set_timeout(std::chrono::milliseconds timeout) {
  std::lock_guard lock(mutex_);
  timeout_ = timeout;
}

std::chrono::milliseconds XlaTransport::timeout() const {
  std::lock_guard lock(mutex_);
  return timeout_;
}

void XlaTransport::RaiseFailure() const {
  if (const std::exception_ptr failure = meeting_->failure()) std::rethrow_exception(failure);
}

void XlaTransport::Abort(const std::string& why) {
  meeting_->Fail(std::make_exception_ptr(C10_BUILD_ERROR(DistBackendError, "tpu_dist: " + why)));
}

}  // namespace torch_tpu::distributed
