// shared_mutex.h: a 4-byte reader-writer lock. Waiting writers hold new readers back, so neither side starves.
#pragma once

#include <atomic>
#include <cstdint>

namespace engine {

class SharedMutex {
 public:
  void lock() noexcept {
    std::uint32_t seen = state_.load(std::memory_order_relaxed);
    for (;;) {
      if ((seen & ~kWriterWaits) == 0) {
        if (state_.compare_exchange_weak(seen, kWriter, std::memory_order_acquire, std::memory_order_relaxed)) return;
        continue;
      }
      if ((seen & kWriterWaits) == 0) {
        if (!state_.compare_exchange_weak(seen, seen | kWriterWaits, std::memory_order_relaxed)) continue;
        seen |= kWriterWaits;
      }
      state_.wait(seen, std::memory_order_relaxed);
      seen = state_.load(std::memory_order_relaxed);
    }
  }

  void unlock() noexcept {
    state_.fetch_and(~kWriter, std::memory_order_release);
    state_.notify_all();
  }

  void lock_shared() noexcept {
    std::uint32_t seen = state_.load(std::memory_order_relaxed);
    for (;;) {
      if ((seen & (kWriter | kWriterWaits)) == 0) {
        if (state_.compare_exchange_weak(seen, seen + 1, std::memory_order_acquire, std::memory_order_relaxed)) return;
        continue;
      }
      state_.wait(seen, std::memory_order_relaxed);
      seen = state_.load(std::memory_order_relaxed);
    }
  }

  void unlock_shared() noexcept {
    const std::uint32_t before = state_.fetch_sub(1, std::memory_order_release);
    if ((before & kWriterWaits) != 0 && (before & kReaders) == 1) state_.notify_all();
  }

 private:
  static constexpr std::uint32_t kWriter = 1U << 31;
  static constexpr std::uint32_t kWriterWaits = 1U << 30;
  static constexpr std::uint32_t kReaders = kWriterWaits - 1;

  std::atomic<std::uint32_t> state_{0};
};

}  // namespace engine
