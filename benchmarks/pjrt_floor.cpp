// What a PJRT plugin itself needs for one 8x8 float32 addition, dispatched in a chain from C++.
// usage: pjrt_floor PLUGIN; prints {"add": MICROSECONDS}, the best of several rounds.
#include <dlfcn.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "pjrt_c_api.h"

namespace {

constexpr int kRounds = 7;
constexpr int kCalls = 5000;

const PJRT_Api* api = nullptr;

void Check(PJRT_Error* error) {
  if (error == nullptr) return;
  PJRT_Error_Message_Args message{};
  message.struct_size = PJRT_Error_Message_Args_STRUCT_SIZE;
  message.error = error;
  api->PJRT_Error_Message(&message);
  std::fprintf(stderr, "%.*s\n", static_cast<int>(message.message_size), message.message);
  std::exit(1);
}

// An argument struct of the C API with its size filled in.
#define PJRT_ARGS(type, name) \
  type name{};                \
  name.struct_size = type##_STRUCT_SIZE

PJRT_Client* CreateClient() {
  PJRT_ARGS(PJRT_Plugin_Initialize_Args, initialize);
  Check(api->PJRT_Plugin_Initialize(&initialize));
  PJRT_ARGS(PJRT_Client_Create_Args, create);
  Check(api->PJRT_Client_Create(&create));
  return create.client;
}

PJRT_LoadedExecutable* CompileAddition(PJRT_Client* client) {
  std::string code =
      "module @add { func.func public @main(%a: tensor<8x8xf32>, %b: tensor<8x8xf32>) -> "
      "tensor<8x8xf32> { %0 = stablehlo.add %a, %b : tensor<8x8xf32>\n"
      " return %0 : tensor<8x8xf32> } }";
  std::string format = "mlir";
  PJRT_ARGS(PJRT_Program, program);
  program.code = code.data();
  program.code_size = code.size();
  program.format = format.data();
  program.format_size = format.size();
  // CompileOptionsProto: executable_build_options { num_replicas: 1 num_partitions: 1 }.
  const std::string options("\x1a\x04\x20\x01\x28\x01", 6);
  PJRT_ARGS(PJRT_Client_Compile_Args, compile);
  compile.client = client;
  compile.program = &program;
  compile.compile_options = options.data();
  compile.compile_options_size = options.size();
  Check(api->PJRT_Client_Compile(&compile));
  return compile.executable;
}

PJRT_Buffer* Ones(PJRT_Client* client) {
  PJRT_ARGS(PJRT_Client_AddressableDevices_Args, devices);
  devices.client = client;
  Check(api->PJRT_Client_AddressableDevices(&devices));
  const std::vector<float> ones(64, 1.0f);
  const int64_t dims[] = {8, 8};
  PJRT_ARGS(PJRT_Client_BufferFromHostBuffer_Args, make);
  make.client = client;
  make.data = ones.data();
  make.type = PJRT_Buffer_Type_F32;
  make.dims = dims;
  make.num_dims = 2;
  make.host_buffer_semantics = PJRT_HostBufferSemantics_kImmutableOnlyDuringCall;
  make.device = devices.addressable_devices[0];
  Check(api->PJRT_Client_BufferFromHostBuffer(&make));
  return make.buffer;
}

void Destroy(PJRT_Buffer* buffer) {
  PJRT_ARGS(PJRT_Buffer_Destroy_Args, destroy);
  destroy.buffer = buffer;
  Check(api->PJRT_Buffer_Destroy(&destroy));
}

void Wait(PJRT_Buffer* buffer) {
  PJRT_ARGS(PJRT_Buffer_ReadyEvent_Args, ready);
  ready.buffer = buffer;
  Check(api->PJRT_Buffer_ReadyEvent(&ready));
  PJRT_ARGS(PJRT_Event_Await_Args, await);
  await.event = ready.event;
  Check(api->PJRT_Event_Await(&await));
  PJRT_ARGS(PJRT_Event_Destroy_Args, destroy);
  destroy.event = ready.event;
  Check(api->PJRT_Event_Destroy(&destroy));
}

PJRT_Buffer* Execute(PJRT_LoadedExecutable* executable, PJRT_Buffer* a, PJRT_Buffer* b) {
  PJRT_ARGS(PJRT_ExecuteOptions, options);
  PJRT_Buffer* arguments[] = {a, b};
  PJRT_Buffer* const* argument_lists[] = {arguments};
  PJRT_Buffer* results[1];
  PJRT_Buffer** result_lists[] = {results};
  PJRT_ARGS(PJRT_LoadedExecutable_Execute_Args, execute);
  execute.executable = executable;
  execute.options = &options;
  execute.argument_lists = argument_lists;
  execute.num_devices = 1;
  execute.num_args = 2;
  execute.output_lists = result_lists;
  Check(api->PJRT_LoadedExecutable_Execute(&execute));
  return results[0];
}

// Microseconds a call for a chain of `calls` additions.
double Chain(PJRT_Client* client, PJRT_LoadedExecutable* executable, PJRT_Buffer* b, int calls) {
  PJRT_Buffer* current = Ones(client);
  const auto start = std::chrono::steady_clock::now();
  for (int i = 0; i < calls; ++i) {
    PJRT_Buffer* next = Execute(executable, current, b);
    Destroy(current);
    current = next;
  }
  Wait(current);
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
  Destroy(current);
  return seconds.count() / calls * 1e6;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "usage: %s PLUGIN\n", argv[0]);
    return 2;
  }
  void* library = dlopen(argv[1], RTLD_NOW | RTLD_LOCAL);
  void* entry = library == nullptr ? nullptr : dlsym(library, "GetPjrtApi");
  if (entry == nullptr) {
    std::fprintf(stderr, "%s\n", dlerror());
    return 1;
  }
  api = reinterpret_cast<const PJRT_Api* (*)()>(entry)();
  PJRT_Client* client = CreateClient();
  PJRT_LoadedExecutable* executable = CompileAddition(client);
  PJRT_Buffer* b = Ones(client);
  Chain(client, executable, b, 100);
  double best = 1e9;
  for (int round = 0; round < kRounds; ++round) {
    best = std::min(best, Chain(client, executable, b, kCalls));
  }
  std::printf("{\"add\": %.3f}\n", best);
}
