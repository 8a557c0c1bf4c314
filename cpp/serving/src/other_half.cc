// other_half.cc: the owner and one helping thread.
#include "other_half.h"

#include <sched.h>

#include <chrono>

namespace serving {

namespace {

// Both halves take about as long, and a thread that sleeps needs a tenth of a millisecond to wake.
constexpr std::chrono::microseconds kSpin{300};

}  // namespace

OtherHalf::~OtherHalf() {
  if (is_offered_ && !helper_.withdraw(*this)) await(kEnded);
}

bool OtherHalf::offer() {
  is_offered_ = helper_.offer(*this);
  return is_offered_;
}

void OtherHalf::gather() {
  if (helper_.withdraw(*this)) {  // a busy machine: no thread woke in time
    is_offered_ = false;
    section_.gather(views_);
  } else {
    await(kGathered);
  }
}

void OtherHalf::run_dense() {
  if (!is_offered_) {
    section_.run(dense_, outputs_, scores_);
    return;
  }
  await(kEnded);
  if (error_ != nullptr) std::rethrow_exception(error_);
}

void OtherHalf::help() noexcept {
  const auto stage = stage_;
  try {
    section_.gather(views_);
    reach(kGathered);
    section_.run(dense_, outputs_, scores_);
  } catch (...) {
    error_ = std::current_exception();
  }
  stage->store(kEnded, std::memory_order_release);  // the object may be gone after this line
  stage->notify_all();
}

void OtherHalf::reach(Stage stage) noexcept {
  stage_->store(stage, std::memory_order_release);
  stage_->notify_all();
}

void OtherHalf::await(Stage stage) const noexcept {
  const auto end = std::chrono::steady_clock::now() + kSpin;
  while (stage_->load(std::memory_order_acquire) < stage && std::chrono::steady_clock::now() < end) sched_yield();
  for (int seen = stage_->load(std::memory_order_acquire); seen < stage;
       seen = stage_->load(std::memory_order_acquire)) {
    stage_->wait(seen, std::memory_order_acquire);
  }
}

}  // namespace serving
