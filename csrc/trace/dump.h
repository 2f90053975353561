#pragma once

#include <string>

namespace torch_tpu::trace {

class Operation;

// Writes `module`, the operation's as it is about to be compiled, into the directory named by
// TORCH_TPU_DUMP, as OPERATOR-HASH.mlir; the hash is of the text, so that the same module is
// written once by however many processes. With TORCH_TPU_DUMP_PLATFORM=tpu (or cpu) it is the
// module as it would be written for that platform. Does nothing without TORCH_TPU_DUMP. What goes
// wrong is told once on stderr.
void DumpModule(const Operation& operation, const std::string& module);

}  // namespace torch_tpu::trace
