#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <complex>
#include <cstdlib>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <numbers>

#include "pjrt/client.h"
#include "stablehlo/builder.h"

namespace torch_tpu::stablehlo {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

bool Contains(const std::string& text, std::string_view part) {
  return text.find(part) != std::string::npos;
}

#define EXPECT_CONTAINS(text, part) \
  EXPECT_TRUE(Contains(text, part)) << "no `" << (part) << "` in\n" << (text)

Value Vector(Builder& builder, int64_t size = 4, DType dtype = DType::kF32) {
  return builder.Parameter({dtype, {size}});
}

// ------------------------------------------------------------------------------------- types

TEST(Type, SpellsItself) {
  EXPECT_EQ((Type{DType::kF32, {2, 3}}.str()), "tensor<2x3xf32>");
  EXPECT_EQ((Type{DType::kU8, {}}.str()), "tensor<ui8>");
  EXPECT_EQ((Type{DType::kC128, {0}}.str()), "tensor<0xcomplex<f64>>");
  EXPECT_EQ(Name(DType::kF8E5M2FNUZ), "f8E5M2FNUZ");
}

TEST(Type, CountsElementsAndBytes) {
  EXPECT_EQ((Type{DType::kBF16, {2, 3}}.numel()), 6);
  EXPECT_EQ((Type{DType::kBF16, {2, 3}}.bytes()), 12u);
  EXPECT_EQ((Type{DType::kC64, {}}.bytes()), 8u);
  EXPECT_EQ((Type{DType::kPred, {5, 0}}.bytes()), 0u);
}

TEST(Type, KnowsKinds) {
  EXPECT_TRUE(IsFloat(DType::kF8E4M3FN) && IsFloat(DType::kF64) && !IsFloat(DType::kC64));
  EXPECT_TRUE(IsInteger(DType::kU64) && IsInteger(DType::kS8) && !IsInteger(DType::kPred));
  EXPECT_TRUE(IsSigned(DType::kS64) && !IsSigned(DType::kU8) && IsUnsigned(DType::kU16));
  EXPECT_EQ(RealOf(DType::kC128), DType::kF64);
  EXPECT_EQ(ComplexOf(DType::kF32), DType::kC64);
  EXPECT_THROW(ComplexOf(DType::kF16), TypeError);
}

// -------------------------------------------------------------------------------------- text

TEST(Text, WholeModule) {
  Builder builder("two words");
  Value a = Vector(builder), b = Vector(builder);
  builder.Alias(1, 0);
  Value sum = Add(a, b);
  EXPECT_EQ(builder.size(), 1);
  EXPECT_EQ(builder.Finish({sum, a}),
            "module @two_words {\n"
            "  func.func public @main(%arg0: tensor<4xf32>, %arg1: tensor<4xf32> "
            "{tf.aliasing_output = 0 : i32}) -> (tensor<4xf32>, tensor<4xf32>) {\n"
            "    %2 = \"stablehlo.add\"(%arg0, %arg1) : (tensor<4xf32>, tensor<4xf32>) -> "
            "tensor<4xf32>\n"
            "    \"func.return\"(%2, %arg0) : (tensor<4xf32>, tensor<4xf32>) -> ()\n"
            "  }\n"
            "}\n");
}

TEST(Text, Locations) {
  Builder builder;
  Value a = Vector(builder);
  builder.SetLocation("aten.exp at \"my file\".py:12");
  Value b = Exp(a);
  builder.SetLocation("");
  Value c = Log(b);
  const std::string text = builder.Finish({c});
  EXPECT_CONTAINS(text, "-> tensor<4xf32> loc(\"aten.exp at \\\"my file\\\".py:12\")\n");
  EXPECT_CONTAINS(text, "\"stablehlo.log\"(%1) : (tensor<4xf32>) -> tensor<4xf32>\n");
}

TEST(Text, Regions) {
  Builder builder;
  Value a = Vector(builder);
  Value sum = Reduce(a, Reduction::kSum, {0});
  EXPECT_CONTAINS(builder.Finish({sum}),
                  "    %2 = \"stablehlo.reduce\"(%arg0, %1) ({\n"
                  "      ^bb0(%3: tensor<f32>, %4: tensor<f32>):\n"
                  "        %5 = \"stablehlo.add\"(%3, %4) : (tensor<f32>, tensor<f32>) -> "
                  "tensor<f32>\n"
                  "        \"stablehlo.return\"(%5) : (tensor<f32>) -> ()\n"
                  "      }) {dimensions = array<i64: 0>} : (tensor<4xf32>, tensor<f32>) -> "
                  "tensor<f32>\n");
}

std::string ConstantText(const std::function<Value(Builder&)>& build) {
  Builder builder;
  const std::string text = builder.Finish({build(builder)});
  const size_t start = text.find("value = ") + 8;
  return text.substr(start, text.find('}', start) - start);
}

TEST(Text, Constants) {
  const auto number = [](DType dtype, double value) {
    return ConstantText([&](Builder& b) { return b.Constant({dtype, {}}, value); });
  };
  EXPECT_EQ(number(DType::kF32, 1), "dense<1.0> : tensor<f32>");
  EXPECT_EQ(number(DType::kF32, -0.0), "dense<-0.0> : tensor<f32>");
  EXPECT_EQ(number(DType::kF64, 0.1), "dense<0.1> : tensor<f64>");
  EXPECT_EQ(number(DType::kF64, 1e100), "dense<1.0e+100> : tensor<f64>");
  EXPECT_EQ(number(DType::kF64, 5e-324), "dense<0x0000000000000001> : tensor<f64>");
  EXPECT_EQ(number(DType::kF32, kInf), "dense<0x7F800000> : tensor<f32>");
  EXPECT_EQ(number(DType::kF16, -kInf), "dense<0xFC00> : tensor<f16>");
  EXPECT_EQ(number(DType::kBF16, kNan), "dense<0x7FC0> : tensor<bf16>");
  EXPECT_EQ(number(DType::kF64, kInf), "dense<0x7FF0000000000000> : tensor<f64>");
  EXPECT_EQ(number(DType::kPred, 2), "dense<true> : tensor<i1>");
  EXPECT_EQ(number(DType::kU8, 300), "dense<255> : tensor<ui8>");
  EXPECT_EQ(number(DType::kS8, -kInf), "dense<-128> : tensor<i8>");
  EXPECT_EQ(number(DType::kU64, kInf), "dense<18446744073709551615> : tensor<ui64>");
  EXPECT_EQ(number(DType::kS64, kInf), "dense<9223372036854775807> : tensor<i64>");
  EXPECT_EQ(number(DType::kC64, 2), "dense<(2.0, 0.0)> : tensor<complex<f32>>");
  EXPECT_EQ(ConstantText([](Builder& b) {
              return b.ConstantInt({DType::kU64, {2}}, -1);
            }),
            "dense<18446744073709551615> : tensor<2xui64>");
  EXPECT_EQ(ConstantText([](Builder& b) {
              return b.ConstantComplex({DType::kC64, {}}, 1, -2);
            }),
            "dense<(1.0, -2.0)> : tensor<complex<f32>>");
  EXPECT_EQ(ConstantText([](Builder& b) {
              return b.ConstantInts({DType::kS32, {2, 2}}, {1, 2, 3, 4});
            }),
            "dense<[[1, 2], [3, 4]]> : tensor<2x2xi32>");
  EXPECT_EQ(ConstantText([](Builder& b) {
              return b.ConstantFloats({DType::kF32, {2}}, {0.5, -1});
            }),
            "dense<[0.5, -1.0]> : tensor<2xf32>");
  EXPECT_EQ(ConstantText([](Builder& b) {
              return b.ConstantInts({DType::kS32, {0, 2}}, {});
            }),
            "dense<> : tensor<0x2xi32>");
}

TEST(Text, IdentitiesEmitNothing) {
  Builder builder;
  Value x = builder.Parameter({DType::kF32, {2, 3}});
  EXPECT_EQ(Convert(x, DType::kF32).id(), x.id());
  EXPECT_EQ(Reshape(x, {2, 3}).id(), x.id());
  EXPECT_EQ(Transpose(x, {0, 1}).id(), x.id());
  EXPECT_EQ(BroadcastTo(x, {2, 3}).id(), x.id());
  EXPECT_EQ(Slice(x, {0, 0}, {2, 3}).id(), x.id());
  EXPECT_EQ(Conj(x).id(), x.id());
  EXPECT_EQ(builder.size(), 0);
}

TEST(Text, ReferencesToTypesStayValid) {
  Builder builder;
  Value x = Vector(builder);
  const Type& type = x.type();
  for (int i = 0; i < 1000; ++i) Negate(x);
  EXPECT_EQ(&type, &x.type());
}

// ------------------------------------------------------------------------------------- errors

template <typename Build>
std::string ErrorOf(const Build& build) {
  Builder builder;
  try {
    build(builder);
  } catch (const TypeError& error) {
    return error.what();
  }
  return "";
}

TEST(Errors, NameOperationAndOperands) {
  EXPECT_EQ(ErrorOf([](Builder& b) { Add(Vector(b, 4), Vector(b, 5)); }),
            "stablehlo.add: operand types differ (operand types: tensor<4xf32>, tensor<5xf32>)");
  EXPECT_EQ(ErrorOf([](Builder& b) { Add(Vector(b), Value()); }),
            "stablehlo.add: operand 1 is undefined (operand types: tensor<4xf32>, undefined)");
}

TEST(Errors, OfEachFamily) {
  const std::map<std::string, std::function<void(Builder&)>> wrong = {
      {"unary", [](Builder& b) { Exp(Vector(b, 4, DType::kS32)); }},
      {"bits", [](Builder& b) { And(Vector(b), Vector(b)); }},
      {"special", [](Builder& b) { Erf(Vector(b, 4, DType::kS32)); }},
      {"complex order",
       [](Builder& b) { Lt(Vector(b, 4, DType::kC64), Vector(b, 4, DType::kC64)); }},
      {"complex maximum",
       [](Builder& b) { Maximum(Vector(b, 4, DType::kC64), Vector(b, 4, DType::kC64)); }},
      {"complex of halves",
       [](Builder& b) { Complex(Vector(b, 4, DType::kF16), Vector(b, 4, DType::kF16)); }},
      {"select", [](Builder& b) { Select(Vector(b), Vector(b), Vector(b)); }},
      {"clamp", [](Builder& b) { Clamp(Scalar(b, DType::kF64, 0), Vector(b), Vector(b)); }},
      {"broadcast", [](Builder& b) { BroadcastTo(Vector(b, 3), {4}); }},
      {"broadcast rank", [](Builder& b) { BroadcastTo(Vector(b, 3), {}); }},
      {"broadcast shapes",
       [](Builder&) {
         BroadcastShapes({2, 3}, {2, 4});
       }},
      {"reshape", [](Builder& b) { Reshape(Vector(b), {5}); }},
      {"transpose", [](Builder& b) { Transpose(Vector(b), {1}); }},
      {"slice", [](Builder& b) { SliceDim(Vector(b), 0, 2, 5); }},
      {"dynamic slice", [](Builder& b) { DynamicSlice(Vector(b), {Vector(b)}, {2}); }},
      {"update", [](Builder& b) { UpdateSlice(Vector(b, 4), Vector(b, 2), {3}); }},
      {"pad", [](Builder& b) { Pad(Vector(b), Scalar(b, DType::kF64, 0), {0}, {0}); }},
      {"concatenate",
       [](Builder& b) {
         Concatenate({Vector(b), Vector(b, 4, DType::kS32)}, 0);
       }},
      {"reverse",
       [](Builder& b) {
         Reverse(Vector(b), {0, 0});
       }},
      {"bitcast", [](Builder& b) { BitcastConvert(Vector(b, 3), DType::kF64); }},
      {"gather", [](Builder& b) { Take(Vector(b), Vector(b), 0); }},
      {"reduce", [](Builder& b) { Reduce(Vector(b), Reduction::kSum, {1}); }},
      {"reduce bits", [](Builder& b) { Reduce(Vector(b), Reduction::kAnd, {0}); }},
      {"reducer",
       [](Builder& b) {
         ReduceGeneric({Vector(b)}, {Scalar(b, DType::kF32, 0)}, {0},
                       [](const Values& v) { return Values{Convert(v[0], DType::kF64)}; });
       }},
      {"window",
       [](Builder& b) {
         ReduceWindow(Vector(b), Reduction::kSum, {.dimensions = {2, 2}});
       }},
      {"sort", [](Builder& b) { Sort({Vector(b)}, 0, true, [](const Values& v) { return v; }); }},
      {"dot",
       [](Builder& b) {
         DotGeneral(Vector(b, 3), Vector(b, 4), {.lhs_contract = {0}, .rhs_contract = {0}},
                    Precision::kDefault);
       }},
      {"convolution",
       [](Builder& b) { Convolution(Vector(b), Vector(b), {}, {}, Precision::kDefault); }},
      {"cholesky", [](Builder& b) { Cholesky(Vector(b), true); }},
      {"fft", [](Builder& b) { Fft(Vector(b), FftKind::kFft, {4}); }},
      {"while",
       [](Builder& b) {
         const auto same = [](const Values& v) { return v; };
         While({Vector(b)}, same, same);
       }},
      {"if",
       [](Builder& b) {
         const auto none = [](const Values&) { return Values(); };
         If(Vector(b), {}, none, none);
       }},
      {"iota",
       [](Builder& b) {
         b.Iota({DType::kS32, {3}}, 1);
       }},
      {"constant",
       [](Builder& b) {
         b.ConstantInts({DType::kS32, {3}}, {1, 2});
       }},
      {"extreme", [](Builder& b) { MaxValue(b, DType::kC64); }},
      {"alias",
       [](Builder& b) {
         Value x = Vector(b);
         b.Alias(0, 0);
         b.Finish({Convert(x, DType::kF64)});
       }},
      {"dimension", [](Builder& b) { Vector(b).dim(1); }},
      {"undefined", [](Builder&) { Value().type(); }},
  };
  for (const auto& [name, build] : wrong) EXPECT_NE(ErrorOf(build), "") << name;
}

TEST(Errors, OperandOfAnotherBuilder) {
  Builder one, other;
  EXPECT_THROW(Add(Vector(one), Vector(other)), TypeError);
}

// -------------------------------------------------------------------------- values on a plugin

struct Array {
  Dims dims;
  std::vector<double> data;
  Array(std::vector<double> values)
      : dims{static_cast<int64_t>(values.size())}, data(std::move(values)) {}
  Array(Dims shape, std::vector<double> values) : dims(std::move(shape)), data(std::move(values)) {}
};

using Program = std::function<Values(Builder&, const Values&)>;

// Runs programs on the plugin that an environment variable names. Inputs arrive as f64; results are
// returned as f64 whatever their dtype, complex ones as pairs.
class OnPlugin : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    const char* path = std::getenv(GetParam());
    if (path == nullptr) GTEST_SKIP() << GetParam() << " is not set";
    static std::map<std::string, std::shared_ptr<pjrt::Client>> clients;
    std::shared_ptr<pjrt::Client>& client = clients[path];
    if (client == nullptr) client = pjrt::Client::Create(pjrt::Plugin::Load(path));
    client_ = client.get();
  }

  std::vector<std::vector<double>> Run(const std::vector<Array>& inputs, const Program& program) {
    Builder builder;
    Values parameters;
    for (const Array& input : inputs) {
      parameters.push_back(builder.Parameter({DType::kF64, input.dims}));
    }
    builder.SetLocation("program");
    Values results = program(builder, parameters);
    for (Value& result : results) {
      if (IsComplex(result.dtype())) {
        result = Convert(BitcastConvert(result, RealOf(result.dtype())), DType::kF64);
      } else {
        result = Convert(result, DType::kF64);
      }
    }
    const std::string text = builder.Finish(results);
    pjrt::CompileOptions options;
    options.env_option_overrides = {{"xla_backend_optimization_level", int64_t{0}},
                                    {"xla_cpu_enable_fast_min_max", false},
                                    {"xla_cpu_enable_fast_math", false}};
    std::shared_ptr<pjrt::Executable> executable;
    try {
      executable = client_->Compile(text, options);
    } catch (const std::exception& error) {
      ADD_FAILURE() << error.what() << "\n" << text;
      return std::vector<std::vector<double>>(results.size());
    }
    std::vector<pjrt::Buffer> buffers;
    std::vector<PJRT_Buffer*> arguments;
    for (const Array& input : inputs) {
      buffers.push_back(client_->FromHost(input.data.data(), PJRT_Buffer_Type_F64, input.dims,
                                          client_->devices().front()));
      arguments.push_back(buffers.back().raw());
    }
    std::vector<PJRT_Buffer*> outputs(results.size());
    executable->Execute(arguments, outputs);
    std::vector<std::vector<double>> values;
    for (size_t i = 0; i < outputs.size(); ++i) {
      pjrt::Buffer output(&client_->plugin(), outputs[i]);
      values.emplace_back(results[i].numel());
      output.ToHost(values.back().data(), values.back().size() * sizeof(double));
    }
    return values;
  }

  void Check(const std::string& name, const std::vector<Array>& inputs, const Program& program,
             const std::vector<std::vector<double>>& expected, double tolerance = 1e-6) {
    SCOPED_TRACE(name);
    std::vector<std::vector<double>> results;
    try {
      results = Run(inputs, program);
    } catch (const std::exception& error) {
      ADD_FAILURE() << error.what();
      return;
    }
    ASSERT_EQ(results.size(), expected.size());
    for (size_t i = 0; i < expected.size(); ++i) {
      ASSERT_EQ(results[i].size(), expected[i].size()) << "result " << i;
      for (size_t j = 0; j < expected[i].size(); ++j) {
        const double got = results[i][j], want = expected[i][j];
        const bool same = (std::isnan(got) && std::isnan(want)) || got == want ||
                          std::abs(got - want) <= tolerance * std::max(1.0, std::abs(want));
        EXPECT_TRUE(same) << "result " << i << "[" << j << "]: " << got << ", expected " << want;
      }
    }
  }

  pjrt::Client* client_ = nullptr;
};

