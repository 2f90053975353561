#include "stablehlo/builder.h"

#include <algorithm>
#include <stdexcept>

#include "stablehlo/internal.h"

namespace torch_tpu::stablehlo {
namespace {

void AppendType(std::string& text, const Type& type) {
  text.append("tensor<");
  for (int64_t dim : type.dims) text.append(std::to_string(dim)).push_back('x');
  text.append(Name(type.dtype)).push_back('>');
}

// Inside a quoted MLIR string.
void AppendEscaped(std::string& text, std::string_view raw) {
  constexpr char kHex[] = "0123456789ABCDEF";
  for (char c : raw) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\') {
      text.push_back('\\');
      text.push_back(c);
    } else if (byte < 0x20 || byte >= 0x7f) {
      text.push_back('\\');
      text.push_back(kHex[byte >> 4]);
      text.push_back(kHex[byte & 15]);
    } else {
      text.push_back(c);
    }
  }
}

// A symbol name that needs no quotes.
std::string SymbolName(std::string name) {
  for (char& c : name) {
    const bool plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                       c == '_' || c == '.' || c == '$';
    if (!plain) c = '_';
  }
  if (name.empty() || (name[0] >= '0' && name[0] <= '9') || name[0] == '.' || name[0] == '$') {
    name.insert(name.begin(), '_');
  }
  return name;
}

}  // namespace

const Type& Value::type() const {
  if (builder_ == nullptr) throw TypeError("type of an undefined value");
  return builder_->TypeOf(id_);
}

int64_t Value::dim(int i) const {
  const Dims& all = dims();
  const int rank = static_cast<int>(all.size());
  const int wrapped = i < 0 ? i + rank : i;
  if (wrapped < 0 || wrapped >= rank) {
    throw TypeError("dimension " + std::to_string(i) + " is out of range for " + type().str());
  }
  return all[wrapped];
}

Builder::Builder(std::string module_name, Platform platform)
    : module_name_(SymbolName(std::move(module_name))), platform_(platform) {
  body_.reserve(4096);
}

Value Builder::NewValue(const Type& type) {
  types_.push_back(type);
  parameter_index_.push_back(-1);
  return Value(this, static_cast<int>(types_.size()) - 1);
}

Value Builder::Parameter(const Type& type) {
  Value value = NewValue(type);
  parameter_index_.back() = static_cast<int>(parameters_.size());
  parameters_.push_back(value.id());
  return value;
}

void Builder::Alias(int parameter, int result) { aliases_.emplace_back(parameter, result); }

void Builder::Donate(int parameter) { donated_.push_back(parameter); }

void Builder::SetLocation(std::string location) { location_ = std::move(location); }

void Builder::SetSource(std::string file, int line) {
  source_file_ = std::move(file);
  source_line_ = line;
}

void Builder::AppendName(int id) {
  const int parameter = parameter_index_[id];
  body_.push_back('%');
  if (parameter >= 0) {
    body_.append("arg").append(std::to_string(parameter));
  } else {
    body_.append(std::to_string(id));
  }
}

void Builder::AppendLocation() {
  if (location_.empty()) return;
  body_.append(" loc(\"");
  AppendEscaped(body_, location_);
  body_.push_back('"');
  if (!source_file_.empty()) {
    body_.append("(\"");
    AppendEscaped(body_, source_file_);
    body_.append("\":").append(std::to_string(source_line_)).append(":1)");
  }
  body_.push_back(')');
}

void Builder::AppendRegion(std::string_view operation, const RegionSpec& region) {
  body_.append("{\n");
  Values arguments;
  arguments.reserve(region.arguments.size());
  for (const Type& type : region.arguments) arguments.push_back(NewValue(type));
  if (!arguments.empty()) {
    body_.append(indent_ + 2, ' ');
    body_.append("^bb0(");
    for (size_t i = 0; i < arguments.size(); ++i) {
      if (i > 0) body_.append(", ");
      AppendName(arguments[i].id());
      body_.append(": ");
      AppendType(body_, arguments[i].type());
    }
    body_.append("):\n");
  }
  indent_ += 2;
  const Values results = region.body(arguments);
  CheckDefined(operation, results);
  Emit("stablehlo.return", results, "", {});
  indent_ -= 2;
  body_.append(indent_ + 2, ' ');
  body_.push_back('}');
}

