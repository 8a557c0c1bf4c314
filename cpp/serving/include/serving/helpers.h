// helpers.h: a thread that does part of the work of a caller that is alone.
#pragma once

#include <condition_variable>
#include <mutex>
#include <thread>

namespace serving {

// Work for the helping thread. It outlives the offer.
class SideWork {
 public:
  virtual void help() noexcept = 0;

 protected:
  ~SideWork() = default;
};

// One thread that runs on another processor than the caller. Some kernels wake a thread on the processor of the waker,
// although another one is idle; both would then take turns. Concurrent.
class HelpingThread {
 public:
  HelpingThread();
  ~HelpingThread();
  HelpingThread(const HelpingThread&) = delete;
  HelpingThread& operator=(const HelpingThread&) = delete;

  // Asks the thread to call help(); false where it has work, or the process has one processor only.
  [[nodiscard]] bool offer(SideWork& work);
  // Withdraws an offer; false where the thread has begun the work.
  [[nodiscard]] bool withdraw(SideWork& work);

 private:
  void serve();
  void avoid(int processor);

  std::mutex mutex_;
  std::condition_variable arrived_;
  SideWork* work_ = nullptr;  // offered and not begun
  bool is_busy_ = false;
  bool is_closed_ = false;
  int avoided_ = -1;  // processor on which the thread does not run
  std::thread thread_;
};

}  // namespace serving
