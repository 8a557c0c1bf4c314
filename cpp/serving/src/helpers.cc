// helpers.cc: the thread waits for work; its processors are all of the process except the caller's.
#include "serving/helpers.h"

#include <pthread.h>
#include <sched.h>
#include <unistd.h>

#include <utility>

namespace serving {

namespace {

// Processors of the process: those of its first thread.
bool find_processors(cpu_set_t& processors) noexcept {
  return sched_getaffinity(getpid(), sizeof processors, &processors) == 0;
}

}  // namespace

HelpingThread::HelpingThread() {
  cpu_set_t allowed;
  if (!find_processors(allowed) || CPU_COUNT(&allowed) < 2) return;
  thread_ = std::thread([this] { serve(); });
  pthread_setname_np(thread_.native_handle(), "score-help");
}

HelpingThread::~HelpingThread() {
  {
    const std::lock_guard lock(mutex_);
    is_closed_ = true;
  }
  arrived_.notify_one();
  if (thread_.joinable()) thread_.join();
}

bool HelpingThread::offer(SideWork& work) {
  if (!thread_.joinable()) return false;
  {
    const std::lock_guard lock(mutex_);
    if (is_busy_ || work_ != nullptr) return false;
    avoid(sched_getcpu());
    work_ = &work;
  }
  arrived_.notify_one();
  return true;
}

bool HelpingThread::withdraw(SideWork& work) {
  const std::lock_guard lock(mutex_);
  if (work_ != &work) return false;
  work_ = nullptr;
  return true;
}

void HelpingThread::avoid(int processor) {
  if (processor == avoided_) return;
  cpu_set_t others;
  if (!find_processors(others)) return;
  CPU_CLR(static_cast<unsigned>(processor), &others);
  if (pthread_setaffinity_np(thread_.native_handle(), sizeof others, &others) == 0) avoided_ = processor;
}

void HelpingThread::serve() {
  std::unique_lock lock(mutex_);
  for (;;) {
    arrived_.wait(lock, [this] { return work_ != nullptr || is_closed_; });
    if (work_ == nullptr) return;
    SideWork& work = *std::exchange(work_, nullptr);
    is_busy_ = true;
    lock.unlock();
    work.help();
    lock.lock();
    is_busy_ = false;
  }
}

}  // namespace serving
