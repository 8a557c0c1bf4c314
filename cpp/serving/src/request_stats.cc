// request_stats.cc: one lock, held for a fraction of a microsecond per answer.
#include "serving/request_stats.h"

#include <algorithm>

namespace serving {

void RequestStats::count_answer(const std::string& model, Api api, Code code, Clock::duration time) {
  const auto us = std::chrono::duration_cast<std::chrono::microseconds>(time).count();
  const std::lock_guard lock(mutex_);
  ++counts_.answers[{model, api, code}];
  Durations& durations = counts_.durations[{model, api}];
  durations.buckets.resize(bounds_us_.size() + 1);
  ++durations.count;
  durations.sum_us += static_cast<std::uint64_t>(us);
  const auto bucket = std::lower_bound(bounds_us_.begin(), bounds_us_.end(), us);
  ++durations.buckets[static_cast<std::size_t>(bucket - bounds_us_.begin())];
}

void RequestStats::count_batch(std::size_t rows, Clock::duration wait) {
  const std::lock_guard lock(mutex_);
  ++counts_.batches;
  counts_.rows += rows;
  counts_.wait_us += static_cast<std::uint64_t>(
      std::max<std::int64_t>(0, std::chrono::duration_cast<std::chrono::microseconds>(wait).count()));
}

RequestStats::Snapshot RequestStats::snapshot() const {
  const std::lock_guard lock(mutex_);
  return counts_;
}

}  // namespace serving
