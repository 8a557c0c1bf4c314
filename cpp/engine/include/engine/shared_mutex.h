// shared_mutex.h: a 4-byte reader-writer lock. A waiting writer holds new readers back, and a writer that leaves lets
// all waiting readers in before the next writer, so neither side starves.
#pragma once

#include <atomic>
#include <cstdint>

namespace engine {

class SharedMutex {
 public:
  void lock() noexcept {
    std::uint32_t seen = state_.load(std::memory_order_relaxed);
    for (;;) {
      if ((seen & (kWriter | kReaders)) == 0) {
        const std::uint32_t taken = (seen & ~kWriterWaits) | kWriter;
        if (state_.compare_exchange_weak(seen, taken, std::memory_order_acquire, std::memory_order_relaxed)) return;
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
    std::uint32_t seen = state_.load(std::memory_order_relaxed);
    std::uint32_t left = 0;
    do {
      const std::uint32_t waiting = (seen & kWaitingReaders) / kWaitingReader;
      left = seen & ~(kWriter | kWaitingReaders);
      if (waiting > 0) left = (left ^ kTurn) + waiting;
    } while (!state_.compare_exchange_weak(seen, left, std::memory_order_release, std::memory_order_relaxed));
    state_.notify_all();
  }

  void lock_shared() noexcept {
    std::uint32_t seen = state_.load(std::memory_order_relaxed);
    for (;;) {
      const bool waits = (seen & (kWriter | kWriterWaits)) != 0;
      const std::uint32_t taken = seen + (waits ? kWaitingReader : 1);
      if (!state_.compare_exchange_weak(seen, taken, std::memory_order_acquire, std::memory_order_relaxed)) continue;
      if (!waits) return;
      break;
    }
    // The writer that leaves counts this reader as one that is in.
    const std::uint32_t turn = seen & kTurn;
    for (seen = state_.load(std::memory_order_acquire); (seen & kTurn) == turn;) {
      state_.wait(seen, std::memory_order_acquire);
      seen = state_.load(std::memory_order_acquire);
    }
  }

  void unlock_shared() noexcept {
    const std::uint32_t before = state_.fetch_sub(1, std::memory_order_release);
    if ((before & kWriterWaits) != 0 && (before & kReaders) == 1) state_.notify_all();
  }

 private:
  static constexpr std::uint32_t kWriter = 1U << 31;
  static constexpr std::uint32_t kWriterWaits = 1U << 30;
  static constexpr std::uint32_t kTurn = 1U << 29;  // changes when waiting readers are let in
  static constexpr std::uint32_t kReaders = (1U << 15) - 1;
  static constexpr std::uint32_t kWaitingReader = kReaders + 1;  // one of them, in the bits below kTurn
  static constexpr std::uint32_t kWaitingReaders = kTurn - kWaitingReader;

  std::atomic<std::uint32_t> state_{0};
};

}  // namespace engine
