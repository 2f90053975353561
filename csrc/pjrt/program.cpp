#include "pjrt/program.h"

#include <memory>

#include "pjrt/buffer.h"

namespace torch_tpu::pjrt {

std::string ToString(const TensorType& type) {
  std::string text = std::string(TypeName(type.type)) + "[";
  for (size_t i = 0; i < type.dims.size(); ++i) {
    text += (i == 0 ? "" : ",") + std::to_string(type.dims[i]);
  }
  return text + "]";
}

Program::~Program() {
  if (program_ == nullptr) return;
  TORCH_TPU_PJRT_ARGS(PJRT_Executable_Destroy_Args, args);
  args.executable = program_;
  plugin_->Ignore(plugin_->api()->PJRT_Executable_Destroy(&args));
}

std::string Program::name() const {
  TORCH_TPU_PJRT_ARGS(PJRT_Executable_Name_Args, args);
  args.executable = program_;
  plugin_->Check(plugin_->api()->PJRT_Executable_Name(&args));
  return std::string(args.executable_name, args.executable_name_size);
}

std::string Program::fingerprint() const {
  if (!TORCH_TPU_PJRT_HAS(plugin_->api(), PJRT_Executable_Fingerprint)) return "";
  TORCH_TPU_PJRT_ARGS(PJRT_Executable_Fingerprint_Args, args);
  args.executable = program_;
  if (PJRT_Error* error = plugin_->api()->PJRT_Executable_Fingerprint(&args)) {
    plugin_->Ignore(error);
    return "";
  }
  return std::string(args.executable_fingerprint, args.executable_fingerprint_size);
}

std::vector<TensorType> Program::outputs() const {
  const PJRT_Api* api = plugin_->api();
  TORCH_TPU_PJRT_ARGS(PJRT_Executable_NumOutputs_Args, count);
  count.executable = program_;
  plugin_->Check(api->PJRT_Executable_NumOutputs(&count));
  TORCH_TPU_PJRT_ARGS(PJRT_Executable_OutputElementTypes_Args, types);
  types.executable = program_;
  plugin_->Check(api->PJRT_Executable_OutputElementTypes(&types));
  TORCH_TPU_PJRT_ARGS(PJRT_Executable_OutputDimensions_Args, shapes);
  shapes.executable = program_;
  plugin_->Check(api->PJRT_Executable_OutputDimensions(&shapes));
  if (types.num_output_types != count.num_outputs || shapes.num_outputs != count.num_outputs) {
    throw Error(Code::kInternal, "the PJRT plugin contradicts itself about the number of outputs");
  }
  std::vector<TensorType> outputs(count.num_outputs);
  const int64_t* dims = shapes.dims;
  for (size_t i = 0; i < outputs.size(); ++i) {
    outputs[i].type = types.output_types[i];
    outputs[i].dims.assign(dims, dims + shapes.dim_sizes[i]);
    dims += shapes.dim_sizes[i];
  }
  return outputs;
}

std::string Program::Serialize() const {
  if (!TORCH_TPU_PJRT_HAS(plugin_->api(), PJRT_Executable_Serialize)) {
    throw Error(Code::kUnimplemented, "the PJRT plugin cannot serialize executables");
  }
  TORCH_TPU_PJRT_ARGS(PJRT_Executable_Serialize_Args, args);
  args.executable = program_;
  plugin_->Check(plugin_->api()->PJRT_Executable_Serialize(&args));
  const std::unique_ptr<PJRT_SerializedExecutable, void (*)(PJRT_SerializedExecutable*)> backing(
      args.serialized_executable, args.serialized_executable_deleter);
  return std::string(args.serialized_bytes, args.serialized_bytes_size);
}

std::optional<CompiledMemory> Program::memory() const {
  if (!TORCH_TPU_PJRT_HAS(plugin_->api(), PJRT_Executable_GetCompiledMemoryStats)) {
    return std::nullopt;
  }
  TORCH_TPU_PJRT_ARGS(PJRT_Executable_GetCompiledMemoryStats_Args, args);
  args.executable = program_;
  args.peak_memory_in_bytes = -1;  // older plugins do not write it
  if (PJRT_Error* error = plugin_->api()->PJRT_Executable_GetCompiledMemoryStats(&args)) {
    Error reason = plugin_->TakeError(error);
    if (reason.code() == Code::kUnimplemented) return std::nullopt;
    throw reason;
  }
  CompiledMemory memory;
  memory.generated_code = args.generated_code_size_in_bytes;
  memory.arguments = args.argument_size_in_bytes;
  memory.outputs = args.output_size_in_bytes;
  memory.aliased = args.alias_size_in_bytes;
  memory.temporary = args.temp_size_in_bytes;
  if (args.peak_memory_in_bytes >= 0) memory.peak = args.peak_memory_in_bytes;
  return memory;
}

std::vector<std::pair<std::string, double>> Program::costs() const {
  std::vector<std::pair<std::string, double>> costs;
  if (!TORCH_TPU_PJRT_HAS(plugin_->api(), PJRT_Executable_GetCostAnalysis)) return costs;
  TORCH_TPU_PJRT_ARGS(PJRT_Executable_GetCostAnalysis_Args, args);
  args.executable = program_;
  if (PJRT_Error* error = plugin_->api()->PJRT_Executable_GetCostAnalysis(&args)) {
    Error reason = plugin_->TakeError(error);
    if (reason.code() == Code::kUnimplemented) return costs;
    throw reason;
  }
  for (size_t i = 0; i < args.num_properties; ++i) {
    const PJRT_NamedValue& value = args.properties[i];
    std::string name(value.name, value.name_size);
    if (value.type == PJRT_NamedValue_kFloat) {
      costs.emplace_back(std::move(name), value.float_value);
    } else if (value.type == PJRT_NamedValue_kInt64) {
      costs.emplace_back(std::move(name), static_cast<double>(value.int64_value));
    }
  }
  return costs;
}

Program::Optimized Program::optimized() const {
  TORCH_TPU_PJRT_ARGS(PJRT_Program, program);
  TORCH_TPU_PJRT_ARGS(PJRT_Executable_OptimizedProgram_Args, args);
  args.executable = program_;
  args.program = &program;
  // The first call tells the size, the second writes.
  plugin_->Check(plugin_->api()->PJRT_Executable_OptimizedProgram(&args));
  Optimized optimized;
  optimized.code.resize(program.code_size);
  program.code = optimized.code.data();
  plugin_->Check(plugin_->api()->PJRT_Executable_OptimizedProgram(&args));
  optimized.format.assign(program.format, program.format_size);
  return optimized;
}

}  // namespace torch_tpu::pjrt
