// The host's dot product, by itself and called by programs of real CPU plugins.

#include "pjrt/host_dot.h"

#include <gtest/gtest.h>
#include <stdlib.h>

#include <cmath>
#include <limits>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "pjrt/client.h"
#include "pjrt/small_dot.h"

namespace torch_tpu::pjrt {
namespace {

std::vector<float> Random(int64_t size, int seed) {
  std::mt19937 generator(seed);
  std::normal_distribution<float> normal;
  std::vector<float> values(size);
  for (float& value : values) value = normal(generator);
  return values;
}

// A vector as memory of exactly its size, so that AddressSanitizer sees any step outside.
std::unique_ptr<float[]> Exactly(const std::vector<float>& values) {
  auto memory = std::make_unique<float[]>(values.size());
  std::copy(values.begin(), values.end(), memory.get());
  return memory;
}

void ExpectProduct(const SmallDot& dot, const float* lhs, const float* rhs, const float* out) {
  for (int64_t i = 0; i < dot.m; ++i) {
    for (int64_t j = 0; j < dot.n; ++j) {
      double sum = 0, size = 0;
      for (int64_t t = 0; t < dot.k; ++t) {
        const double a = lhs[dot.transposed_lhs ? t * dot.m + i : i * dot.k + t];
        const double b = rhs[dot.transposed_rhs ? j * dot.k + t : t * dot.n + j];
        sum += a * b;
        size += std::abs(a * b);
      }
      const double bound = size * static_cast<double>(dot.k + 1) * 0x1p-24;
      ASSERT_NEAR(out[i * dot.n + j], sum, bound)
          << dot.m << "x" << dot.n << "x" << dot.k << (dot.transposed_lhs ? " t" : " n")
          << (dot.transposed_rhs ? "t" : "n") << " at " << i << ", " << j;
    }
  }
}

TEST(SmallDot, AllShapesAndOrders) {
  for (int64_t m : {1, 2, 3, 4, 5, 9, 16, 19}) {
    for (int64_t n : {1, 2, 7, 8, 9, 15, 16, 33, 64, 71}) {
      for (int64_t k : {1, 3, 8, 13, 31, 32, 40}) {
        for (int order = 0; order < 4; ++order) {
          const SmallDot dot{m, n, k, (order & 1) != 0, (order & 2) != 0};
          const auto lhs = Exactly(Random(m * k, 1)), rhs = Exactly(Random(k * n, 2));
          const auto out = Exactly(std::vector<float>(m * n, NAN));
          MultiplySmall(dot, lhs.get(), rhs.get(), out.get());
          ExpectProduct(dot, lhs.get(), rhs.get(), out.get());
          const auto again = Exactly(std::vector<float>(m * n, NAN));
          MultiplySmall(dot, lhs.get(), rhs.get(), again.get());
          for (int64_t i = 0; i < m * n; ++i) ASSERT_EQ(out[i], again[i]);
        }
      }
    }
  }
}

TEST(SmallDot, NothingToSumIsZero) {
  for (int order = 0; order < 4; ++order) {
    const SmallDot dot{5, 9, 0, (order & 1) != 0, (order & 2) != 0};
    std::vector<float> out(45, NAN);
    MultiplySmall(dot, nullptr, nullptr, out.data());
    for (float value : out) EXPECT_EQ(value, 0.0f);
  }
}

TEST(SmallDot, NonFiniteValuesStayInTheirRowAndColumn) {
  const float inf = std::numeric_limits<float>::infinity();
  for (int order = 0; order < 4; ++order) {
    const SmallDot dot{6, 20, 35, (order & 1) != 0, (order & 2) != 0};
    std::vector<float> lhs(6 * 35, 1.0f), rhs(35 * 20, 1.0f), out(6 * 20);
    lhs[dot.transposed_lhs ? 34 * 6 + 4 : 4 * 35 + 34] = NAN;
    rhs[dot.transposed_rhs ? 19 * 35 + 33 : 33 * 20 + 19] = inf;
    MultiplySmall(dot, lhs.data(), rhs.data(), out.data());
    for (int64_t i = 0; i < 6; ++i) {
      for (int64_t j = 0; j < 20; ++j) {
        const float value = out[i * 20 + j];
        if (i == 4) {
          EXPECT_TRUE(std::isnan(value));
        } else {
          EXPECT_EQ(value, j == 19 ? inf : 35.0f);
        }
      }
    }
  }
}

class HostDotTest : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    const char* path = getenv(("TORCH_TPU_TEST_PLUGIN_" + std::string(GetParam())).c_str());
    if (path == nullptr || *path == 0) {
      if (std::string(GetParam()) == "F") FAIL() << "TORCH_TPU_TEST_PLUGIN_F is not set";
      GTEST_SKIP() << "TORCH_TPU_TEST_PLUGIN_" << GetParam() << " is not set";
    }
    client_ = Client::Create(Plugin::Load(path));
    ASSERT_TRUE(RegisterHostDot(client_->plugin()));
  }

