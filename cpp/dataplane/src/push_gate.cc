// push_gate.cc: one hold at a time; the next caller notices its end.
#include "dataplane/push_gate.h"

#include <algorithm>

namespace dataplane {

void PushGate::close(std::uint64_t hold, Deadline until) {
  const std::lock_guard lock(mutex_);
  hold_ = hold;
  until_ = until;
  admitted_.clear();
  is_closed_.store(true, std::memory_order_relaxed);
  changed_.notify_all();  // waiting threads learn the new end
}

bool PushGate::admit(std::uint64_t hold, std::span<const PushName> pushes) {
  const std::lock_guard lock(mutex_);
  if (hold != hold_ || is_over() || Clock::now() >= until_) return false;
  admitted_.insert(admitted_.end(), pushes.begin(), pushes.end());
  std::sort(admitted_.begin(), admitted_.end());
  changed_.notify_all();
  return true;
}

bool PushGate::open(std::uint64_t hold) {
  const std::lock_guard lock(mutex_);
  if (hold != hold_ || is_over()) return false;
  const bool is_in_time = Clock::now() < until_;
  end();
  return is_in_time;
}

bool PushGate::lets_through(PushName push) {
  if (is_over()) return true;
  const std::lock_guard lock(mutex_);
  return admits(push);
}

void PushGate::wait(PushName push, Deadline deadline) {
  std::unique_lock lock(mutex_);
  while (!admits(push) && Clock::now() < deadline) changed_.wait_until(lock, std::min(deadline, until_));
}

bool PushGate::admits(PushName push) {
  if (!is_over() && Clock::now() >= until_) end();
  return is_over() || std::binary_search(admitted_.begin(), admitted_.end(), push);
}

void PushGate::end() {
  is_closed_.store(false, std::memory_order_relaxed);
  changed_.notify_all();
}

}  // namespace dataplane
