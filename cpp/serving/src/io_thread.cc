// io_thread.cc: the loop of epoll, and the bytes of a connection.
#include "io_thread.h"

#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>

#include "engine/error.h"
#include "serving/http1.h"
#include "serving/score_answer.h"

namespace serving {

namespace {

constexpr int kAcceptsPerTurn = 64;
constexpr std::size_t kReadBytes = 256 << 10;
constexpr int kReadsPerTurn = 4;
constexpr int kTlsReadsPerTurn = 64;                // of at most 16 KiB each
constexpr std::size_t kKeptOutputBytes = 16 << 10;  // an idle connection holds no larger buffer

Clock::duration sweep_pause(const ServerConfig& config) {
  const Clock::duration second = std::chrono::seconds(1);
  return std::max<Clock::duration>(std::min({second, config.read / 4, config.idle / 4, config.answer / 4}),
                                   std::chrono::milliseconds(5));
}

// Takes the same time wherever the texts differ.
bool is_equal(std::string_view one, std::string_view other) noexcept {
  unsigned difference = one.size() == other.size() ? 0U : 1U;
  for (std::size_t i = 0; i < one.size(); ++i) {
    const char sign = other.empty() ? '\0' : other[i % other.size()];
    difference |= static_cast<unsigned>(static_cast<unsigned char>(one[i] ^ sign));
  }
  return difference == 0;
}

}  // namespace

IoThread::IoThread(std::shared_ptr<const ServerConfig> config, std::shared_ptr<Service> service,
                   std::shared_ptr<TransportStats> stats, std::shared_ptr<const TlsContext> tls)
    : config_(std::move(config)),
      service_(std::move(service)),
      stats_(std::move(stats)),
      tls_(std::move(tls)),
      epoll_(epoll_create1(EPOLL_CLOEXEC)),
      wake_(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)) {
  if (epoll_ < 0 || wake_ < 0) {
    const int code = errno;
    ::close(epoll_);
    ::close(wake_);
    throw engine::IoError("open", "epoll", code);
  }
  scratch_.resize(kReadBytes);
  watch(wake_, EPOLLIN, true);
}

IoThread::~IoThread() {
  ::close(epoll_);
  ::close(wake_);
  for (const Listening& each : listening_) ::close(each.socket);
}

void IoThread::start() {
  thread_ = std::thread([this] { run(); });
  pthread_setname_np(thread_.native_handle(), "serve-io");
}

void IoThread::listen(int socket, Api api, std::vector<std::weak_ptr<IoThread>> threads) {
  listening_.push_back({socket, api, std::move(threads)});
  watch(socket, EPOLLIN, true);
}

void IoThread::adopt(int socket, Api api) {
  post([this, socket, api] { open(socket, api); });
}

void IoThread::answer(std::weak_ptr<Connection> connection, std::uint64_t ticket, Answer answer) {
  bool is_first = false;
  {
    const std::lock_guard lock(mutex_);
    is_first = answers_.empty() && acts_.empty();
    answers_.push_back({std::move(connection), ticket, std::move(answer)});
  }
  if (is_first) wake();
}

void IoThread::post(std::function<void()> act) {
  bool is_first = false;
  {
    const std::lock_guard lock(mutex_);
    is_first = answers_.empty() && acts_.empty();
    acts_.push_back(std::move(act));
  }
  if (is_first) wake();
}

void IoThread::wake() const noexcept {
  const std::uint64_t one = 1;
  [[maybe_unused]] const auto written = write(wake_, &one, sizeof one);
}

void IoThread::drain() {
  post([this] {
    is_draining_ = true;
    for (Listening& each : listening_) {
      epoll_ctl(epoll_, EPOLL_CTL_DEL, each.socket, nullptr);
      ::close(each.socket);
    }
    listening_.clear();
    std::vector<std::shared_ptr<Connection>> all;
    for (const auto& [socket, connection] : connections_) all.push_back(connection);
    for (const auto& connection : all) connection->close_if_idle();
  });
}

void IoThread::stop() {
  post([this] { is_stopped_ = true; });
  if (thread_.joinable()) thread_.join();
}

void IoThread::watch(int socket, std::uint32_t events, bool is_new) const {
  epoll_event event{};
  event.events = events;
  event.data.fd = socket;
  epoll_ctl(epoll_, is_new ? EPOLL_CTL_ADD : EPOLL_CTL_MOD, socket, &event);
}

void IoThread::forget(int socket) {
  epoll_ctl(epoll_, EPOLL_CTL_DEL, socket, nullptr);
  if (connections_.erase(socket) > 0) {
    --size_;
    --stats_->connections;
  }
}

