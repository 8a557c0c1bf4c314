// scorer.h: a bounded queue of score requests and the threads that compute them, in batches where possible.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "serving/answer.h"
#include "serving/helpers.h"
#include "serving/model.h"
#include "serving/request_stats.h"

namespace serving {

struct QueueConfig {
  std::size_t max_rows = 4096;  // of a batch; a single request may have more
  Clock::duration wait{};       // how long a free thread waits for further requests of a batch
  std::size_t threads = 2;
  std::size_t max_queued_rows = 200'000;
  std::size_t max_queued_bytes = std::size_t{256} << 20;
};

struct ScoreJob {
  std::shared_ptr<const Model> model;
  std::string signature;
  engine::data::RecordKind kind{};
  std::vector<std::size_t> outputs;
  std::shared_ptr<const engine::data::Records> records;
  std::size_t rows = 0;
  std::size_t bytes = 0;
  bool is_by_row = false;
  Api api = Api::kRest;
  Clock::time_point begun;
  Clock::time_point deadline;
  Clock::time_point queued{};
  std::shared_ptr<Caller> caller;

  // Whether both can be computed in one batch.
  [[nodiscard]] bool is_alike(const ScoreJob& other) const noexcept {
    return model == other.model && kind == other.kind && outputs == other.outputs && signature == other.signature;
  }
};

// Every job is answered once: with scores, or with the failure of the job itself. A job that is alone is shared with
// the helping thread. Concurrent.
class Scorer {
 public:
  Scorer(QueueConfig config, RequestStats& stats);
  ~Scorer() { close({}); }
  Scorer(const Scorer&) = delete;
  Scorer& operator=(const Scorer&) = delete;

  // Queues a job, or answers that the queue is full or closed.
  void submit(ScoreJob job);
  // Refuses new jobs, waits for those in the queue, fails the rest, and stops the threads.
  void close(Clock::duration drain);

  struct Load {
    std::size_t requests = 0;
    std::size_t rows = 0;
  };
  [[nodiscard]] Load queued() const;
  // Texts of unexpected errors since the last call, for the log; clients do not see them.
  [[nodiscard]] std::vector<std::string> take_errors();

 private:
  void serve();
  void take(std::unique_lock<std::mutex>& lock, std::vector<ScoreJob>& jobs);
  void compute(std::vector<ScoreJob>& jobs, bool is_alone);
  bool compute_together(std::vector<ScoreJob>& jobs);
  void compute_one(ScoreJob& job, HelpingThread* helper);
  void finish(const ScoreJob& job, const Scores& scores, std::size_t begin, std::size_t rows);
  void fail(const ScoreJob& job, Code code, const std::string& text);
  void fail_unexpectedly(const ScoreJob& job, const std::string& text);

  QueueConfig config_;
  RequestStats& stats_;
  mutable std::mutex mutex_;
  std::condition_variable arrived_;
  std::condition_variable idle_;
  std::deque<ScoreJob> jobs_;
  std::size_t rows_ = 0;
  std::size_t bytes_ = 0;
  std::size_t under_way_ = 0;
  bool is_closed_ = false;
  std::vector<std::string> errors_;
  HelpingThread helper_;
  std::vector<std::thread> threads_;
};

// The answer of a failed request.
[[nodiscard]] Answer make_failure(Api api, Code code, const std::string& text);

}  // namespace serving
