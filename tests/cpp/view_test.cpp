// Reading and writing strided views, against the same done byte by byte on the host.

#include "trace/view.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>
#include <memory>
#include <random>
#include <set>
#include <sstream>

#include "pjrt/client.h"

namespace torch_tpu::trace {
namespace {

using namespace stablehlo;  // NOLINT

using Bytes = std::vector<uint8_t>;

PJRT_Buffer_Type ToPjrt(DType dtype) {
  switch (dtype) {
    case DType::kPred:
      return PJRT_Buffer_Type_PRED;
    case DType::kU8:
      return PJRT_Buffer_Type_U8;
    case DType::kS16:
      return PJRT_Buffer_Type_S16;
    case DType::kF32:
      return PJRT_Buffer_Type_F32;
    case DType::kS64:
      return PJRT_Buffer_Type_S64;
    case DType::kC64:
      return PJRT_Buffer_Type_C64;
    case DType::kC128:
      return PJRT_Buffer_Type_C128;
    default:
      throw std::logic_error("not used here");
  }
}

class Clients : public ::testing::Environment {
 public:
  static pjrt::Client& Get() {
    if (!client()) {
      const char* path = std::getenv("TORCH_TPU_TEST_PLUGIN_F");
      if (path == nullptr) throw std::runtime_error("TORCH_TPU_TEST_PLUGIN_F is not set");
      client() = pjrt::Client::Create(pjrt::Plugin::Load(path));
    }
    return *client();
  }
  void TearDown() override { client().reset(); }

 private:
  static std::shared_ptr<pjrt::Client>& client() {
    static std::shared_ptr<pjrt::Client> client;
    return client;
  }
};
[[maybe_unused]] auto* const kClients = ::testing::AddGlobalTestEnvironment(new Clients);

// A program under construction with the bytes of its parameters, and what its results must be.
class Program {
 public:
  Value Parameter(const Type& type, const Bytes& bytes) {
    parameters_.emplace_back(type, bytes);
    return builder_.Parameter(type);
  }
  void Expect(Value result, Bytes bytes, std::string what) {
    results_.push_back(result);
    types_.push_back(result.type());
    expected_.push_back({std::move(bytes), std::move(what)});
  }
  Builder& builder() { return builder_; }

  void Run() {
    pjrt::Client& client = Clients::Get();
    pjrt::CompileOptions options;
    options.env_option_overrides = {{"xla_backend_optimization_level", int64_t{0}},
                                    {"xla_cpu_use_fusion_emitters", false},
                                    {"xla_cpu_enable_fast_math", false}};
    auto executable = client.Compile(builder_.Finish(results_), options);
    std::vector<pjrt::Buffer> inputs;
    std::vector<PJRT_Buffer*> arguments;
    for (const auto& [type, bytes] : parameters_) {
      inputs.push_back(
          client.FromHost(bytes.data(), ToPjrt(type.dtype), type.dims, client.devices()[0]));
      arguments.push_back(inputs.back().raw());
    }
    std::vector<PJRT_Buffer*> outputs(results_.size());
    executable->Execute(arguments, outputs);
    for (size_t i = 0; i < outputs.size(); ++i) {
      const pjrt::Buffer buffer(&client.plugin(), outputs[i]);
      Bytes bytes(types_[i].bytes());
      buffer.ToHost(bytes.data(), bytes.size());
      EXPECT_EQ(bytes, expected_[i].bytes) << expected_[i].what;
    }
  }

 private:
  struct Expected {
    Bytes bytes;
    std::string what;
  };
  Builder builder_;
  std::vector<std::pair<Type, Bytes>> parameters_;
  Values results_;
  std::vector<Type> types_;
  std::vector<Expected> expected_;
};

class Random {
 public:
  explicit Random(uint32_t seed) : engine_(seed) {}
  int64_t Below(int64_t n) { return static_cast<int64_t>(engine_() % static_cast<uint64_t>(n)); }
  template <class T>
  const T& Of(const std::vector<T>& choices) {
    return choices[Below(static_cast<int64_t>(choices.size()))];
  }
  // Bytes that make no NaN, whose payloads need not survive arithmetic.
  Bytes Data(const Type& type) {
    Bytes bytes(type.bytes());
    for (uint8_t& byte : bytes) {
      byte = static_cast<uint8_t>(type.dtype == DType::kPred ? Below(2) : Below(120));
    }
    return bytes;
  }

