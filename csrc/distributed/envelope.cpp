#include "distributed/envelope.h"

#include <algorithm>
#include <cstring>

namespace torch_tpu::distributed {

Envelope::Envelope(uint64_t number, const std::string& line) : sequence(number) {
  // FNV-1a: equal on every machine.
  digest = 0xcbf29ce484222325ull;
  const auto mix = [this](uint8_t byte) { digest = (digest ^ byte) * 0x100000001b3ull; };
  for (char c : line) mix(static_cast<uint8_t>(c));
  for (int i = 0; i < 8; ++i) mix(static_cast<uint8_t>(number >> (8 * i)));
  std::string cut = line;
  if (cut.size() >= kTextBytes) cut = cut.substr(0, kTextBytes - 4) + "...";
  std::memcpy(text, cut.data(), cut.size());
}

std::string Envelope::Text() const {
  return std::string(text, std::find(text, text + kTextBytes, '\0'));
}

}  // namespace torch_tpu::distributed
