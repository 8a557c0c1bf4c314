// pool.cc: the team of threads behind every batched call.
#include "engine/pool.h"

#include <pthread.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <exception>
#include <list>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "engine/pages.h"

namespace engine {

namespace {

std::atomic<unsigned> fork_count{0};

void count_forks_of_this_process() {
  static std::once_flag once;
  std::call_once(once, [] { pthread_atfork(nullptr, nullptr, [] { fork_count.fetch_add(1); }); });
}

thread_local const Pool::BorrowedThreads* innermost_loan = nullptr;

// The number of this thread among all that ever were lent.
std::size_t lent_thread() noexcept {
  static std::atomic<std::size_t> count{0};
  thread_local const std::size_t number = count.fetch_add(1, std::memory_order_relaxed);
  return number;
}

using Clock = std::chrono::steady_clock;

// Longer than the serial work between two phases of a call and than most waits for the last piece of a phase.
constexpr std::chrono::microseconds kSpinTime{100};
// Calls in a row that began within kSpinTime of the one before. Then threads also spin for the next one.
constexpr unsigned kPromptCalls = 4;
constexpr int kSpinsPerLook = 64;
constexpr int kLockSpins = 256;

void relax_processor() noexcept {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("isb" ::: "memory");
#endif
}

// Waits for is_over() without sleeping; false when the time is up.
template <class Condition>
bool spin_until(Condition&& is_over) {
  const auto deadline = Clock::now() + kSpinTime;
  do {
    for (int i = 0; i < kSpinsPerLook; ++i) {
      if (is_over()) return true;
      relax_processor();
    }
  } while (Clock::now() < deadline);
  return is_over();
}

// All threads of a team ask for its mutex when a run begins. They hold it for some nanoseconds, so a thread that slept
// for it would come last.
void lock_soon(std::unique_lock<std::mutex>& lock) {
  for (int i = 0; i < kLockSpins; ++i) {
    if (lock.try_lock()) return;
    relax_processor();
  }
  lock.lock();
}

}  // namespace

// Pieces [next, end).
struct alignas(kLineBytes) Pool::Share {
  std::atomic<std::size_t> next;
  std::size_t end;
};

struct Pool::Job {
  const std::function<void(std::size_t)>* work;
  std::span<Share> shares;
  std::atomic<bool> is_open{true};      // until a thread found all shares empty
  std::atomic<std::size_t> helpers{0};  // raised under Team::mutex, while the job is in the list
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
  std::atomic<std::size_t> arrivals{0};       // jobs that were ever in the list
  std::atomic<std::size_t> phases{0};         // calls that have further runs
  std::atomic<Clock::duration> idle_since{};  // when the last call ended
  std::atomic<unsigned> prompt_calls{0};      // in a row, at most kPromptCalls
  std::size_t generation = 0;                 // workers of an older generation leave
  std::vector<std::thread> workers;

