// Operators whose results' sizes depend on data: computed on the device at full size together with
// the number of elements that count, which the host reads to cut the result to size.
#include <ATen/ExpandUtils.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/cumsum.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/eq.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/full.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/ne.h>
#include <ATen/ops/nonzero.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/searchsorted.h>
#include <ATen/ops/sort.h>
#include <ATen/ops/sub.h>
#include <ATen/ops/sum.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <torch/library.h>

#include <algorithm>
#include <limits>

#include "aten/kernel.h"
#include "aten/resize.h"
#include "aten/storage.h"
#include "lowering/indices.h"
#include "trace/runtime.h"
#include "trace/signature.h"
#include "trace/trace.h"

namespace torch_tpu::aten {
namespace {

using lowering::Call;
using stablehlo::Value;
using stablehlo::Values;
using trace::Operation;
using trace::Type;
using trace::ValuePtr;

// --- programs of these operators: packed elements (along the last dimension) and their number

using Packing = Values (*)(Call& c, const Values& inputs);

Value CountTrue(Value rank) {
  const int64_t n = rank.numel();
  Value last = stablehlo::Reshape(stablehlo::SliceDim(rank, 0, n - 1, n), {});
  return stablehlo::Add(last, stablehlo::ConstantLike(last, 1));
}

// Coordinates of the nonzero elements, a row a dimension.
Values PackCoordinates(Call& c, const Values& inputs) {
  const Value x = inputs[0];
  const int64_t n = x.numel();
  Value mask = stablehlo::Reshape(stablehlo::Convert(x, stablehlo::DType::kPred), {n});
  Value rank = lowering::RankAmongTrue(c, mask);
  Value positions = lowering::Positions(c.builder(), {n}, 0);
  Value packed = lowering::PackTrue(positions, mask, rank, n,
                                    lowering::Zeros(c.builder(), {positions.dtype(), {}}));
  Values rows;
  for (int d = 0; d < x.rank(); ++d) {
    Value row = lowering::CoordinateOf(packed, x.dims(), d);
    rows.push_back(stablehlo::Reshape(stablehlo::Convert(row, stablehlo::DType::kS64), {1, n}));
  }
  return {stablehlo::Concatenate(rows, 0), CountTrue(rank)};
}

// The elements of inputs[0] where the mask inputs[1] is true.
Values PackMasked(Call& c, const Values& inputs) {
  const stablehlo::Dims dims = stablehlo::BroadcastShapes(inputs[0].dims(), inputs[1].dims());
  const int64_t n = Type{stablehlo::DType::kPred, dims}.numel();
  Value x = stablehlo::Reshape(stablehlo::BroadcastTo(inputs[0], dims), {n});
  Value mask = stablehlo::Reshape(stablehlo::BroadcastTo(inputs[1], dims), {n});
  Value rank = lowering::RankAmongTrue(c, mask);
  Value fill = lowering::Zeros(c.builder(), {x.dtype(), {}});
  return {lowering::PackTrue(x, mask, rank, n, fill), CountTrue(rank)};
}

std::shared_ptr<Operation> OperationOf(const char* name, Packing packing,
                                       std::vector<const Type*> types) {
  static auto* cache = new trace::SignatureCache<std::shared_ptr<Operation>>;
  trace::Signature signature;
  signature.Clear();
  signature.Add(reinterpret_cast<uint64_t>(packing));
  for (const Type* type : types) signature.Add(reinterpret_cast<uint64_t>(type));
  return cache->FindOrMake(signature, [&] {
    auto lower = [name, packing](stablehlo::Builder& builder, const Values& inputs) {
      builder.SetLocation(std::string("aten.") + name);
      lowering::CallSpec spec;
      spec.name = name;
      Call call(spec, builder, {});
      return trace::Lowered{packing(call, inputs), {}};
    };
    return std::make_shared<Operation>(name, std::move(types), std::move(lower));
  });
}

at::Tensor TensorOf(ValuePtr value, c10::ScalarType dtype, c10::DeviceIndex device) {
  const Type& type = *value->type();
  return MakeTensor(type.dims, {}, c10::scalarTypeToTypeMeta(dtype), device, type.bytes(),
                    std::move(value));
}

// The first `count` elements along the last dimension, in a storage of just their size.
at::Tensor CutToSize(ValuePtr full, int64_t count, c10::ScalarType dtype, c10::DeviceIndex index) {
  const stablehlo::Dims& dims = full->type()->dims;
  if (count == dims.back()) return TensorOf(std::move(full), dtype, index);
  stablehlo::Dims cut = dims;
  cut.back() = count;
  if (count == 0) return MakeTensor(cut, {}, dtype, index);
  const void* host = full->HostPointer();
  if (host == nullptr) {
    const at::Tensor whole = TensorOf(std::move(full), dtype, index);
    return TensorOf(Materialize(whole.narrow(-1, 0, count)), dtype, index);
  }
  // A copy on the host costs less than a program for every count.
  const at::Tensor rows =
      at::from_blob(const_cast<void*>(host), dims, at::TensorOptions().dtype(dtype))
          .narrow(-1, 0, count)
          .contiguous();
  const Type* type = trace::Intern({full->type()->dtype, cut});
  return TensorOf(DeviceAt(index).FromHost(type, rows.const_data_ptr()), dtype, index);
}

at::Tensor Pack(const char* name, Packing packing, at::TensorList arguments,
                c10::ScalarType dtype) {
  const c10::DeviceIndex index = arguments[0].device().index();
  std::vector<ValuePtr> inputs;
  std::vector<const Type*> types;
  for (const at::Tensor& argument : arguments) {
    inputs.push_back(Materialize(argument));
    types.push_back(inputs.back()->type());
  }
  ValuePtr results[2];
  Guarded(
      [&] {
        trace::Run(OperationOf(name, packing, std::move(types)), DeviceAt(index), inputs, false,
                   results);
      },
      std::string("aten::") + name);
  const c10::ScalarType count_type = lowering::ToScalarType(results[1]->type()->dtype);
  const auto count = TensorOf(std::move(results[1]), count_type, index).item().toLong();
  return Guarded([&] { return CutToSize(std::move(results[0]), count, dtype, index); },
                 std::string("aten::") + name);
}

// --- operators

// Coordinates are stored a row a dimension and handed out transposed, as on CPU.
at::Tensor Transposed(const at::Tensor& rows, int64_t count, int64_t rank) {
  return rows.as_strided({count, rank}, {1, count});
}

at::Tensor Nonzero(const at::Tensor& self) {
  const at::TensorOptions options = self.options().dtype(at::kLong);
  if (self.numel() == 0) return Transposed(at::empty({0}, options), 0, self.dim());
  if (self.dim() == 0) {
    return Transposed(at::empty({0}, options), self.item().toBool() ? 1 : 0, 0);
  }
  const at::Tensor rows = Pack("nonzero", &PackCoordinates, {self}, at::kLong);
  return Transposed(rows, rows.size(1), self.dim());
}

at::Tensor& NonzeroOut(const at::Tensor& self, at::Tensor& out) {
  TORCH_CHECK(out.scalar_type() == at::kLong,
              "nonzero: Expected out tensor to have scalar type Long but got scalar type ",
              out.scalar_type());
  const at::Tensor result = Nonzero(self);
  if (!out.sizes().equals(result.sizes())) {
    ResizeOutput(out, result.sizes());
    out.unsafeGetTensorImpl()->set_sizes_and_strides(result.sizes(), result.strides());
  }
  return out.copy_(result);
}

at::Tensor MaskedSelect(const at::Tensor& self, const at::Tensor& mask) {
  TORCH_CHECK(mask.scalar_type() == at::kBool, "masked_select: expected BoolTensor for mask");
  // Either may be a 0-d tensor on the CPU.
  const c10::Device device = self.device().is_privateuseone() ? self.device() : mask.device();
  for (const at::Tensor* t : {&self, &mask}) {
    TORCH_CHECK(t->device() == device || (t->dim() == 0 && t->device().is_cpu()),
                "Expected all tensors to be on the same device, but found at least two devices, ",
                device, " and ", t->device(), "!");
  }
  const auto sizes = at::infer_size(mask.sizes(), self.sizes());
  if (c10::multiply_integers(sizes) == 0) return at::empty({0}, self.options().device(device));
  return Pack("masked_select", &PackMasked, {self.to(device), mask.to(device)}, self.scalar_type());
}

bool Equal(const at::Tensor& self, const at::Tensor& other) {
  TORCH_CHECK(self.device() == other.device(),
              "Cannot compare two tensors on different devices. Got: ", self.device(), " and ",
              other.device());
  if (!self.sizes().equals(other.sizes())) return false;
  return at::eq(self, other).all().item().toBool();
}

at::Tensor RepeatInterleave(const at::Tensor& repeats, std::optional<int64_t> output_size) {
  TORCH_CHECK(repeats.dim() == 1, "repeat_interleave only accept 1D vector as repeat");
  TORCH_CHECK(repeats.scalar_type() == at::kLong || repeats.scalar_type() == at::kInt,
              "repeats has to be Long or Int tensor");
  if (repeats.numel() == 0) {
    TORCH_CHECK(output_size.value_or(0) == 0, "allocated size does not match required size");
    return at::empty({0}, repeats.options());
  }
  const at::Tensor ends = at::cumsum(repeats, 0);
  int64_t size;
  if (output_size) {
    size = *output_size;  // a promise that spares the synchronisation
  } else {
    const at::Tensor read =
        at::cat({ends.slice(0, -1), repeats.min().reshape({1}).to(at::kLong)}).cpu();
    TORCH_CHECK(read[1].item().toLong() >= 0, "repeats can not be negative");
    size = read[0].item().toLong();
  }
  // Place k belongs to the first row that ends behind it.
  return at::searchsorted(ends, at::arange(size, ends.options()), /*out_int32=*/false,
                          /*right=*/true)
      .to(repeats.scalar_type());
}

at::Tensor Bincount(const at::Tensor& self, const std::optional<at::Tensor>& weights,
                    int64_t minlength) {
  TORCH_CHECK(minlength >= 0, "minlength should be >= 0");
  const bool weighted = weights && weights->defined();
  c10::ScalarType dtype = at::kLong;
  if (weighted) dtype = weights->scalar_type() == at::kFloat ? at::kFloat : at::kDouble;
  const at::TensorOptions options = self.options().dtype(dtype);
  if (self.dim() == 1 && self.numel() == 0)
    return at::zeros({minlength}, self.options().dtype(at::kLong));
  TORCH_CHECK_NOT_IMPLEMENTED(at::isIntegralType(self.scalar_type(), /*includeBool=*/false),
                              "\"bincount_cpu\" not implemented for '", self.scalar_type(), "'");
  constexpr char kInputs[] = "bincount only supports 1-d non-negative integral inputs.";
  TORCH_CHECK(self.dim() == 1, kInputs);
  if (weighted) {
    TORCH_CHECK(weights->dim() == 1 && weights->size(0) == self.size(0),
                "weights should be 1-d and have the same length as input");
  }
  const at::Tensor values = self.to(at::kLong);
  const at::Tensor range = at::cat({values.min().reshape({1}), values.max().reshape({1})}).cpu();
  TORCH_CHECK(range[0].item().toLong() >= 0, kInputs);
  const int64_t bins = std::max(range[1].item().toLong() + 1, minlength);
  const at::Tensor source = weighted ? weights->to(dtype) : at::ones(values.sizes(), options);
  return at::zeros({bins}, options).scatter_add_(0, values, source);
}

// --- unique

struct Runs {
  at::Tensor starts, inverse, counts;
};

// Runs of equal neighbours, given which elements differ from the one before.
Runs FindRuns(const at::Tensor& boundary, bool inverse, bool counts) {
  const at::TensorOptions options = boundary.options().dtype(at::kLong);
  Runs runs{at::nonzero(boundary).squeeze(1), at::empty({0}, options), at::empty({0}, options)};
  if (inverse) runs.inverse = at::cumsum(boundary, 0).sub_(1);
  if (counts) {
    const at::Tensor end = at::full({1}, boundary.size(0), options);
    runs.counts = at::sub(at::cat({runs.starts.slice(0, 1), end}), runs.starts);
  }
  return runs;
}

at::Tensor Boundaries(const at::Tensor& rows) {
  at::Tensor differ = at::ne(rows.slice(0, 1), rows.slice(0, 0, -1));
  if (differ.dim() > 1) differ = differ.flatten(1).any(1);
  return at::cat({at::ones({1}, differ.options()), differ});
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> Unique2(const at::Tensor& self, bool sorted,
                                                       bool inverse, bool counts) {
  TORCH_CHECK_NOT_IMPLEMENTED(!self.is_complex(), "\"unique\" not implemented for '",
                              self.scalar_type(), "'");
  const at::TensorOptions options = self.options().dtype(at::kLong);
  if (self.numel() == 0) {
    return {at::empty({0}, self.options()),
            at::empty(inverse ? self.sizes() : c10::IntArrayRef({0}), options),
            at::empty({0}, options)};
  }
  auto [values, order] = at::sort(self.reshape({-1}), /*stable=*/true, 0, /*descending=*/false);
  Runs runs = FindRuns(Boundaries(values), inverse, counts);
  if (inverse) {
    runs.inverse = at::empty_like(order).scatter_(0, order, runs.inverse).reshape(self.sizes());
  }
  return {values.index_select(0, runs.starts), runs.inverse, runs.counts};
}

std::tuple<at::Tensor, at::Tensor> Unique(const at::Tensor& self, bool sorted, bool inverse) {
  auto [values, places, counts] = Unique2(self, sorted, inverse, false);
  return {values, places};
}

// True if there are no slices along `dim`; slices of no elements are errors.
bool NothingAlong(const at::Tensor& self, int64_t dim) {
  const auto zeros = std::count(self.sizes().begin(), self.sizes().end(), 0);
  if (self.size(dim) == 0) {
    TORCH_CHECK(zeros == 1,
                "Number of zero sized dimensions is more than one, so unique cannot be applied ");
    return true;
  }
  TORCH_CHECK(zeros == 0,
              "There are 0 sized dimensions, and they aren't selected, so unique cannot be "
              "applied");
  return false;
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> OfNothing(const at::Tensor& self) {
  const at::TensorOptions options = self.options().dtype(at::kLong);
  return {at::empty(self.sizes(), self.options()), at::empty({0}, options),
          at::empty({0}, options)};
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> UniqueConsecutive(const at::Tensor& self,
                                                                 bool inverse, bool counts,
                                                                 std::optional<int64_t> dim) {
  const at::TensorOptions options = self.options().dtype(at::kLong);
  if (dim) {
    const int64_t d = c10::maybe_wrap_dim(*dim, self.dim(), /*wrap_scalar=*/false);
    if (NothingAlong(self, d)) return OfNothing(self);
    const at::Tensor rows = self.movedim(d, 0).contiguous();
    Runs runs = FindRuns(Boundaries(rows), inverse, counts);
    return {rows.index_select(0, runs.starts).movedim(0, d), runs.inverse, runs.counts};
  }
  if (self.numel() == 0) {
    return {at::empty({0}, self.options()),
            at::empty(inverse ? self.sizes() : c10::IntArrayRef({0}), options),
            at::empty({0}, options)};
  }
  const at::Tensor flat = self.reshape({-1});
  Runs runs = FindRuns(Boundaries(flat), inverse, counts);
  if (inverse) runs.inverse = runs.inverse.reshape(self.sizes());
  return {flat.index_select(0, runs.starts), runs.inverse, runs.counts};
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> UniqueDimConsecutive(const at::Tensor& self,
                                                                    int64_t dim, bool inverse,
                                                                    bool counts) {
  return UniqueConsecutive(self, inverse, counts, dim);
}

// For each column of `rows` the rank of its elements among the column's distinct values.
at::Tensor RanksInColumns(const at::Tensor& rows) {
  auto [values, order] = at::sort(rows, /*stable=*/true, 0, /*descending=*/false);
  const at::Tensor differ = at::ne(values.slice(0, 1), values.slice(0, 0, -1));
  const at::Tensor first = at::zeros({1, rows.size(1)}, rows.options().dtype(at::kLong));
  const at::Tensor ranks = at::cat({first, at::cumsum(differ, 0)});
  return at::empty_like(order).scatter_(0, order, ranks);
}

// The slices along `dim` in lexicographic order, each once. Columns are replaced by their ranks,
// and as many of these as fit become the digits of one number, until one column is left.
std::tuple<at::Tensor, at::Tensor, at::Tensor> UniqueDim(const at::Tensor& self, int64_t dim,
                                                         bool sorted, bool inverse, bool counts) {
  const int64_t d = c10::maybe_wrap_dim(dim, self.dim(), /*wrap_scalar=*/false);
  if (NothingAlong(self, d)) return OfNothing(self);
  TORCH_CHECK_NOT_IMPLEMENTED(!self.is_complex(), "\"unique_dim\" not implemented for '",
                              self.scalar_type(), "'");
  const at::Tensor slices = self.movedim(d, 0).contiguous();
  const int64_t count = slices.size(0);
  std::vector<int64_t> weights = {1};  // of the digits, the first one last
  while (weights.size() < 62 &&
         weights.back() <= std::numeric_limits<int64_t>::max() / count / count) {
    weights.push_back(weights.back() * count);
  }
  std::reverse(weights.begin(), weights.end());
  const auto digits = static_cast<int64_t>(weights.size());
  const at::Tensor weight = at::tensor(weights).to(self.device());
  at::Tensor ranks = RanksInColumns(slices.reshape({count, -1}));
  while (ranks.size(1) > 1) {
    const int64_t groups = (ranks.size(1) + digits - 1) / digits;
    const at::Tensor padded = at::constant_pad_nd(ranks, {0, groups * digits - ranks.size(1)});
    const at::Tensor numbers = at::mul(padded.reshape({count, groups, digits}), weight).sum(2);
    ranks = RanksInColumns(numbers);
  }
  auto [values, order] = at::sort(ranks.squeeze(1), /*stable=*/true, 0, /*descending=*/false);
  Runs runs = FindRuns(Boundaries(values), /*inverse=*/true, /*counts=*/true);
  const at::Tensor places = at::empty_like(order).scatter_(0, order, runs.inverse);
  const at::Tensor kept = slices.index_select(0, order.index_select(0, runs.starts));
  return {kept.movedim(0, d), places, runs.counts};
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("nonzero", &Kernel<&Nonzero>::Run);
  m.impl("nonzero.out", &Kernel<&NonzeroOut>::Run);
  m.impl("masked_select", &Kernel<&MaskedSelect>::Run);
  m.impl("equal", &Kernel<&Equal>::Run);
  m.impl("repeat_interleave.Tensor", &Kernel<&RepeatInterleave>::Run);
  m.impl("bincount", &Kernel<&Bincount>::Run);
  m.impl("_unique", &Kernel<&Unique>::Run);
  m.impl("_unique2", &Kernel<&Unique2>::Run);
  m.impl("unique_consecutive", &Kernel<&UniqueConsecutive>::Run);
  m.impl("unique_dim", &Kernel<&UniqueDim>::Run);
  m.impl("unique_dim_consecutive", &Kernel<&UniqueDimConsecutive>::Run);
}

}  // namespace
}  // namespace torch_tpu::aten