 private:
  std::mt19937 engine_;
};

std::string Describe(const Type& base, const ViewSpec& view) {
  std::ostringstream text;
  text << Type{view.dtype, view.sizes}.str() << " strides";
  for (int64_t stride : view.strides) text << " " << stride;
  text << " offset " << view.offset << " of " << base.str();
  return text.str();
}

// Where each element of the view begins, in bytes.
std::vector<size_t> Positions(const ViewSpec& view) {
  std::vector<size_t> positions;
  std::vector<int64_t> index(view.sizes.size(), 0);
  for (int64_t i = 0; i < view.numel(); ++i) {
    int64_t element = view.offset;
    for (size_t d = 0; d < index.size(); ++d) element += index[d] * view.strides[d];
    positions.push_back(static_cast<size_t>(element) * ByteSize(view.dtype));
    for (size_t d = index.size(); d-- > 0;) {
      if (++index[d] < view.sizes[d]) break;
      index[d] = 0;
    }
  }
  return positions;
}

Bytes Read(const Bytes& storage, const ViewSpec& view) {
  Bytes result;
  for (size_t at : Positions(view)) {
    if (view.dtype == DType::kPred) {
      result.push_back(storage[at] != 0);
    } else {
      result.insert(result.end(), storage.begin() + at,
                    storage.begin() + at + ByteSize(view.dtype));
    }
  }
  return result;
}

Bytes Written(Bytes storage, const Bytes& update, const ViewSpec& view) {
  const size_t size = ByteSize(view.dtype);
  size_t from = 0;
  for (size_t at : Positions(view)) {
    std::copy_n(update.begin() + from, size, storage.begin() + at);
    from += size;
  }
  return storage;
}

const std::vector<DType> kDTypes = {DType::kF32, DType::kF32, DType::kU8,  DType::kPred,
                                    DType::kS16, DType::kS64, DType::kC64, DType::kC128};

Type RandomBase(Random& random) {
  static const std::vector<Dims> shapes = {{24},      {4, 6},    {2, 3, 4}, {5, 7}, {},
                                           {3, 1, 5}, {2, 2, 6}, {35},      {1}};
  return {random.Of(kDTypes), random.Of(shapes)};
}

// A view that lies in the base: of another dtype at times, seldom one that a few slices give.
ViewSpec RandomView(Random& random, const Type& base) {
  static const std::vector<int64_t> steps = {0, 1, 1, 1, 2, 2, 3, 4, 5, 6, 7, 8, 12};
  ViewSpec view;
  view.dtype = random.Below(3) == 0 ? random.Of(kDTypes) : base.dtype;
  const auto length = static_cast<int64_t>(base.bytes() / ByteSize(view.dtype));
  if (length == 0) {
    view.dtype = base.dtype;
    return RandomView(random, base);
  }
  const int64_t rank = random.Below(5);
  int64_t last = 0;
  for (int64_t d = 0; d < rank; ++d) {
    const int64_t stride = random.Of(steps);
    int64_t size = 1 + random.Below(4);
    if (random.Below(40) == 0) size = 0;
    while (size > 1 && last + (size - 1) * stride >= length) --size;
    view.sizes.push_back(size);
    view.strides.push_back(stride);
    if (size > 1) last += (size - 1) * stride;
  }
  view.offset = random.Below(length - last);
  return view;
}

// A dense view of the base: a permutation of its dimensions, sliced.
ViewSpec RandomSlice(Random& random, const Type& base) {
  ViewSpec view{base.dtype};
  int64_t stride = base.numel();
  for (int64_t dim : base.dims) {
    stride /= dim;
    const int64_t start = random.Below(dim), step = 1 + random.Below(2);
    const int64_t size = 1 + random.Below((dim - start - 1) / step + 1);
    view.offset += start * stride;
    const auto at = random.Below(static_cast<int64_t>(view.sizes.size()) + 1);
    view.sizes.insert(view.sizes.begin() + at, size);
    view.strides.insert(view.strides.begin() + at, stride * step);
  }
  return view;
}

bool Distinct(const ViewSpec& view) {
  const auto positions = Positions(view);
  return std::set<size_t>(positions.begin(), positions.end()).size() == positions.size();
}

constexpr int kPrograms = 8, kCases = 50;

TEST(View, ReadsWhatLiesThere) {
  for (int seed = 0; seed < kPrograms; ++seed) {
    Random random(seed);
    Program program;
    for (int i = 0; i < kCases; ++i) {
      const Type base = RandomBase(random);
      const ViewSpec view =
          random.Below(2) == 0 ? RandomView(random, base) : RandomSlice(random, base);
      const Bytes storage = random.Data(base);
      Value read = ReadView(program.Parameter(base, storage), view);
      ASSERT_EQ(read.type(), (Type{view.dtype, view.sizes})) << Describe(base, view);
      program.Expect(read, Read(storage, view), Describe(base, view));
    }
    program.Run();
  }
}

TEST(View, WritesNothingElse) {
  for (int seed = 0; seed < kPrograms; ++seed) {
    Random random(seed + 1000);
    Program program;
    for (int i = 0; i < kCases; ++i) {
      const Type base = RandomBase(random);
      const ViewSpec view =
          random.Below(2) == 0 ? RandomView(random, base) : RandomSlice(random, base);
      bool repeats = false;  // the last of equal places counts, whatever else overlaps
      for (size_t d = 0; d < view.sizes.size(); ++d) {
        repeats |= view.sizes[d] > 1 && view.strides[d] == 0;
      }
      if (!repeats && !Distinct(view)) continue;
      if (repeats) {
        ViewSpec once = view;
        for (size_t d = 0; d < view.sizes.size(); ++d) {
          if (view.strides[d] == 0) once.sizes[d] = std::min<int64_t>(view.sizes[d], 1);
        }
        if (!Distinct(once)) continue;
      }
      const Bytes storage = random.Data(base);
      const Type update_type{view.dtype, view.sizes};
      const Bytes update = random.Data(update_type);
      const auto bytes = static_cast<int64_t>(base.bytes());
      const Type after = BaseAfterWrite(&base, view, bytes);
      ASSERT_EQ(after.bytes(), base.bytes()) << Describe(base, view);
      Value old = CoversBase(&base, view, bytes) ? Value() : program.Parameter(base, storage);
      Value written = WriteView(old, program.Parameter(update_type, update), view, after);
      ASSERT_EQ(written.type(), after) << Describe(base, view);
      program.Expect(written, Written(storage, update, view), "write to " + Describe(base, view));
    }
    program.Run();
  }
}

TEST(View, WritesToWhatWasNeverWritten) {
  Random random(7);
  Program program;
  for (int i = 0; i < kCases; ++i) {
    const Type base = RandomBase(random);
    const ViewSpec view = RandomView(random, base);
    if (!Distinct(view) || view.numel() == 0) continue;
    const Type update_type{view.dtype, view.sizes};
    const Bytes update = random.Data(update_type);
    const auto bytes = static_cast<int64_t>(base.bytes());
    const Type after = BaseAfterWrite(nullptr, view, bytes);
    ASSERT_EQ(after.bytes(), base.bytes()) << Describe(base, view);
    Value old = ZeroConstant(program.builder(), after);
    Value written = WriteView(old, program.Parameter(update_type, update), view, after);
    program.Expect(written, Written(Bytes(base.bytes(), 0), update, view), Describe(base, view));
  }
  program.Run();
}

TEST(View, NegatesAndConjugates) {
  const Type base{DType::kC64, {2}};
  const std::vector<float> storage = {1, 2, 3, 4};
  auto as_bytes = [](const std::vector<float>& values) {
    Bytes bytes(values.size() * sizeof(float));
    std::memcpy(bytes.data(), values.data(), bytes.size());
    return bytes;
  };
  Program program;
  ViewSpec view{DType::kC64, {2}, {1}};
  view.conjugate = true;
  Value old = program.Parameter(base, as_bytes(storage));
  program.Expect(ReadView(old, view), as_bytes({1, -2, 3, -4}), "conjugate");
  program.Expect(WriteView(old, program.Parameter(base, as_bytes({5, 6, 7, 8})), view, base),
                 as_bytes({5, -6, 7, -8}), "write through a conjugate");
  // The imaginary parts of the conjugate.
  ViewSpec imaginary{DType::kF32, {2}, {2}, 1};
  imaginary.negative = true;
  program.Expect(ReadView(old, imaginary), as_bytes({-2, -4}), "negative");
  const Type after = BaseAfterWrite(&base, imaginary, 16);
  Value update = program.Parameter({DType::kF32, {2}}, as_bytes({9, 10}));
  program.Expect(WriteView(old, update, imaginary, after), as_bytes({1, -9, 3, -10}),
                 "write through a negative");
  program.Run();
}

// What hardware with tiled layouts does without moving data stays a slice.
TEST(View, SlicesNeedNoGather) {
  Builder builder;
  Value base = builder.Parameter({DType::kF32, {4, 6, 8}});
  const ViewSpec rows{DType::kF32, {2, 6, 8}, {48, 8, 1}, 48};
  const ViewSpec step{DType::kF32, {4, 3, 8}, {48, 16, 1}, 8};
  const ViewSpec permuted{DType::kF32, {8, 4, 3}, {1, 48, 8}, 16};
  const std::string text =
      builder.Finish({ReadView(base, rows), ReadView(base, step), ReadView(base, permuted),
                      WriteView(base, ReadView(base, permuted), permuted, base.type())});
  EXPECT_EQ(text.find("gather"), std::string::npos) << text;
  EXPECT_EQ(text.find("scatter"), std::string::npos) << text;
}

// A reshaped one would be copied whole at each write.
TEST(View, FlatBasesStayFlat) {
  Builder builder;
  Value base = builder.Parameter({DType::kF32, {4000}});
  const ViewSpec rows{DType::kF32, {20, 10}, {10, 1}, 400};
  const ViewSpec transposed{DType::kF32, {10, 20}, {1, 10}, 400};
  Value written = WriteView(base, ReadView(base, rows), rows, base.type());
  Value update = builder.Parameter({DType::kF32, {10, 20}});
  const std::string text =
      builder.Finish({written, WriteView(base, update, transposed, base.type())});
  EXPECT_EQ(text.find("400x10x"), std::string::npos) << text;
  EXPECT_NE(text.find("dynamic_update_slice"), std::string::npos) << text;
}

}  // namespace
}  // namespace torch_tpu::trace
