#include "distributed/client_store.h"

#include <c10/util/Exception.h>

#include "pjrt/error.h"

namespace torch_tpu::distributed {
namespace {

std::string Text(const std::vector<uint8_t>& bytes) { return {bytes.begin(), bytes.end()}; }

}  // namespace

std::string ClientStore::Get(const std::string& key, std::chrono::milliseconds timeout) {
  try {
    store_->wait({key}, timeout);
  } catch (const c10::Error& error) {
    // Stores tell waiting too long from a lost connection only by their messages.
    throw pjrt::Error(pjrt::Code::kDeadlineExceeded,
                      "no rank has put " + key + ": " + error.what_without_backtrace());
  }
  return Text(store_->get(key));
}

std::optional<std::string> ClientStore::TryGet(const std::string& key) {
  if (!store_->check({key})) return std::nullopt;
  return Text(store_->get(key));
}

void ClientStore::Put(const std::string& key, const std::string& value) {
  store_->set(key, std::vector<uint8_t>(value.begin(), value.end()));
}

}  // namespace torch_tpu::distributed
