// pool.h: a small persistent team of threads that share out numbered pieces of work.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <exception>
#include <functional>
#include <list>
#include <mutex>
#include <thread>
#include <vector>

namespace engine {

class Pool {
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

 private:
  struct Job;

  void start_workers(unsigned count);
  void stop_workers();
  void work_until_stopped(std::size_t team);
  static void take_pieces(Job& job) noexcept;

  std::atomic<unsigned> threads_;
  std::mutex resize_mutex_;
  std::mutex mutex_;
  std::condition_variable work_arrived_;
  std::condition_variable job_left_;
  std::list<Job*> jobs_;
  std::size_t team_ = 0;            // workers of an older team leave
  std::atomic<unsigned> forks_{0};  // forks seen when the workers were started: a child process has none of them
  std::vector<std::thread> workers_;
};

}  // namespace engine
