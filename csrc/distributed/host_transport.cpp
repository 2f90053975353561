#include "distributed/host_transport.h"

#include <ATen/core/ivalue.h>
#include <ATen/ops/from_blob.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <cstring>
#include <numeric>

#include "aten/storage.h"
#include "distributed/host_memory.h"
#include "distributed/reduction.h"

namespace torch_tpu::distributed {
namespace {

using c10d::OpType;
using std::chrono::milliseconds;
using std::chrono::steady_clock;

// A wait longer than this is a slow one: the rank says so in the store and looks there for others'
// failures, as often.
constexpr milliseconds kSlow{1000};
// The backend gives up this much later than the transport, which knows more to say.
constexpr milliseconds kMargin{10000};
constexpr milliseconds kForever = std::chrono::hours(24 * 365);
constexpr int kMaxTag = (1 << 30) - 1;

// The failure of another call, of this rank or another one.
class EarlierFailure : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

std::string MessageOf(const std::exception& error) {
  if (const auto* c10_error = dynamic_cast<const c10::Error*>(&error)) {
    return c10_error->what_without_backtrace();
  }
  return error.what();
}

at::Tensor BytesOf(void* data, size_t size) {
  return at::from_blob(data, {static_cast<int64_t>(size)},
                       at::TensorOptions().dtype(at::kByte).device(at::kCPU));
}

int64_t ByteCount(const std::vector<at::Tensor>& tensors) {
  int64_t size = 0;
  for (const at::Tensor& tensor : tensors) size += static_cast<int64_t>(tensor.nbytes());
  return size;
}

}  // namespace

HostTransport::HostTransport(c10::intrusive_ptr<c10d::Backend> backend,
                             c10::intrusive_ptr<c10d::Store> store, Group group)
    : backend_(std::move(backend)),
      group_(std::move(group)),
      watch_(std::move(store), group_.rank, group_.size),
      state_(std::make_shared<State>()) {
  state_->timeout = group_.timeout;
}

// --- failures

std::string HostTransport::RankName(int rank) const {
  return std::to_string(
      rank < static_cast<int>(group_.global_ranks.size()) ? group_.global_ranks[rank] : rank);
}

std::string HostTransport::RankNames(const std::vector<int>& ranks) const {
  std::string names = ranks.size() == 1 ? "rank " : "ranks ";
  for (size_t i = 0; i < ranks.size(); ++i) names += (i == 0 ? "" : ", ") + RankName(ranks[i]);
  return names;
}

std::exception_ptr HostTransport::SetFailure(const std::string& message) {
  std::exception_ptr failure;
  {
    std::lock_guard lock(state_->mutex);
    if (!state_->failure) {
      try {
        C10_THROW_ERROR(DistBackendError, message);
      } catch (...) {
        state_->failure = std::current_exception();
      }
    }
    failure = state_->failure;
  }
  state_->changed.notify_all();
  return failure;
}

void HostTransport::RaiseFailure() const {
  std::lock_guard lock(state_->mutex);
  if (state_->failure) std::rethrow_exception(state_->failure);
}

bool HostTransport::failed() const {
  std::lock_guard lock(state_->mutex);
  return state_->failure != nullptr;
}

std::exception_ptr HostTransport::Fail(const std::string& context) {
  if (failed()) {
    std::lock_guard lock(state_->mutex);
    return state_->failure;
  }
  std::string message;
  bool first = false;
  try {
    throw;
  } catch (const EarlierFailure& error) {
    message = error.what();
  } catch (const std::exception& error) {
    message = MessageOf(error);
    first = true;
  } catch (...) {
    message = "unknown error";
    first = true;
  }
  if (first) {
    // What is seen here may be but the consequence of another rank's failure: its connections are
    // closed when it gives up.
    if (auto other = watch_.Failure()) {
      message = *other;
    } else {
      watch_.Failed(message);
    }
  }
  std::exception_ptr failure = SetFailure("tpu_dist: " + context + " failed on rank " +
                                          RankName(group_.rank) + ": " + message);
  CloseConnections();
  return failure;
}

void HostTransport::CloseConnections() {
  RunElsewhere([self = shared_from_this()] {
    try {
      self->backend_->abort();
    } catch (const std::exception&) {  // the connections are gone already
    }
  });
}

template <class Function>
void HostTransport::Complete(TpuWork& work, const std::string& context, Function&& call) {
  std::exception_ptr error;
  try {
    RaiseFailure();
    call();
  } catch (...) {
    error = Fail(context);
  }
  work.Complete(error);
}

void HostTransport::Abort(const std::string& why) {
  if (failed()) return;
  watch_.Failed(why);
  SetFailure("tpu_dist: group " + group_.name + ": " + why);
  CloseConnections();
}

void HostTransport::Shutdown() {
  auto work = c10::make_intrusive<TpuWork>(group_.rank, OpType::UNKNOWN, 0, "shutdown",
                                           std::vector<at::Tensor>{}, std::vector<at::Tensor>{});
  collectives_.Push([work] { work->Complete(); });
  work->wait(kNoTimeout);
}

milliseconds HostTransport::timeout() const {
  std::lock_guard lock(state_->mutex);
  return state_->timeout;
}

void HostTransport::set_timeout(milliseconds timeout) {
  std::lock_guard lock(state_->mutex);
  state_->timeout = timeout;
}

// --- collectives

void HostTransport::Run(Collective collective, c10::intrusive_ptr<TpuWork> work) {
  if (collective.timeout.count() <= 0) collective.timeout = timeout();
  std::vector<Values> inputs;
  for (const Part& part : collective.parts) {
    Values& values = inputs.emplace_back();
    for (const at::Tensor& tensor : part.inputs) values.push_back(aten::Materialize(tensor));
  }
  collectives_.Push([self = shared_from_this(), collective = std::move(collective),
                     inputs = std::move(inputs), work = std::move(work)] {
    self->Complete(*work,
                   collective.Describe() + ", collective " + std::to_string(collective.sequence) +
                       " of group " + self->group_.name + ",",
                   [&] { self->Execute(collective, inputs); });
  });
}

void HostTransport::Execute(const Collective& collective, const std::vector<Values>& inputs) {
  const auto await = [&](const auto& work) { Await(work, collective); };
  // The envelopes travel while the inputs are computed and copied. Until this rank has its inputs
  // it waits for nobody, however long that takes.
  const Envelope mine(collective.sequence, collective.Describe());
  at::Tensor envelope = NewBytes(sizeof mine), all = NewBytes(group_.size * sizeof mine);
  std::memcpy(envelope.mutable_data_ptr(), &mine, sizeof mine);
  const auto exchanged = ByteGroup(*backend_, kForever, await, [] {}).StartAllGather(all, envelope);
  std::vector<at::Tensor> bytes;
  for (const Values& values : inputs) bytes.push_back(ReadValues(values));
  started_ = steady_clock::now();
  bool agreed = false;
  const auto agree = [&] {
    if (agreed) return;
    Await(exchanged, collective);
    CheckAgreement(all, mine);
    agreed = true;
  };
  ByteGroup group(*backend_, collective.timeout + kMargin, await, agree);
  for (size_t i = 0; i < collective.parts.size(); ++i) {
    const Part& part = collective.parts[i];
    at::Tensor result = ExecutePart(group, collective, part, bytes[i]);
    if (result.defined()) WriteTensors(result, part.outputs);
  }
  agree();  // also where there was nothing to send
}

at::Tensor HostTransport::ExecutePart(ByteGroup& group, const Collective& collective,
                                      const Part& part, const at::Tensor& bytes) {
  const int root = collective.root;
  // Blocks of zero elements are so on all ranks, unless each says what it sends.
  const bool sent_blocks = !part.sent.empty();
  const int64_t out_size = ByteCount(part.outputs);
  if (!sent_blocks && bytes.numel() == 0 && out_size == 0) return {};
  const ByteGroup::Reduction reduction{collective.reduce, part.dtype};
  switch (collective.type) {
    case OpType::BROADCAST: {
      at::Tensor result = group.Broadcast(bytes, root);
      return root == group_.rank ? at::Tensor() : result;
    }
    case OpType::ALLREDUCE:
    case OpType::ALLREDUCE_COALESCED:
      return group.AllReduce(bytes, reduction);
    case OpType::REDUCE:
      return group.Reduce(bytes, reduction, root);
    case OpType::REDUCE_SCATTER:
    case OpType::_REDUCE_SCATTER_BASE:
    case OpType::REDUCE_SCATTER_TENSOR_COALESCED:
      return group.ReduceScatter(bytes, reduction);
    case OpType::ALLGATHER:
    case OpType::_ALLGATHER_BASE:
    case OpType::ALLGATHER_COALESCED:
      return group.AllGather(bytes);
    case OpType::GATHER:
      return group.Gather(bytes, root);
    case OpType::SCATTER:
      return group.Scatter(bytes, out_size, root);
    case OpType::ALLTOALL:
    case OpType::ALLTOALL_BASE:
      return ExecuteAllToAll(group, part, bytes);
    default:
      TORCH_CHECK(false, "unknown collective");
  }
}

at::Tensor HostTransport::ExecuteAllToAll(ByteGroup& group, const Part& part,
                                          const at::Tensor& bytes) {
  // Each pair of ranks has lengths of its own to agree on.
  std::vector<int64_t> sent = part.sent;
  const std::vector<int64_t> eights(group_.size, sizeof(int64_t));
  at::Tensor offered =
      group.AllToAll(BytesOf(sent.data(), sent.size() * sizeof(int64_t)), eights, eights);
  const auto* counts = reinterpret_cast<const int64_t*>(offered.const_data_ptr<uint8_t>());
  for (int r = 0; r < group_.size; ++r) {
    TORCH_CHECK(counts[r] == part.received[r], "rank ", RankName(r), " sends ", counts[r],
                " elements to rank ", RankName(group_.rank), ", which expects ", part.received[r]);
  }
  const auto item = static_cast<int64_t>(c10::elementSize(part.dtype));
  std::vector<int64_t> received = part.received;
  for (int64_t& n : sent) n *= item;
  for (int64_t& n : received) n *= item;
  return group.AllToAll(bytes, std::move(sent), std::move(received));
}

void HostTransport::CheckAgreement(const at::Tensor& all, const Envelope& mine) {
  const auto* envelopes = reinterpret_cast<const Envelope*>(all.const_data_ptr<uint8_t>());
  const std::vector<Envelope> ranks(envelopes, envelopes + group_.size);
  if (std::all_of(ranks.begin(), ranks.end(),
                  [&](const Envelope& other) { return other.digest == mine.digest; })) {
    return;
  }
  std::string calls;
  std::vector<bool> told(ranks.size());
  for (size_t r = 0; r < ranks.size(); ++r) {
    if (told[r]) continue;
    std::vector<int> same;
    for (size_t s = r; s < ranks.size(); ++s) {
      if (ranks[s].digest != ranks[r].digest) continue;
      told[s] = true;
      same.push_back(static_cast<int>(s));
    }
    calls += (calls.empty() ? "" : "; ") + RankNames(same) + ": " + ranks[r].Text();
    if (ranks[r].sequence != mine.sequence) {
      calls += " (collective " + std::to_string(ranks[r].sequence) + ")";
    }
  }
  TORCH_CHECK(false, "the ranks call different collectives: ", calls);
}

void HostTransport::Await(const c10::intrusive_ptr<c10d::Work>& work,
                          const Collective& collective) {
  // Owned by whoever of the two needs it longer.
  struct Signal {
    bool complete = false;
  };
  auto signal = std::make_shared<Signal>();
  auto future = work->getFuture();
  future->addCallback(
      [signal, state = state_](c10::ivalue::Future&) {
        {
          std::lock_guard lock(state->mutex);
          signal->complete = true;
        }
        state->changed.notify_all();
      },
      /*uses_future=*/false);
  const auto deadline = started_ + collective.timeout;
  const milliseconds slow = std::min(kSlow, collective.timeout / 4);
  bool told = false;
  std::unique_lock lock(state_->mutex);
  while (!signal->complete) {
    if (state_->failure) std::rethrow_exception(state_->failure);
    const auto until = std::min<Deadline>(steady_clock::now() + slow, deadline);
    if (state_->changed.wait_until(
            lock, until, [&] { return signal->complete || state_->failure != nullptr; })) {
      continue;
    }
    lock.unlock();
    if (steady_clock::now() >= deadline) RaiseTimeout(collective);
    if (!told) watch_.Waits(collective.sequence, collective.Describe());
    told = true;
    if (auto failure = watch_.Failure()) throw EarlierFailure(*failure);
    lock.lock();
  }
  lock.unlock();
  if (future->hasError()) {
    try {
      std::rethrow_exception(future->exception_ptr());
    } catch (const std::exception& error) {
      TORCH_CHECK(false, "the connection to another rank broke, whose process may have ended (",
                  MessageOf(error), ")");
    }
  }
}

void HostTransport::RaiseTimeout(const Collective& collective) {
  const std::vector<int> missing = watch_.Missing(collective.sequence);
  std::string message = "timed out after " + std::to_string(collective.timeout.count()) + " ms; ";
  if (missing.empty()) {
    message += "all ranks are in this call";
  } else {
    message += RankNames(missing) + (missing.size() == 1 ? " has" : " have") + " not called it";
  }
  TORCH_CHECK(false, message);
}

// --- messages

void HostTransport::Exchange(bool send, int peer, int tag, std::string context,
                             c10::intrusive_ptr<TpuWork> work,
                             std::function<void(TpuWork&)> message) {
  TORCH_CHECK_VALUE(tag >= 0 && tag <= kMaxTag, "tpu_dist: tag must be from 0 to ", kMaxTag,
                    ", got ", tag);
  std::lock_guard lock(lanes_mutex_);
  messages_.insert(work);
  if (!watching_messages_) {
    watching_messages_ = true;
    RunElsewhere([self = shared_from_this()] { self->WatchMessages(); });
  }
  lanes_[{send, peer, tag}].Push([self = shared_from_this(), context = std::move(context), work,
                                  message = std::move(message)] {
    self->Complete(*work, context, [&] { message(*work); });
    std::lock_guard lock(self->lanes_mutex_);
    self->messages_.erase(work);
  });
}

void HostTransport::WatchMessages() {
  for (;;) {
    {
      std::unique_lock lock(state_->mutex);
      state_->changed.wait_for(lock, kSlow, [&] { return state_->failure != nullptr; });
    }
    std::set<c10::intrusive_ptr<TpuWork>> messages;
    {
      std::lock_guard lock(lanes_mutex_);
      if (messages_.empty()) {
        watching_messages_ = false;
        return;
      }
      messages = messages_;
    }
    if (!failed()) {
      auto other = watch_.Failure();
      if (!other) continue;
      SetFailure("tpu_dist: a message of group " + group_.name + " failed on rank " +
                 RankName(group_.rank) + ": " + *other);
    }
    std::exception_ptr failure;
    {
      std::lock_guard lock(state_->mutex);
      failure = state_->failure;
    }
    for (const auto& work : messages) work->Complete(failure);
    std::lock_guard lock(lanes_mutex_);
    for (const auto& work : messages) messages_.erase(work);
  }
}

void HostTransport::AwaitMessage(const c10::intrusive_ptr<c10d::Work>& work) {
  const milliseconds limit = timeout();
  try {
    work->wait(limit);
  } catch (const std::exception& error) {
    const std::string message = MessageOf(error);
    TORCH_CHECK(message.find("imed out") == std::string::npos, "timed out after ", limit.count(),
                " ms");
    TORCH_CHECK(false, "the connection to another rank broke, whose process may have ended (",
                message, ")");
  }
}

void HostTransport::Send(const at::Tensor& tensor, int peer, int tag,
                         c10::intrusive_ptr<TpuWork> work) {
  const std::string array = DescribeArray(tensor.scalar_type(), c10::str("[", tensor.numel(), "]"));
  Exchange(true, peer, tag,
           "send(" + array + ") to rank " + RankName(peer) + ", tag " + std::to_string(tag) + ",",
           std::move(work), [this, value = aten::Materialize(tensor), array, peer, tag](TpuWork&) {
             SendNow(value, array, peer, tag);
           });
}

void HostTransport::Receive(const at::Tensor& tensor, int peer, int tag,
                            c10::intrusive_ptr<TpuWork> work) {
  const std::string array = DescribeArray(tensor.scalar_type(), c10::str("[", tensor.numel(), "]"));
  const std::string from = peer < 0 ? "any rank" : "rank " + RankName(peer);
  Exchange(false, peer, tag,
           "recv(" + array + ") from " + from + ", tag " + std::to_string(tag) + ",",
           std::move(work), [this, tensor, array, peer, tag](TpuWork& received) {
             received.set_source_rank(ReceiveNow(tensor, array, peer, tag));
           });
}

// The envelope and the data are messages of different tags: the data is received only once it is
// known to fit.
void HostTransport::SendNow(const trace::ValuePtr& value, const std::string& array, int peer,
                            int tag) {
  std::vector<at::Tensor> data{ReadValues({value})};
  Envelope envelope(0, array);
  std::vector<at::Tensor> head{BytesOf(&envelope, sizeof envelope)};
  auto head_sent = backend_->send(head, peer, 2 * tag);
  if (data[0].numel() != 0) {
    auto data_sent = backend_->send(data, peer, 2 * tag + 1);
    AwaitMessage(head_sent);
    AwaitMessage(data_sent);
  } else {
    AwaitMessage(head_sent);
  }
}

int HostTransport::ReceiveNow(const at::Tensor& tensor, const std::string& array, int peer,
                              int tag) {
  Envelope envelope;
  std::vector<at::Tensor> head{BytesOf(&envelope, sizeof envelope)};
  auto received =
      peer < 0 ? backend_->recvAnysource(head, 2 * tag) : backend_->recv(head, peer, 2 * tag);
  AwaitMessage(received);
  const int source = peer < 0 ? received->sourceRank() : peer;
  TORCH_CHECK(envelope.digest == Envelope(0, array).digest, "rank ", RankName(source), " sends ",
              envelope.Text(), ", but rank ", RankName(group_.rank), " receives ", array);
  if (tensor.numel() != 0) {
    std::vector<at::Tensor> data{NewBytes(static_cast<int64_t>(tensor.nbytes()))};
    AwaitMessage(backend_->recv(data, source, 2 * tag + 1));
    WriteTensors(data[0], {tensor});
  }
  return source;
}

}  // namespace torch_tpu::distributed
