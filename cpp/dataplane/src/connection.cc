// connection.cc: a small pool of sockets to one server.
#include "dataplane/connection.h"

#include "exchange.h"

namespace dataplane {

namespace {

// Sockets kept for the next calls: as many threads seldom call at the same time.
constexpr std::size_t kMaxIdle = 8;

}  // namespace

Connection::Connection(const std::string& address, Hello hello, std::chrono::milliseconds timeout)
    : address_(Address::parse(address)), hello_(std::move(hello)), timeout_(timeout) {
  if (hello_.token.size() > kMaxTokenBytes) {
    throw engine::ConfigError("the token has " + std::to_string(hello_.token.size()) + " bytes; give at most " +
                              std::to_string(kMaxTokenBytes));
  }
  if (timeout_.count() <= 0) {
    throw engine::ConfigError("timeout_ms is " + std::to_string(timeout_.count()) + "; give at least 1");
  }
  if (address_.is_unix) (void)resolve(address_);  // a path that is too long fails now
  idle_.reserve(kMaxIdle);
}

std::uint64_t Connection::connect() {
  std::vector<Exchange> exchanges;
  exchanges.emplace_back(hello_.shard, *this, Request{.kind = Kind::kHello});
  run_all(exchanges, Clock::now() + timeout_);
  check_all(exchanges);
  return instance();
}

void Connection::close() noexcept {
  const std::lock_guard lock(mutex_);
  idle_.clear();
}

std::size_t Connection::idle_sockets() const {
  const std::lock_guard lock(mutex_);
  return idle_.size();
}

Socket Connection::take() {
  const std::lock_guard lock(mutex_);
  while (!idle_.empty()) {
    Socket socket = std::move(idle_.back());
    idle_.pop_back();
    if (is_quiet(socket)) return socket;  // else the server has gone since
  }
  return {};
}

void Connection::give_back(Socket socket) noexcept {
  const std::lock_guard lock(mutex_);
  if (idle_.size() < kMaxIdle) idle_.push_back(std::move(socket));
}

}  // namespace dataplane
