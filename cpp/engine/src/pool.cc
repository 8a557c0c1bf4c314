// pool.cc: the team of threads behind every batched call.
#include "engine/pool.h"

#include <pthread.h>

#include <algorithm>

namespace engine {

namespace {

std::atomic<unsigned> fork_count{0};

void count_forks_of_this_process() {
  static std::once_flag once;
  std::call_once(once, [] { pthread_atfork(nullptr, nullptr, [] { fork_count.fetch_add(1); }); });
}

}  // namespace

struct Pool::Job {
  const std::function<void(std::size_t)>* work;
  std::size_t pieces;
  std::atomic<std::size_t> next{0};
  std::size_t helpers = 0;  // guarded by Pool::mutex_
  std::mutex error_mutex{};
  std::exception_ptr error{};
};

Pool::Pool(unsigned threads) : threads_(std::max(1U, threads)) {
  count_forks_of_this_process();
  start_workers(threads_ - 1);
}

Pool::~Pool() { stop_workers(); }

void Pool::start_workers(unsigned count) {
  forks_ = fork_count.load();
  for (unsigned i = 0; i < count; ++i) workers_.emplace_back([this, team = team_] { work_until_stopped(team); });
}

void Pool::stop_workers() {
  {
    const std::lock_guard lock(mutex_);
    ++team_;
  }
  work_arrived_.notify_all();
  const bool are_ours = forks_ == fork_count.load();
  for (auto& worker : workers_) {
    if (are_ours) {
      worker.join();
    } else {
      worker.detach();  // the thread exists only in the parent process
    }
  }
  workers_.clear();
}

void Pool::resize(unsigned threads) {
  const std::lock_guard lock(resize_mutex_);
  stop_workers();
  threads_ = std::max(1U, threads);
  start_workers(threads_ - 1);
}

void Pool::take_pieces(Job& job) noexcept {
  for (;;) {
    const std::size_t piece = job.next.fetch_add(1, std::memory_order_relaxed);
    if (piece >= job.pieces) return;
    try {
      (*job.work)(piece);
    } catch (...) {
      job.next.store(job.pieces, std::memory_order_relaxed);
      const std::lock_guard lock(job.error_mutex);
      if (!job.error) job.error = std::current_exception();
    }
  }
}

void Pool::work_until_stopped(std::size_t team) {
  std::unique_lock lock(mutex_);
  while (team == team_) {
    const auto open = std::find_if(jobs_.begin(), jobs_.end(), [](const Job* job) {
      return job->next.load(std::memory_order_relaxed) < job->pieces;
    });
    if (open == jobs_.end()) {
      work_arrived_.wait(lock);
      continue;
    }
    Job& job = **open;
    ++job.helpers;
    lock.unlock();
    take_pieces(job);
    lock.lock();
    if (--job.helpers == 0) job_left_.notify_all();
  }
}

void Pool::run(std::size_t pieces, const std::function<void(std::size_t)>& work) {
  Job job{.work = &work, .pieces = pieces};
  if (pieces <= 1 || threads() == 1) {
    take_pieces(job);
  } else {
    if (forks_ != fork_count.load()) resize(threads());
    std::unique_lock lock(mutex_);
    const auto place = jobs_.insert(jobs_.end(), &job);
    lock.unlock();
    work_arrived_.notify_all();
    take_pieces(job);
    lock.lock();
    jobs_.erase(place);
    job_left_.wait(lock, [&] { return job.helpers == 0; });
  }
  if (job.error) std::rethrow_exception(job.error);
}

}  // namespace engine
