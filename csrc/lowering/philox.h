#pragma once

#include "lowering/call.h"

// Random numbers from Philox4x32-10, a counter-based generator: word i is a pure function of seed
// and counter, so the same numbers come out on every plugin, in every mode.
namespace torch_tpu::lowering {

// Where a call's words lie.
enum class Stream {
  // The generator's own sequence: word i is lane i % 4 of counter offset/4 + i/4. A call may take
  // as
  // many words as its rule says it draws.
  kGenerator,
  // A sequence that belongs to this call alone, as long as it likes, told apart by the offset.
  kCall,
};

// n random words, [n] ui32. seed and offset are 0-d ui64.
Value RandomWords(Value seed, Value offset, int64_t n, Stream stream);

// The following give `dims` numbers of ComputeType(dtype); float64 takes two words an element, all
// others one (and Normal rounds an odd count up by one element).

// In [0, 1), with no more digits than `dtype` has, so that rounding to it never gives 1.
Value RandomUniform(const Call& c, const Dims& dims, DType dtype, Stream = Stream::kGenerator);
// In (0, 1).
Value RandomOpenUniform(const Call& c, const Dims& dims, DType dtype, Stream = Stream::kGenerator);
// Mean 0, variance 1.
Value RandomNormal(const Call& c, const Dims& dims, DType dtype, Stream = Stream::kGenerator);
// Mean 1, never 0.
Value RandomExponential(const Call& c, const Dims& dims, DType dtype, Stream = Stream::kGenerator);

}  // namespace torch_tpu::lowering
