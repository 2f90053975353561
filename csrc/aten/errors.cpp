#include "aten/errors.h"

#include <algorithm>

#include "aten/python_hooks.h"
#include "lowering/call.h"
#include "pjrt/error.h"
#include "stablehlo/type.h"
#include "trace/device.h"
#include "trace/trace.h"

namespace torch_tpu::aten {

void AddSourceLine(c10::Error& error) {
  if (trace::CurrentMode() != trace::Mode::kDebug || Hooks().source_line == nullptr) return;
  // Kernels call kernels: the innermost has said it.
  const auto& context = error.context();
  const bool said = std::any_of(context.begin(), context.end(),
                                [](const std::string& text) { return text.rfind("at ", 0) == 0; });
  if (said) return;
  // Backward runs on threads without Python frames.
  if (const std::string line = Hooks().source_line(); !line.empty()) {
    error.add_context("at " + line);
  }
}

void RethrowAsTorchError(const std::string& context) {
  const std::string where = context.empty() ? "" : " (in " + context + ")";
  try {
    throw;
  } catch (const c10::Error&) {
    throw;
  } catch (const trace::CaptureAborted&) {
    throw;
  } catch (const trace::ProgramsDiffer&) {
    throw;
  } catch (const trace::CheckFailed& failed) {
    if (failed.index_error) TORCH_CHECK_INDEX(false, failed.what(), where);
    TORCH_CHECK(false, failed.what(), where);
  } catch (const pjrt::Error& error) {
    if (error.code() == pjrt::Code::kResourceExhausted) {
      TORCH_CHECK_WITH(OutOfMemoryError, false, "tpu out of memory: ", error.what(), where);
    }
    if (error.code() == pjrt::Code::kUnimplemented) {
      TORCH_CHECK_NOT_IMPLEMENTED(false, "tpu: ", error.what(), where);
    }
    TORCH_CHECK(false, "tpu: ", error.what(), where);
  } catch (const stablehlo::UnsupportedDType& error) {
    const std::string name = context.substr(0, context.find('('));
    TORCH_CHECK_NOT_IMPLEMENTED(false, '"', name, "\" not implemented for '",
                                lowering::ToScalarType(error.dtype()), "': ", error.what(), where);
  } catch (const stablehlo::TypeError& error) {
    TORCH_CHECK(false, "tpu: the rule built an ill-typed program: ", error.what(), where);
  } catch (const std::bad_alloc&) {
    TORCH_CHECK_WITH(OutOfMemoryError, false, "tpu: out of host memory", where);
  } catch (const std::exception& error) {
    TORCH_CHECK(false, error.what(), where);
  }
}

}  // namespace torch_tpu::aten
