// exchange.h: one request to one server and its answer, moved on a bit whenever the socket is ready. Many of them run
// in one thread. Private to the data plane.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "dataplane/connection.h"

namespace dataplane {

struct Request {
  Kind kind = Kind::kPull;  // kHello: only connect
  std::uint16_t flags = 0;
  Pieces payload = {};
  Pieces reply = {};                               // where the answer goes; exactly so long
  std::function<void(std::size_t)> progress = {};  // told how many bytes of the answer are there
};

class Exchange {
 public:
  Exchange(std::size_t server, Connection& connection, Request request);

  // Never throw for errors of the server: they become the failure.
  void start(Deadline deadline) noexcept;
  void advance() noexcept;
  void time_out() noexcept;

  [[nodiscard]] bool is_over() const noexcept { return is_over_; }
  [[nodiscard]] const std::optional<Failure>& failure() const noexcept { return failure_; }
  [[nodiscard]] const Connection& connection() const noexcept { return connection_; }
  [[nodiscard]] int fd() const noexcept { return socket_.fd(); }
  // Events to wait for, as of poll().
  [[nodiscard]] short events() const noexcept;
  // When to stop waiting: the call's end, or that of connecting.
  [[nodiscard]] Deadline deadline() const noexcept;

 private:
  enum class Phase : std::uint8_t { kConnecting, kSending, kHeader, kBody };

  void guard(void (Exchange::*step)()) noexcept;
  void begin();
  void move();
  void connect_next();
  void ask();
  void start_frame(Kind kind, std::uint16_t flags, Pieces payload);
  bool send_some();  // false = wait
  void read_header();
  void end_frame();
  void end_with_error();
  void end() noexcept;
  void fail(Failure::Kind kind, std::string text, bool may_retry);

  std::size_t server_;
  Connection& connection_;
  Request request_;
  Deadline call_deadline_{};
  Deadline connect_deadline_{};
  std::vector<Endpoint> endpoints_;  // to try, the last first
  Socket socket_;
  Phase phase_ = Phase::kConnecting;
  bool is_greeted_ = false;
  bool is_sent_ = false;
  bool is_over_ = false;
  std::vector<std::byte> hello_;
  FrameHeader out_{};
  FrameHeader in_{};
  Pieces sending_;
  Pieces receiving_;
  Welcome welcome_{};
  std::vector<std::byte> error_;
  std::optional<Failure> failure_;
};

// Runs all to their end, at most until the deadline.
void run_all(std::span<Exchange> exchanges, Deadline deadline);
// Throws CallFailed when any failed.
void check_all(std::span<const Exchange> exchanges);

}  // namespace dataplane
