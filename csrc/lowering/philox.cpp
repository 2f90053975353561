#include "lowering/philox.h"

#include <array>
#include <numbers>

namespace torch_tpu::lowering {
using namespace stablehlo;  // NOLINT

namespace {

constexpr int kRounds = 10;
constexpr int64_t kMultiplier[2] = {0xD2511F53, 0xCD9E8D57};
constexpr int64_t kKeyStep[2] = {0x9E3779B9, 0xBB67AE85};

struct Halves {
  Value high, low;
};

Halves Split(Value x) {
  Value shift = ConstantLike(x, 32);
  return {Convert(ShiftRightLogical(x, shift), DType::kU32),
          Convert(And(x, x.builder().ConstantInt(x.type(), 0xFFFFFFFF)), DType::kU32)};
}

// The 64-bit product of 32-bit words and a constant.
Halves WideMultiply(Value x, int64_t constant) {
  Value wide = Convert(x, DType::kU64);
  return Split(Multiply(wide, x.builder().ConstantInt(wide.type(), constant)));
}

Value Shift(Value words, int bits) {
  return ShiftRightLogical(words, words.builder().ConstantInt(words.type(), bits));
}

int64_t Numel(const Dims& dims) { return Type{DType::kPred, dims}.numel(); }

int64_t WordsPerElement(DType compute) { return compute == DType::kF64 ? 2 : 1; }

// n 64-bit words of 2n words.
Value Join(Value words) {
  const int64_t n = words.numel() / 2;
  Value high = Convert(SliceDim(words, 0, 0, n), DType::kU64);
  Value low = Convert(SliceDim(words, 0, n, 2 * n), DType::kU64);
  return Or(ShiftLeft(high, ConstantLike(high, 32)), low);
}

int MantissaDigits(DType dtype) {
  switch (dtype) {
    case DType::kF64:
      return 53;
    case DType::kF16:
      return 11;
    case DType::kBF16:
      return 8;
    default:
      return 24;
  }
}

// The words' top `digits` bits as fractions of 1, plus `shift` units of the last digit.
Value Fraction(Value words, DType compute, int digits, double shift) {
  const bool wide = compute == DType::kF64;
  if (wide) words = Join(words);
  Value x = Convert(Shift(words, (wide ? 64 : 32) - digits), compute);
  if (shift != 0) x = Add(x, ConstantLike(x, shift));
  return Multiply(x, ConstantLike(x, 1.0 / static_cast<double>(int64_t{1} << digits)));
}

// Half a unit above multiples of 2^-23 (2^-52): neither 0 nor 1, and exact.
Value OpenFraction(Value words, DType compute) {
  return Fraction(words, compute, compute == DType::kF64 ? 52 : 23, 0.5);
}

Value WordsFor(const Call& c, int64_t n, Stream stream) {
  return RandomWords(c.seed(), c.offset(), n, stream);
}

}  // namespace

Value RandomWords(Value seed, Value offset, int64_t n, Stream stream) {
  Builder& b = seed.builder();
  if (n == 0) return b.ConstantInt({DType::kU32, {0}}, 0);
  const int64_t blocks = (n + 3) / 4;
  const Type words{DType::kU32, {blocks}};
  const auto constant = [&](int64_t value) { return b.ConstantInt(words, value); };
  const auto splat = [&](Value x) { return BroadcastTo(x, words.dims); };

  // The 128-bit counter, lowest word first.
  std::array<Value, 4> x;
  Value block = blocks <= int64_t{1} << 31
                    ? Value()
                    : b.Iota({DType::kU64, words.dims}, 0);  // beyond one word
  Value low = block ? Convert(block, DType::kU32) : b.Iota(words, 0);
  Value high = block ? Split(block).high : Value();
  if (stream == Stream::kGenerator) {
    const Halves start = Split(ShiftRightLogical(offset, ConstantLike(offset, 2)));
    x[0] = Add(low, splat(start.low));
    Value carry = Convert(Lt(x[0], low), DType::kU32);
    x[1] = Add(splat(start.high), carry);
    if (high) x[1] = Add(x[1], high);
    x[2] = constant(0);
    x[3] = constant(0);
  } else {
    // The generator's sequence keeps the upper half zero; offsets stay far below 2^63.
    const Halves start = Split(offset);
    x[0] = low;
    x[1] = high ? high : constant(0);
    x[2] = splat(start.low);
    x[3] = Or(splat(start.high), constant(0x80000000));
  }

  const Halves key = Split(seed);
  Value key0 = key.low, key1 = key.high;
  for (int round = 0; round < kRounds; ++round) {
    const Halves a = WideMultiply(x[0], kMultiplier[0]);
    const Halves m = WideMultiply(x[2], kMultiplier[1]);
    x = {Xor(Xor(m.high, x[1]), splat(key0)), m.low, Xor(Xor(a.high, x[3]), splat(key1)), a.low};
    key0 = Add(key0, ScalarInt(b, DType::kU32, kKeyStep[0]));
    key1 = Add(key1, ScalarInt(b, DType::kU32, kKeyStep[1]));
  }
  Values lanes;
  for (const Value& lane : x) lanes.push_back(Reshape(lane, {blocks, 1}));
  Value flat = Reshape(Concatenate(lanes, 1), {4 * blocks});
  return n == 4 * blocks ? flat : SliceDim(flat, 0, 0, n);
}

Value RandomUniform(const Call& c, const Dims& dims, DType dtype, Stream stream) {
  const DType compute = ComputeType(dtype);
  Value words = WordsFor(c, Numel(dims) * WordsPerElement(compute), stream);
  return Reshape(Fraction(words, compute, MantissaDigits(dtype), 0), dims);
}

Value RandomOpenUniform(const Call& c, const Dims& dims, DType dtype, Stream stream) {
  const DType compute = ComputeType(dtype);
  Value words = WordsFor(c, Numel(dims) * WordsPerElement(compute), stream);
  return Reshape(OpenFraction(words, compute), dims);
}

Value RandomNormal(const Call& c, const Dims& dims, DType dtype, Stream stream) {
  // Box and Muller: two normal numbers from a radius and an angle.
  const DType compute = ComputeType(dtype);
  const int64_t n = Numel(dims);
  const int64_t pairs = (n + 1) / 2, words_per_half = pairs * WordsPerElement(compute);
  Value words = WordsFor(c, 2 * words_per_half, stream);
  Value u = OpenFraction(SliceDim(words, 0, 0, words_per_half), compute);
  Value v = Fraction(SliceDim(words, 0, words_per_half, 2 * words_per_half), compute,
                     MantissaDigits(compute), 0);
  Value radius = Sqrt(Multiply(Log(u), ConstantLike(u, -2)));
  Value angle = Multiply(v, ConstantLike(v, 2 * std::numbers::pi));
  Value x = Concatenate({Multiply(radius, Cosine(angle)), Multiply(radius, Sine(angle))}, 0);
  return Reshape(SliceDim(x, 0, 0, n), dims);
}

Value RandomExponential(const Call& c, const Dims& dims, DType dtype, Stream stream) {
  return Negate(Log(RandomOpenUniform(c, dims, dtype, stream)));
}

}  // namespace torch_tpu::lowering
