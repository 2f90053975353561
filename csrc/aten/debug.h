#pragma once

#include <functional>
#include <span>
#include <string>
#include <vector>

#include "trace/device.h"
#include "trace/trace.h"
#include "trace/view.h"

namespace torch_tpu::aten {

inline bool DebugMode() { return trace::CurrentMode() == trace::Mode::kDebug; }

// Elements to look at: a view of a value.
struct Examined {
  trace::ValuePtr value;
  trace::ViewSpec view;
};
// All of a value.
Examined Whole(trace::ValuePtr value);

// Debug mode: raises if a result holds NaN and no input does. `describe` says which operator it
// was.
void CheckForNaN(trace::Device& device, std::span<const Examined> inputs,
                 std::span<const Examined> results, const std::function<std::string()>& describe);

}  // namespace torch_tpu::aten
