// push_gate.h: holds pushes back for a while, except some of them, so that several shards are cut at one moment.
#pragma once

#include <atomic>
#include <compare>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <span>
#include <vector>

#include "dataplane/error.h"

namespace dataplane {

// One push of one client.
struct PushName {
  std::uint64_t client = 0;
  std::uint64_t sequence = 0;

  friend auto operator<=>(const PushName&, const PushName&) = default;
};

// Open, or closed until a caller opens it or its lease ends. Concurrent.
class PushGate {
 public:
  // Closes it, also when it is closed already: then the hold before it is over. `hold` is the caller's name for it, of
  // which there are no two. The caller sees to it that no push is between its question and its end.
  void close(std::uint64_t hold, Deadline until);
  // Lets these pushes through all the same. False when the hold is over.
  bool admit(std::uint64_t hold, std::span<const PushName> pushes);
  // Ends a hold. False when it was over before: then any push may have passed.
  bool open(std::uint64_t hold);

  [[nodiscard]] bool lets_through(PushName push);
  // Returns when the gate may let it through, or at the deadline.
  void wait(PushName push, Deadline deadline);

 private:
  [[nodiscard]] bool is_over() const noexcept { return !is_closed_.load(std::memory_order_relaxed); }
  [[nodiscard]] bool admits(PushName push);
  void end();

  std::mutex mutex_;
  std::condition_variable changed_;
  std::atomic<bool> is_closed_{false};  // written under the mutex
  std::uint64_t hold_ = 0;
  Deadline until_{};
  std::vector<PushName> admitted_;  // sorted
};

}  // namespace dataplane
