#include "aten/errors.h"

#include <c10/util/Exception.h>

#include "pjrt/error.h"
#include "stablehlo/type.h"
#include "trace/device.h"
#include "trace/runtime.h"
#include "trace/trace.h"

namespace torch_tpu::aten {

void RethrowAsTorchError(const std::string& context) {
  const std::string where = context.empty() ? "" : " (in " + context + ")";
  try {
    throw;
  } catch (const c10::Error&) {
    throw;
  } catch (const trace::CaptureAborted&) {
    throw;
  } catch (const trace::CheckFailed& failed) {
    if (failed.index_error) TORCH_CHECK_INDEX(false, failed.what(), where);
    TORCH_CHECK(false, failed.what(), where);
  } catch (const pjrt::Error& error) {
    if (error.code() == pjrt::Code::kResourceExhausted) {
      if (trace::Runtime::Get().started()) trace::Runtime::Get().device(0).CountOutOfMemory();
      TORCH_CHECK_WITH(OutOfMemoryError, false, "tpu out of memory: ", error.what(), where);
    }
    if (error.code() == pjrt::Code::kUnimplemented) {
      TORCH_CHECK_NOT_IMPLEMENTED(false, "tpu: ", error.what(), where);
    }
    TORCH_CHECK(false, "tpu: ", error.what(), where);
  } catch (const stablehlo::TypeError& error) {
    TORCH_CHECK(false, "tpu: the rule built an ill-typed program: ", error.what(), where);
  } catch (const std::bad_alloc&) {
    TORCH_CHECK_WITH(OutOfMemoryError, false, "tpu: out of host memory", where);
  } catch (const std::exception& error) {
    TORCH_CHECK(false, error.what(), where);
  }
}

}  // namespace torch_tpu::aten
