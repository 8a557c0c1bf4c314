// pool.h: a small persistent team of threads that share out numbered pieces of work.
#pragma once

#include <atomic>
#include <cstddef>
#include <functional>

namespace engine {

class Pool {
  struct Job;
  struct Team;

 public:
  explicit Pool(unsigned threads);
  ~Pool();
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;

  // Threads that work on one call, the caller included. Concurrent.
  [[nodiscard]] unsigned threads() const noexcept { return threads_.load(std::memory_order_relaxed); }

  // Changes the team's size; calls in flight finish with the threads that are left. Concurrent.
  void resize(unsigned threads);

  // Calls work(0) .. work(pieces - 1), each once, in increasing order of start. The caller works too, so several
  // callers never wait for each other. The first exception stops the handing out and is thrown here. Concurrent.
  void run(std::size_t pieces, const std::function<void(std::size_t)>& work);

  // Keeps threads awake between the runs of one call. While a Phases exists, a thread that waits for work or for the
  // last pieces of a run spins for up to a tenth of a millisecond before it sleeps. Concurrent.
  class Phases {
   public:
    explicit Phases(Pool& pool);
    ~Phases();
    Phases(const Phases&) = delete;
    Phases& operator=(const Phases&) = delete;

   private:
    Team& team_;
  };

 private:
  Team& team();
  static void take_pieces(Job& job) noexcept;

  std::atomic<unsigned> threads_;
  std::atomic<unsigned> forks_{0};  // forks seen when the team was made: a child process has none of its threads
  std::atomic<Team*> team_;         // owned
};

}  // namespace engine