INSTANTIATE_TEST_SUITE_P(Plugins, OnPlugin,
                         testing::Values("TORCH_TPU_TEST_PLUGIN_F", "TORCH_TPU_TEST_PLUGIN_X"));

double Tolerance(DType dtype) {
  switch (dtype) {
    case DType::kF64:
      return 1e-12;
    case DType::kF32:
    case DType::kC64:
      return 5e-6;
    case DType::kF16:
      return 4e-3;
    default:
      return 3e-2;
  }
}

// Inputs that every dtype holds exactly.
const std::vector<double> kSmall = {-0.75, -0.5, -0.25, -0.125, 0, 0.125, 0.25, 0.5, 0.75};
const std::vector<double> kWide = {-3.5, -2.5, -1.5, -0.5, 0, 0.5, 1.5, 2.5, 3.5};
const std::vector<double> kPositive = {0.25, 0.5, 1, 1.5, 2, 3, 7, 12, 100};

double RoundEven(double x) { return std::nearbyint(x); }
double SignOf(double x) { return (x > 0) - (x < 0); }
double Psi(double x) {
  if (x < 0) return Psi(1 - x) - std::numbers::pi / std::tan(std::numbers::pi * x);
  double result = 0;
  for (; x < 20; ++x) result -= 1 / x;
  const double y = 1 / (x * x);
  return result + std::log(x) - 0.5 / x - y * (1.0 / 12 - y * (1.0 / 120 - y / 252));
}
double InverseErf(double x) {
  double low = -6, high = 6;
  for (int i = 0; i < 200; ++i) (std::erf((low + high) / 2) < x ? low : high) = (low + high) / 2;
  return (low + high) / 2;
}