Values Builder::Emit(std::string_view name, const Values& operands, std::string_view attributes,
                     const std::vector<Type>& results, const std::vector<RegionSpec>& regions) {
  CheckDefined(name, operands);
  const size_t first_use = uses_.size();
  for (const Value& operand : operands) uses_.push_back(operand.id());
  Values values;
  values.reserve(results.size());
  for (const Type& type : results) values.push_back(NewValue(type));
  ++operations_;

  body_.append(indent_ + 2, ' ');
  for (size_t i = 0; i < values.size(); ++i) {
    if (i > 0) body_.append(", ");
    AppendName(values[i].id());
  }
  if (!values.empty()) body_.append(" = ");
  body_.push_back('"');
  body_.append(name).append("\"(");
  for (size_t i = 0; i < operands.size(); ++i) {
    if (operands[i].builder_ != this) Fail(name, "operand of another builder", operands);
    if (i > 0) body_.append(", ");
    AppendName(operands[i].id());
  }
  body_.push_back(')');
  if (!regions.empty()) {
    body_.append(" (");
    indent_ += 2;
    for (size_t i = 0; i < regions.size(); ++i) {
      if (i > 0) body_.append(", ");
      AppendRegion(name, regions[i]);
    }
    indent_ -= 2;
    body_.push_back(')');
  }
  if (!attributes.empty()) body_.append(" {").append(attributes).push_back('}');
  body_.append(" : (");
  for (size_t i = 0; i < operands.size(); ++i) {
    if (i > 0) body_.append(", ");
    AppendType(body_, operands[i].type());
  }
  body_.append(") -> ");
  if (results.size() != 1) body_.push_back('(');
  for (size_t i = 0; i < results.size(); ++i) {
    if (i > 0) body_.append(", ");
    AppendType(body_, results[i]);
  }
  if (results.size() != 1) body_.push_back(')');
  AppendLocation();
  body_.push_back('\n');
  use_range_.resize(types_.size(), {0, 0});
  for (const Value& value : values) use_range_[value.id()] = {first_use, uses_.size()};
  return values;
}

const Builder::Transposition* Builder::TranspositionOf(Value x) const {
  const auto found = transpositions_.find(x.id());
  return found == transpositions_.end() ? nullptr : &found->second;
}

void Builder::RecordTransposition(Value result, Transposition transposition) {
  transpositions_.emplace(result.id(), std::move(transposition));
}

Value Builder::ReshapeSource(Value x) const {
  const auto found = reshape_sources_.find(x.id());
  return found == reshape_sources_.end() ? Value() : found->second;
}

std::vector<bool> Builder::LiveParameters(const Values& roots) const {
  std::vector<bool> live(types_.size(), false);
  std::vector<int> pending;
  auto visit = [&](int id) {
    if (live[id]) return;
    live[id] = true;
    pending.push_back(id);
  };
  for (const Value& root : roots) visit(root.id());
  while (!pending.empty()) {
    const auto id = static_cast<size_t>(pending.back());
    pending.pop_back();
    if (id >= use_range_.size()) continue;
    for (size_t use = use_range_[id].first; use < use_range_[id].second; ++use) visit(uses_[use]);
  }
  std::vector<bool> parameters;
  for (int id : parameters_) parameters.push_back(live[id]);
  return parameters;
}

std::string Builder::Finish(const Values& results) {
  CheckDefined("func.return", results);
  for (const auto& [parameter, result] : aliases_) {
    if (parameter < 0 || parameter >= static_cast<int>(parameters_.size()) || result < 0 ||
        result >= static_cast<int>(results.size())) {
      throw std::out_of_range("alias of a parameter or result that does not exist");
    }
    if (types_[parameters_[parameter]] != results[result].type()) {
      Fail("alias", "parameter and result types differ",
           {Value(this, parameters_[parameter]), results[result]});
    }
  }
  location_.clear();
  Emit("func.return", results, "", {});

  // Shapes are those of one partition, not of something that is to be divided.
  const bool several = partitions_ > 1;
  const std::string own = several ? "mhlo.sharding = \"{manual}\"" : "";
  std::string text = "module @" + module_name_;
  if (several) {
    text.append(" attributes {mhlo.num_partitions = ")
        .append(std::to_string(partitions_))
        .append(" : i32, mhlo.num_replicas = 1 : i32}");
  }
  text.append(" {\n  func.func public @main(");
  text.reserve(body_.size() + 256 + 64 * (parameters_.size() + results.size()));
  for (size_t i = 0; i < parameters_.size(); ++i) {
    if (i > 0) text.append(", ");
    text.append("%arg").append(std::to_string(i)).append(": ");
    AppendType(text, types_[parameters_[i]]);
    const auto is_parameter = [&](const auto& alias) { return alias.first == static_cast<int>(i); };
    std::string attributes = own;
    if (const auto alias = std::ranges::find_if(aliases_, is_parameter); alias != aliases_.end()) {
      attributes.append(several ? ", " : "")
          .append("tf.aliasing_output = ")
          .append(std::to_string(alias->second))
          .append(" : i32");
    } else if (std::ranges::find(donated_, static_cast<int>(i)) != donated_.end()) {
      attributes.append(several ? ", " : "").append("jax.buffer_donor = true");
    }
    if (!attributes.empty()) text.append(" {").append(attributes).append("}");
  }
  text.append(") -> (");
  for (size_t i = 0; i < results.size(); ++i) {
    if (i > 0) text.append(", ");
    AppendType(text, results[i].type());
    if (several) text.append(" {").append(own).append("}");
  }
  text.append(") {\n").append(body_).append("  }\n}\n");
  return text;
}

}  // namespace torch_tpu::stablehlo
