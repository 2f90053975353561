#include "distributed/byte_group.h"

#include <algorithm>
#include <cstring>

#include "distributed/host_memory.h"
#include "distributed/reduction.h"

namespace torch_tpu::distributed {
namespace {

// Up to this size everyone gets everything and reduces it alone: one exchange instead of two.
constexpr int64_t kSmallBytes = 32 << 10;
// Larger arrays are exchanged in chunks, so that one is reduced while the next is on its way, and
// what was received is still in the cache.
constexpr int64_t kChunkBytes = 4 << 20;
constexpr int64_t kChunksAhead = 2;
constexpr int kFewRanks = 8;

int64_t CeilDivide(int64_t a, int64_t b) { return (a + b - 1) / b; }

// `count` pieces of `stride` bytes each.
std::vector<const void*> Pieces(const at::Tensor& bytes, int count, int64_t stride) {
  const auto* begin = bytes.const_data_ptr<uint8_t>();
  std::vector<const void*> pieces;
  for (int i = 0; i < count; ++i) pieces.push_back(begin + i * stride);
  return pieces;
}

// Gloo's sums of these are what is wanted: the same on all ranks, in the elements' own precision.
// Its minima lose NaN.
bool BackendAdds(ByteGroup::Reduction reduction) {
  using c10::ScalarType;
  const bool dtype = reduction.dtype == ScalarType::Float ||
                     reduction.dtype == ScalarType::Double || reduction.dtype == ScalarType::Int ||
                     reduction.dtype == ScalarType::Long;
  return dtype &&
         (reduction.op == c10d::ReduceOp::SUM || reduction.op == c10d::ReduceOp::PREMUL_SUM);
}

}  // namespace

// Gloo's all-to-all sends and receives everything at once, its all-gather goes round step by step:
// measured with two ranks and 2 MiB, 2.3 against 10 ms. The copies cost little while they are few.
ByteGroup::Work ByteGroup::StartAllGather(at::Tensor into, const at::Tensor& bytes) {
  if (size_ <= kFewRanks) {
    const std::vector<int64_t> blocks(size_, bytes.numel());
    return StartAllToAll(std::move(into), bytes.repeat({size_}), blocks, blocks);
  }
  c10d::AllgatherOptions options;
  options.timeout = timeout_;
  at::Tensor input = bytes;
  permit_();
  return backend_._allgather_base(into, input, options);
}

ByteGroup::Work ByteGroup::StartGather(const at::Tensor& into, at::Tensor bytes, int root) {
  c10d::GatherOptions options;
  options.rootRank = root;
  options.timeout = timeout_;
  std::vector<at::Tensor> inputs{bytes};
  std::vector<std::vector<at::Tensor>> outputs;
  if (rank_ == root) {
    auto& list = outputs.emplace_back();
    for (int r = 0; r < size_; ++r) {
      list.push_back(into.narrow(0, r * bytes.numel(), bytes.numel()));
    }
  }
  permit_();
  return backend_.gather(outputs, inputs, options);
}

ByteGroup::Work ByteGroup::StartAllToAll(at::Tensor into, at::Tensor bytes,
                                         std::vector<int64_t> sent, std::vector<int64_t> received) {
  c10d::AllToAllOptions options;
  options.timeout = timeout_;
  permit_();
  return backend_.alltoall_base(into, bytes, received, sent, options);
}

at::Tensor ByteGroup::Broadcast(const at::Tensor& bytes, int root) {
  c10d::BroadcastOptions options;
  options.rootRank = root;
  options.timeout = timeout_;
  std::vector<at::Tensor> tensors{rank_ == root ? bytes : NewBytes(bytes.numel())};
  permit_();
  await_(backend_.broadcast(tensors, options));
  return tensors[0];
}

at::Tensor ByteGroup::AllGather(const at::Tensor& bytes) {
  at::Tensor all = NewBytes(bytes.numel() * size_);
  await_(StartAllGather(all, bytes));
  return all;
}

at::Tensor ByteGroup::Gather(const at::Tensor& bytes, int root) {
  at::Tensor all;
  if (rank_ == root) all = NewBytes(bytes.numel() * size_);
  await_(StartGather(all, bytes, root));
  return all;
}

at::Tensor ByteGroup::Scatter(const at::Tensor& bytes, int64_t size, int root) {
  c10d::ScatterOptions options;
  options.rootRank = root;
  options.timeout = timeout_;
  std::vector<at::Tensor> outputs{NewBytes(size)};
  std::vector<std::vector<at::Tensor>> inputs;
  if (rank_ == root) {
    auto& list = inputs.emplace_back();
    for (int r = 0; r < size_; ++r) list.push_back(bytes.narrow(0, r * size, size));
  }
  permit_();
  await_(backend_.scatter(outputs, inputs, options));
  return outputs[0];
}

at::Tensor ByteGroup::AllToAll(const at::Tensor& bytes, std::vector<int64_t> sent,
                               std::vector<int64_t> received) {
  int64_t size = 0;
  for (int64_t length : received) size += length;
  at::Tensor all = NewBytes(size);
  await_(StartAllToAll(all, bytes, std::move(sent), std::move(received)));
  return all;
}

at::Tensor ByteGroup::AllReduce(const at::Tensor& bytes, Reduction reduction) {
  return ReduceTo(bytes, reduction, -1);
}

at::Tensor ByteGroup::Reduce(const at::Tensor& bytes, Reduction reduction, int root) {
  return ReduceTo(bytes, reduction, root);
}

at::Tensor ByteGroup::ReduceTo(const at::Tensor& bytes, Reduction reduction, int root) {
  const int64_t size = bytes.numel();
  if (size > kSmallBytes) {
    return root < 0 && BackendAdds(reduction) ? AllReduceByBackend(bytes, reduction)
                                              : ReduceChunked(bytes, reduction, root);
  }
  at::Tensor all = root < 0 ? AllGather(bytes) : Gather(bytes, root);
  if (!all.defined()) return all;
  at::Tensor result = NewBytes(size);
  distributed::Reduce(reduction.op, reduction.dtype, Pieces(all, size_, size),
                      result.mutable_data_ptr(), size / c10::elementSize(reduction.dtype));
  return result;
}

at::Tensor ByteGroup::AllReduceByBackend(const at::Tensor& bytes, Reduction reduction) {
  const int64_t size = bytes.numel();
  at::Tensor result = NewBytes(size);
  c10d::AllreduceOptions options;
  options.timeout = timeout_;
  options.reduceOp = c10d::ReduceOp::SUM;
  std::vector<Work> works;
  // A chunk is copied while those before it are on their way.
  for (int64_t begin = 0; begin < size; begin += kChunkBytes) {
    const int64_t length = std::min(kChunkBytes, size - begin);
    at::Tensor chunk = result.narrow(0, begin, length);
    std::memcpy(chunk.mutable_data_ptr(), bytes.const_data_ptr<uint8_t>() + begin, length);
    std::vector<at::Tensor> tensors{chunk.view(reduction.dtype)};
    permit_();
    works.push_back(backend_.allreduce(tensors, options));
  }
  for (const Work& work : works) await_(work);
  return result;
}

// Of each chunk a rank gets its own part from everyone, reduces it, and gives the result to
// everyone or to the root.
at::Tensor ByteGroup::ReduceChunked(const at::Tensor& bytes, Reduction reduction, int root) {
  const auto item = static_cast<int64_t>(c10::elementSize(reduction.dtype));
  const int64_t count = bytes.numel() / item;
  const int64_t chunk = CeilDivide(kChunkBytes / item, size_) * size_;
  const int64_t chunks = CeilDivide(count, chunk);
  // What a chunk on its way needs. Slots go round: fresh pages cost more than copying into them.
  struct Slot {
    at::Tensor pieces, reduced;
    Work exchanged, collected;
    int64_t mine = 0;  // elements of this rank's part
  };
  std::vector<Slot> slots(std::min(chunks, kChunksAhead + 1));
  const auto slot_of = [&](int64_t k) -> Slot& { return slots[k % slots.size()]; };
  const auto length_of = [&](int64_t k) { return std::min(chunk, count - k * chunk); };
  // Of all ranks' parts; the last ones may be shorter, or empty.
  const auto part_of = [&](int64_t k) { return CeilDivide(length_of(k), size_); };
  for (Slot& slot : slots) {
    slot.pieces = NewBytes(part_of(0) * size_ * item);
    slot.reduced = NewBytes(part_of(0) * item);
  }
  const auto exchange = [&](int64_t k) {
    Slot& slot = slot_of(k);
    std::vector<int64_t> sent(size_);
    for (int r = 0; r < size_; ++r) {
      sent[r] = std::clamp<int64_t>(length_of(k) - r * part_of(k), 0, part_of(k)) * item;
    }
    slot.mine = sent[rank_] / item;
    slot.exchanged = StartAllToAll(slot.pieces.narrow(0, 0, sent[rank_] * size_),
                                   bytes.narrow(0, k * chunk * item, length_of(k) * item), sent,
                                   std::vector<int64_t>(size_, sent[rank_]));
  };

  at::Tensor result;
  if (root < 0 || root == rank_) {
    result = NewBytes(((chunks - 1) * chunk + part_of(chunks - 1) * size_) * item);
  }
  for (int64_t k = 0; k < std::min(chunks, kChunksAhead); ++k) exchange(k);
  for (int64_t k = 0; k < chunks; ++k) {
    Slot& slot = slot_of(k);
    await_(slot.exchanged);
    if (slot.collected) await_(slot.collected);  // of an earlier chunk: `reduced` is free
    distributed::Reduce(reduction.op, reduction.dtype, Pieces(slot.pieces, size_, slot.mine * item),
                        slot.reduced.mutable_data_ptr(), slot.mine);
    const int64_t part = part_of(k) * item;
    at::Tensor into;
    if (result.defined()) into = result.narrow(0, k * chunk * item, part * size_);
    at::Tensor reduced = slot.reduced.narrow(0, 0, part);
    slot.collected = root < 0 ? StartAllGather(into, reduced) : StartGather(into, reduced, root);
    if (k + kChunksAhead < chunks) exchange(k + kChunksAhead);
  }
  for (const Slot& slot : slots) await_(slot.collected);
  return result;
}

at::Tensor ByteGroup::ReduceScatter(const at::Tensor& bytes, Reduction reduction) {
  const int64_t block = bytes.numel() / size_;
  at::Tensor pieces =
      AllToAll(bytes, std::vector<int64_t>(size_, block), std::vector<int64_t>(size_, block));
  at::Tensor result = NewBytes(block);
  distributed::Reduce(reduction.op, reduction.dtype, Pieces(pieces, size_, block),
                      result.mutable_data_ptr(), block / c10::elementSize(reduction.dtype));
  return result;
}

}  // namespace torch_tpu::distributed
