// request_stats.h: counts of answers by model, interface and code, with a histogram of durations.
#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <tuple>
#include <vector>

#include "serving/answer.h"

namespace serving {

// Concurrent.
class RequestStats {
 public:
  struct Durations {
    std::uint64_t count = 0;
    std::uint64_t sum_us = 0;
    std::vector<std::uint64_t> buckets;  // one more than bounds
  };
  struct Snapshot {
    std::map<std::tuple<std::string, Api, Code>, std::uint64_t> answers;
    std::map<std::tuple<std::string, Api>, Durations> durations;
    std::uint64_t batches = 0;
    std::uint64_t rows = 0;
    std::uint64_t wait_us = 0;
  };

  explicit RequestStats(std::vector<std::int64_t> bounds_us) : bounds_us_(std::move(bounds_us)) {}

  void count_answer(const std::string& model, Api api, Code code, Clock::duration time);
  void count_batch(std::size_t rows, Clock::duration wait);
  [[nodiscard]] Snapshot snapshot() const;

 private:
  std::vector<std::int64_t> bounds_us_;
  mutable std::mutex mutex_;
  Snapshot counts_;
};

}  // namespace serving