  // All of them or none.
  void start_workers(unsigned count) {
    try {
      for (unsigned i = 0; i < count; ++i) {
        workers.emplace_back([this, number = i + 1, started = generation] { work_until_stopped(number, started); });
      }
    } catch (...) {
      stop_workers();
      throw;
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

  void work_until_stopped(std::size_t number, std::size_t started) {
    std::unique_lock lock(mutex);
    bool has_spun = false;  // since the last job
    while (started == generation) {
      const auto open = std::find_if(jobs.begin(), jobs.end(),
                                     [](const Job* job) { return job->is_open.load(std::memory_order_relaxed); });
      if (open == jobs.end()) {
        if (!has_spun && expects_work()) {
          has_spun = !await_arrival(lock);
        } else {
          work_arrived.wait(lock);
          has_spun = false;
        }
        continue;
      }
      has_spun = false;
      Job& job = **open;
      job.helpers.fetch_add(1, std::memory_order_relaxed);
      lock.unlock();
      take_pieces(job, number);
      const bool was_last = job.helpers.fetch_sub(1, std::memory_order_acq_rel) == 1;  // the job may be gone now
      lock_soon(lock);
      if (was_last) job_left.notify_all();
    }
  }

  [[nodiscard]] bool expects_work() const noexcept {
    return phases.load(std::memory_order_relaxed) > 0 || prompt_calls.load(std::memory_order_relaxed) >= kPromptCalls;
  }

  void begin_call() noexcept {
    if (phases.fetch_add(1, std::memory_order_relaxed) > 0) return;
    const auto pause = Clock::now().time_since_epoch() - idle_since.load(std::memory_order_relaxed);
    const unsigned calls = prompt_calls.load(std::memory_order_relaxed);
    prompt_calls.store(pause < kSpinTime ? std::min(calls + 1, kPromptCalls) : 0, std::memory_order_relaxed);
  }

  void end_call() noexcept {
    idle_since.store(Clock::now().time_since_epoch(), std::memory_order_relaxed);
    phases.fetch_sub(1, std::memory_order_relaxed);
  }

  // Spins until a job arrives; false when none does. The lock is free meanwhile.
  bool await_arrival(std::unique_lock<std::mutex>& lock) {
    const std::size_t seen = arrivals.load(std::memory_order_relaxed);
    lock.unlock();
    const auto has_arrived = [&] { return arrivals.load(std::memory_order_relaxed) != seen; };
    spin_until([&] { return has_arrived() || !expects_work(); });
    lock_soon(lock);
    return has_arrived();
  }
};

Pool::Pool(unsigned threads) : threads_(std::max(1U, threads)), team_(nullptr) {
  count_forks_of_this_process();
  forks_ = fork_count.load();
  auto team = std::make_unique<Team>();
  team->start_workers(threads_ - 1);
  team_ = team.release();
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
      auto renewed = std::make_unique<Team>();
      renewed->start_workers(threads_ - 1);
      team_ = renewed.release();
      forks_ = fork_count.load();
    }
  }
  return *team_.load();
}

void Pool::resize(unsigned threads) {
  Team& team = this->team();
  const std::lock_guard lock(team.resize_mutex);
  if (std::max(1U, threads) == threads_) return;
  team.stop_workers();
  threads_ = std::max(1U, threads);
  team.start_workers(threads_ - 1);
}

// Thread 0 is the caller.
void Pool::take_pieces(Job& job, std::size_t thread) noexcept {
  for (std::size_t i = 0; i < job.shares.size(); ++i) {
    Share& share = job.shares[(thread + i) % job.shares.size()];
    while (share.next.load(std::memory_order_relaxed) < share.end) {
      const std::size_t piece = share.next.fetch_add(1, std::memory_order_relaxed);
      if (piece >= share.end) break;
      try {
        (*job.work)(piece);
      } catch (...) {
        for (Share& each : job.shares) each.next.store(each.end, std::memory_order_relaxed);
        const std::lock_guard lock(job.error_mutex);
        if (!job.error) job.error = std::current_exception();
      }
    }
  }
  job.is_open.store(false, std::memory_order_relaxed);
}

Pool::Phases::Phases(Pool& pool) : team_(pool.team()) { team_.begin_call(); }

Pool::Phases::~Phases() { team_.end_call(); }

Pool::BorrowedThreads::BorrowedThreads(ParallelCall call, unsigned threads)
    : call_(call), threads_(threads), forks_(fork_count.load()), outer_(innermost_loan) {
  count_forks_of_this_process();
  innermost_loan = this;
}

Pool::BorrowedThreads::~BorrowedThreads() { innermost_loan = outer_; }

// Returns the threads that this thread of this process has borrowed, or null.
const Pool::BorrowedThreads* Pool::borrowed() noexcept {
  const BorrowedThreads* const loan = innermost_loan;
  return loan != nullptr && loan->forks_ == fork_count.load(std::memory_order_relaxed) ? loan : nullptr;
}

void Pool::run(std::size_t pieces, const std::function<void(std::size_t)>& work) {
  Share all{.next = 0, .end = pieces};
  run_shares({&all, 1}, work);
}

void Pool::run_in_shares(std::size_t pieces, const std::function<void(std::size_t)>& work) {
  const std::size_t count = std::min<std::size_t>(pieces, threads());
  std::vector<Share> shares(count);
  const auto begin_of = [&](std::size_t share) { return (share * pieces + count - 1) / count; };
  for (std::size_t i = 0; i < count; ++i) {
    shares[i].next.store(begin_of(i), std::memory_order_relaxed);
    shares[i].end = begin_of(i + 1);
  }
  run_shares(shares, work);
}

void Pool::run_shares(std::span<Share> shares, const std::function<void(std::size_t)>& work) {
  Job job{.work = &work, .shares = shares};
  if (shares.empty() || shares.back().end <= 1 || threads() == 1) {
    take_pieces(job, 0);
  } else if (const BorrowedThreads* const loan = borrowed()) {
    loan->call_([](void* argument) { take_pieces(*static_cast<Job*>(argument), lent_thread()); }, &job, loan->threads_,
                0);
  } else {
    run_on_team(job);
  }
  if (job.error) std::rethrow_exception(job.error);
}

void Pool::run_on_team(Job& job) {
  Team& team = this->team();
  std::unique_lock lock(team.mutex, std::defer_lock);
  lock_soon(lock);
  const auto place = team.jobs.insert(team.jobs.end(), &job);
  team.arrivals.fetch_add(1, std::memory_order_relaxed);
  lock.unlock();
  team.work_arrived.notify_all();
  take_pieces(job, 0);
  lock_soon(lock);
  team.jobs.erase(place);
  const auto is_left = [&] { return job.helpers.load(std::memory_order_acquire) == 0; };
  if (!is_left() && team.phases.load(std::memory_order_relaxed) > 0) {
    lock.unlock();
    spin_until(is_left);
    lock_soon(lock);
  }
  team.job_left.wait(lock, is_left);
}

}  // namespace engine
