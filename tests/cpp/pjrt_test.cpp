// The PJRT layer against real CPU plugins. TORCH_TPU_TEST_PLUGIN_F (required) and
// TORCH_TPU_TEST_PLUGIN_X (optional) name them.

#include <gtest/gtest.h>
#include <stdlib.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <condition_variable>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <limits>
#include <map>
#include <mutex>
#include <thread>

#include "pjrt/client.h"
#include "pjrt/discovery.h"

namespace torch_tpu::pjrt {
namespace {

namespace fs = std::filesystem;

template <typename F>
Error ErrorOf(F&& f) {
  try {
    f();
  } catch (const Error& error) {
    return error;
  }
  return Error(Code::kOk, "no error");
}

std::string PluginPath(const std::string& which) {
  const char* path = getenv(("TORCH_TPU_TEST_PLUGIN_" + which).c_str());
  return path != nullptr ? path : "";
}

// One client a plugin for all tests, destroyed before the process ends.
class Clients : public ::testing::Environment {
 public:
  static std::shared_ptr<Client> Get(const std::string& which) {
    std::shared_ptr<Client>& client = map()[which];
    if (!client) client = Client::Create(Plugin::Load(PluginPath(which)));
    return client;
  }
  void TearDown() override { map().clear(); }

 private:
  static std::map<std::string, std::shared_ptr<Client>>& map() {
    static std::map<std::string, std::shared_ptr<Client>> clients;
    return clients;
  }
};
[[maybe_unused]] auto* const kClients = ::testing::AddGlobalTestEnvironment(new Clients);

class PjrtTest : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    if (PluginPath(GetParam()).empty()) {
      if (std::string(GetParam()) == "F") FAIL() << "TORCH_TPU_TEST_PLUGIN_F is not set";
      GTEST_SKIP() << "TORCH_TPU_TEST_PLUGIN_" << GetParam() << " is not set";
    }
    client_ = Clients::Get(GetParam());
  }

  const Device& device(size_t i = 0) const { return client_->devices().at(i); }

  Buffer Floats(const std::vector<float>& values, std::vector<int64_t> dims, size_t on = 0) const {
    return client_->FromHost(values.data(), PJRT_Buffer_Type_F32, dims, device(on));
  }

  static std::vector<float> Read(const Buffer& buffer) {
    std::vector<float> values(buffer.on_device_bytes() / sizeof(float));
    buffer.ToHost(values.data(), values.size() * sizeof(float));
    return values;
  }

  std::shared_ptr<Executable> CompileAdd(bool portable = false) const {
    CompileOptions options;
    options.portable = portable;
    return client_->Compile(kAdd, options);
  }

  Buffer Run(const Executable& executable, std::vector<PJRT_Buffer*> arguments,
             PJRT_Device* on = nullptr) const {
    PJRT_Buffer* output = nullptr;
    executable.Execute(arguments, {&output, 1}, {}, on);
    return Buffer(&client_->plugin(), output);
  }

  // Slow enough that what depends on it is seen to be pending: powers of a matrix. (XLA:CPU runs
  // programs of few operations on the calling thread, and counts a loop's body once.)
  std::shared_ptr<Executable> CompileSlow() const {
    return client_->Compile(R"(
      module @slow { func.func public @main(%x: tensor<512x512xf32>) -> tensor<512x512xf32> {
        %zero = stablehlo.constant dense<0> : tensor<i32>
        %one = stablehlo.constant dense<1> : tensor<i32>
        %n = stablehlo.constant dense<50> : tensor<i32>
        %r:2 = stablehlo.while(%i = %zero, %y = %x) : tensor<i32>, tensor<512x512xf32>
        cond {
          %c = stablehlo.compare LT, %i, %n : (tensor<i32>, tensor<i32>) -> tensor<i1>
          stablehlo.return %c : tensor<i1>
        } do {
          %j = stablehlo.add %i, %one : tensor<i32>
          %z = stablehlo.dot_general %y, %x, contracting_dims = [1] x [0]
              : (tensor<512x512xf32>, tensor<512x512xf32>) -> tensor<512x512xf32>
          stablehlo.return %j, %z : tensor<i32>, tensor<512x512xf32>
        }
        return %r#1 : tensor<512x512xf32>
      } })",
                            {});
  }

  // Its powers are itself.
  Buffer Mean() const { return Floats(std::vector<float>(512 * 512, 1.0f / 512), {512, 512}); }

  static constexpr const char* kAdd = R"(
    module @add { func.func public @main(%a: tensor<2x3xf32>, %b: tensor<2x3xf32>)
        -> tensor<2x3xf32> {
      %0 = stablehlo.add %a, %b : tensor<2x3xf32>
      return %0 : tensor<2x3xf32>
    } })";

  static constexpr const char* kDonating = R"(
    module @donating { func.func public @main(%a: tensor<2x3xf32> {tf.aliasing_output = 0 : i32},
        %b: tensor<2x3xf32>) -> tensor<2x3xf32> {
      %0 = stablehlo.add %a, %b : tensor<2x3xf32>
      return %0 : tensor<2x3xf32>
    } })";

  const TensorType kMatrix{PJRT_Buffer_Type_F32, {2, 3}};
  std::shared_ptr<Client> client_;
};

INSTANTIATE_TEST_SUITE_P(Plugins, PjrtTest, ::testing::Values("F", "X"),
                         [](const auto& info) { return std::string(info.param); });

