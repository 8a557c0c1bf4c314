// clock.h: the monotonic clock of waits and intervals.
#pragma once

#include <chrono>
#include <cstdint>

namespace eventlog {

inline std::int64_t steady_ms() {
  using namespace std::chrono;
  return duration_cast<milliseconds>(steady_clock::now().time_since_epoch()).count();
}

}  // namespace eventlog
