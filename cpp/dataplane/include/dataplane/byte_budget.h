// byte_budget.h: memory that the requests of all connections share.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <mutex>
#include <utility>

#include "dataplane/socket.h"

namespace dataplane {

// Concurrent.
class ByteBudget {
 public:
  explicit ByteBudget(std::size_t bytes) : bytes_(bytes) {}

  // Bytes taken from the budget, given back when destroyed.
  class Share {
   public:
    Share(ByteBudget& budget, std::size_t bytes) noexcept : budget_(&budget), bytes_(bytes) {}
    Share(Share&& other) noexcept : budget_(std::exchange(other.budget_, nullptr)), bytes_(other.bytes_) {}
    Share& operator=(Share&&) = delete;
    ~Share() {
      if (budget_ != nullptr) budget_->give_back(bytes_);
    }

   private:
    ByteBudget* budget_;
    std::size_t bytes_;
  };

  // Waits until the bytes are free; a request larger than the whole budget waits until it is alone. Throws Late.
  [[nodiscard]] Share take(std::size_t bytes, Deadline deadline);
  [[nodiscard]] std::size_t used() const;

 private:
  void give_back(std::size_t bytes) noexcept;

  const std::size_t bytes_;
  mutable std::mutex mutex_;
  std::condition_variable freed_;
  std::size_t used_ = 0;
};

}  // namespace dataplane