  static std::string Text(const std::vector<int64_t>& dims, const char* dtype = "f32") {
    std::string text = "tensor<";
    for (int64_t dim : dims) text += std::to_string(dim) + "x";
    return text + dtype + ">";
  }

  std::shared_ptr<Executable> Compile(const std::string& name, const std::string& lhs,
                                      const std::string& rhs, const std::string& out) const {
    const std::string types = "(" + lhs + ", " + rhs + ") -> " + out;
    return client_->Compile("module @dot { func.func public @main(%a: " + lhs + ", %b: " + rhs +
                                ") -> " + out + " { %0 = \"stablehlo.custom_call\"(%a, %b) " +
                                "{call_target_name = \"" + name +
                                "\", api_version = 4 : i32, backend_config = {}} : " + types +
                                " return %0 : " + out + " } }",
                            {});
  }

  Buffer Upload(const std::vector<float>& values, const std::vector<int64_t>& dims) const {
    return client_->FromHost(values.data(), PJRT_Buffer_Type_F32, dims, client_->devices().at(0));
  }

  Buffer Run(const Executable& executable, const Buffer& a, const Buffer& b) const {
    PJRT_Buffer* output = nullptr;
    executable.Execute(std::vector<PJRT_Buffer*>{a.raw(), b.raw()}, {&output, 1}, {}, nullptr);
    return Buffer(&client_->plugin(), output);
  }

  std::shared_ptr<Client> client_;
};

INSTANTIATE_TEST_SUITE_P(Plugins, HostDotTest, ::testing::Values("F", "X"),
                         [](const auto& info) { return std::string(info.param); });

TEST_P(HostDotTest, RegistersOnce) { EXPECT_TRUE(RegisterHostDot(client_->plugin())); }

TEST_P(HostDotTest, ProgramsCallIt) {
  const int64_t batch = 3, m = 5, n = 19, k = 33;
  for (int order = 0; order < 4; ++order) {
    const SmallDot dot{m, n, k, (order & 1) != 0, (order & 2) != 0};
    const std::vector<int64_t> lhs = {batch, dot.transposed_lhs ? k : m,
                                      dot.transposed_lhs ? m : k};
    const std::vector<int64_t> rhs = {batch, dot.transposed_rhs ? n : k,
                                      dot.transposed_rhs ? k : n};
    auto executable = Compile(HostDotName(dot.transposed_lhs, dot.transposed_rhs), Text(lhs),
                              Text(rhs), Text({batch, m, n}));
    const std::vector<float> a = Random(batch * m * k, 3), b = Random(batch * k * n, 4);
    std::vector<float> out(batch * m * n, NAN);
    Run(*executable, Upload(a, lhs), Upload(b, rhs)).ToHost(out.data(), out.size() * sizeof(float));
    for (int64_t i = 0; i < batch; ++i) {
      ExpectProduct(dot, &a[i * m * k], &b[i * k * n], &out[i * m * n]);
    }
  }
}

TEST_P(HostDotTest, RefusesWhatDoesNotFit) {
  const std::string name = HostDotName(false, false);
  const auto refused = [&](const std::vector<int64_t>& lhs, const std::vector<int64_t>& rhs,
                           const std::vector<int64_t>& out) -> std::string {
    auto executable = Compile(name, Text(lhs), Text(rhs), Text(out));
    try {
      const Buffer result =
          Run(*executable, Upload(std::vector<float>(6), lhs), Upload(std::vector<float>(6), rhs));
      float values[6];
      result.ToHost(values, sizeof(values));
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), Code::kInvalidArgument);
      return error.what();
    }
    return "nothing was refused";
  };
  EXPECT_NE(refused({1, 2, 3}, {1, 2, 3}, {1, 2, 3}).find("do not fit"), std::string::npos);
  EXPECT_NE(refused({2, 3}, {3, 2}, {2, 3}).find("float32"), std::string::npos);
}

}  // namespace
}  // namespace torch_tpu::pjrt
