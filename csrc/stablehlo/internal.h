#pragma once

// What the files of this directory share: checks of operands and the spelling of attributes.

#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "stablehlo/builder.h"

namespace torch_tpu::stablehlo {

// Throws TypeError: "<operation>: <problem> (operand types: ...)".
[[noreturn]] void Fail(std::string_view operation, std::string_view problem,
                       const Values& operands = {});

// Throws UnsupportedDType with the first operand's dtype.
[[noreturn]] void FailDType(std::string_view operation, std::string_view problem,
                            const Values& operands);

// Throws unless every value is defined.
void CheckDefined(std::string_view operation, const Values& operands);

// `dimension` in [0, rank).
void CheckDimension(std::string_view operation, int64_t dimension, int64_t rank, Value operand);
// Each in [0, rank), none twice.
void CheckDimensions(std::string_view operation, const std::vector<int64_t>& dimensions,
                     int64_t rank, Value operand);

// "array<i64: 1, 2>"
std::string Array(const std::vector<int64_t>& values);
// "[1, 2]"
std::string List(const std::vector<int64_t>& values);
// "1 : i64"
std::string Int(int64_t value);
// "dense<[[1, 2], [3, 4]]> : tensor<2x2xi64>"
std::string Pairs(const std::vector<std::pair<int64_t, int64_t>>& values);
// "true"
std::string_view Bool(bool value);

// `body` (kept by reference), checked to yield values of `types`.
Region Checked(std::string_view operation, const Region& body, std::vector<Type> types);

Value EmitOne(std::string_view name, const Values& operands, std::string_view attributes,
              const Type& result);

}  // namespace torch_tpu::stablehlo
