#include "distributed/process_group.h"

#include <ATen/ops/mul.h>
#include <c10/core/GradMode.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <numeric>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include "distributed/described_transport.h"
#include "distributed/host_transport.h"
#include "distributed/reach.h"
#include "distributed/recording.h"
#include "distributed/reduction.h"
#include "distributed/xla_transport.h"
#include "trace/trace.h"

namespace torch_tpu::distributed {
namespace {

using c10d::OpType;
using std::chrono::milliseconds;

void CheckTensor(const at::Tensor& tensor) {
  TORCH_CHECK_VALUE(
      tensor.defined() && tensor.device().is_privateuseone() && tensor.layout() == at::kStrided,
      "tpu_dist: needs dense tensors on tpu, got ",
      tensor.defined() ? c10::str(tensor.layout(), " on ", tensor.device())
                       : std::string("an undefined tensor"));
}

// All of one dtype, which it returns.
c10::ScalarType CheckTensors(const std::vector<at::Tensor>& tensors, c10::ScalarType dtype) {
  for (const at::Tensor& tensor : tensors) {
    CheckTensor(tensor);
    if (dtype == c10::ScalarType::Undefined) dtype = tensor.scalar_type();
    TORCH_CHECK_TYPE(tensor.scalar_type() == dtype,
                     "tpu_dist: tensors of one call need one dtype, ", "got ", c10::toString(dtype),
                     " and ", c10::toString(tensor.scalar_type()));
  }
  return dtype;
}

template <class T>
const T& Only(const std::vector<T>& list, const char* what) {
  TORCH_CHECK_VALUE(list.size() == 1, "tpu_dist: needs one ", what, " a rank, got ", list.size());
  return list[0];
}

Part MakePart(std::vector<at::Tensor> inputs, std::vector<at::Tensor> outputs,
              const at::Tensor& block) {
  Part part;
  part.dtype = CheckTensors(outputs, CheckTensors(inputs, c10::ScalarType::Undefined));
  part.inputs = std::move(inputs);
  part.outputs = std::move(outputs);
  part.shapes = ShapeOf(block);
  return part;
}

// `whole` are blocks of as many elements as `block`, one for each rank.
void CheckBlocks(const std::vector<at::Tensor>& whole, const at::Tensor& block, int size,
                 const char* what) {
  TORCH_CHECK_VALUE(Count(whole) == block.numel() * size, "tpu_dist: ", what, " needs ",
                    block.numel() * size, " elements, ", size, " times ", block.sizes(), ", got ",
                    Count(whole));
}

void CheckList(const std::vector<at::Tensor>& list, const at::Tensor& block, int size,
               const char* what) {
  TORCH_CHECK_VALUE(static_cast<int>(list.size()) == size, "tpu_dist: the list of ", what,
                    " needs a tensor for each of ", size, " ranks, got ", list.size());
  for (const at::Tensor& tensor : list) {
    TORCH_CHECK_VALUE(tensor.numel() == block.numel(), "tpu_dist: ", what,
                      " of different sizes in one call are not supported: ", tensor.sizes(),
                      " and ", block.sizes());
  }
}

// The same elements in a tensor that Python does not know. Other threads let go of it without the
// GIL, for which they must not ask while the interpreter ends.
at::Tensor WithoutPython(const at::Tensor& tensor) {
  c10::TensorImpl* impl = tensor.unsafeGetTensorImpl();
  return at::Tensor(impl->shallow_copy_and_detach(impl->version_counter(),
                                                  /*allow_tensor_metadata_change=*/true));
}

// PREMUL_SUM is a sum of products that each rank makes itself.
std::vector<at::Tensor> Premultiplied(const c10d::ReduceOp& op,
                                      const std::vector<at::Tensor>& tensors) {
  if (op.op_ != c10d::ReduceOp::PREMUL_SUM) return tensors;
  const auto* supplement = static_cast<const c10d::PreMulSumSupplement*>(op.supplement_.get());
  TORCH_CHECK_VALUE(supplement != nullptr, "tpu_dist: PREMUL_SUM needs its factor");
  const c10::NoGradGuard no_grad;
  std::vector<at::Tensor> products;
  for (const at::Tensor& tensor : tensors) {
    at::Tensor product;
    if (supplement->tensor_factor.defined()) {
      product = at::mul(tensor, supplement->tensor_factor.to(tensor.device()).reshape({}));
    } else if (c10::isIntegralType(tensor.scalar_type(), /*includeBool=*/true)) {
      product = at::mul(tensor, static_cast<int64_t>(supplement->double_factor));
    } else {
      product = at::mul(tensor, supplement->double_factor);
    }
    products.push_back(product.to(tensor.scalar_type()));
  }
  return products;
}

}  // namespace

ProcessGroup::ProcessGroup(c10::intrusive_ptr<c10d::Store> store, int rank, int size,
                           c10::intrusive_ptr<GroupOptions> options, HostBackendFactory factory,
                           bool is_world, bool described)
    : Backend(rank, size),
      store_(std::move(store)),
      options_(std::move(options)),
      factory_(std::move(factory)),
      described_(described) {
  init();
  if (described) {
    std::vector<int> ids(size);
    std::iota(ids.begin(), ids.end(), 0);
    Enter({.name = "described", .device_ids = std::move(ids), .described = true}, is_world);
    if (size > 1) transport_ = std::make_shared<DescribedTransport>(rank, size);
    return;
  }
  if (size == 1) return;
  if (auto reach = FindReach(*store_, rank, size)) {
    Enter({.name = reach->name, .device_ids = reach->device_ids, .one_process = reach->one_process},
          is_world);
    transport_ = std::make_shared<XlaTransport>(
        XlaTransport::Group{.name = std::move(reach->name),
                            .rank = rank,
                            .size = size,
                            .device_ids = std::move(reach->device_ids),
                            .one_process = reach->one_process,
                            .timeout = options_->timeout});
    return;
  }
  HostTransport::Group group{options_->group_name, rank, size, {}, options_->timeout};
  group.global_ranks.assign(options_->global_ranks_in_group.begin(),
                            options_->global_ranks_in_group.end());
  auto host = factory_(c10::make_intrusive<c10d::PrefixStore>("host", store_), rank, size,
                       options_->timeout);
  transport_ = std::make_shared<HostTransport>(std::move(host), store_, std::move(group));
}

void ProcessGroup::Enter(World own, bool is_world) {
  if (!is_world) {
    world_ = World::Current();
    return;
  }
  own.timeout = options_->timeout;
  World::SetCurrent(world_ = std::make_shared<World>(std::move(own)));
}

void ProcessGroup::setTimeout(milliseconds timeout) {
  options_->timeout = timeout;
  if (transport_) transport_->set_timeout(timeout);
}

uint64_t ProcessGroup::getSequenceNumberForGroup() {
  std::lock_guard lock(mutex_);
  return sequence_;
}

c10d::ErrorType ProcessGroup::getError() {
  if (!transport_) return c10d::ErrorType::SUCCESS;
  try {
    transport_->RaiseFailure();
    return c10d::ErrorType::SUCCESS;
  } catch (const std::exception& error) {
    return std::string(error.what()).find("timed out") != std::string::npos
               ? c10d::ErrorType::TIMEOUT
               : c10d::ErrorType::COMM_ERROR;
  }
}

void ProcessGroup::abort() {
  if (transport_) transport_->Abort("the process group was aborted");
}

void ProcessGroup::shutdown() {
  if (transport_) transport_->Shutdown();
}

c10::intrusive_ptr<c10d::Backend> ProcessGroup::split(const c10::intrusive_ptr<c10d::Store>& store,
                                                      const std::vector<int>& ranks,
                                                      const c10::intrusive_ptr<Options>& options) {
  const auto mine = std::find(ranks.begin(), ranks.end(), rank_);
  if (mine == ranks.end()) return nullptr;
  // PyTorch's names of such groups, and with them the given store's prefix, depend on how many
  // groups a process is in: ranks may differ in that. In how often they have split off just these
  // ranks they do not.
  std::string prefix = "split";
  for (int rank : ranks) prefix += "_" + std::to_string(rank);
  {
    std::lock_guard lock(mutex_);
    prefix += "/" + std::to_string(splits_[ranks]++);
  }
  auto own = c10::make_intrusive<GroupOptions>(options->timeout);
  own->group_name = options->group_name;
  own->group_desc = options->group_desc;
  for (int rank : ranks) own->global_ranks_in_group.push_back(GlobalRank(rank));
  return c10::make_intrusive<ProcessGroup>(c10::make_intrusive<c10d::PrefixStore>(prefix, store_),
                                           static_cast<int>(mine - ranks.begin()),
                                           static_cast<int>(ranks.size()), std::move(own), factory_,
                                           /*is_world=*/false, described_);
}

int ProcessGroup::GlobalRank(int rank) const {
  const auto& global = options_->global_ranks_in_group;
  return global.empty() ? rank : static_cast<int>(global[rank]);
}

// --- starting

c10::intrusive_ptr<TpuWork> ProcessGroup::NewWork(OpType type, uint64_t sequence,
                                                  std::string description, const Tensors& inputs,
                                                  const Tensors& outputs) {
  auto work =
      c10::make_intrusive<TpuWork>(rank_, type, sequence, std::move(description), inputs, outputs);
  std::lock_guard lock(mutex_);
  if (coalescing_) coalesced_.push_back(work);
  return work;
}

void ProcessGroup::CopyParts(const Collective& collective) {
  const c10::NoGradGuard no_grad;
  for (const Part& part : collective.parts) {
    TORCH_INTERNAL_ASSERT(part.inputs.size() == part.outputs.size());
    for (size_t i = 0; i < part.inputs.size(); ++i) {
      const at::Tensor& input = part.inputs[i];
      const at::Tensor& output = part.outputs[i];
      if (!input.is_same(output)) output.copy_(input.reshape(output.sizes()));
    }
  }
}

ProcessGroup::WorkPtr ProcessGroup::Record(const Collective& collective) {
  const c10::NoGradGuard no_grad;
  std::vector<int> group;
  for (int rank = 0; rank < size_; ++rank) group.push_back(GlobalRank(rank));
  RecordCollective(collective, group, rank_, world_);
  Tensors outputs;
  for (const Part& part : collective.parts) {
    outputs.insert(outputs.end(), part.outputs.begin(), part.outputs.end());
  }
  auto work = NewWork(collective.type, 0, CallName(collective.type), {}, outputs);
  work->Complete();
  return work;
}

ProcessGroup::WorkPtr ProcessGroup::Start(Collective collective) {
  if (transport_ && trace::Trace::Current() != nullptr) return Record(collective);
  if (transport_) transport_->RaiseFailure();
  {
    std::lock_guard lock(mutex_);
    collective.sequence = ++sequence_;
  }
  Tensors inputs, outputs;
  for (Part& part : collective.parts) {
    if (transport_) {
      for (at::Tensor& tensor : part.inputs) tensor = WithoutPython(tensor);
      for (at::Tensor& tensor : part.outputs) tensor = WithoutPython(tensor);
    }
    inputs.insert(inputs.end(), part.inputs.begin(), part.inputs.end());
    outputs.insert(outputs.end(), part.outputs.begin(), part.outputs.end());
  }
  auto work = NewWork(collective.type, collective.sequence, collective.Describe(), inputs, outputs);
  if (transport_) {
    transport_->Run(std::move(collective), work);
  } else {
    CopyParts(collective);
    work->Complete();
  }
  return work;
}

void ProcessGroup::startCoalescing() {
  std::lock_guard lock(mutex_);
  coalescing_ = true;
}

ProcessGroup::WorkPtr ProcessGroup::endCoalescing() {
  std::vector<c10::intrusive_ptr<TpuWork>> works;
  {
    std::lock_guard lock(mutex_);
    coalescing_ = false;
    works.swap(coalesced_);
  }
  Tensors outputs;
  for (const auto& work : works) {
    const Tensors some = work->result();
    outputs.insert(outputs.end(), some.begin(), some.end());
  }
  auto all = c10::make_intrusive<TpuWork>(rank_, OpType::COALESCED, getSequenceNumberForGroup(),
                                          "coalesced calls", Tensors{}, std::move(outputs));
  // The last one completes it; the first failure is told.
  struct Remaining {
    std::mutex mutex;
    size_t count;
    std::exception_ptr error;
  };
  auto remaining = std::make_shared<Remaining>();
  remaining->count = works.size() + 1;
  const auto finish = [all, remaining](const std::exception_ptr& error) {
    std::exception_ptr first;
    {
      std::lock_guard lock(remaining->mutex);
      if (!remaining->error) remaining->error = error;
      if (--remaining->count != 0) return;
      first = remaining->error;
    }
    all->Complete(first);
  };
  for (const auto& work : works) work->WhenComplete(finish);
  finish(nullptr);
  return all;
}

// --- collectives

ProcessGroup::WorkPtr ProcessGroup::broadcast(Tensors& tensors,
                                              const c10d::BroadcastOptions& options) {
  const at::Tensor& tensor = Only(tensors, "tensor");
  Collective collective{.type = OpType::BROADCAST, .timeout = options.timeout};
  collective.root = static_cast<int>(options.rootRank);
  collective.parts = {MakePart({tensor}, {tensor}, tensor)};
  return Start(std::move(collective));
}

ProcessGroup::WorkPtr ProcessGroup::AllReduce(OpType type, const Tensors& tensors,
                                              const c10d::ReduceOp& op, milliseconds timeout) {
  Collective collective{.type = type, .reduce = op.op_, .timeout = timeout};
  // One part for each dtype: tensors of one travel together.
  for (const at::Tensor& tensor : tensors) {
    CheckTensor(tensor);
    CheckReducible(op, tensor.scalar_type());
    auto part = std::find_if(collective.parts.begin(), collective.parts.end(),
                             [&](const Part& p) { return p.dtype == tensor.scalar_type(); });
    if (part == collective.parts.end()) {
      part = collective.parts.insert(part, Part{.dtype = tensor.scalar_type()});
    }
    part->inputs.push_back(Premultiplied(op, {tensor})[0]);
    part->outputs.push_back(tensor);
    part->shapes += ShapeOf(tensor);
  }
  return Start(std::move(collective));
}

ProcessGroup::WorkPtr ProcessGroup::allreduce(Tensors& tensors,
                                              const c10d::AllreduceOptions& options) {
  Only(tensors, "tensor");
  return AllReduce(OpType::ALLREDUCE, tensors, options.reduceOp, options.timeout);
}

ProcessGroup::WorkPtr ProcessGroup::allreduce_coalesced(
    Tensors& tensors, const c10d::AllreduceCoalescedOptions& options) {
  return AllReduce(OpType::ALLREDUCE_COALESCED, tensors, options.reduceOp, options.timeout);
}

ProcessGroup::WorkPtr ProcessGroup::reduce(Tensors& tensors, const c10d::ReduceOptions& options) {
  const at::Tensor& tensor = Only(tensors, "tensor");
  CheckTensor(tensor);
  CheckReducible(options.reduceOp, tensor.scalar_type());
  Collective collective{
      .type = OpType::REDUCE, .reduce = options.reduceOp.op_, .timeout = options.timeout};
  collective.root = static_cast<int>(options.rootRank);
  collective.parts = {MakePart(Premultiplied(options.reduceOp, {tensor}), {tensor}, tensor)};
  return Start(std::move(collective));
}

ProcessGroup::WorkPtr ProcessGroup::allgather(Lists& outputs, Tensors& inputs,
                                              const c10d::AllgatherOptions& options) {
  const at::Tensor& input = Only(inputs, "input tensor");
  const Tensors& output = Only(outputs, "list of output tensors");
  CheckList(output, input, size_, "outputs");
  Collective collective{.type = OpType::ALLGATHER, .timeout = options.timeout};
  collective.parts = {MakePart({input}, output, input)};
  return Start(std::move(collective));
}

ProcessGroup::WorkPtr ProcessGroup::allgather_coalesced(Lists& outputs, Tensors& inputs,
                                                        const c10d::AllgatherOptions& options) {
  Collective collective{.type = OpType::ALLGATHER_COALESCED, .timeout = options.timeout};
  for (size_t i = 0; i < inputs.size(); ++i) {
    Tensors output;
    for (const Tensors& of_rank : outputs) {
      TORCH_CHECK_VALUE(of_rank.size() == inputs.size(),
                        "tpu_dist: each list of outputs needs one for each of ", inputs.size(),
                        " inputs, got ", of_rank.size());
      output.push_back(of_rank[i]);
    }
    CheckList(output, inputs[i], size_, "outputs");
    collective.parts.push_back(MakePart({inputs[i]}, output, inputs[i]));
  }
  return Start(std::move(collective));
}

ProcessGroup::WorkPtr ProcessGroup::AllGatherBase(OpType type, const Tensors& outputs,
                                                  const Tensors& inputs, milliseconds timeout) {
  TORCH_CHECK_VALUE(outputs.size() == inputs.size(), "tpu_dist: as many outputs as inputs are ",
                    "needed, got ", outputs.size(), " and ", inputs.size());
  Collective collective{.type = type, .timeout = timeout};
  for (size_t i = 0; i < inputs.size(); ++i) {
    CheckBlocks({outputs[i]}, inputs[i], size_, "the output");
    collective.parts.push_back(MakePart({inputs[i]}, {outputs[i]}, inputs[i]));
  }
  return Start(std::move(collective));
}

ProcessGroup::WorkPtr ProcessGroup::_allgather_base(at::Tensor& output, at::Tensor& input,
                                                    const c10d::AllgatherOptions& options) {
  return AllGatherBase(OpType::_ALLGATHER_BASE, {output}, {input}, options.timeout);
}

ProcessGroup::WorkPtr ProcessGroup::allgather_into_tensor_coalesced(
    Tensors& outputs, Tensors& inputs, const c10d::AllgatherOptions& options) {
  return AllGatherBase(OpType::ALLGATHER_COALESCED, outputs, inputs, options.timeout);
}

ProcessGroup::WorkPtr ProcessGroup::gather(Lists& outputs, Tensors& inputs,
                                           const c10d::GatherOptions& options) {
  const at::Tensor& input = Only(inputs, "input tensor");
  Collective collective{.type = OpType::GATHER, .timeout = options.timeout};
  collective.root = static_cast<int>(options.rootRank);
  Tensors output;
  if (rank_ == collective.root) {
    output = Only(outputs, "list of output tensors");
    CheckList(output, input, size_, "outputs");
  } else {
    TORCH_CHECK_VALUE(outputs.empty(), "tpu_dist: only the root of gather has outputs");
  }
  collective.parts = {MakePart({input}, output, input)};
  return Start(std::move(collective));
}

ProcessGroup::WorkPtr ProcessGroup::scatter(Tensors& outputs, Lists& inputs,
                                            const c10d::ScatterOptions& options) {
  const at::Tensor& output = Only(outputs, "output tensor");
  Collective collective{.type = OpType::SCATTER, .timeout = options.timeout};
  collective.root = static_cast<int>(options.rootRank);
  Tensors input;
  if (rank_ == collective.root) {
    input = Only(inputs, "list of input tensors");
    CheckList(input, output, size_, "inputs");
  } else {
    TORCH_CHECK_VALUE(inputs.empty(), "tpu_dist: only the root of scatter has inputs");
  }
  collective.parts = {MakePart(input, {output}, output)};
  return Start(std::move(collective));
}

ProcessGroup::WorkPtr ProcessGroup::reduce_scatter(Tensors& outputs, Lists& inputs,
                                                   const c10d::ReduceScatterOptions& options) {
  const at::Tensor& output = Only(outputs, "output tensor");
  const Tensors& input = Only(inputs, "list of input tensors");
  CheckList(input, output, size_, "inputs");
  CheckReducible(options.reduceOp, output.scalar_type());
  Collective collective{
      .type = OpType::REDUCE_SCATTER, .reduce = options.reduceOp.op_, .timeout = options.timeout};
  CheckTensors(input, output.scalar_type());
  collective.parts = {MakePart(Premultiplied(options.reduceOp, input), {output}, output)};
  return Start(std::move(collective));
}

ProcessGroup::WorkPtr ProcessGroup::ReduceScatterBase(OpType type, const Tensors& outputs,
                                                      const Tensors& inputs,
                                                      const c10d::ReduceOp& op,
                                                      milliseconds timeout) {
  TORCH_CHECK_VALUE(outputs.size() == inputs.size(), "tpu_dist: as many outputs as inputs are ",
                    "needed, got ", outputs.size(), " and ", inputs.size());
  Collective collective{.type = type, .reduce = op.op_, .timeout = timeout};
  for (size_t i = 0; i < inputs.size(); ++i) {
    CheckReducible(op, inputs[i].scalar_type());
    CheckBlocks({inputs[i]}, outputs[i], size_, "the input");
    CheckTensor(inputs[i]);
    collective.parts.push_back(MakePart(Premultiplied(op, {inputs[i]}), {outputs[i]}, outputs[i]));
  }
  return Start(std::move(collective));
}

ProcessGroup::WorkPtr ProcessGroup::_reduce_scatter_base(
    at::Tensor& output, at::Tensor& input, const c10d::ReduceScatterOptions& options) {
  return ReduceScatterBase(OpType::_REDUCE_SCATTER_BASE, {output}, {input}, options.reduceOp,
                           options.timeout);
}

ProcessGroup::WorkPtr ProcessGroup::reduce_scatter_tensor_coalesced(
    Tensors& outputs, Tensors& inputs, const c10d::ReduceScatterOptions& options) {
  return ReduceScatterBase(OpType::REDUCE_SCATTER_TENSOR_COALESCED, outputs, inputs,
                           options.reduceOp, options.timeout);
}

ProcessGroup::WorkPtr ProcessGroup::alltoall(Tensors& outputs, Tensors& inputs,
                                             const c10d::AllToAllOptions& options) {
  TORCH_CHECK_VALUE(
      static_cast<int>(inputs.size()) == size_ && static_cast<int>(outputs.size()) == size_,
      "tpu_dist: all_to_all needs an input and an output for each of ", size_, " ranks, got ",
      inputs.size(), " and ", outputs.size());
  Collective collective{.type = OpType::ALLTOALL, .timeout = options.timeout};
  Part part;
  part.dtype = CheckTensors(outputs, CheckTensors(inputs, c10::ScalarType::Undefined));
  for (const at::Tensor& tensor : inputs) part.sent.push_back(tensor.numel());
  for (const at::Tensor& tensor : outputs) part.received.push_back(tensor.numel());
  part.inputs = inputs;
  part.outputs = outputs;
  collective.parts.push_back(std::move(part));
  return Start(std::move(collective));
}

ProcessGroup::WorkPtr ProcessGroup::alltoall_base(at::Tensor& output, at::Tensor& input,
                                                  std::vector<int64_t>& received,
                                                  std::vector<int64_t>& sent,
                                                  const c10d::AllToAllOptions& options) {
  // Lengths along the first dimension, in elements; empty: equal ones.
  const auto counts = [this](const at::Tensor& tensor, const std::vector<int64_t>& splits,
                             const char* what) {
    if (splits.empty()) {
      TORCH_CHECK_VALUE(tensor.numel() % size_ == 0, "tpu_dist: the ", what, " of ", tensor.sizes(),
                        " does not divide into ", size_, " equal parts");
      return std::vector<int64_t>(size_, tensor.numel() / size_);
    }
    const int64_t rows = tensor.dim() == 0 ? 1 : tensor.size(0);
    TORCH_CHECK_VALUE(static_cast<int>(splits.size()) == size_, "tpu_dist: ", size_,
                      " split sizes of the ", what, " are needed, got ", splits.size());
    TORCH_CHECK_VALUE(std::accumulate(splits.begin(), splits.end(), int64_t{0}) == rows,
                      "tpu_dist: the split sizes of the ", what, " do not add up to ", rows);
    std::vector<int64_t> elements;
    for (int64_t n : splits) elements.push_back(rows == 0 ? 0 : n * (tensor.numel() / rows));
    return elements;
  };
  Collective collective{.type = OpType::ALLTOALL_BASE, .timeout = options.timeout};
  Part part;
  part.dtype = CheckTensors({output}, CheckTensors({input}, c10::ScalarType::Undefined));
  part.sent = counts(input, sent, "input");
  part.received = counts(output, received, "output");
  part.inputs = {input};
  part.outputs = {output};
  collective.parts.push_back(std::move(part));
  return Start(std::move(collective));
}

ProcessGroup::WorkPtr ProcessGroup::barrier(const c10d::BarrierOptions& options) {
  return Start({.type = OpType::BARRIER, .timeout = options.timeout});
}

void ProcessGroup::monitoredBarrier(const c10d::BarrierOptions& options, bool) {
  barrier(options)->wait();
}

// --- messages

ProcessGroup::WorkPtr ProcessGroup::Message(OpType type, const Tensors& tensors, int peer,
                                            int tag) {
  CheckTensor(Only(tensors, "tensor"));
  const at::Tensor tensor = WithoutPython(tensors[0]);
  TORCH_CHECK_VALUE(transport_ != nullptr && peer != rank_ && peer < size_, "tpu_dist: rank ",
                    rank_, " of ", size_, " cannot exchange messages with rank ", peer);
  if (trace::Trace::Current() != nullptr) {
    trace::Trace::Abort(std::string(CallName(type)) + " is another program on each rank");
  }
  transport_->RaiseFailure();
  const bool sends = type == OpType::SEND;
  auto work = NewWork(type, getSequenceNumberForGroup(),
                      std::string(CallName(type)) + "(" +
                          DescribeArray(tensor.scalar_type(), ShapeOf(tensor)) + ")",
                      {tensor}, sends ? Tensors{} : Tensors{tensor});
  if (sends) {
    transport_->Send(tensor, peer, tag, work);
  } else {
    transport_->Receive(tensor, peer, tag, work);
  }
  return work;
}

ProcessGroup::WorkPtr ProcessGroup::send(Tensors& tensors, int peer, int tag) {
  return Message(OpType::SEND, tensors, peer, tag);
}

ProcessGroup::WorkPtr ProcessGroup::recv(Tensors& tensors, int peer, int tag) {
  return Message(OpType::RECV, tensors, peer, tag);
}

ProcessGroup::WorkPtr ProcessGroup::recvAnysource(Tensors& tensors, int tag) {
  return Message(OpType::RECVANYSOURCE, tensors, -1, tag);
}

}  // namespace torch_tpu::distributed
