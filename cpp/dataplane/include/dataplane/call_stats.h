// call_stats.h: how often a call was made and how long it took.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>

#include "dataplane/error.h"

namespace dataplane {

// Upper ends of the histogram's buckets; one more bucket holds the rest.
inline constexpr std::array<std::uint64_t, 15> kBucketBoundsUs{
    50, 100, 250, 500, 1'000, 2'500, 5'000, 10'000, 25'000, 50'000, 100'000, 250'000, 500'000, 1'000'000, 2'500'000};

// Concurrent.
struct CallStats {
  std::atomic<std::uint64_t> count{0};
  std::atomic<std::uint64_t> errors{0};
  std::atomic<std::uint64_t> sum_us{0};
  std::array<std::atomic<std::uint64_t>, kBucketBoundsUs.size() + 1> buckets{};
};

// Notes one call when it ends: as an error unless it succeeded.
class CallTimer {
 public:
  explicit CallTimer(CallStats& stats) noexcept : stats_(stats), start_(Clock::now()) {}
  ~CallTimer() {
    const auto us = static_cast<std::uint64_t>(
        std::chrono::duration_cast<std::chrono::microseconds>(Clock::now() - start_).count());
    const auto bound = std::lower_bound(kBucketBoundsUs.begin(), kBucketBoundsUs.end(), us);
    stats_.buckets[static_cast<std::size_t>(bound - kBucketBoundsUs.begin())].fetch_add(1, std::memory_order_relaxed);
    stats_.sum_us.fetch_add(us, std::memory_order_relaxed);
    stats_.count.fetch_add(1, std::memory_order_relaxed);
    if (!has_succeeded_) stats_.errors.fetch_add(1, std::memory_order_relaxed);
  }
  CallTimer(const CallTimer&) = delete;
  CallTimer& operator=(const CallTimer&) = delete;

  void succeed() noexcept { has_succeeded_ = true; }

 private:
  CallStats& stats_;
  Clock::time_point start_;
  bool has_succeeded_ = false;
};

}  // namespace dataplane
