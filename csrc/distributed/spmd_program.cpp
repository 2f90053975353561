#include "distributed/spmd_program.h"

#include <algorithm>
#include <numeric>

#include "stablehlo/collectives.h"

namespace torch_tpu::distributed {
namespace {
using namespace stablehlo;  // NOLINT: programs read like the mathematics
using Op = c10d::ReduceOp::RedOpType;

DType WordOf(DType dtype) {
  switch (ByteSize(dtype)) {
    case 1:
      return DType::kU8;
    case 2:
      return DType::kU16;
    case 4:
      return DType::kU32;
    default:
      return DType::kU64;
  }
}

DType PartOf(DType complex) { return complex == DType::kC64 ? DType::kF32 : DType::kF64; }

// Real and imaginary parts after one another along the last dimension.
Value Parts(Value x) { return Concatenate({Real(x), Imag(x)}, x.rank() - 1); }
Value FromParts(Value parts) {
  const int last = parts.rank() - 1;
  const int64_t n = parts.dim(last) / 2;
  return Complex(SliceDim(parts, last, 0, n), SliceDim(parts, last, n, 2 * n));
}

// The bits as integers, which every platform moves and adds to zero without looking at them.
Value ToWords(Value x) {
  if (IsComplex(x.dtype())) return ToWords(Parts(x));
  if (x.dtype() == DType::kPred) return Convert(x, DType::kU8);
  return IsInteger(x.dtype()) ? x : BitcastConvert(x, WordOf(x.dtype()));
}
Value FromWords(Value words, DType dtype) {
  if (IsComplex(dtype)) return FromParts(FromWords(words, PartOf(dtype)));
  if (dtype == DType::kPred) return Convert(words, dtype);
  return IsInteger(dtype) ? words : BitcastConvert(words, dtype);
}

// `move` takes arrays as they are or their bits, where not every platform can move the dtype.
template <class Move>
Value Moved(Value x, Move move) {
  switch (x.dtype()) {
    case DType::kF32:
    case DType::kBF16:
    case DType::kS32:
    case DType::kU32:
      return move(x);
    default:
      return FromWords(move(ToWords(x)), x.dtype());
  }
}

// What is added up: float32 for all that is narrower, and integers so wide that a mean's sum does
// not overflow. Between TPUs bfloat16 travels as it is, like between GPUs.
DType SumType(DType dtype, Op op, Platform platform) {
  if (dtype == DType::kBF16 && platform == Platform::kTpu) return dtype;
  if (IsComplex(dtype) || dtype == DType::kF64) return dtype;
  if (IsFloat(dtype)) return DType::kF32;
  const bool is_unsigned = dtype == DType::kU32 || dtype == DType::kU64;
  if (op == Op::AVG) return is_unsigned ? DType::kU64 : DType::kS64;
  return ByteSize(dtype) >= 4 ? dtype : DType::kS32;
}

bool IsSum(Op op) { return op == Op::SUM || op == Op::AVG || op == Op::PREMUL_SUM; }

// `add` is a collective that sums arrays of real numbers.
template <class Add>
Value Summed(Value x, Op op, int size, Add add) {
  const DType dtype = x.dtype(), wide = SumType(dtype, op, x.builder().platform());
  x = Convert(x, wide);
  Value sum = IsComplex(wide) ? FromParts(add(Parts(x))) : add(x);
  if (op == Op::AVG) sum = Divide(sum, ConstantLike(sum, size));
  return Convert(sum, dtype);
}

// The rows of `arrays` made one: [size, n] -> [n].
Value Folded(Value arrays, Op op) {
  const DType dtype = arrays.dtype();
  const bool narrow = IsFloat(dtype) && ByteSize(dtype) < 4;
  if (narrow) arrays = Convert(arrays, DType::kF32);
  const bool is_bool = dtype == DType::kPred;
  switch (op) {
    case Op::PRODUCT:
      return Convert(
          Reduce(is_bool ? Convert(arrays, DType::kS32) : arrays, Reduction::kProduct, {0}), dtype);
    case Op::MIN:
      return Convert(Reduce(arrays, Reduction::kMin, {0}), dtype);
    case Op::MAX:
      return Convert(Reduce(arrays, Reduction::kMax, {0}), dtype);
    case Op::BAND:
      return Reduce(arrays, Reduction::kAnd, {0});
    case Op::BOR:
      return Reduce(arrays, Reduction::kOr, {0});
    default: {
      Value all = SliceDim(arrays, 0, 0, 1);
      for (int64_t r = 1; r < arrays.dim(0); ++r) all = Xor(all, SliceDim(arrays, 0, r, r + 1));
      return Reshape(all, {arrays.dim(1)});
    }
  }
}

}  // namespace

int64_t SpmdProgram::ResultElements() const {
  switch (kind) {
    case Kind::kAllGather:
      return input.numel() * size;
    case Kind::kReduceScatter:
    case Kind::kScatter:
      return input.numel() / size;
    default:
      return input.numel();
  }
}

Value SpmdProgram::Lower(Value x, const Groups& groups) const {
  Builder& builder = x.builder();
  const DType dtype = input.dtype;
  if (x.rank() == 0) x = Reshape(x, {1});
  // Arrays keep their shape, for to give them another one may be to copy them. Blocks are rows of
  // the first dimension, or of all elements.
  const bool divides = x.dim(0) % size == 0;
  const auto blocks = [&] { return divides ? x : Reshape(x, {size, input.numel() / size}); };
  // Zeros but for the root's.
  const auto of_root = [&](Value words) {
    Value is_root;
    for (const auto& group : groups) {
      const Value it = builder.ConstantInt({DType::kU32, {}}, group[root]);
      const Value is_this = Eq(PartitionId(builder), it);
      is_root = is_root.defined() ? Or(is_root, is_this) : is_this;
    }
    return Select(is_root, words, ZeroConstant(builder, words.type()));
  };
  Value y;
  switch (kind) {
    case Kind::kBroadcast:
      y = FromWords(AllReduceSum(of_root(ToWords(x)), groups), dtype);
      break;
    case Kind::kAllReduce:
      if (IsSum(reduce)) {
        y = Summed(x, reduce, size, [&](Value v) { return AllReduceSum(v, groups); });
      } else {
        const Value row = Reshape(x, {1, input.numel()});
        y = Folded(Moved(row, [&](Value v) { return AllGather(v, 0, groups); }), reduce);
      }
      break;
    case Kind::kAllGather:
      y = Moved(x, [&](Value v) { return AllGather(v, 0, groups); });
      break;
    case Kind::kReduceScatter:
      if (IsSum(reduce)) {
        y = Summed(blocks(), reduce, size, [&](Value v) { return ReduceScatterSum(v, 0, groups); });
      } else {
        const Value rows = Reshape(x, {size, input.numel() / size});
        y = Folded(Moved(rows, [&](Value v) { return AllToAll(v, 0, 0, groups); }), reduce);
      }
      break;
    case Kind::kScatter:
      y = FromWords(ReduceScatterSum(of_root(ToWords(blocks())), 0, groups), dtype);
      break;
    case Kind::kAllToAll:
      y = Moved(blocks(), [&](Value v) { return AllToAll(v, 0, 0, groups); });
      break;
    case Kind::kSend:
      y = Moved(x, [&](Value v) { return CollectivePermute(v, {{groups[0][0], groups[0][1]}}); });
      break;
  }
  return Reshape(y, output.dims);
}

std::string SpmdProgram::Module(Platform platform) const {
  Builder builder("collective", platform);
  builder.SetPartitions(size);
  std::vector<int64_t> everyone(size);
  std::iota(everyone.begin(), everyone.end(), 0);
  return builder.Finish({Lower(builder.Parameter(input), {everyone})});
}

}  // namespace torch_tpu::distributed
