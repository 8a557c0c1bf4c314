// timers.h: entries by the watermark at which they change.
//
// Timers of the far future lie in buckets of one second, four bytes each. A bucket that the watermark reaches moves to
// a heap. A timer may be stale: its owner decides when the timer fires.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <utility>
#include <vector>

namespace joiner {

struct Timer {
  std::int64_t due;
  std::uint32_t entry;
};

class Timers {
 public:
  static constexpr std::int64_t kBucketMs = 1000;

  [[nodiscard]] static std::int64_t bucket_of(std::int64_t due) noexcept {
    return due / kBucketMs - (due % kBucketMs < 0 ? 1 : 0);
  }

  template <class After>
  void add(Timer timer, After&& after) {
    const std::int64_t bucket = bucket_of(timer.due);
    if (has_near_ && bucket <= near_bucket_) {
      near_.push_back(timer);
      std::push_heap(near_.begin(), near_.end(), after);
    } else {
      far_[bucket].push_back(timer.entry);
    }
  }

  // Takes the first timer that is due at `limit`. `due_of(entry, bucket, due)` tells the due time of an entry of a
  // bucket, or returns false for a stale timer. `after(a, b)` orders timers, the latest first.
  template <class DueOf, class After>
  bool pop(std::int64_t limit, Timer& timer, DueOf&& due_of, After&& after) {
    while (near_.empty()) {
      if (far_.empty() || far_.begin()->first > bucket_of(limit)) return false;
      auto node = far_.extract(far_.begin());
      near_bucket_ = node.key();
      has_near_ = true;
      for (const std::uint32_t entry : node.mapped()) {
        std::int64_t due = 0;
        if (due_of(entry, near_bucket_, due)) near_.push_back({due, entry});
      }
      std::make_heap(near_.begin(), near_.end(), after);
    }
    if (near_.front().due > limit) return false;
    std::pop_heap(near_.begin(), near_.end(), after);
    timer = near_.back();
    near_.pop_back();
    return true;
  }

  [[nodiscard]] const std::map<std::int64_t, std::vector<std::uint32_t>>& far() const noexcept { return far_; }

 private:
  std::map<std::int64_t, std::vector<std::uint32_t>> far_;
  std::vector<Timer> near_;
  std::int64_t near_bucket_ = 0;
  bool has_near_ = false;
};

}  // namespace joiner