// ------------------------------------------------------------------------------------------------
// Loading

TEST(PluginLoad, MissingFile) {
  const Error error = ErrorOf([] { Plugin::Load("/nowhere/libpjrt.so"); });
  EXPECT_EQ(error.code(), Code::kNotFound);
  EXPECT_NE(std::string(error.what()).find("/nowhere/libpjrt.so"), std::string::npos);
  EXPECT_EQ(ErrorOf([] { Plugin::Load(""); }).code(), Code::kNotFound);
}

TEST(PluginLoad, NotALibrary) {
  const fs::path path = fs::path(::testing::TempDir()) / "torch_tpu_not_a_library.so";
  std::ofstream(path) << "not an ELF file, and long enough to be read as a header: "
                      << std::string(100, 'x');
  EXPECT_EQ(ErrorOf([&] { Plugin::Load(path.string()); }).code(), Code::kInvalidArgument);
  EXPECT_EQ(ErrorOf([&] { Plugin::Load(::testing::TempDir()); }).code(), Code::kInvalidArgument);
  fs::remove(path);
}

TEST(PluginLoad, LibraryThatIsNoPlugin) {
  // The mathematics library that this process uses itself.
  std::string path;
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    if (line.find("/libm.so") != std::string::npos || line.find("/libm-") != std::string::npos) {
      path = line.substr(line.find('/'));
    }
  }
  if (path.empty()) GTEST_SKIP() << "libm is not mapped";
  const Error error = ErrorOf([&] { Plugin::Load(path); });
  EXPECT_EQ(error.code(), Code::kInvalidArgument);
  EXPECT_NE(std::string(error.what()).find("GetPjrtApi"), std::string::npos);
}

TEST_P(PjrtTest, LoadingTwiceGivesTheSamePlugin) {
  EXPECT_EQ(Plugin::Load(PluginPath(GetParam())).get(), &client_->plugin());
}

TEST_P(PjrtTest, PluginDescribesItself) {
  const Plugin& plugin = client_->plugin();
  EXPECT_EQ(plugin.major_version(), 0);
  EXPECT_GE(plugin.minor_version(), 81);
  EXPECT_EQ(plugin.path(), PluginPath(GetParam()));
  const auto& attributes = plugin.attributes();
  auto found = std::find_if(attributes.begin(), attributes.end(), [](const auto& attribute) {
    return attribute.first == "stablehlo_current_version";
  });
  ASSERT_NE(found, attributes.end());
  EXPECT_TRUE(found->second.starts_with("1.")) << found->second;
  for (int type : plugin.extension_types()) EXPECT_NE(plugin.extension(type), nullptr);
  EXPECT_NE(plugin.extension(PJRT_Extension_Type_FFI), nullptr);
  EXPECT_EQ(plugin.extension(PJRT_Extension_Type_Triton), nullptr);
}

// ------------------------------------------------------------------------------------------------
// Client and devices

TEST_P(PjrtTest, ClientAndDevices) {
  EXPECT_EQ(client_->platform_name(), "cpu");
  EXPECT_FALSE(client_->platform_version().empty());
  ASSERT_EQ(client_->devices().size(), 4u);
  for (size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(device(i).id(), static_cast<int>(i));
    EXPECT_EQ(device(i).kind(), "cpu");
    EXPECT_FALSE(device(i).description().empty());
    EXPECT_FALSE(device(i).memory_stats().has_value());
  }
}

TEST_P(PjrtTest, ClientOptionsArrive) {
  auto client =
      Client::Create(Plugin::Load(PluginPath(GetParam())), {{"cpu_device_count", int64_t{2}}});
  EXPECT_EQ(client->devices().size(), 2u);
}

TEST_P(PjrtTest, ExecutableKeepsItsClientAlive) {
  auto client = Client::Create(Plugin::Load(PluginPath(GetParam())));
  auto executable = client->Compile(kAdd, {});
  std::weak_ptr<Client> watch = client;
  client.reset();
  EXPECT_FALSE(watch.expired());
  executable.reset();
  EXPECT_TRUE(watch.expired());
}

// ------------------------------------------------------------------------------------------------
// Buffers

TEST_P(PjrtTest, EveryTypeGoesBothWays) {
  const std::vector<PJRT_Buffer_Type> types = {
      PJRT_Buffer_Type_PRED,       PJRT_Buffer_Type_S4,
      PJRT_Buffer_Type_S8,         PJRT_Buffer_Type_S16,
      PJRT_Buffer_Type_S32,        PJRT_Buffer_Type_S64,
      PJRT_Buffer_Type_U4,         PJRT_Buffer_Type_U8,
      PJRT_Buffer_Type_U16,        PJRT_Buffer_Type_U32,
      PJRT_Buffer_Type_U64,        PJRT_Buffer_Type_F16,
      PJRT_Buffer_Type_F32,        PJRT_Buffer_Type_F64,
      PJRT_Buffer_Type_BF16,       PJRT_Buffer_Type_C64,
      PJRT_Buffer_Type_C128,       PJRT_Buffer_Type_F8E5M2,
      PJRT_Buffer_Type_F8E4M3FN,   PJRT_Buffer_Type_F8E4M3B11FNUZ,
      PJRT_Buffer_Type_F8E5M2FNUZ, PJRT_Buffer_Type_F8E4M3FNUZ,
      PJRT_Buffer_Type_F8E4M3,     PJRT_Buffer_Type_F8E3M4,
      PJRT_Buffer_Type_F8E8M0FNU};
  const std::vector<int64_t> dims = {3, 5};
  for (PJRT_Buffer_Type type : types) {
    SCOPED_TRACE(TypeName(type));
    std::vector<char> source(15 * ByteSize(type));
    for (size_t i = 0; i < source.size(); ++i) source[i] = static_cast<char>(i * 37 + 11);
    if (type == PJRT_Buffer_Type_PRED || type == PJRT_Buffer_Type_S4 ||
        type == PJRT_Buffer_Type_U4) {
      for (size_t i = 0; i < source.size(); ++i) source[i] = i % 2;
    }
    Buffer buffer = client_->FromHost(source.data(), type, dims, device());
    EXPECT_EQ(buffer.type(), type);
    EXPECT_EQ(buffer.dims(), dims);
    std::vector<char> result(source.size(), 'x');
    buffer.ToHost(result.data(), result.size());
    EXPECT_EQ(result, source);
    EXPECT_TRUE(buffer.IsReady());
  }
}