TEST_P(OnPlugin, UnaryOperations) {
  struct Case {
    const char* name;
    Value (*build)(Value);
    std::function<double(double)> expected;
    const std::vector<double>& inputs;
  };
  const std::vector<double> above_one = {1, 1.25, 1.5, 2, 4, 8};
  const std::vector<double> gamma = {-2.5, -1.5, -0.5, 0.25, 0.5, 1, 1.5, 2, 3, 10};
  using D = double (*)(double);
  const std::vector<Case> cases = {
      {"abs", Abs, D(std::fabs), kWide},
      {"cbrt", Cbrt, D(std::cbrt), kWide},
      {"ceil", Ceil, D(std::ceil), kWide},
      {"cosine", Cosine, D(std::cos), kWide},
      {"exponential", Exp, D(std::exp), kWide},
      {"expm1", Expm1, D(std::expm1), kWide},
      {"floor", Floor, D(std::floor), kWide},
      {"log", Log, D(std::log), kPositive},
      {"log1p", Log1p, D(std::log1p), kPositive},
      {"logistic", Logistic, [](double x) { return 1 / (1 + std::exp(-x)); }, kWide},
      {"negate", Negate, [](double x) { return -x; }, kWide},
      {"round away", RoundNearestAfz, D(std::round), kWide},
      {"round even", RoundNearestEven, RoundEven, kWide},
      {"rsqrt", Rsqrt, [](double x) { return 1 / std::sqrt(x); }, kPositive},
      {"sign", Sign, SignOf, kWide},
      {"sine", Sine, D(std::sin), kWide},
      {"sqrt", Sqrt, D(std::sqrt), kPositive},
      {"tanh", Tanh, D(std::tanh), kWide},
      {"acos", Acos, D(std::acos), kSmall},
      {"acosh", Acosh, D(std::acosh), above_one},
      {"asin", Asin, D(std::asin), kSmall},
      {"asinh", Asinh, D(std::asinh), kWide},
      {"atan", Atan, D(std::atan), kWide},
      {"atanh", Atanh, D(std::atanh), kSmall},
      {"bessel_i1e", BesselI1e,
       [](double x) {
         return std::copysign(std::cyl_bessel_i(1, std::abs(x)) * std::exp(-std::abs(x)), x);
       },
       kWide},
      {"cosh", Cosh, D(std::cosh), kWide},
      {"digamma", Digamma, Psi, gamma},
      {"erf", Erf, D(std::erf), kWide},
      {"erfc", Erfc, D(std::erfc), kWide},
      {"erf_inv", ErfInv, InverseErf, kSmall},
      {"lgamma", Lgamma, D(std::lgamma), gamma},
      {"sinh", Sinh, D(std::sinh), kWide},
      {"tan", Tan, D(std::tan), kSmall},
  };
  std::vector<Array> inputs;
  std::vector<std::vector<double>> expected;
  for (const Case& c : cases) {
    inputs.push_back(c.inputs);
    expected.emplace_back();
    for (double x : c.inputs) expected.back().push_back(c.expected(x));
  }
  for (DType dtype : {DType::kF32, DType::kF64, DType::kBF16, DType::kF16, DType::kF8E5M2}) {
    const auto program = [&](Builder& b, const Values& in) {
      Values results;
      for (size_t i = 0; i < cases.size(); ++i) {
        b.SetLocation(cases[i].name);
        results.push_back(cases[i].build(Convert(in[i], dtype)));
      }
      return results;
    };
    if (dtype == DType::kF8E5M2) {
      // Two bits of mantissa leave nothing to compare.
      EXPECT_NO_THROW(Run(inputs, program));
    } else {
      Check(std::string(Name(dtype)), inputs, program, expected, Tolerance(dtype));
    }
  }
}

TEST_P(OnPlugin, ComplexUnaryOperations) {
  using C = std::complex<double>;
  struct Case {
    const char* name;
    Value (*build)(Value);
    std::function<C(C)> expected;
  };
  const std::vector<Case> cases = {
      {"abs", Abs, [](C z) { return C(std::abs(z)); }},
      {"cosine", Cosine, [](C z) { return std::cos(z); }},
      {"exponential", Exp, [](C z) { return std::exp(z); }},
      {"expm1", Expm1, [](C z) { return std::exp(z) - 1.0; }},
      {"log", Log, [](C z) { return std::log(z); }},
      {"log1p", Log1p, [](C z) { return std::log(1.0 + z); }},
      {"logistic", Logistic, [](C z) { return 1.0 / (1.0 + std::exp(-z)); }},
      {"negate", Negate, [](C z) { return -z; }},
      {"rsqrt", Rsqrt, [](C z) { return 1.0 / std::sqrt(z); }},
      {"sign", Sign, [](C z) { return z / std::abs(z); }},
      {"sine", Sine, [](C z) { return std::sin(z); }},
      {"sqrt", Sqrt, [](C z) { return std::sqrt(z); }},
      {"tanh", Tanh, [](C z) { return std::tanh(z); }},
      {"conj", Conj, [](C z) { return std::conj(z); }},
      {"acos", Acos, [](C z) { return std::acos(z); }},
      {"acosh", Acosh, [](C z) { return std::acosh(z); }},
      {"asin", Asin, [](C z) { return std::asin(z); }},
      {"asinh", Asinh, [](C z) { return std::asinh(z); }},
      {"atan", Atan, [](C z) { return std::atan(z); }},
      {"atanh", Atanh, [](C z) { return std::atanh(z); }},
      {"cosh", Cosh, [](C z) { return std::cosh(z); }},
      {"sinh", Sinh, [](C z) { return std::sinh(z); }},
      {"tan", Tan, [](C z) { return std::tan(z); }},
  };
  const std::vector<double> real = {0.5, -0.75, 1.25, -2, 0.25}, imag = {0.25, 0.5, -0.75, -1, 2};
  std::vector<std::vector<double>> expected;
  for (const Case& c : cases) {
    expected.emplace_back();
    for (size_t i = 0; i < real.size(); ++i) {
      const C value = c.expected({real[i], imag[i]});
      expected.back().push_back(value.real());
      if (c.build != Abs) expected.back().push_back(value.imag());
    }
  }
  for (DType dtype : {DType::kF32, DType::kF64}) {
    Check(
        "complex of " + std::string(Name(dtype)), {real, imag},
        [&](Builder& b, const Values& in) {
          Value z = Complex(Convert(in[0], dtype), Convert(in[1], dtype));
          Values results;
          for (const Case& c : cases) {
            b.SetLocation(c.name);
            results.push_back(c.build(z));
          }
          return results;
        },
        expected, 20 * Tolerance(dtype));
  }
}

