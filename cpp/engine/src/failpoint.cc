// failpoint.cc: the armed failpoint, if any.
#include "engine/failpoint.h"

#include <atomic>
#include <csignal>
#include <mutex>

namespace engine {

namespace {

std::atomic<bool> is_armed{false};
std::mutex mutex;
std::string armed;

}  // namespace

void set_failpoint(std::string name) {
  const std::lock_guard lock(mutex);
  armed = std::move(name);
  is_armed = !armed.empty();
}

void failpoint(const char* name) {
  if (!is_armed.load(std::memory_order_relaxed)) return;
  const std::lock_guard lock(mutex);
  if (armed == name) std::raise(SIGKILL);
}

}  // namespace engine