TEST_P(PjrtTest, ScalarsEmptyAndManyDimensions) {
  EXPECT_EQ(Read(Floats({2.5f}, {})), std::vector<float>{2.5f});
  Buffer empty =
      client_->FromHost(nullptr, PJRT_Buffer_Type_F32, std::vector<int64_t>{0, 3}, device());
  EXPECT_EQ(empty.dims(), (std::vector<int64_t>{0, 3}));
  empty.ToHost(nullptr, 0);
  std::vector<float> values(1024);
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i);
  EXPECT_EQ(Read(Floats(values, std::vector<int64_t>(10, 2))), values);
}

TEST_P(PjrtTest, NullAndWrongSizesAreRefused) {
  EXPECT_EQ(ErrorOf([&] {
              client_->FromHost(nullptr, PJRT_Buffer_Type_F32, std::vector<int64_t>{2}, device());
            }).code(),
            Code::kInvalidArgument);
  float one = 1;
  EXPECT_EQ(ErrorOf([&] {
              client_->FromHost(&one, PJRT_Buffer_Type_F32, std::vector<int64_t>{-1}, device());
            }).code(),
            Code::kInvalidArgument);
  Buffer buffer = Floats({1, 2}, {2});
  float destination[3];
  EXPECT_EQ(ErrorOf([&] { buffer.ToHost(destination, 4); }).code(), Code::kInvalidArgument);
  EXPECT_EQ(ErrorOf([&] { buffer.ToHost(destination, 12); }).code(), Code::kInvalidArgument);
  EXPECT_EQ(ErrorOf([&] { buffer.ToHost(nullptr, 8); }).code(), Code::kInvalidArgument);
}

TEST_P(PjrtTest, FromHostCopiesBeforeItReturns) {
  for (size_t count : {size_t{7}, size_t{1} << 20}) {
    std::vector<float> source(count, 1.0f);
    Buffer buffer = Floats(source, {static_cast<int64_t>(count)});
    std::fill(source.begin(), source.end(), 2.0f);
    EXPECT_EQ(Read(buffer), std::vector<float>(count, 1.0f));
  }
}

TEST_P(PjrtTest, MovesLeaveTheSourceEmpty) {
  Buffer a = Floats({1, 2}, {2});
  PJRT_Buffer* raw = a.raw();
  Buffer b = std::move(a);
  EXPECT_FALSE(a);
  EXPECT_EQ(b.raw(), raw);
  Buffer c = Floats({3}, {1});
  c = std::move(b);
  EXPECT_EQ(c.raw(), raw);
  EXPECT_EQ(Read(c), (std::vector<float>{1, 2}));
  Event e = c.ReadyEvent();
  Event f = std::move(e);
  EXPECT_FALSE(e);
  f = c.ReadyEvent();
  f.Await();
}

TEST_P(PjrtTest, AsyncCopyHoldsItsSourceUntilDone) {
  for (size_t count : {size_t{1}, size_t{1} << 22}) {
    auto source = std::make_shared<std::vector<float>>(count, 3.0f);
    std::weak_ptr<std::vector<float>> watch = source;
    std::atomic<int> calls = 0;
    const float* data = source->data();
    Buffer buffer = client_->FromHostAsync(data, PJRT_Buffer_Type_F32,
                                           std::vector<int64_t>{static_cast<int64_t>(count)},
                                           device(), [&calls, source]() mutable {
                                             source.reset();
                                             ++calls;
                                           });
    source.reset();
    EXPECT_EQ(Read(buffer), std::vector<float>(count, 3.0f));
    for (int i = 0; i < 5000 && calls == 0; ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    EXPECT_EQ(calls, 1);
    EXPECT_TRUE(watch.expired());
  }
}

TEST_P(PjrtTest, AsyncCopyCallsDoneAlsoOnFailure) {
  int calls = 0;
  float value = 1;
  const Error error = ErrorOf([&] {
    client_->FromHostAsync(&value, PJRT_Buffer_Type_INVALID, std::vector<int64_t>{1}, device(),
                           [&] { ++calls; });
  });
  EXPECT_NE(error.code(), Code::kOk);
  EXPECT_EQ(calls, 1);
}

TEST_P(PjrtTest, AsyncCopyToHost) {
  Buffer buffer = Floats({1, 2, 3}, {3});
  std::vector<float> values(3);
  Event event = buffer.ToHostAsync(values.data(), 12);
  event.Await();
  EXPECT_TRUE(event.IsReady());
  EXPECT_EQ(values, (std::vector<float>{1, 2, 3}));
}

TEST_P(PjrtTest, HostPointerSeesTheContents) {
  Buffer buffer = Floats({4, 5, 6}, {3});
  const float* values = static_cast<const float*>(buffer.HostPointer());
  ASSERT_NE(values, nullptr);
  EXPECT_EQ(std::vector<float>(values, values + 3), (std::vector<float>{4, 5, 6}));
  // Waits for a computation.
  auto slow = CompileSlow();
  Buffer x = Mean();
  Buffer result = Run(*slow, {x.raw()});
  EXPECT_NEAR(static_cast<const float*>(result.HostPointer())[512 * 512 - 1], 1.0f / 512, 1e-5f);
}

TEST_P(PjrtTest, OutputsAreRowMajorInHostMemory) {
  auto transpose = client_->Compile(R"(
    module { func.func public @main(%a: tensor<2x3xf32>) -> tensor<3x2xf32> {
      %0 = stablehlo.transpose %a, dims = [1, 0] : (tensor<2x3xf32>) -> tensor<3x2xf32>
      return %0 : tensor<3x2xf32>
    } })",
                                    {});
  Buffer a = Floats({1, 2, 3, 4, 5, 6}, {2, 3});
  Buffer result = Run(*transpose, {a.raw()});
  const std::vector<float> expected = {1, 4, 2, 5, 3, 6};
  EXPECT_EQ(Read(result), expected);
  const float* values = static_cast<const float*>(result.HostPointer());
  EXPECT_EQ(std::vector<float>(values, values + 6), expected);
}