TEST_P(OnPlugin, BinaryOperations) {
  struct Case {
    const char* name;
    Value (*build)(Value, Value);
    std::function<double(double, double)> expected;
    bool integers;
  };
  const std::vector<Case> cases = {
      {"add", Add, [](double a, double b) { return a + b; }, true},
      {"atan2", Atan2, [](double a, double b) { return std::atan2(a, b); }, false},
      {"divide", Divide, [](double a, double b) { return a / b; }, false},
      {"maximum", Maximum, [](double a, double b) { return std::max(a, b); }, true},
      {"minimum", Minimum, [](double a, double b) { return std::min(a, b); }, true},
      {"multiply", Multiply, [](double a, double b) { return a * b; }, true},
      {"power", Power, [](double a, double b) { return std::pow(a, b); }, false},
      {"remainder", Remainder, [](double a, double b) { return std::fmod(a, b); }, true},
      {"subtract", Subtract, [](double a, double b) { return a - b; }, true},
      {"eq", Eq, [](double a, double b) { return a == b; }, true},
      {"ne", Ne, [](double a, double b) { return a != b; }, true},
      {"ge", Ge, [](double a, double b) { return a >= b; }, true},
      {"gt", Gt, [](double a, double b) { return a > b; }, true},
      {"le", Le, [](double a, double b) { return a <= b; }, true},
      {"lt", Lt, [](double a, double b) { return a < b; }, true},
  };
  const std::vector<double> a = {1, 2, -3, 5, -7, 4}, b = {2, 2, 2, -3, 3, 4};
  for (DType dtype : {DType::kF32, DType::kF64, DType::kF16, DType::kBF16, DType::kS8, DType::kS16,
                      DType::kS32, DType::kS64}) {
    const auto applies = [&](const Case& c) { return c.integers || !IsInteger(dtype); };
    std::vector<std::vector<double>> expected;
    for (const Case& c : cases) {
      if (!applies(c)) continue;
      expected.emplace_back();
      for (size_t i = 0; i < a.size(); ++i) expected.back().push_back(c.expected(a[i], b[i]));
    }
    Check(
        std::string(Name(dtype)), {a, b},
        [&](Builder& builder, const Values& in) {
          Value x = Convert(in[0], dtype), y = Convert(in[1], dtype);
          Values results;
          for (const Case& c : cases) {
            builder.SetLocation(c.name);
            if (applies(c)) results.push_back(c.build(x, y));
          }
          return results;
        },
        expected, Tolerance(dtype));
  }
}

TEST_P(OnPlugin, UnsignedAndBooleanOperations) {
  for (DType dtype : {DType::kU8, DType::kU16, DType::kU32, DType::kU64}) {
    Check("unsigned " + std::string(Name(dtype)), {{{7, 6, 200}}, {{2, 3, 7}}},
          [&](Builder&, const Values& in) -> Values {
            Value a = Convert(in[0], dtype), b = Convert(in[1], dtype);
            return {Add(a, b), Divide(a, b), Remainder(a, b), Maximum(a, b), And(a, b),
                    Or(a, b),  Xor(a, b),    Gt(a, b),        Sign(a),       Abs(a)};
          },
          {{9, 9, 207},
           {3, 2, 28},
           {1, 0, 4},
           {7, 6, 200},
           {2, 2, 0},
           {7, 7, 207},
           {5, 5, 207},
           {1, 1, 1},
           {1, 1, 1},
           {7, 6, 200}});
  }
  Check("booleans", {{{0, 0, 1, 1}}, {{0, 1, 0, 1}}},
        [](Builder&, const Values& in) -> Values {
          Value a = Convert(in[0], DType::kPred), b = Convert(in[1], DType::kPred);
          return {And(a, b),     Or(a, b),  Xor(a, b),      Not(a),   Maximum(a, b),
                  Minimum(a, b), Add(a, b), Multiply(a, b), Lt(a, b), Eq(a, b)};
        },
        {{0, 0, 0, 1},
         {0, 1, 1, 1},
         {0, 1, 1, 0},
         {1, 1, 0, 0},
         {0, 1, 1, 1},
         {0, 0, 0, 1},
         {0, 1, 1, 1},
         {0, 0, 0, 1},
         {0, 1, 0, 0},
         {1, 0, 0, 1}});
}

TEST_P(OnPlugin, BitOperations) {
  Check("bits", {{{6, -8, 1}}, {{1, 2, 3}}},
        [](Builder&, const Values& in) -> Values {
          Value a = Convert(in[0], DType::kS32), b = Convert(in[1], DType::kS32);
          return {And(a, b),
                  Or(a, b),
                  Xor(a, b),
                  Not(a),
                  ShiftLeft(a, b),
                  ShiftRightArithmetic(a, b),
                  ShiftRightLogical(a, b),
                  PopulationCount(a),
                  CountLeadingZeros(a)};
        },
        {{0, 0, 1},
         {7, -6, 3},
         {7, -6, 2},
         {-7, 7, -2},
         {12, -32, 8},
         {3, -2, 0},
         {3, 1073741822, 0},
         {2, 29, 1},
         {29, 0, 31}});
}

TEST_P(OnPlugin, IntegerDivisionTruncates) {
  Check("divide", {{{7, -7, 7, -7}}, {{2, 2, -2, -2}}},
        [](Builder&, const Values& in) -> Values {
          Value a = Convert(in[0], DType::kS64), b = Convert(in[1], DType::kS64);
          return {Divide(a, b), Remainder(a, b)};
        },
        {{3, -3, -3, 3}, {1, -1, 1, -1}});
  Check("power", {{{2, -3, 5}}, {{10, 3, 0}}},
        [](Builder&, const Values& in) -> Values {
          return {Power(Convert(in[0], DType::kS32), Convert(in[1], DType::kS32))};
        },
        {{1024, -27, 1}});
}

TEST_P(OnPlugin, TwoOperandSpecialFunctions) {
  constexpr double kPi2 = std::numbers::pi * std::numbers::pi;
  constexpr double kZeta3 = 1.2020569031595942854;
  for (DType dtype : {DType::kF32, DType::kF64, DType::kBF16, DType::kF16}) {
    const double tolerance = dtype == DType::kF64 ? 1e-10 : 3 * Tolerance(dtype);
    Check(
        "zeta " + std::string(Name(dtype)), {{{2, 3, 2}}, {{1, 2, 2}}},
        [&](Builder&, const Values& in) -> Values {
          return {Zeta(Convert(in[0], dtype), Convert(in[1], dtype))};
        },
        {{kPi2 / 6, kZeta3 - 1, kPi2 / 6 - 1}}, tolerance);
    Check(
        "polygamma " + std::string(Name(dtype)), {{{0, 1, 2, 1}}, {{1, 1, 1, 2}}},
        [&](Builder&, const Values& in) -> Values {
          return {Polygamma(Convert(in[0], dtype), Convert(in[1], dtype))};
        },
        {{-0.57721566490153286, kPi2 / 6, -2 * kZeta3, kPi2 / 6 - 1}}, tolerance);
  }
  for (DType dtype : {DType::kF32, DType::kF64}) {
    const double step = dtype == DType::kF32 ? std::ldexp(1, -23) : std::ldexp(1, -52);
    Check(
        "next_after", {{{1, 1, 0, 1}}, {{2, -2, 0, 1}}},
        [&](Builder&, const Values& in) -> Values {
          return {NextAfter(Convert(in[0], dtype), Convert(in[1], dtype))};
        },
        {{1 + step, 1 - step / 2, 0, 1}}, 0);
  }
}

