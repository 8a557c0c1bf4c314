// pool.h: a small persistent team of threads that share out numbered pieces of work.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <functional>
#include <span>
#include <vector>

namespace engine {

class Pool {
  struct Share;
  struct Job;
  struct Team;

 public:
  explicit Pool(unsigned threads);
  ~Pool();
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;

  // Threads that work on one call, the caller included. Concurrent.
  [[nodiscard]] unsigned threads() const noexcept { return threads_.load(std::memory_order_relaxed); }

  // Changes the team's size; calls in flight finish with the threads that are left. The same size changes nothing.
  // Concurrent.
  void resize(unsigned threads);

  // Calls work(0) .. work(pieces - 1), each once, in increasing order of start. The caller works too, so several
  // callers never wait for each other. The first exception stops the handing out and is thrown here. Concurrent.
  void run(std::size_t pieces, const std::function<void(std::size_t)>& work);

  // The same without an order of start. Each thread begins with its share of neighbouring pieces, then helps the
  // others. In every run of as many pieces a thread has the same share, so it finds again the lines that it left in its
  // cache; and the threads do not wait for one counter, which matters where pieces are small. Concurrent.
  void run_in_shares(std::size_t pieces, const std::function<void(std::size_t)>& work);

  // Puts the largest pieces of each share first, by their `size`, but keeps those of one owner together: a piece that
  // takes as long as several others must not start last.
  template <class Piece, class Owner>
  void sort_shares(std::vector<Piece>& pieces, Owner Piece::* owner) const {
    const std::size_t shares = threads();
    const auto share_of = [&](std::size_t place) { return place * shares / pieces.size(); };
    for (std::size_t begin = 0, end = 0; begin < pieces.size(); begin = end) {
      while (end < pieces.size() && share_of(end) == share_of(begin) && pieces[end].*owner == pieces[begin].*owner)
        ++end;
      std::stable_sort(pieces.begin() + begin, pieces.begin() + end,
                       [](const Piece& a, const Piece& b) { return a.size > b.size; });
    }
  }

  // Calls work(argument) on several threads, the caller among them, and returns when all calls have returned. The
  // signature is that of GOMP_parallel; the last argument is 0.
  using ParallelCall = void (*)(void (*work)(void*), void* argument, unsigned threads, unsigned flags);

  // While it exists, runs of this thread use the threads of another library instead of a team. Two teams that take
  // turns within a training step wait for each other's spinning threads. A child process does not use it.
  class BorrowedThreads {
   public:
    BorrowedThreads(ParallelCall call, unsigned threads);
    ~BorrowedThreads();
    BorrowedThreads(const BorrowedThreads&) = delete;
    BorrowedThreads& operator=(const BorrowedThreads&) = delete;

   private:
    friend class Pool;
    const ParallelCall call_;
    const unsigned threads_;
    const unsigned forks_;
    const BorrowedThreads* const outer_;
  };

  // Keeps threads awake between the runs of one call. While a Phases exists, a thread that waits for work or for the
  // last pieces of a run spins for up to a tenth of a millisecond before it sleeps. It does so after a call too, once
  // several calls in a row came that soon. Concurrent.
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
  void run_shares(std::span<Share> shares, const std::function<void(std::size_t)>& work);
  void run_on_team(Job& job);
  static const BorrowedThreads* borrowed() noexcept;
  static void take_pieces(Job& job, std::size_t thread) noexcept;

  std::atomic<unsigned> threads_;
  std::atomic<unsigned> forks_{0};  // forks seen when the team was made: a child process has none of its threads
  std::atomic<Team*> team_;         // owned
};

}  // namespace engine
