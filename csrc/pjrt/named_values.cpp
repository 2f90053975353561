#include "pjrt/named_values.h"

#include "pjrt/plugin.h"

namespace torch_tpu::pjrt {

std::vector<PJRT_NamedValue> ToPjrt(const NamedValues& options) {
  std::vector<PJRT_NamedValue> values;
  for (const auto& [name, option] : options) {
    TORCH_TPU_PJRT_ARGS(PJRT_NamedValue, value);
    value.name = name.data();
    value.name_size = name.size();
    value.value_size = 1;
    if (const auto* text = std::get_if<std::string>(&option)) {
      value.type = PJRT_NamedValue_kString;
      value.string_value = text->data();
      value.value_size = text->size();
    } else if (const auto* integer = std::get_if<int64_t>(&option)) {
      value.type = PJRT_NamedValue_kInt64;
      value.int64_value = *integer;
    } else if (const auto* number = std::get_if<float>(&option)) {
      value.type = PJRT_NamedValue_kFloat;
      value.float_value = *number;
    } else if (const auto* integers = std::get_if<std::vector<int64_t>>(&option)) {
      value.type = PJRT_NamedValue_kInt64List;
      value.int64_array_value = integers->data();
      value.value_size = integers->size();
    } else {
      value.type = PJRT_NamedValue_kBool;
      value.bool_value = std::get<bool>(option);
    }
    values.push_back(value);
  }
  return values;
}

}  // namespace torch_tpu::pjrt
