// pool.cc: the team of threads behind every batched call.
#include "engine/pool.h"

#include <pthread.h>

#include <algorithm>
#include <condition_variable>
#include <exception>
#include <list>
#include <mutex>
#include <thread>
#include <vector>

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
  std::size_t helpers = 0;  // guarded by Team::mutex
  std::mutex error_mutex{};
  std::exception_ptr error{};
};

// Locks, jobs and threads. A child process makes a new team and leaves this one alone: a thread of the parent may have
// held a lock, or waited on a condition, at the moment of the fork.
struct Pool::Team {
  std::mutex resize_mutex;
  std::mutex mutex;
  std::condition_variable work_arrived;
  std::condition_variable job_left;
  std::list<Job*> jobs;
  std::size_t generation = 0;  // workers of an older generation leave
  std::vector<std::thread> workers;

  void start_workers(unsigned count) {
    for (unsigned i = 0; i < count; ++i) {
      workers.emplace_back([this, started = generation] { work_until_stopped(started); });
    }
  }

  void stop_workers() {
    {
      const std::lock_guard lock(mutex);
      ++generation;
    }
    work_arrived.notify_all();
    for (auto& worker : workers) worker.join();
    workers.clear();
  }

  void work_until_stopped(std::size_t started) {
    std::unique_lock lock(mutex);
    while (started == generation) {
      const auto open = std::find_if(jobs.begin(), jobs.end(), [](const Job* job) {
        return job->next.load(std::memory_order_relaxed) < job->pieces;
      });
      if (open == jobs.end()) {
        work_arrived.wait(lock);
        continue;
      }
      Job& job = **open;
      ++job.helpers;
      lock.unlock();
      take_pieces(job);
      lock.lock();
      if (--job.helpers == 0) job_left.notify_all();
    }
  }
};

Pool::Pool(unsigned threads) : threads_(std::max(1U, threads)), team_(new Team) {
  count_forks_of_this_process();
  forks_ = fork_count.load();
  team_.load()->start_workers(threads_ - 1);
}

Pool::~Pool() {
  if (forks_ != fork_count.load()) return;  // the team belongs to the parent process
  Team* const team = team_.load();
  team->stop_workers();
  delete team;
}

// Returns the team of this process.
Pool::Team& Pool::team() {
  if (forks_ != fork_count.load()) {
    static std::mutex renewal;
    const std::lock_guard lock(renewal);
    if (forks_ != fork_count.load()) {
      auto* const renewed = new Team;
      renewed->start_workers(threads_ - 1);
      team_ = renewed;
      forks_ = fork_count.load();
    }
  }
  return *team_.load();
}

void Pool::resize(unsigned threads) {
  Team& team = this->team();
  const std::lock_guard lock(team.resize_mutex);
  team.stop_workers();
  threads_ = std::max(1U, threads);
  team.start_workers(threads_ - 1);
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

void Pool::run(std::size_t pieces, const std::function<void(std::size_t)>& work) {
  Job job{.work = &work, .pieces = pieces};
  if (pieces <= 1 || threads() == 1) {
    take_pieces(job);
  } else {
    Team& team = this->team();
    std::unique_lock lock(team.mutex);
    const auto place = team.jobs.insert(team.jobs.end(), &job);
    lock.unlock();
    team.work_arrived.notify_all();
    take_pieces(job);
    lock.lock();
    team.jobs.erase(place);
    team.job_left.wait(lock, [&] { return job.helpers == 0; });
  }
  if (job.error) std::rethrow_exception(job.error);
}

}  // namespace engine
