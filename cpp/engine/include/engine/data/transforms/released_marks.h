// released_marks.h: released marks, on their way from the releasing thread to the owner of the state.
#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>
#include <utility>
#include <vector>

namespace engine::data {

// Concurrent.
class ReleasedMarks {
 public:
  void add(std::uint64_t mark) {
    const std::lock_guard lock(mutex_);
    marks_.push_back(mark);
    has_some_.store(true, std::memory_order_release);
  }

  // The marks added since the last call.
  [[nodiscard]] std::vector<std::uint64_t> take() {
    if (!has_some_.load(std::memory_order_acquire)) return {};
    const std::lock_guard lock(mutex_);
    has_some_.store(false, std::memory_order_release);
    return std::exchange(marks_, {});
  }

 private:
  std::atomic<bool> has_some_ = false;
  std::mutex mutex_;
  std::vector<std::uint64_t> marks_;
};

}  // namespace engine::data