TEST_P(OnPlugin, NonFiniteNumbers) {
  const std::vector<double> x = {kNan, kInf, -kInf, 0, 1};
  for (DType dtype : {DType::kF32, DType::kF64, DType::kF16, DType::kBF16, DType::kF8E5M2}) {
    Check("tests " + std::string(Name(dtype)), {x},
          [&](Builder&, const Values& in) -> Values {
            Value v = Convert(in[0], dtype);
            Value zero = ConstantLike(v, 0);
            return {IsNan(v),
                    IsInf(v),
                    IsFinite(v),
                    Maximum(v, zero),
                    Minimum(zero, v),
                    Lt(v, zero),
                    Ne(v, v),
                    Clamp(Scalar(v.builder(), dtype, -1), v, Scalar(v.builder(), dtype, 1))};
          },
          {{1, 0, 0, 0, 0},
           {0, 1, 1, 0, 0},
           {0, 0, 0, 1, 1},
           {kNan, kInf, 0, 0, 1},
           {kNan, 0, -kInf, 0, 0},
           {0, 0, 1, 0, 0},
           {1, 0, 0, 0, 0},
           {kNan, 1, -1, 0, 1}});
    Check("constants " + std::string(Name(dtype)), {},
          [&](Builder& b, const Values&) -> Values {
            return {b.Constant({dtype, {2}}, kInf),
                    b.Constant({dtype, {}}, -kInf),
                    b.Constant({dtype, {}}, kNan),
                    b.ConstantFloats({dtype, {3}}, {kNan, 1, kInf}),
                    MaxValue(b, dtype),
                    MinValue(b, dtype)};
          },
          {{kInf, kInf}, {-kInf}, {kNan}, {kNan, 1, kInf}, {kInf}, {-kInf}});
  }
  Check(
      "complex", {{{kNan, 1, kInf}}, {{0, kInf, 1}}},
      [](Builder& b, const Values& in) -> Values {
        Value z = Complex(in[0], in[1]);
        return {IsNan(z), IsInf(z), IsFinite(z), b.ConstantComplex({DType::kC64, {}}, kInf, kNan)};
      },
      {{1, 0, 0}, {0, 1, 1}, {0, 0, 0}, {kInf, kNan}});
  Check("integers", {{{1, 0}}},
        [](Builder&, const Values& in) -> Values {
          Value i = Convert(in[0], DType::kS32);
          return {IsNan(i), IsInf(i), IsFinite(i)};
        },
        {{0, 0}, {0, 0}, {1, 1}});
  Check("total order", {{{kNan, -0.0}}, {{kInf, 0}}},
        [](Builder&, const Values& in) -> Values {
          return {Compare(in[0], in[1], Direction::kGt, true),
                  Compare(in[0], in[1], Direction::kLt, true)};
        },
        {{1, 0}, {0, 1}});
}

TEST_P(OnPlugin, Constants) {
  for (DType dtype : {DType::kF8E4M3FN, DType::kF8E5M2, DType::kF8E4M3FNUZ, DType::kF8E5M2FNUZ}) {
    const bool infinite = dtype == DType::kF8E5M2;
    Check("constants " + std::string(Name(dtype)), {},
          [&](Builder& b, const Values&) -> Values {
            return {b.Constant({dtype, {}}, 1.5), b.Constant({dtype, {}}, kInf),
                    b.Constant({dtype, {}}, kNan)};
          },
          {{1.5}, {infinite ? kInf : kNan}, {kNan}});
  }
  Check("extremes of floats without infinity", {},
        [](Builder& b, const Values&) -> Values {
          return {MaxValue(b, DType::kF8E4M3FN), MinValue(b, DType::kF8E4M3FNUZ),
                  MaxValue(b, DType::kF8E5M2FNUZ)};
        },
        {{448}, {-240}, {57344}});
  Check(
      "digits", {},
      [](Builder& b, const Values&) -> Values {
        return {b.Constant({DType::kF64, {}}, 0.1),    b.Constant({DType::kF64, {}}, 1e300),
                b.Constant({DType::kF64, {}}, 4e-310), b.Constant({DType::kF32, {}}, 3e38),
                b.Constant({DType::kF32, {}}, -1e-7),  b.Constant({DType::kF64, {}}, 123456789)};
      },
      {{0.1}, {1e300}, {4e-310}, {double(3e38f)}, {double(-1e-7f)}, {123456789}}, 0);
  Check("integers", {},
        [](Builder& b, const Values&) -> Values {
          return {b.ConstantInts({DType::kS32, {2, 2}}, {1, -2, 3, 4}),
                  b.ConstantInts({DType::kPred, {2}}, {1, 0}),
                  b.ConstantInts({DType::kU8, {2}}, {255, 0}),
                  b.ConstantInts({DType::kF32, {2}}, {5, -6}),
                  MaxValue(b, DType::kS16),
                  MinValue(b, DType::kS16),
                  MaxValue(b, DType::kU32),
                  MinValue(b, DType::kU32),
                  MaxValue(b, DType::kPred)};
        },
        {{1, -2, 3, 4}, {1, 0}, {255, 0}, {5, -6}, {32767}, {-32768}, {4294967295.0}, {0}, {1}});
  Check("empty", {},
        [](Builder& b, const Values&) -> Values {
          return {b.Constant({DType::kF32, {0, 3}}, 1), b.ConstantInts({DType::kS64, {0}}, {}),
                  b.Constant({DType::kC64, {2, 0}}, 1)};
        },
        {{}, {}, {}});
  Check("iota", {},
        [](Builder& b, const Values&) -> Values {
          return {b.Iota({DType::kS32, {2, 3}}, 1), b.Iota({DType::kF32, {2, 2}}, 0),
                  b.Iota({DType::kU8, {3}}, 0), b.Iota({DType::kBF16, {3}}, 0),
                  b.Iota({DType::kC64, {2}}, 0)};
        },
        {{0, 1, 2, 0, 1, 2}, {0, 0, 1, 1}, {0, 1, 2}, {0, 1, 2}, {0, 0, 1, 0}});
}

TEST_P(OnPlugin, SelectAndClamp) {
  Check("select", {{{1, 2, 3}}, {{4, 5, 6}}},
        [](Builder& b, const Values& in) -> Values {
          return {Select(Gt(in[0], ConstantLike(in[0], 1.5)), in[0], in[1]),
                  Select(b.ConstantInt({DType::kPred, {}}, 1), in[0], in[1])};
        },
        {{4, 2, 3}, {1, 2, 3}});
  Check("clamp", {{{-5, 0, 5}}},
        [](Builder& b, const Values& in) -> Values {
          Value i = Convert(in[0], DType::kS32);
          return {Clamp(ScalarInt(b, DType::kS32, -1), i, ScalarInt(b, DType::kS32, 2)),
                  Clamp(ConstantLike(in[0], -2), in[0], ConstantLike(in[0], 3))};
        },
        {{-1, 0, 2}, {-2, 0, 3}});
}

const std::vector<DType> kAllDTypes = {
    DType::kPred,     DType::kS8,     DType::kS16,        DType::kS32,       DType::kS64,
    DType::kU8,       DType::kU16,    DType::kU32,        DType::kU64,       DType::kF16,
    DType::kBF16,     DType::kF32,    DType::kF64,        DType::kC64,       DType::kC128,
    DType::kF8E4M3FN, DType::kF8E5M2, DType::kF8E4M3FNUZ, DType::kF8E5M2FNUZ};

TEST_P(OnPlugin, ConvertsBetweenAllDTypes) {
  for (DType from : kAllDTypes) {
    std::vector<std::vector<double>> expected;
    for (DType to : kAllDTypes) {
      const bool boolean = from == DType::kPred || to == DType::kPred;
      const std::vector<double> values = {0, 1, boolean ? 1.0 : 2.0, boolean ? 1.0 : 3.0};
      expected.emplace_back();
      for (double value : values) {
        expected.back().push_back(value);
        if (IsComplex(to)) expected.back().push_back(0);
      }
    }
    Check(
        "from " + std::string(Name(from)), {{{0, 1, 2, 3}}},
        [&](Builder&, const Values& in) {
          Value x = Convert(in[0], from);
          Values results;
          for (DType to : kAllDTypes) results.push_back(Convert(x, to));
          return results;
        },
        expected);
  }
}

