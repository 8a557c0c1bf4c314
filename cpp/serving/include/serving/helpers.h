// helpers.h: idle threads that do part of a caller's work.
#pragma once

namespace serving {

// Work for one idle thread. It outlives the offer.
class SideWork {
 public:
  virtual void help() noexcept = 0;

 protected:
  ~SideWork() = default;
};

// Concurrent.
class Helpers {
 public:
  // Asks an idle thread to call help(); false where no thread is idle.
  [[nodiscard]] virtual bool offer(SideWork& work) = 0;
  // Withdraws an offer; false where a thread has begun the work.
  [[nodiscard]] virtual bool withdraw(SideWork& work) = 0;

 protected:
  ~Helpers() = default;
};

}  // namespace serving
