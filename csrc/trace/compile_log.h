#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "stablehlo/type.h"

namespace torch_tpu::trace {

// Where an executable came from: another operation of this process has the same program, the disk
// cache, or the compiler.
enum class CompileSource : uint8_t { kMemory, kDisk, kCompiler };
const char* Name(CompileSource source);

// One executable that was asked for.
struct CompileRecord {
  uint64_t number = 0;    // 1 for the first of this process
  std::string operation;  // "add.Tensor"
  CompileSource source = CompileSource::kCompiler;
  // Seconds: altogether; of which writing the module, looking for it in memory and on disk and
  // reading it, and in the compiler.
  double seconds = 0, building = 0, loading = 0, compiling = 0;
  int64_t operations = 0;  // StableHLO operations in the module
  std::string reason;      // why what was there did not serve
  std::string where;       // "file.py:12", "" where it is not known
};

// Keeps the record (the last few thousand are) and numbers it. TORCH_TPU_LOG=compile prints it.
void LogCompilation(CompileRecord record);
// Oldest first; with `clear` they are forgotten.
std::vector<CompileRecord> CompileLog(bool clear);

// StableHLO operations of a module's text, those of nested regions included.
int64_t CountOperations(std::string_view module);

// Why a program of this name is made, as far as its parameters' types tell: "argument 0 was
// f32[8,64], now f32[8,128]". Compares with those of the last call of this name.
std::string CompareWithLast(const std::string& name,
                            const std::vector<const stablehlo::Type*>& parameters);

}  // namespace torch_tpu::trace