bool IoThread::reserve(std::size_t bytes) const noexcept {
  std::size_t pending = stats_->pending_bytes.load();
  do {
    if (pending + bytes > std::max(config_->max_pending, bytes)) return false;
  } while (!stats_->pending_bytes.compare_exchange_weak(pending, pending + bytes));
  return true;
}

void IoThread::release(std::size_t bytes) const noexcept { stats_->pending_bytes -= bytes; }

bool IoThread::is_admitted(std::string_view authorization) const {
  if (config_->token.empty()) return true;
  const bool is_user = is_equal(authorization, "Bearer " + config_->token);
  const bool is_admin = !config_->admin_token.empty() && is_equal(authorization, "Bearer " + config_->admin_token);
  return is_user || is_admin;
}

void IoThread::run() {
  std::array<epoll_event, 128> events;
  const Clock::duration pause = sweep_pause(*config_);
  Clock::time_point next_sweep = Clock::now() + pause;
  while (!is_stopped_) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(next_sweep - Clock::now()).count();
    const int count =
        epoll_wait(epoll_, events.data(), events.size(), static_cast<int>(std::max<std::int64_t>(left, 0)));
    for (int i = 0; i < count; ++i) {
      const int socket = events[static_cast<std::size_t>(i)].data.fd;
      if (socket == wake_) {
        std::uint64_t ignored = 0;
        [[maybe_unused]] const auto taken = read(wake_, &ignored, sizeof ignored);
        continue;
      }
      const auto listening = std::find_if(listening_.begin(), listening_.end(),
                                          [&](const Listening& each) { return each.socket == socket; });
      if (listening != listening_.end()) {
        accept_from(*listening);
        continue;
      }
      const auto found = connections_.find(socket);
      if (found == connections_.end()) continue;  // closed by an earlier event of this turn
      const std::shared_ptr<Connection> connection = found->second;
      connection->on_ready(events[static_cast<std::size_t>(i)].events);
    }
    take_posts();
    if (const Clock::time_point now = Clock::now(); now >= next_sweep) {
      sweep(now);
      next_sweep = now + pause;
    }
  }
  while (!connections_.empty()) {
    const std::shared_ptr<Connection> connection = connections_.begin()->second;
    connection->close();
  }
}

void IoThread::take_posts() {
  std::vector<PostedAnswer> answers;
  std::vector<std::function<void()>> acts;
  {
    const std::lock_guard lock(mutex_);
    answers.swap(answers_);
    acts.swap(acts_);
  }
  for (PostedAnswer& each : answers) {
    if (const auto connection = each.connection.lock(); connection != nullptr && connection->is_open()) {
      connection->on_answer(each.ticket, std::move(each.answer));
    }
  }
  for (const auto& act : acts) act();
}