TEST_P(PjrtTest, CopyAcrossDevices) {
  Buffer buffer = Floats({1, 2, 3}, {3});
  for (size_t i = 1; i < 4; ++i) {
    Buffer copy = buffer.CopyTo(device(i).raw());
    EXPECT_EQ(copy.device(), device(i).raw());
    EXPECT_EQ(Read(copy), (std::vector<float>{1, 2, 3}));
    EXPECT_FALSE(buffer.deleted());
  }
}

// ------------------------------------------------------------------------------------------------
// Events

TEST_P(PjrtTest, EventOfPendingWork) {
  auto slow = CompileSlow();
  Buffer x = Mean();
  PJRT_Buffer* argument = x.raw();
  PJRT_Buffer* output = nullptr;
  Event complete;
  slow->Execute({&argument, 1}, {&output, 1}, {}, nullptr, &complete);
  Buffer result(&client_->plugin(), output);
  ASSERT_TRUE(complete);
  std::mutex mutex;
  std::condition_variable changed;
  int calls = 0;
  bool failed = false;
  {
    Event event = result.ReadyEvent();  // destroyed before it is ready
    event.OnReady([&](std::optional<Error> error) {
      std::lock_guard lock(mutex);
      ++calls;
      failed = error.has_value();
      changed.notify_all();
    });
  }
  EXPECT_FALSE(result.IsReady());
  {
    std::unique_lock lock(mutex);
    EXPECT_TRUE(changed.wait_for(lock, std::chrono::seconds(60), [&] { return calls == 1; }));
    EXPECT_FALSE(failed);
  }
  complete.Await();
  EXPECT_TRUE(complete.IsReady());
  EXPECT_TRUE(result.IsReady());
  // Ready already: called at once.
  bool called = false;
  complete.OnReady([&](std::optional<Error> error) { called = !error.has_value(); });
  EXPECT_TRUE(called);
}

// ------------------------------------------------------------------------------------------------
// Compiling and executing

TEST_P(PjrtTest, CompileAndExecute) {
  auto add = CompileAdd();
  EXPECT_EQ(add->num_outputs(), 1u);
  EXPECT_EQ(add->outputs()[0], kMatrix);
  EXPECT_NE(add->name().find("add"), std::string::npos);
  Buffer a = Floats({1, 2, 3, 4, 5, 6}, {2, 3});
  EXPECT_EQ(Read(Run(*add, {a.raw(), a.raw()})), (std::vector<float>{2, 4, 6, 8, 10, 12}));
  PJRT_Buffer* arguments[2] = {a.raw(), a.raw()};
  PJRT_Buffer* output = nullptr;
  add->ExecuteUnchecked(arguments, 2, &output, {}, nullptr);
  EXPECT_EQ(Read(Buffer(&client_->plugin(), output)), (std::vector<float>{2, 4, 6, 8, 10, 12}));
}

TEST_P(PjrtTest, SeveralOutputsOfSeveralTypes) {
  auto executable = client_->Compile(R"(
    module { func.func public @main(%a: tensor<2xf32>)
        -> (tensor<2xi64>, tensor<f32>, tensor<0x2xf32>, tensor<2xi1>) {
      %0 = stablehlo.convert %a : (tensor<2xf32>) -> tensor<2xi64>
      %1 = stablehlo.constant dense<7.0> : tensor<f32>
      %2 = stablehlo.constant dense<0.0> : tensor<0x2xf32>
      %3 = stablehlo.compare EQ, %a, %a : (tensor<2xf32>, tensor<2xf32>) -> tensor<2xi1>
      return %0, %1, %2, %3 : tensor<2xi64>, tensor<f32>, tensor<0x2xf32>, tensor<2xi1>
    } })",
                                     {});
  const std::vector<TensorType> expected = {{PJRT_Buffer_Type_S64, {2}},
                                            {PJRT_Buffer_Type_F32, {}},
                                            {PJRT_Buffer_Type_F32, {0, 2}},
                                            {PJRT_Buffer_Type_PRED, {2}}};
  EXPECT_EQ(executable->outputs(), expected);
  Buffer a = Floats({1, 2}, {2});
  PJRT_Buffer* argument = a.raw();
  std::vector<PJRT_Buffer*> raw(4);
  executable->Execute({&argument, 1}, raw);
  std::vector<Buffer> outputs;
  for (PJRT_Buffer* buffer : raw) outputs.emplace_back(&client_->plugin(), buffer);
  for (size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(outputs[i].type(), expected[i].type);
    EXPECT_EQ(outputs[i].dims(), expected[i].dims);
  }
  int64_t integers[2];
  outputs[0].ToHost(integers, sizeof integers);
  EXPECT_EQ(integers[1], 2);
}

