#include "distributed/world.h"

#include <mutex>

namespace torch_tpu::distributed {
namespace {

std::mutex mutex;
// Lives as long as the group does.
std::weak_ptr<const World>& Slot() {
  static auto* slot = new std::weak_ptr<const World>;
  return *slot;
}

}  // namespace

std::shared_ptr<const World> World::Current() {
  std::lock_guard lock(mutex);
  return Slot().lock();
}

void World::SetCurrent(std::shared_ptr<const World> world) {
  std::lock_guard lock(mutex);
  Slot() = world;
}

}  // namespace torch_tpu::distributed
