// answer.h: a request as the transport hands it on, and the answer to it.
#pragma once

#include <atomic>
#include <chrono>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "serving/status.h"

namespace serving {

using Clock = std::chrono::steady_clock;
using Headers = std::vector<std::pair<std::string, std::string>>;

// The value of a header by its lower-case name; empty where it is absent.
[[nodiscard]] std::string_view find_header(const Headers& headers, std::string_view name) noexcept;

enum class Api : std::uint8_t { kRest, kGrpc };

struct Answer {
  int status = 200;  // of HTTP/1.1
  Code code = Code::kOk;
  std::string message;  // of gRPC, with a code that is an error
  std::string body;
  std::string content_type = "application/json";
  Headers headers;  // of gRPC: trailers
};

// The client that waits for one answer. Concurrent; the first answer counts.
class Caller {
 public:
  virtual ~Caller() = default;
  virtual void answer(Answer answer) = 0;
  [[nodiscard]] bool is_wanted() const noexcept { return is_wanted_.load(std::memory_order_relaxed); }
  // The client left; its answer is dropped.
  void leave() noexcept { is_wanted_.store(false, std::memory_order_relaxed); }

 private:
  std::atomic<bool> is_wanted_{true};
};

struct Request {
  Api api = Api::kRest;
  std::string method;
  std::string path;  // without the query
  Headers headers;
  std::string body;  // as sent; of gRPC: the message
  bool is_compressed = false;
  Clock::time_point begun;
  Clock::time_point deadline;
  std::shared_ptr<Caller> caller;
};

}  // namespace serving