TEST_P(PjrtTest, WrongArgumentsAreRefused) {
  auto add = CompileAdd();
  Buffer good = Floats(std::vector<float>(6, 1), {2, 3});
  Buffer other_shape = Floats(std::vector<float>(6, 1), {3, 2});
  std::vector<int32_t> integers(6, 1);
  Buffer other_type = client_->FromHost(integers.data(), PJRT_Buffer_Type_S32,
                                        std::vector<int64_t>{2, 3}, device());
  auto run = [&](std::vector<PJRT_Buffer*> arguments) {
    return ErrorOf([&] { Run(*add, arguments); });
  };
  // The plugin itself counts.
  EXPECT_EQ(run({good.raw()}).code(), Code::kInvalidArgument);

  add->SetParameters({kMatrix, kMatrix});
  EXPECT_EQ(run({good.raw(), good.raw()}).code(), Code::kOk);
  EXPECT_EQ(run({good.raw()}).code(), Code::kInvalidArgument);
  EXPECT_EQ(run({good.raw(), good.raw(), good.raw()}).code(), Code::kInvalidArgument);
  EXPECT_EQ(run({good.raw(), nullptr}).code(), Code::kInvalidArgument);
  const Error shape = run({other_shape.raw(), good.raw()});
  EXPECT_EQ(shape.code(), Code::kInvalidArgument);
  EXPECT_NE(std::string(shape.what()).find("argument 0 is f32[3,2], expected f32[2,3]"),
            std::string::npos)
      << shape.what();
  const Error type = run({good.raw(), other_type.raw()});
  EXPECT_EQ(type.code(), Code::kInvalidArgument);
  EXPECT_NE(std::string(type.what()).find("argument 1 is s32[2,3]"), std::string::npos)
      << type.what();
  std::vector<PJRT_Buffer*> arguments = {good.raw(), good.raw()};
  EXPECT_EQ(ErrorOf([&] { add->Execute(arguments, {}); }).code(), Code::kInvalidArgument);
}

TEST_P(PjrtTest, CompileErrorsKeepTheirCode) {
  // What the plugin itself says.
  auto raw_code = [&](const std::string& module) {
    const PJRT_Api* api = client_->plugin().api();
    std::string code = module;
    const std::string options = CompileOptions().Serialize();
    TORCH_TPU_PJRT_ARGS(PJRT_Program, program);
    program.code = code.data();
    program.code_size = code.size();
    program.format = "mlir";
    program.format_size = 4;
    TORCH_TPU_PJRT_ARGS(PJRT_Client_Compile_Args, args);
    args.client = client_->raw();
    args.program = &program;
    args.compile_options = options.data();
    args.compile_options_size = options.size();
    PJRT_Error* error = api->PJRT_Client_Compile(&args);
    if (error == nullptr) return Code::kOk;
    TORCH_TPU_PJRT_ARGS(PJRT_Error_GetCode_Args, get_code);
    get_code.error = error;
    client_->plugin().Ignore(api->PJRT_Error_GetCode(&get_code));
    client_->plugin().Ignore(error);
    return static_cast<Code>(get_code.code);
  };
  const Error syntax = ErrorOf([&] { client_->Compile("module { nonsense }", {}); });
  EXPECT_EQ(syntax.code(), raw_code("module { nonsense }"));
  EXPECT_NE(syntax.code(), Code::kOk);
  EXPECT_GT(std::string(syntax.what()).size(), 10u);
  const char* no_target = R"(
    module { func.func public @main(%a: tensor<2xf32>) -> tensor<2xf32> {
      %0 = stablehlo.custom_call @there_is_no_such_target(%a)
          {api_version = 4 : i32, backend_config = {}} : (tensor<2xf32>) -> tensor<2xf32>
      return %0 : tensor<2xf32>
    } })";
  const Error target = ErrorOf([&] { client_->Compile(no_target, {}); });
  EXPECT_EQ(target.code(), raw_code(no_target));
  EXPECT_NE(target.code(), Code::kOk);
  EXPECT_NE(target.code(), syntax.code());
  EXPECT_NE(std::string(target.what()).find("there_is_no_such_target"), std::string::npos);
  // The client still works.
  EXPECT_NE(CompileAdd(), nullptr);
}

