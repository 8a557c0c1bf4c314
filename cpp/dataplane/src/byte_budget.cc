// byte_budget.cc: see byte_budget.h.
#include "dataplane/byte_budget.h"

#include <string>

#include "dataplane/error.h"

namespace dataplane {

ByteBudget::Share ByteBudget::take(std::size_t bytes, Deadline deadline) {
  std::unique_lock lock(mutex_);
  const auto fits = [&] { return used_ == 0 || (bytes <= bytes_ && used_ <= bytes_ - bytes); };
  if (!freed_.wait_until(lock, deadline, fits)) {
    throw Late("requests under way hold " + std::to_string(used_) + " of max_inflight_bytes " + std::to_string(bytes_) +
               ", this one needs " + std::to_string(bytes) + "; ask again, or raise max_inflight_bytes");
  }
  used_ += bytes;
  return {*this, bytes};
}

std::size_t ByteBudget::used() const {
  const std::lock_guard lock(mutex_);
  return used_;
}

void ByteBudget::give_back(std::size_t bytes) noexcept {
  {
    const std::lock_guard lock(mutex_);
    used_ -= bytes;
  }
  freed_.notify_all();
}

}  // namespace dataplane
