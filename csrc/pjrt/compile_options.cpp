#include "pjrt/compile_options.h"

#include <cstdint>
#include <cstring>
#include <string_view>

#include "pjrt/error.h"

namespace torch_tpu::pjrt {
namespace {

// Writes one message of protobuf's wire format. Fields with default values are written too: they
// are short, and for optional fields absence means something else.
class Message {
 public:
  void Integer(int field, int64_t value) {
    Tag(field, 0);
    Varint(static_cast<uint64_t>(value));
  }
  void Double(int field, double value) {
    Tag(field, 1);
    uint64_t bits;
    std::memcpy(&bits, &value, sizeof bits);
    for (int i = 0; i < 8; ++i) bytes_.push_back(static_cast<char>(bits >> (8 * i)));
  }
  void Bytes(int field, std::string_view value) {
    Tag(field, 2);
    Varint(value.size());
    bytes_.append(value);
  }
  void Submessage(int field, const Message& message) { Bytes(field, message.bytes_); }
  std::string Take() { return std::move(bytes_); }

 private:
  void Tag(int field, int wire_type) { Varint(static_cast<uint64_t>(field) << 3 | wire_type); }
  void Varint(uint64_t value) {
    for (; value >= 0x80; value >>= 7) bytes_.push_back(static_cast<char>(value | 0x80));
    bytes_.push_back(static_cast<char>(value));
  }
  std::string bytes_;
};

// Field numbers of DeviceAssignmentProto: a list of replicas for each partition.
Message DeviceAssignment(const CompileOptions& options) {
  Message assignment;
  assignment.Integer(1, options.num_replicas);
  assignment.Integer(2, options.num_partitions);
  for (int partition = 0; partition < options.num_partitions; ++partition) {
    Message devices;
    for (int replica = 0; replica < options.num_replicas; ++replica) {
      devices.Integer(1, options.device_assignment[replica * options.num_partitions + partition]);
    }
    assignment.Submessage(3, devices);
  }
  return assignment;
}

// Field numbers of ExecutableBuildOptionsProto.
Message BuildOptions(const CompileOptions& options) {
  Message build;
  build.Integer(1, -1);  // device_ordinal: unset, or it would mean device 0
  build.Integer(4, options.num_replicas);
  build.Integer(5, options.num_partitions);
  build.Integer(6, options.use_spmd_partitioning);
  if (!options.device_assignment.empty()) build.Submessage(9, DeviceAssignment(options));
  build.Integer(19, options.use_shardy_partitioner);
  return build;
}

// Field numbers of OptionOverrideProto.
Message Override(const CompileOptions::OptionValue& value) {
  Message message;
  if (const auto* text = std::get_if<std::string>(&value)) message.Bytes(1, *text);
  if (const auto* flag = std::get_if<bool>(&value)) message.Integer(2, *flag);
  if (const auto* integer = std::get_if<int64_t>(&value)) message.Integer(3, *integer);
  if (const auto* number = std::get_if<double>(&value)) message.Double(4, *number);
  return message;
}

}  // namespace

std::string CompileOptions::Serialize() const {
  if (num_replicas < 1 || num_partitions < 1) {
    throw Error(Code::kInvalidArgument, "num_replicas and num_partitions must be at least 1");
  }
  const size_t devices = static_cast<size_t>(num_replicas) * static_cast<size_t>(num_partitions);
  if (!device_assignment.empty() && device_assignment.size() != devices) {
    throw Error(Code::kInvalidArgument,
                "device_assignment has " + std::to_string(device_assignment.size()) +
                    " entries, num_replicas * num_partitions is " + std::to_string(devices));
  }
  if (portable && (devices != 1 || !device_assignment.empty())) {
    throw Error(Code::kInvalidArgument,
                "a portable executable is for one device and has no device assignment");
  }
  Message message;
  message.Submessage(3, BuildOptions(*this));
  message.Integer(4, portable);
  for (const auto& [name, value] : env_option_overrides) {
    Message entry;
    entry.Bytes(1, name);
    entry.Submessage(2, Override(value));
    message.Submessage(7, entry);
  }
  return message.Take();
}

}  // namespace torch_tpu::pjrt