TEST_P(PjrtTest, DonationDeletesTheInput) {
  auto donating = client_->Compile(kDonating, {});
  Buffer a = Floats(std::vector<float>(6, 1), {2, 3});
  Buffer b = Floats(std::vector<float>(6, 2), {2, 3});
  Buffer sum = Run(*donating, {a.raw(), b.raw()});
  EXPECT_EQ(Read(sum), std::vector<float>(6, 3));
  EXPECT_TRUE(a.deleted());
  EXPECT_FALSE(b.deleted());
  EXPECT_EQ(ErrorOf([&] { Run(*donating, {a.raw(), b.raw()}); }).code(), Code::kInvalidArgument);
  PJRT_Buffer* arguments[2] = {a.raw(), b.raw()};
  PJRT_Buffer* output = nullptr;
  EXPECT_NE(ErrorOf([&] { donating->ExecuteUnchecked(arguments, 2, &output, {}, nullptr); }).code(),
            Code::kOk);
  float values[6];
  EXPECT_NE(ErrorOf([&] { a.ToHost(values, sizeof values); }).code(), Code::kOk);
  EXPECT_NE(ErrorOf([&] { a.HostPointer(); }).code(), Code::kOk);
  EXPECT_NE(ErrorOf([&] { a.CopyTo(device(1).raw()); }).code(), Code::kOk);
  EXPECT_EQ(Read(b), std::vector<float>(6, 2));
}

TEST_P(PjrtTest, NonDonatableArgumentsStay) {
  auto donating = client_->Compile(kDonating, {});
  Buffer a = Floats(std::vector<float>(6, 1), {2, 3});
  Buffer b = Floats(std::vector<float>(6, 2), {2, 3});
  PJRT_Buffer* arguments[2] = {a.raw(), b.raw()};
  PJRT_Buffer* output = nullptr;
  const int64_t keep[1] = {0};
  donating->Execute(arguments, {&output, 1}, keep);
  EXPECT_EQ(Read(Buffer(&client_->plugin(), output)), std::vector<float>(6, 3));
  EXPECT_FALSE(a.deleted());
  EXPECT_EQ(Read(a), std::vector<float>(6, 1));
}

TEST_P(PjrtTest, PortableExecutableRunsOnEveryDevice) {
  auto add = CompileAdd(/*portable=*/true);
  for (size_t i = 0; i < 4; ++i) {
    Buffer a = Floats(std::vector<float>(6, static_cast<float>(i)), {2, 3}, i);
    Buffer sum = Run(*add, {a.raw(), a.raw()}, device(i).raw());
    EXPECT_EQ(sum.device(), device(i).raw());
    EXPECT_EQ(Read(sum), std::vector<float>(6, 2.0f * static_cast<float>(i)));
  }
}

TEST_P(PjrtTest, DeviceAssignmentChoosesTheDevice) {
  CompileOptions options;
  options.device_assignment = {2};
  auto add = client_->Compile(kAdd, options);
  Buffer a = Floats(std::vector<float>(6, 1), {2, 3}, 2);
  Buffer sum = Run(*add, {a.raw(), a.raw()});
  EXPECT_EQ(Read(sum), std::vector<float>(6, 2));
  EXPECT_EQ(sum.device(), device(2).raw());
}

TEST_P(PjrtTest, OverridesReachTheCompiler) {
  // XLA:CPU's default maximum drops NaN when the first operand is one.
  const char* maximum = R"(
    module { func.func public @main(%a: tensor<4xf32>, %b: tensor<4xf32>) -> tensor<4xf32> {
      %0 = stablehlo.maximum %a, %b : tensor<4xf32>
      return %0 : tensor<4xf32>
    } })";
  const float nan = std::numeric_limits<float>::quiet_NaN();
  Buffer a = Floats({nan, 1, nan, 2}, {4});
  Buffer b = Floats({1, nan, nan, 3}, {4});
  auto nans = [&](bool fast) {
    CompileOptions options;
    options.env_option_overrides = {{"xla_cpu_enable_fast_min_max", fast},
                                    {"xla_cpu_enable_fast_math", false}};
    Buffer result = Run(*client_->Compile(maximum, options), {a.raw(), b.raw()});
    const std::vector<float> values = Read(result);
    return std::count_if(values.begin(), values.end(), [](float x) { return std::isnan(x); });
  };
  EXPECT_EQ(nans(false), 3);
  EXPECT_LT(nans(true), 3);
}

TEST_P(PjrtTest, OverridesOfEveryKindAndUnknownOnes) {
  CompileOptions options;
  options.env_option_overrides = {{"xla_backend_optimization_level", int64_t{1}},
                                  {"xla_dump_to", std::string()},
                                  {"xla_llvm_disable_expensive_passes", true}};
  EXPECT_NE(client_->Compile(kAdd, options), nullptr);
  options.env_option_overrides = {{"xla_there_is_no_such_option", true}};
  const Error error = ErrorOf([&] { client_->Compile(kAdd, options); });
  EXPECT_NE(error.code(), Code::kOk);
  EXPECT_NE(std::string(error.what()).find("xla_there_is_no_such_option"), std::string::npos)
      << error.what();
}

