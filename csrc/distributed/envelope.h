#pragma once

#include <cstdint>
#include <string>

namespace torch_tpu::distributed {

// What a rank tells the others about what it is about to do, before any data: a line that must be
// equal on all of them. Fixed in size, so that even ranks that do different things understand one
// another.
struct Envelope {
  static constexpr size_t kTextBytes = 240;
  uint64_t digest = 0;  // of the sequence number and all of the line
  uint64_t sequence = 0;
  char text[kTextBytes] = {};  // the line, cut off where it is longer

  Envelope() = default;
  Envelope(uint64_t sequence, const std::string& line);
  std::string Text() const;
};
static_assert(sizeof(Envelope) == 256);

}  // namespace torch_tpu::distributed
