#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "pjrt_c_api.h"

namespace torch_tpu::pjrt {

// Options of the C API's create functions, by name.
using NamedValue = std::variant<std::string, int64_t, float, bool, std::vector<int64_t>>;
using NamedValues = std::vector<std::pair<std::string, NamedValue>>;

// As the C API takes them; the result refers to `options`.
std::vector<PJRT_NamedValue> ToPjrt(const NamedValues& options);

}  // namespace torch_tpu::pjrt