TEST_P(PjrtTest, ShardedProgramRunsOnFourDevices) {
  // Each device holds two of eight rows; the sum over all of them is replicated.
  const char* module = R"(
    module @sharded {
      sdy.mesh @mesh = <["x"=4]>
      func.func public @main(%a: tensor<8x2xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>})
          -> (tensor<2xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}]>}) {
        %zero = stablehlo.constant dense<0.0> : tensor<f32>
        %0 = stablehlo.reduce(%a init: %zero) applies stablehlo.add across dimensions = [0]
            : (tensor<8x2xf32>, tensor<f32>) -> tensor<2xf32>
        return %0 : tensor<2xf32>
      }
    })";
  CompileOptions options;
  options.num_partitions = 4;
  options.device_assignment = {0, 1, 2, 3};
  options.use_spmd_partitioning = true;
  options.use_shardy_partitioner = true;
  auto executable = client_->Compile(module, options);
  ASSERT_EQ(executable->outputs()[0], (TensorType{PJRT_Buffer_Type_F32, {2}}));
  std::vector<Buffer> shards, sums(4);
  for (size_t i = 0; i < 4; ++i) {
    const float value = static_cast<float>(i + 1);
    shards.push_back(Floats(std::vector<float>(4, value), {2, 2}, i));
  }
  std::vector<std::thread> threads;
  for (size_t i = 0; i < 4; ++i) {
    threads.emplace_back(
        [&, i] { sums[i] = Run(*executable, {shards[i].raw()}, device(i).raw()); });
  }
  for (std::thread& thread : threads) thread.join();
  for (const Buffer& sum : sums) EXPECT_EQ(Read(sum), std::vector<float>(2, 20));
}

TEST(CompileOptionsTest, ImpossibleOnesAreRefused) {
  CompileOptions options;
  options.num_partitions = 2;
  options.device_assignment = {0};
  EXPECT_EQ(ErrorOf([&] { options.Serialize(); }).code(), Code::kInvalidArgument);
  options.device_assignment.clear();
  options.portable = true;
  EXPECT_EQ(ErrorOf([&] { options.Serialize(); }).code(), Code::kInvalidArgument);
  options.num_partitions = 0;
  EXPECT_EQ(ErrorOf([&] { options.Serialize(); }).code(), Code::kInvalidArgument);
}

TEST(CompileOptionsTest, WireFormat) {
  CompileOptions options;
  options.num_replicas = 300;
  options.portable = false;
  options.env_option_overrides = {{"flag", true}};
  // ExecutableBuildOptions: device_ordinal -1 (ten bytes), 300 replicas (two), 1 partition, ...
  const std::string build(
      "\x08\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01\x20\xac\x02\x28\x01\x30\x00\x98\x01\x00", 21);
  const std::string entry = std::string(
      "\x0a\x04"
      "flag"
      "\x12\x02\x10\x01",
      10);
  EXPECT_EQ(options.Serialize(),
            "\x1a\x15" + build + std::string("\x20\x00", 2) + "\x3a\x0a" + entry);
}

TEST_P(PjrtTest, SerializeAndLoad) {
  auto add = CompileAdd();
  const std::string bytes = add->program().Serialize();
  EXPECT_GT(bytes.size(), 100u);
  auto loaded = client_->Deserialize(bytes);
  EXPECT_EQ(loaded->outputs(), add->outputs());
  EXPECT_EQ(loaded->name(), add->name());
  EXPECT_EQ(loaded->fingerprint(), add->fingerprint());
  Buffer a = Floats({1, 2, 3, 4, 5, 6}, {2, 3});
  EXPECT_EQ(Read(Run(*loaded, {a.raw(), a.raw()})), (std::vector<float>{2, 4, 6, 8, 10, 12}));
  EXPECT_NE(ErrorOf([&] { client_->Deserialize(bytes.substr(0, bytes.size() / 2)); }).code(),
            Code::kOk);
  EXPECT_NE(ErrorOf([&] { client_->Deserialize(""); }).code(), Code::kOk);

  auto portable = CompileAdd(/*portable=*/true);
  auto portable_loaded = client_->Deserialize(portable->program().Serialize());
  Buffer b = Floats({1, 2, 3, 4, 5, 6}, {2, 3}, 3);
  EXPECT_EQ(Read(Run(*portable_loaded, {b.raw(), b.raw()}, device(3).raw())),
            (std::vector<float>{2, 4, 6, 8, 10, 12}));
}

TEST_P(PjrtTest, MemoryAndCosts) {
  auto donating = client_->Compile(kDonating, {});
  const std::optional<CompiledMemory> memory = donating->program().memory();
  ASSERT_TRUE(memory.has_value());
  EXPECT_EQ(memory->arguments, 48);
  EXPECT_EQ(memory->outputs, 24);
  EXPECT_EQ(memory->aliased, 24);
  for (const auto& [name, value] : CompileAdd()->program().costs()) {
    if (name == "flops") {
      EXPECT_EQ(value, 6);
    }
  }
}

// ------------------------------------------------------------------------------------------------
// Threads

TEST_P(PjrtTest, ThreadsHammerEverything) {
  auto add = CompileAdd(/*portable=*/true);
  std::atomic<int> wrong = 0;
  std::vector<std::thread> threads;
  for (int t = 0; t < 8; ++t) {
    threads.emplace_back([&, t] {
      const Device& mine = device(t % 4);
      const std::vector<int64_t> dims = {2, 3};
      for (int i = 0; i < 200; ++i) {
        const float value = static_cast<float>(t * 1000 + i);
        std::vector<float> source(6, value);
        std::atomic<bool> done = false;
        Buffer a = client_->FromHost(source.data(), PJRT_Buffer_Type_F32, dims, mine);
        Buffer b = client_->FromHostAsync(source.data(), PJRT_Buffer_Type_F32, dims, mine,
                                          [&] { done = true; });
        Buffer sum = Run(*add, {a.raw(), b.raw()}, mine.raw());
        a.Reset();
        std::vector<float> result(6);
        if (i % 2 == 0) {
          sum.ToHost(result.data(), 24);
        } else {
          std::memcpy(result.data(), sum.HostPointer(), 24);
        }
        if (result != std::vector<float>(6, 2 * value)) ++wrong;
        while (!done) std::this_thread::yield();
      }
    });
  }
  threads.emplace_back([&] {
    for (int i = 0; i < 5; ++i) {
      if (CompileAdd()->num_outputs() != 1) ++wrong;
    }
  });
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
}