TEST_P(OnPlugin, ConvertsAsPyTorch) {
  Check("float to integer", {{{-2.75, -0.5, 0.5, 2.75, 300, -1}}},
        [](Builder&, const Values& in) -> Values {
          Value x = Convert(in[0], DType::kF32);
          return {Convert(x, DType::kS32), Convert(x, DType::kS64), Convert(x, DType::kS8),
                  Convert(x, DType::kU8), Convert(x, DType::kPred)};
        },
        {{-2, 0, 0, 2, 300, -1},
         {-2, 0, 0, 2, 300, -1},
         {-2, 0, 0, 2, 44, -1},
         {254, 0, 0, 2, 44, 255},
         {1, 1, 1, 1, 1, 1}});
  Check("complex", {{{1.5, 0, 0}}, {{-2, 3, 0}}},
        [](Builder&, const Values& in) -> Values {
          Value z = Complex(in[0], in[1]);
          return {Convert(z, DType::kF32),
                  Convert(z, DType::kS32),
                  Convert(z, DType::kPred),
                  Convert(z, DType::kC64),
                  Real(z),
                  Imag(z)};
        },
        {{1.5, 0, 0}, {1, 0, 0}, {1, 1, 0}, {1.5, -2, 0, 3, 0, 0}, {1.5, 0, 0}, {-2, 3, 0}});
  Check("not a number is true", {{{kNan}}},
        [](Builder&, const Values& in) -> Values { return {Convert(in[0], DType::kPred)}; }, {{1}});
  Check("overflow; e4m3fn saturates", {{{1e6, -1e6, 500}}},
        [](Builder&, const Values& in) -> Values {
          return {Convert(in[0], DType::kF16), Convert(in[0], DType::kF8E4M3FN),
                  Convert(in[0], DType::kF8E5M2)};
        },
        {{kInf, -kInf, 500}, {448, -448, 448}, {kInf, -kInf, 512}});
  // 1 + 2^-11 + 2^-40 is just above the middle of two float16 numbers; through float32 it ties.
  Check(
      "double rounding", {{{1 + std::ldexp(1, -11) + std::ldexp(1, -40)}}},
      [](Builder&, const Values& in) -> Values { return {Convert(in[0], DType::kF16)}; }, {{1}}, 0);
}

TEST_P(OnPlugin, BitcastsKeepBits) {
  Check("same size", {{{1, -2}}},
        [](Builder&, const Values& in) -> Values {
          Value x = Convert(in[0], DType::kF32);
          return {BitcastConvert(x, DType::kU32),
                  BitcastConvert(BitcastConvert(x, DType::kS32), DType::kF32)};
        },
        {{1065353216, 3221225472}, {1, -2}});
  Check("other sizes", {{{1, -2}}},
        [](Builder&, const Values& in) -> Values {
          Value x = Convert(in[0], DType::kF32);
          Value bytes = BitcastConvert(x, DType::kU8);
          return {bytes, BitcastConvert(bytes, DType::kF32), BitcastConvert(x, DType::kU64),
                  BitcastConvert(BitcastConvert(in[0], DType::kBF16), DType::kF64)};
        },
        {{0, 0, 128, 63, 0, 0, 0, 192}, {1, -2}, {13835058056347385856.0}, {1, -2}});
  Check("complex", {{{1, 2, 3, 4}}},
        [](Builder&, const Values& in) -> Values {
          Value x = Reshape(Convert(in[0], DType::kF32), {2, 2});
          Value z = BitcastConvert(x, DType::kC64);
          Value bytes = BitcastConvert(z, DType::kU8);
          return {z, BitcastConvert(z, DType::kF32), BitcastConvert(bytes, DType::kC64),
                  BitcastConvert(BitcastConvert(z, DType::kC128), DType::kC64),
                  BitcastConvert(BitcastConvert(z, DType::kF64), DType::kC64)};
        },
        {{1, 2, 3, 4}, {1, 2, 3, 4}, {1, 2, 3, 4}, {1, 2, 3, 4}, {1, 2, 3, 4}});
  Check("booleans", {{{0, 1}}},
        [](Builder&, const Values& in) -> Values {
          Value b = Convert(in[0], DType::kPred);
          return {BitcastConvert(b, DType::kU8),
                  BitcastConvert(BitcastConvert(b, DType::kS8), DType::kPred),
                  BitcastConvert(b, DType::kS16)};
        },
        {{0, 1}, {0, 1}, {256}});
}

TEST_P(OnPlugin, Shapes) {
  const Array x({2, 3}, {1, 2, 3, 4, 5, 6});
  Check("movement", {x},
        [](Builder& b, const Values& in) -> Values {
          Value v = in[0];
          Value one = ScalarInt(b, DType::kS32, 1), zero = ScalarInt(b, DType::kS32, 0);
          return {
              Reshape(v, {3, 2}),
              Transpose(v, {1, 0}),
              BroadcastInDim(Reshape(SliceDim(v, 0, 0, 1), {3}), {3, 2}, {0}),
              BroadcastTo(SliceDim(v, 1, 0, 1), {2, 2}),
              SliceDim(v, 1, 0, 3, 2),
              Slice(v, {1, 1}, {2, 3}),
              Slice(v, {1, 1}, {1, 3}),
              DynamicSlice(v, {zero, one}, {2, 2}),
              DynamicUpdateSlice(v, b.Constant({DType::kF64, {1, 2}}, 9), {one, one}),
              UpdateSlice(v, b.Constant({DType::kF64, {2, 1}}, 9), {0, 2}),
              Pad(v, Scalar(b, DType::kF64, 7), {0, 1}, {0, -1}),
              Pad(SliceDim(v, 0, 0, 1), Scalar(b, DType::kF64, 0), {0, 0}, {0, 0}, {0, 1}),
              Concatenate({v, SliceDim(v, 1, 0, 1)}, 1),
              Reverse(v, {1}),
          };
        },
        {{1, 2, 3, 4, 5, 6},
         {1, 4, 2, 5, 3, 6},
         {1, 1, 2, 2, 3, 3},
         {1, 1, 4, 4},
         {1, 3, 4, 6},
         {5, 6},
         {},
         {2, 3, 5, 6},
         {1, 2, 3, 4, 9, 9},
         {1, 2, 9, 4, 5, 9},
         {7, 1, 2, 7, 4, 5},
         {1, 0, 2, 0, 3},
         {1, 2, 3, 1, 4, 5, 6, 4},
         {3, 2, 1, 6, 5, 4}});
  EXPECT_EQ(BroadcastShapes({2, 1, 3}, {4, 1}), (Dims{2, 4, 3}));
  EXPECT_EQ(BroadcastShapes({0, 1}, {1, 1}), (Dims{0, 1}));
  EXPECT_EQ(BroadcastShapes({}, {2}), (Dims{2}));
}

TEST_P(OnPlugin, Indexing) {
  const Array x({3, 2}, {1, 2, 3, 4, 5, 6});
  for (DType index : {DType::kS32, DType::kS64, DType::kU8}) {
    Check("take", {x, {{2, 0}}},
          [&](Builder&, const Values& in) -> Values {
            Value i = Convert(in[1], index);
            return {Take(in[0], i, 0), Take(Transpose(in[0], {1, 0}), Reshape(i, {1, 2}), 1),
                    Take(in[0], Reshape(SliceDim(i, 0, 0, 1), {}), 0)};
          },
          {{5, 6, 1, 2}, {5, 1, 6, 2}, {5, 6}});
  }
  Check("take of nothing", {x},
        [](Builder& b, const Values& in) -> Values {
          return {Take(in[0], b.ConstantInts({DType::kS32, {0}}, {}), 0)};
        },
        {{}});
  Check("batched gather", {x, {{1, 0, 1}}},
        [](Builder&, const Values& in) -> Values {
          GatherDims dims;
          dims.operand_batching_dims = {0};
          dims.start_indices_batching_dims = {0};
          dims.collapsed_slice_dims = {1};
          dims.start_index_map = {1};
          dims.index_vector_dim = 1;
          return {Gather(in[0], Convert(in[1], DType::kS32), dims, {1, 1})};
        },
        {{2, 3, 6}});
  Check("scatter", {x, {{0, 2, 0}}, Array({3, 2}, {10, 20, 30, 40, 50, 60})},
        [](Builder&, const Values& in) -> Values {
          ScatterDims dims;
          dims.update_window_dims = {1};
          dims.inserted_window_dims = {0};
          dims.scatter_dims_to_operand_dims = {0};
          dims.index_vector_dim = 1;
          Value i = Convert(in[1], DType::kS32);
          return {Scatter(in[0], i, in[2], dims,
                          [](const Values& v) { return Values{Add(v[0], v[1])}; }),
                  Scatter(in[0], i, in[2], dims,
                          [](const Values& v) { return Values{Maximum(v[0], v[1])}; }),
                  Scatter(in[0], i, in[2], dims, [](const Values& v) { return Values{v[1]}; })};
        },
        {{61, 82, 3, 4, 35, 46}, {50, 60, 3, 4, 30, 40}, {50, 60, 3, 4, 30, 40}});
}

