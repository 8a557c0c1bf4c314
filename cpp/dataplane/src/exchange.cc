// exchange.cc: connect, greet, ask, take the answer: the phases of a call, none of which waits.
#include "exchange.h"

#include <poll.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

namespace dataplane {

Exchange::Exchange(std::size_t server, Connection& connection, Request request)
    : server_(server), connection_(connection), request_(std::move(request)) {}

short Exchange::events() const noexcept {
  // While sending, an early answer is looked for too: a server that refuses closes without reading on.
  if (phase_ == Phase::kConnecting) return POLLOUT;
  return phase_ == Phase::kSending ? POLLOUT | POLLIN : POLLIN;
}

Deadline Exchange::deadline() const noexcept {
  return is_greeted_ ? call_deadline_ : std::min(call_deadline_, connect_deadline_);
}

void Exchange::fail(Failure::Kind kind, std::string text, bool may_retry) {
  failure_ = Failure{.server = server_,
                     .address = connection_.address().text(),
                     .kind = kind,
                     .code = Code::kEngine,
                     .text = std::move(text),
                     .may_retry = may_retry,
                     .is_surely_not_applied = !is_sent_};
  is_over_ = true;
  socket_ = Socket();
}

void Exchange::guard(void (Exchange::*step)()) noexcept {
  try {
    (this->*step)();
  } catch (const Disconnected& error) {
    fail(is_greeted_ ? Failure::Kind::kClosed : Failure::Kind::kRefused, error.what(), true);
  } catch (const engine::ConfigError& error) {
    fail(Failure::Kind::kRefused, error.what(), false);
    failure_->code = Code::kConfig;
  } catch (const std::exception& error) {
    fail(Failure::Kind::kRefused, error.what(), false);
  }
}

void Exchange::start(Deadline deadline) noexcept {
  call_deadline_ = deadline;
  connect_deadline_ = Clock::now() + connection_.timeout();
  guard(&Exchange::begin);
}

void Exchange::begin() {
  socket_ = connection_.take();
  if (!socket_.is_open()) {
    endpoints_ = resolve(connection_.address());
    std::reverse(endpoints_.begin(), endpoints_.end());
    return connect_next();
  }
  ask();
  if (!is_over_) move();
}

void Exchange::ask() {
  is_greeted_ = true;
  if (request_.kind == Kind::kHello) return end();
  const std::size_t bytes = request_.payload.bytes();
  if (bytes > connection_.max_frame_bytes()) {
    throw engine::ConfigError(
        "the request takes " + std::to_string(bytes) + " bytes, the server's max_frame_bytes is " +
        std::to_string(connection_.max_frame_bytes()) + "; send fewer ids at a time, or raise it");
  }
  start_frame(request_.kind, request_.flags, std::move(request_.payload));
}

void Exchange::end() noexcept {
  connection_.give_back(std::move(socket_));
  is_over_ = true;
}

void Exchange::connect_next() {
  const Endpoint endpoint = endpoints_.back();
  endpoints_.pop_back();
  phase_ = Phase::kConnecting;
  try {
    socket_ = start_connecting(endpoint);
  } catch (const Disconnected&) {
    if (endpoints_.empty()) throw;
    connect_next();
  }
}

void Exchange::start_frame(Kind kind, std::uint16_t flags, Pieces payload) {
  phase_ = Phase::kSending;
  const auto wait = std::chrono::ceil<std::chrono::milliseconds>(call_deadline_ - Clock::now()).count();
  out_ = {.bytes = static_cast<std::uint32_t>(payload.bytes()),
          .kind = kind,
          .flags = flags,
          .request = connection_.next_request(),
          .timeout_ms = static_cast<std::uint32_t>(std::clamp<std::int64_t>(wait, 1, UINT32_MAX)),
          .zero = 0};
  sending_ = {};
  sending_.add(&out_, sizeof out_);
  sending_.append(std::move(payload));
}

void Exchange::advance() noexcept { guard(&Exchange::move); }

void Exchange::move() {
  for (;;) {
    switch (phase_) {
      case Phase::kConnecting: {
        if (const int error = connect_error(socket_); error != 0) {
          if (endpoints_.empty()) throw Disconnected(std::strerror(error));
          return connect_next();
        }
        hello_ = encode_hello(connection_.hello());
        Pieces payload;
        payload.add(hello_.data(), hello_.size());
        start_frame(Kind::kHello, 0, std::move(payload));
        break;
      }
      case Phase::kSending:
        if (!send_some()) return;
        break;
      case Phase::kHeader:
        if (receiving_.receive(socket_) == 0) return;
        if (receiving_.is_done()) read_header();
        break;
      case Phase::kBody:
        if (!receiving_.is_done() && receiving_.receive(socket_) == 0) return;
        if (is_greeted_ && in_.kind != Kind::kError && request_.progress) request_.progress(receiving_.moved());
        if (!receiving_.is_done()) break;
        end_frame();
        if (is_over_) return;
        break;
    }
  }
}

bool Exchange::send_some() {
  bool is_answered = false;
  try {
    const bool has_moved = sending_.send(socket_) > 0;
    // A word from the server before it has heard all is a refusal, and its last one.
    is_answered = !has_moved && !is_quiet(socket_);
    if (!has_moved && !is_answered) return false;
  } catch (const Disconnected&) {
    if (is_quiet(socket_)) throw;
    is_answered = true;
  }
  if (!sending_.is_done() && !is_answered) return true;
  // Before its last byte is sent, the server cannot have acted on a request.
  is_sent_ = is_greeted_ && sending_.is_done();
  phase_ = Phase::kHeader;
  in_ = {};
  receiving_ = {};
  receiving_.add(&in_, sizeof in_);
  return true;
}

void Exchange::read_header() {
  phase_ = Phase::kBody;
  receiving_ = {};
  if (in_.kind == Kind::kError) {
    check_header(in_, kMaxErrorBytes);
    error_.resize(in_.bytes);
    receiving_.add(error_.data(), error_.size());
    return;
  }
  const Kind expected = !is_greeted_ ? Kind::kWelcome : request_.kind == Kind::kPull ? Kind::kRows : Kind::kApplied;
  const std::size_t bytes = is_greeted_ ? request_.reply.bytes() : sizeof welcome_;
  if (in_.kind != expected || in_.bytes != bytes || in_.request != out_.request) {
    throw Disconnected("the server answers with a frame of kind " + std::to_string(static_cast<int>(in_.kind)) +
                       " and " + std::to_string(in_.bytes) + " bytes where " + std::to_string(bytes) +
                       " were due; both sides must run the same release");
  }
  if (is_greeted_) {
    receiving_ = std::move(request_.reply);
  } else {
    receiving_.add(&welcome_, sizeof welcome_);
  }
}

void Exchange::end_frame() {
  if (in_.kind == Kind::kError) return end_with_error();
  if (is_greeted_) return end();
  connection_.welcome_by(welcome_);
  ask();
}

void Exchange::end_with_error() {
  RemoteError error = parse_error(error_);
  // The server has read the whole request and continues with the next one.
  Socket socket = is_sent_ ? std::move(socket_) : Socket();
  const bool is_applied_maybe = is_sent_ && (in_.flags & kNotApplied) == 0;
  fail(is_greeted_ ? Failure::Kind::kRemote : Failure::Kind::kRefused, std::move(error.text),
       (in_.flags & kMayRetry) != 0);
  failure_->code = error.code;
  failure_->is_surely_not_applied = !is_applied_maybe;
  if (socket.is_open()) connection_.give_back(std::move(socket));
}

void Exchange::time_out() noexcept {
  const bool is_connecting = !is_greeted_;
  fail(Failure::Kind::kTimeout,
       is_connecting ? "no connection within the time allowed; is the server running?"
                     : "no answer within the time allowed; the server is slow, stopped or cut off",
       true);
}

void run_all(std::span<Exchange> exchanges, Deadline deadline) {
  for (Exchange& exchange : exchanges) exchange.start(deadline);
  std::vector<pollfd> waits;
  std::vector<Exchange*> open;
  for (;;) {
    waits.clear();
    open.clear();
    Deadline next = deadline;
    for (Exchange& exchange : exchanges) {
      if (exchange.is_over()) continue;
      open.push_back(&exchange);
      waits.push_back({.fd = exchange.fd(), .events = exchange.events(), .revents = 0});
      next = std::min(next, exchange.deadline());
    }
    if (open.empty()) return;
    const int ready = ::poll(waits.data(), waits.size(), poll_ms(next));
    if (ready < 0 && errno != EINTR && errno != ENOMEM) {
      throw Disconnected(std::string("poll failed: ") + std::strerror(errno));
    }
    const Deadline now = Clock::now();
    for (std::size_t i = 0; i < open.size(); ++i) {
      if (ready > 0 && waits[i].revents != 0) open[i]->advance();
      if (!open[i]->is_over() && open[i]->deadline() <= now) open[i]->time_out();
    }
  }
}

void check_all(std::span<const Exchange> exchanges) {
  std::vector<Failure> failures;
  for (const Exchange& exchange : exchanges) {
    if (exchange.failure()) failures.push_back(*exchange.failure());
  }
  if (!failures.empty()) throw CallFailed(std::move(failures));
}

}  // namespace dataplane