void IoThread::accept_from(Listening& listening) {
  for (int i = 0; i < kAcceptsPerTurn; ++i) {
    const int socket = accept4(listening.socket, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (socket < 0) {
      if (errno != EAGAIN && errno != EINTR && errno != ECONNABORTED) {
        // No descriptors or memory are left. Connections need time to close; the next sweep resumes.
        epoll_ctl(epoll_, EPOLL_CTL_DEL, listening.socket, nullptr);
        listening.is_paused = true;
        ++stats_->accept_pauses;
      }
      return;
    }
    if (tls_ != nullptr && stats_->connections.load() >= config_->max_connections) {
      ::close(socket);  // an answer would need a handshake
      continue;
    }
    const auto thread = listening.threads[listening.next++ % listening.threads.size()].lock();
    if (thread == nullptr) {
      ::close(socket);
    } else if (thread.get() == this) {
      open(socket, listening.api);
    } else {
      thread->adopt(socket, listening.api);
    }
  }
}

void IoThread::open(int socket, Api api) {
  const int on = 1;
  setsockopt(socket, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  setsockopt(socket, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
  const bool is_full = stats_->connections.load() >= config_->max_connections;
  if (is_full || is_draining_ || is_stopped_) {
    if (tls_ == nullptr && api == Api::kRest) {
      Answer answer;
      answer.status = 503;
      answer.body = write_error("the server has too many connections; retry later, or use another replica");
      const std::string bytes = write_http1(answer, false, true);
      [[maybe_unused]] const auto sent = ::send(socket, bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    }
    ::close(socket);
    return;
  }
  try {
    auto tls = tls_ == nullptr ? nullptr : tls_->accept(socket, api == Api::kGrpc);
    connections_[socket] =
        api == Api::kRest ? make_http1(*this, socket, std::move(tls)) : make_http2(*this, socket, std::move(tls));
  } catch (const std::exception&) {
    ::close(socket);
    return;
  }
  ++size_;
  ++stats_->connections;
}

void IoThread::sweep(Clock::time_point now) {
  for (Listening& each : listening_) {
    if (std::exchange(each.is_paused, false)) watch(each.socket, EPOLLIN, true);
  }
  std::vector<std::shared_ptr<Connection>> all;
  all.reserve(connections_.size());
  for (const auto& [socket, connection] : connections_) all.push_back(connection);
  for (const auto& connection : all) {
    if (connection->is_open()) connection->check(now);
  }
}

// --- connection ---

Connection::Connection(IoThread& io, int socket, std::unique_ptr<TlsStream> tls)
    : io_(io), socket_(socket), tls_(std::move(tls)), watched_(EPOLLIN) {
  io_.watch(socket_, watched_, true);
}

void Connection::close() {
  if (socket_ < 0) return;
  on_close();
  if (tls_ != nullptr) tls_->end();
  const int socket = std::exchange(socket_, -1);
  io_.forget(socket);
  ::close(socket);
}

void Connection::on_ready(std::uint32_t events) {
  if ((events & EPOLLERR) != 0) {
    close();
    return;
  }
  // A handshake of TLS may need either direction.
  if ((events & EPOLLOUT) != 0 || tls_ != nullptr) {
    if (has_unsent() && flush() && is_open()) on_flushed();
  }
  if (is_open() && (events & (EPOLLIN | EPOLLHUP | EPOLLRDHUP)) != 0) read_all();
  if (is_open()) update_watch();
}

void Connection::read_all() {
  std::vector<char>& scratch = io_.scratch();
  const int turns = tls_ == nullptr ? kReadsPerTurn : kTlsReadsPerTurn;
  for (int turn = 0; turn < turns && is_open() && is_reading_; ++turn) {
    std::ptrdiff_t found = 0;
    if (tls_ != nullptr) {
      found = tls_->receive(scratch.data(), scratch.size());
    } else {
      found = recv(socket_, scratch.data(), scratch.size(), 0);
      if (found < 0) found = errno == EAGAIN || errno == EINTR ? kWouldBlock : kBroken;
    }
    if (found == kWouldBlock) return;
    if (found == kBroken) {
      close();
      return;
    }
    if (found == kEnded) {
      on_end();
      return;
    }
    on_data({scratch.data(), static_cast<std::size_t>(found)});
    if (tls_ == nullptr && static_cast<std::size_t>(found) < scratch.size()) return;
  }
  if (is_open() && is_reading_) read_later();
}

void Connection::read_later() {
  // OpenSSL may hold bytes that epoll does not report.
  if (tls_ == nullptr || std::exchange(is_read_later_, true)) return;
  io_.post([self = shared_from_this()] {
    self->is_read_later_ = false;
    if (self->is_open()) self->on_ready(EPOLLIN);
  });
}

void Connection::send(std::string_view bytes) {
  if (!is_open()) return;
  out_.append(bytes);
  flush();
  if (is_open()) update_watch();
}

bool Connection::flush() {
  while (sent_ < out_.size()) {
    std::ptrdiff_t sent = 0;
    if (tls_ != nullptr) {
      sent = tls_->send(out_.data() + sent_, out_.size() - sent_);
    } else {
      sent = ::send(socket_, out_.data() + sent_, out_.size() - sent_, MSG_NOSIGNAL);
      if (sent < 0) sent = errno == EAGAIN || errno == EINTR ? kWouldBlock : kBroken;
    }
    if (sent == kWouldBlock) return false;
    if (sent <= 0) {
      close();
      return false;
    }
    sent_ += static_cast<std::size_t>(sent);
  }
  sent_ = 0;
  out_.clear();
  if (out_.capacity() > kKeptOutputBytes) out_.shrink_to_fit();
  if (is_ending_) {
    if (tls_ != nullptr) {
      close();
    } else {
      shutdown(socket_, SHUT_WR);
    }
  }
  return true;
}

void Connection::set_reading(bool is_reading) {
  const bool resumes = is_reading && !is_reading_;
  is_reading_ = is_reading;
  if (is_open()) update_watch();
  if (resumes) read_later();
}

void Connection::end_sending() {
  is_ending_ = true;
  if (is_open()) flush();
}

void Connection::update_watch() {
  const std::uint32_t wanted = (is_reading_ ? static_cast<std::uint32_t>(EPOLLIN) : 0U) |
                               (has_unsent() ? static_cast<std::uint32_t>(EPOLLOUT) : 0U);
  if (wanted == watched_) return;
  watched_ = wanted;
  io_.watch(socket_, wanted, false);
}

}  // namespace serving