TEST_P(OnPlugin, Reductions) {
  const Array x({2, 3}, {1, 5, 3, 4, 2, 6});
  for (DType dtype : {DType::kF32, DType::kF64, DType::kBF16, DType::kF16, DType::kS32, DType::kS64,
                      DType::kU8, DType::kF8E5M2}) {
    Check("reduce " + std::string(Name(dtype)), {x},
          [&](Builder&, const Values& in) -> Values {
            Value v = Convert(in[0], dtype);
            return {Reduce(v, Reduction::kMax, {0}), Reduce(v, Reduction::kMin, {0, 1}),
                    Reduce(v, Reduction::kMax, {1, 0}), Reduce(v, Reduction::kSum, {}),
                    Reduce(SliceDim(v, 1, 0, 0), Reduction::kSum, {1})};
          },
          {{4, 5, 6}, {1}, {6}, {1, 5, 3, 4, 2, 6}, {0, 0}});
    if (dtype == DType::kF8E5M2) continue;
    Check("sum " + std::string(Name(dtype)), {x},
          [&](Builder&, const Values& in) -> Values {
            Value v = Convert(in[0], dtype);
            return {Reduce(v, Reduction::kSum, {1}), Reduce(v, Reduction::kProduct, {0})};
          },
          {{9, 12}, {4, 10, 18}});
  }
  Check("bits", {{{1, 3, 7}}},
        [](Builder&, const Values& in) -> Values {
          Value v = Convert(in[0], DType::kS32);
          Value p = Gt(v, ConstantLike(v, 2));
          return {Reduce(v, Reduction::kAnd, {0}), Reduce(v, Reduction::kOr, {0}),
                  Reduce(p, Reduction::kAnd, {0}), Reduce(p, Reduction::kOr, {0}),
                  Reduce(p, Reduction::kMax, {0}), Reduce(p, Reduction::kMin, {0})};
        },
        {{1}, {7}, {0}, {1}, {1}, {0}});
  Check("complex", {{{1, 2}}, {{3, 4}}},
        [](Builder&, const Values& in) -> Values {
          Value z = Complex(in[0], in[1]);
          return {Reduce(z, Reduction::kSum, {0}), Reduce(z, Reduction::kProduct, {0})};
        },
        {{3, 7}, {-10, 10}});
  std::vector<double> many(1000, 1);
  many[777] = kNan;
  for (DType dtype : {DType::kF32, DType::kF64, DType::kBF16, DType::kF16}) {
    Check("not a number " + std::string(Name(dtype)), {many},
          [&](Builder&, const Values& in) -> Values {
            Value v = Convert(in[0], dtype);
            return {Reduce(v, Reduction::kMax, {0}), Reduce(v, Reduction::kMin, {0})};
          },
          {{kNan}, {kNan}});
  }
  Check("several operands", {x},
        [](Builder& b, const Values& in) -> Values {
          Value index = b.Iota({DType::kS32, {2, 3}}, 1);
          return ReduceGeneric({in[0], index},
                               {MinValue(b, DType::kF64), ScalarInt(b, DType::kS32, 0)}, {1},
                               [](const Values& v) {
                                 Value left = Ge(v[0], v[2]);
                                 return Values{Select(left, v[0], v[2]), Select(left, v[1], v[3])};
                               });
        },
        {{5, 6}, {1, 2}});
}

TEST_P(OnPlugin, Windows) {
  const Array x({1, 4}, {1, 5, 3, 4});
  Check("reduce_window", {x},
        [](Builder& b, const Values& in) -> Values {
          Values results = {
              ReduceWindow(in[0], Reduction::kMax, {.dimensions = {1, 2}, .strides = {1, 2}}),
              ReduceWindow(in[0], Reduction::kSum,
                           {.dimensions = {1, 4}, .padding = {{0, 0}, {3, 0}}}),
              ReduceWindow(Convert(in[0], DType::kS32), Reduction::kSum,
                           {.dimensions = {1, 2}, .window_dilations = {1, 2}}),
              ReduceWindow(Convert(in[0], DType::kBF16), Reduction::kMin,
                           {.dimensions = {1, 2}, .base_dilations = {1, 2}})};
          Value index = b.Iota({DType::kS32, {1, 4}}, 1);
          const Values both = ReduceWindowGeneric(
              {in[0], index}, {MinValue(b, DType::kF64), ScalarInt(b, DType::kS32, 0)},
              {.dimensions = {1, 2}}, [](const Values& v) {
                Value left = Ge(v[0], v[2]);
                return Values{Select(left, v[0], v[2]), Select(left, v[1], v[3])};
              });
          results.insert(results.end(), both.begin(), both.end());
          return results;
        },
        {{5, 4}, {1, 6, 9, 13}, {4, 9}, {1, 5, 5, 3, 3, 4}, {5, 5, 4}, {1, 1, 3}});
  Check("select_and_scatter", {x, Array({1, 2}, {10, 20})},
        [](Builder& b, const Values& in) -> Values {
          return {SelectAndScatter(
              in[0], in[1], Scalar(b, DType::kF64, 0), {.dimensions = {1, 2}, .strides = {1, 2}},
              [](const Values& v) { return Values{Ge(v[0], v[1])}; },
              [](const Values& v) { return Values{Add(v[0], v[1])}; })};
        },
        {{0, 10, 0, 20}});
}

TEST_P(OnPlugin, Sorting) {
  Check("sort", {Array({2, 3}, {3, 1, 2, 1, 1, 0})},
        [](Builder& b, const Values& in) -> Values {
          Value index = b.Iota({DType::kS32, {2, 3}}, 1);
          return Sort({in[0], index}, 1, true,
                      [](const Values& v) { return Values{Lt(v[0], v[1])}; });
        },
        {{1, 2, 3, 0, 1, 1}, {1, 2, 0, 2, 0, 1}});
}

TEST_P(OnPlugin, Dots) {
  const Array a({2, 3}, {1, 2, 3, 4, 5, 6}), b({3, 2}, {1, 0, 2, 1, 0, 1});
  const DotDims matmul = {.lhs_contract = {1}, .rhs_contract = {0}};
  for (DType dtype : {DType::kF32, DType::kF64, DType::kBF16, DType::kF16, DType::kS32, DType::kS64,
                      DType::kU8}) {
    for (Precision precision : {Precision::kDefault, Precision::kHigh, Precision::kHighest}) {
      Check("matmul " + std::string(Name(dtype)), {a, b},
            [&](Builder&, const Values& in) -> Values {
              return {DotGeneral(Convert(in[0], dtype), Convert(in[1], dtype), matmul, precision)};
            },
            {{5, 5, 14, 11}});
    }
  }
  Check("wider results", {a, b},
        [&](Builder&, const Values& in) -> Values {
          const auto dot = [&](DType operands, DType result) {
            return DotGeneral(Convert(in[0], operands), Convert(in[1], operands), matmul,
                              Precision::kDefault, result);
          };
          return {dot(DType::kBF16, DType::kF32), dot(DType::kF16, DType::kF32),
                  dot(DType::kS8, DType::kS32), dot(DType::kF8E4M3FN, DType::kF32),
                  dot(DType::kF8E5M2, DType::kBF16)};
        },
        {{5, 5, 14, 11}, {5, 5, 14, 11}, {5, 5, 14, 11}, {5, 5, 14, 11}, {5, 5, 14, 11}});
  Check("mixed float8", {a, b},
        [&](Builder&, const Values& in) -> Values {
          return {DotGeneral(Convert(in[0], DType::kF8E4M3FN), Convert(in[1], DType::kF8E5M2),
                             matmul, Precision::kDefault, DType::kF32)};
        },
        {{5, 5, 14, 11}});
  Check("complex", {a, b},
        [&](Builder&, const Values& in) -> Values {
          Value i = Complex(ConstantLike(in[0], 0), in[0]);
          return {DotGeneral(i, Convert(in[1], DType::kC128), matmul, Precision::kHighest)};
        },
        {{0, 5, 0, 5, 0, 14, 0, 11}});
  Check("batched", {Array({2, 1, 2}, {1, 2, 3, 4}), Array({2, 2}, {1, 1, 2, 2})},
        [](Builder&, const Values& in) -> Values {
          return {DotGeneral(
              in[0], in[1],
              {.lhs_batch = {0}, .rhs_batch = {0}, .lhs_contract = {2}, .rhs_contract = {1}},
              Precision::kHighest)};
        },
        {{3, 14}});
  Check("outer product", {{{1, 2}}, {{3, 4}}},
        [](Builder&, const Values& in) -> Values {
          return {DotGeneral(in[0], in[1], {}, Precision::kHighest)};
        },
        {{3, 4, 6, 8}});
}

