// service.h: decides for each request whether it is a plain score of a native version, or goes to the Python path.
#pragma once

#include <condition_variable>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "serving/answer.h"
#include "serving/request_stats.h"
#include "serving/scorer.h"

namespace serving {

// A served version as requests find it.
struct RoutedVersion {
  std::shared_ptr<const Model> model;  // null = the Python path serves it
  double logged_share = 0;             // share of requests that take the Python path, which logs them
  bool has_canary = false;             // the canary of Python needs a sample of requests
};

struct Route {
  std::map<std::int64_t, RoutedVersion> versions;
  std::map<std::string, std::int64_t, std::less<>> labels;
};

using Routes = std::map<std::string, Route, std::less<>>;

struct ServiceConfig {
  QueueConfig queue;
  std::vector<std::int64_t> bounds_us;  // of the histogram of durations
  std::size_t max_values = std::size_t{1} << 20;
  std::size_t max_inline_bytes = std::size_t{4} << 20;  // a larger request is parsed on the Python path
  std::size_t max_waiting = 4096;                       // requests that wait for the Python path
};

// Concurrent.
class Service {
 public:
  explicit Service(ServiceConfig config);

  void set_routes(std::shared_ptr<const Routes> routes);
  // Takes a request; its caller is answered later, from another thread, or at the latest by close().
  void submit(Request request);

  // The next request of the Python path. Nothing after `wait`, and after close().
  struct PythonCall {
    Request request;
    std::optional<bool> is_logged;  // whether a plain score was drawn for the log; nothing for other requests
  };
  [[nodiscard]] std::optional<PythonCall> next_call(Clock::duration wait);

  void close(Clock::duration drain);
  [[nodiscard]] RequestStats::Snapshot stats() const { return stats_.snapshot(); }
  [[nodiscard]] Scorer::Load queued() const { return scorer_.queued(); }
  [[nodiscard]] std::vector<std::string> take_errors() { return scorer_.take_errors(); }

 private:
  // Queues a plain score; false leaves the request as it was.
  bool submit_score(Request& request, std::optional<bool>& is_logged);
  [[nodiscard]] std::shared_ptr<const Routes> routes() const;

  ServiceConfig config_;
  RequestStats stats_;
  Scorer scorer_;
  mutable std::mutex routes_mutex_;
  std::shared_ptr<const Routes> routes_;
  std::mutex calls_mutex_;
  std::condition_variable call_arrived_;
  std::deque<PythonCall> calls_;
  bool is_closed_ = false;
};

}  // namespace serving