TEST_P(PjrtTest, DoneIsCalledAfterTheBufferIsGone) {
  std::atomic<int> calls = 0;
  auto source = std::make_shared<std::vector<float>>(1 << 20, 1.0f);
  for (int i = 0; i < 50; ++i) {
    client_->FromHostAsync(source->data(), PJRT_Buffer_Type_F32, std::vector<int64_t>{1 << 20},
                           device(), [&calls, source] { ++calls; });
  }
  for (int i = 0; i < 5000 && calls < 50; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  EXPECT_EQ(calls, 50);
}

// ------------------------------------------------------------------------------------------------
// Discovery

class DiscoveryTest : public ::testing::Test {
 protected:
  void SetUp() override {
    root_ = fs::path(::testing::TempDir()) /
            ("torch_tpu_discovery_" +
             std::to_string(std::chrono::steady_clock::now().time_since_epoch().count()));
    fs::create_directories(root_ / "sys/bus/pci/devices");
    fs::create_directories(root_ / "dev");
  }
  void TearDown() override { fs::remove_all(root_); }

  void AddPci(const std::string& address, const std::string& vendor, const std::string& device) {
    const fs::path directory = root_ / "sys/bus/pci/devices" / address;
    fs::create_directories(directory);
    std::ofstream(directory / "vendor") << vendor << "\n";
    std::ofstream(directory / "device") << device << "\n";
  }
  void AddNode(const std::string& name) {
    fs::create_directories((root_ / "dev" / name).parent_path());
    std::ofstream(root_ / "dev" / name) << "";
  }
  bool Present() { return TpuPresent((root_ / "sys").string(), (root_ / "dev").string()); }

  fs::path root_;
};

TEST_F(DiscoveryTest, NothingThere) {
  EXPECT_FALSE(Present());
  EXPECT_FALSE(TpuPresent("/nowhere/sys", "/nowhere/dev"));
}

TEST_F(DiscoveryTest, ChipAndNode) {
  AddPci("0000:00:05.0", "0x1ae0", "0x0063");
  EXPECT_FALSE(Present()) << "a chip without its driver";
  AddNode("vfio/vfio");
  EXPECT_FALSE(Present()) << "vfio's own node is no device";
  AddNode("vfio/0");
  EXPECT_TRUE(Present());
}

TEST_F(DiscoveryTest, AccelNodes) {
  AddPci("0000:00:05.0", "0x1ae0", "0x005E");
  AddNode("accelerometer");
  EXPECT_FALSE(Present());
  AddNode("accel0");
  EXPECT_TRUE(Present());
}

TEST_F(DiscoveryTest, AccelSubsystem) {
  AddPci("0000:00:05.0", "0x1ae0", "0x006f");
  AddNode("accel/accel3");
  EXPECT_TRUE(Present());
}

TEST_F(DiscoveryTest, OtherDevices) {
  AddNode("accel0");
  AddPci("0000:00:03.0", "0x1ae0", "0x0042");  // Google's network card
  AddPci("0000:00:04.0", "0x10de", "0x0063");  // another vendor
  fs::create_directories(root_ / "sys/bus/pci/devices/empty");
  EXPECT_FALSE(Present());
}

TEST_F(DiscoveryTest, ChoosePlugin) {
  const char* before = getenv("TORCH_TPU_PLUGIN");
  const std::string saved = before != nullptr ? before : "";
  setenv("TORCH_TPU_PLUGIN", "/my/plugin.so", 1);
  PluginChoice choice = ChoosePlugin("/libtpu.so", "/cpu.so");
  EXPECT_EQ(choice.path, "/my/plugin.so");
  EXPECT_EQ(choice.source, PluginChoice::Source::kEnvironment);

  setenv("TORCH_TPU_PLUGIN", "", 1);
  choice = ChoosePlugin(std::nullopt, "/cpu.so");
  EXPECT_EQ(choice.path, "/cpu.so");
  EXPECT_EQ(choice.source, PluginChoice::Source::kCpuPackage);
  choice = ChoosePlugin("/libtpu.so", "/cpu.so");
  EXPECT_EQ(choice.path, TpuPresent() ? "/libtpu.so" : "/cpu.so");
  const Error error = ErrorOf([] { ChoosePlugin(std::nullopt, std::nullopt); });
  EXPECT_EQ(error.code(), Code::kNotFound);
  EXPECT_NE(std::string(error.what()).find("TORCH_TPU_PLUGIN"), std::string::npos);

  if (before != nullptr) {
    setenv("TORCH_TPU_PLUGIN", saved.c_str(), 1);
  } else {
    unsetenv("TORCH_TPU_PLUGIN");
  }
}

TEST(ErrorTest, Names) {
  EXPECT_STREQ(CodeName(Code::kInvalidArgument), "INVALID_ARGUMENT");
  EXPECT_STREQ(CodeName(static_cast<Code>(99)), "UNKNOWN");
}

}  // namespace
}  // namespace torch_tpu::pjrt