TEST_P(OnPlugin, Convolutions) {
  const ConvolutionDims dims = {
      .input_spatial = {2, 3}, .kernel_spatial = {2, 3}, .output_spatial = {2, 3}};
  const Array x({1, 1, 3, 3}, {1, 2, 3, 4, 5, 6, 7, 8, 9}), k({1, 1, 2, 2}, {1, 0, 0, 2});
  for (DType dtype : {DType::kF32, DType::kF64, DType::kBF16, DType::kF16, DType::kS32}) {
    Check("2-d " + std::string(Name(dtype)), {x, k},
          [&](Builder&, const Values& in) -> Values {
            Value a = Convert(in[0], dtype), b = Convert(in[1], dtype);
            return {Convolution(a, b, dims, {}, Precision::kHighest),
                    Convolution(a, b, dims, {.strides = {2, 2}, .padding = {{1, 0}, {1, 0}}},
                                Precision::kHighest),
                    Convolution(a, b, dims, {.rhs_dilation = {2, 2}}, Precision::kHighest),
                    Convolution(a, b, dims, {.reversal = {true, true}}, Precision::kHighest)};
          },
          {{11, 14, 20, 23}, {2, 6, 14, 23}, {19}, {7, 10, 16, 19}});
  }
  Check("transposed", {x, k},
        [&](Builder&, const Values& in) -> Values {
          return {Convolution(SliceDim(SliceDim(in[0], 2, 0, 1), 3, 0, 2), in[1], dims,
                              {.lhs_dilation = {2, 2}, .padding = {{1, 1}, {1, 1}}},
                              Precision::kHighest)};
        },
        {{2, 0, 4, 0, 0, 1, 0, 2}});
  Check("groups", {Array({1, 2, 3}, {1, 2, 3, 4, 5, 6}), Array({2, 1, 1}, {2, 3})},
        [](Builder&, const Values& in) -> Values {
          return {Convolution(in[0], in[1],
                              {.input_spatial = {2}, .kernel_spatial = {2}, .output_spatial = {2}},
                              {.feature_groups = 2}, Precision::kHighest)};
        },
        {{2, 4, 6, 12, 15, 18}});
  Check("batch groups", {Array({2, 1, 2}, {1, 2, 3, 4}), Array({2, 1, 1}, {2, 3})},
        [](Builder&, const Values& in) -> Values {
          return {Convolution(in[0], in[1],
                              {.input_spatial = {2}, .kernel_spatial = {2}, .output_spatial = {2}},
                              {.batch_groups = 2}, Precision::kHighest)};
        },
        {{2, 4, 9, 12}});
  Check("channels last", {Array({1, 3, 2}, {1, 2, 3, 4, 5, 6}), Array({1, 2, 1}, {1, 10})},
        [](Builder&, const Values& in) -> Values {
          return {Convolution(in[0], in[1],
                              {.input_batch = 0,
                               .input_feature = 2,
                               .input_spatial = {1},
                               .kernel_output_feature = 2,
                               .kernel_input_feature = 1,
                               .kernel_spatial = {0},
                               .output_batch = 0,
                               .output_feature = 2,
                               .output_spatial = {1}},
                              {}, Precision::kHighest)};
        },
        {{21, 43, 65}});
}

TEST_P(OnPlugin, MatrixFactors) {
  const Array a({2, 2}, {4, 2, 2, 5}), b({2, 1}, {2, 5});
  Check("cholesky", {a},
        [](Builder&, const Values& in) -> Values {
          return {SliceDim(Cholesky(in[0], true), 0, 1, 2),
                  Cholesky(Convert(in[0], DType::kC64), true),
                  SliceDim(Cholesky(Convert(in[0], DType::kF32), false), 0, 0, 1)};
        },
        {{1, 2}, {2, 0, 0, 0, 1, 0, 2, 0}, {2, 1}});
  Check("triangular_solve", {a, b},
        [](Builder&, const Values& in) -> Values {
          const auto solve = [&](bool lower, bool unit, TransposeA transpose) {
            return TriangularSolve(in[0], in[1], true, lower, unit, transpose);
          };
          return {solve(true, false, TransposeA::kNoTranspose),
                  solve(true, true, TransposeA::kNoTranspose),
                  solve(false, false, TransposeA::kTranspose),
                  solve(false, false, TransposeA::kAdjoint),
                  TriangularSolve(in[0], Transpose(in[1], {1, 0}), false, false, false,
                                  TransposeA::kNoTranspose)};
        },
        {{0.5, 0.8}, {2, 1}, {0.5, 0.8}, {0.5, 0.8}, {0.5, 0.8}});
}

TEST_P(OnPlugin, FourierTransforms) {
  Check("fft", {{{1, 2, 3, 4}}},
        [](Builder&, const Values& in) -> Values {
          Value x = Convert(in[0], DType::kF32);
          Value z = Convert(x, DType::kC64);
          Value half = Fft(x, FftKind::kRfft, {4});
          return {Fft(z, FftKind::kFft, {4}),
                  Fft(Fft(z, FftKind::kFft, {4}), FftKind::kIfft, {4}),
                  half,
                  Fft(half, FftKind::kIrfft, {4}),
                  Fft(in[0], FftKind::kRfft, {4}),
                  Fft(Reshape(z, {2, 2}), FftKind::kFft, {2, 2})};
        },
        {{10, 0, -2, 2, -2, 0, -2, -2},
         {1, 0, 2, 0, 3, 0, 4, 0},
         {10, 0, -2, 2, -2, 0},
         {1, 2, 3, 4},
         {10, 0, -2, 2, -2, 0},
         {10, 0, -2, 0, -4, 0, 0, 0}});
}

TEST_P(OnPlugin, ControlFlow) {
  Check(
      "while", {{{5}}},
      [](Builder& b, const Values& in) -> Values {
        Value count = ScalarInt(b, DType::kS32, 0);
        return While(
            {count, in[0]},
            [](const Values& v) {
              return Values{Lt(v[0], ScalarInt(v[0].builder(), DType::kS32, 3))};
            },
            [](const Values& v) {
              return Values{Add(v[0], ScalarInt(v[0].builder(), DType::kS32, 1)), Add(v[1], v[1])};
            });
      },
      {{3}, {40}});
  Check("if", {{{5}}},
        [](Builder& b, const Values& in) -> Values {
          Value x = Reshape(in[0], {});
          Value yes = Gt(x, Scalar(b, DType::kF64, 0)), no = Not(yes);
          const auto negate = [&](const Values&) { return Values{Negate(x)}; };
          const auto keep = [&](const Values&) { return Values{x}; };
          return {If(yes, {x.type()}, negate, keep).front(),
                  If(no, {x.type()}, negate, keep).front()};
        },
        {{-5}, {5}});
  Check("barrier", {{{5}}, {{6}}},
        [](Builder&, const Values& in) { return OptimizationBarrier(in); }, {{5}, {6}});
  Check("nested regions", {Array({2, 2}, {1, 2, 3, 4})},
        [](Builder& b, const Values& in) -> Values {
          return {While(
                      {ScalarInt(b, DType::kS32, 0), in[0]},
                      [](const Values& v) {
                        Value sum = Reduce(v[1], Reduction::kSum, {0, 1});
                        return Values{Lt(sum, ConstantLike(sum, 50))};
                      },
                      [](const Values& v) {
                        return Values{v[0], Add(v[1], v[1])};
                      })
                      .back()};
        },
        {{8, 16, 24, 32}});
}

TEST_P(OnPlugin, CustomCalls) {
  Check("sharding", {{{3, 1, 4, 1, 5}}},
        [](Builder&, const Values& in) -> Values {
          return CustomCall("Sharding", {in[0]}, "backend_config = \"\"", {in[0].type()});
        },
        {{3, 1, 4, 1, 5}});
}

TEST_P(OnPlugin, Donation) {
  Builder builder;
  Value x = builder.Parameter({DType::kF32, {4}});
  builder.Alias(0, 0);
  const auto executable = client_->Compile(builder.Finish({Add(x, x)}), {});
  const std::vector<float> data = {1, 2, 3, 4};
  const std::vector<int64_t> dims = {4};
  pjrt::Buffer input =
      client_->FromHost(data.data(), PJRT_Buffer_Type_F32, dims, client_->devices().front());
  PJRT_Buffer* arguments[] = {input.raw()};
  PJRT_Buffer* outputs[1];
  executable->Execute(arguments, outputs);
  pjrt::Buffer output(&client_->plugin(), outputs[0]);
  std::vector<float> result(4);
  output.ToHost(result.data(), 16);
  EXPECT_EQ(result, (std::vector<float>{2, 4, 6, 8}));
  EXPECT_TRUE(input.deleted());
}

}  // namespace
}  // namespace torch_tpu::stablehlo
