// listener.cc: accepts connections, and buries those that have ended.
#include "dataplane/listener.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <limits>

#include "session.h"

namespace dataplane {

namespace {

constexpr int kBacklog = 1024;
// How long to leave the queue alone when the process has no descriptor left for another connection.
constexpr int kNoDescriptorMs = 100;

std::uint64_t file_number(const std::string& path) noexcept {
  struct stat status{};
  return ::stat(path.c_str(), &status) == 0 ? status.st_ino : 0;
}

void refuse(const Socket& socket, std::size_t connections) noexcept {
  try {
    const auto payload =
        encode_error(Code::kBusy, "the server has " + std::to_string(connections) +
                                      " connections, its limit; raise max_connections or use fewer clients");
    const FrameHeader header{.bytes = static_cast<std::uint32_t>(payload.size()),
                             .kind = Kind::kError,
                             .flags = kMayRetry | kNotApplied,
                             .request = 0,
                             .timeout_ms = 0,
                             .zero = 0};
    Pieces pieces;
    pieces.add(&header, sizeof header);
    pieces.add(payload.data(), payload.size());
    pieces.send(socket);
  } catch (const std::exception&) {
    // It has left already.
  }
}

}  // namespace

Listener::Listener(std::shared_ptr<Shard> shard, ListenerConfig config)
    : shard_(std::move(shard)), config_(std::move(config)) {
  if (config_.token.size() > kMaxTokenBytes) {
    throw engine::ConfigError("the token has " + std::to_string(config_.token.size()) + " bytes; give at most " +
                              std::to_string(kMaxTokenBytes));
  }
  constexpr std::size_t kLeast = 1024, kMost = std::numeric_limits<std::uint32_t>::max();
  if (config_.max_frame_bytes < kLeast || config_.max_frame_bytes > kMost) {
    throw engine::ConfigError("max_frame_bytes is " + std::to_string(config_.max_frame_bytes) + "; give " +
                              std::to_string(kLeast) + " to " + std::to_string(kMost));
  }
  if (config_.max_connections == 0) throw engine::ConfigError("max_connections is 0; give at least 1");
  if (config_.max_inflight_bytes == 0) throw engine::ConfigError("max_inflight_bytes is 0; give at least 1");
  wake_ = Socket(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!wake_.is_open()) throw engine::IoError("make an event descriptor for", config_.address.text(), errno);
  listening_ = listen_at(config_.address, kBacklog);
  if (config_.address.is_unix) file_ = file_number(config_.address.host);
  acceptor_ = std::thread([this] { accept_until_closed(); });
}

void Listener::wake() noexcept {
  const std::uint64_t one = 1;
  (void)!::write(wake_.fd(), &one, sizeof one);  // fails only when the counter is full, and then it wakes anyway
}

void Listener::accept_until_closed() {
  bool has_descriptors = true;
  for (;;) {
    pollfd both[2] = {{.fd = wake_.fd(), .events = POLLIN, .revents = 0},
                      {.fd = listening_.fd(), .events = POLLIN, .revents = 0}};
    ::poll(both, has_descriptors ? 2 : 1, has_descriptors ? -1 : kNoDescriptorMs);
    std::uint64_t count = 0;
    (void)!::read(wake_.fd(), &count, sizeof count);
    reap(false);
    {
      const std::lock_guard lock(mutex_);
      if (is_closing_) break;
    }
    has_descriptors = true;
    if ((both[1].revents & POLLIN) == 0) continue;
    try {
      accept_one();
    } catch (const std::exception&) {  // no descriptor, memory or thread: present connections continue
      has_descriptors = false;
    }
  }
  reap(true);
}

void Listener::accept_one() {
  Socket socket(::accept4(listening_.fd(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
  if (!socket.is_open()) {
    const bool is_passing = errno == EAGAIN || errno == EINTR || errno == ECONNABORTED;
    if (!is_passing) throw engine::IoError("accept a connection at", config_.address.text(), errno);
    return;
  }
  tune(socket);
  const std::lock_guard lock(mutex_);
  if (is_closing_) return;
  if (connections_.size() >= config_.max_connections) return refuse(socket, connections_.size());
  Connection& connection = connections_.emplace_back();
  connection.socket = std::move(socket);
  try {
    connection.thread = std::thread([this, &connection] {
      Session(connection.socket, *shard_, config_, budget_).run();
      {
        const std::lock_guard end(mutex_);
        connection.has_ended = true;
      }
      wake();
    });
  } catch (...) {
    connections_.pop_back();
    throw;
  }
}

void Listener::reap(bool all) {
  std::list<Connection> ended;
  {
    const std::lock_guard lock(mutex_);
    for (auto at = connections_.begin(); at != connections_.end();) {
      const auto next = std::next(at);
      if (all || at->has_ended) ended.splice(ended.end(), connections_, at);
      at = next;
    }
  }
  for (Connection& connection : ended) connection.thread.join();
}

std::size_t Listener::connections() const {
  const std::lock_guard lock(mutex_);
  return connections_.size();
}

void Listener::close() {
  const std::lock_guard once(close_mutex_);
  if (!acceptor_.joinable()) return;
  {
    const std::lock_guard lock(mutex_);
    is_closing_ = true;
    for (const Connection& connection : connections_) ::shutdown(connection.socket.fd(), SHUT_RDWR);
  }
  wake();
  acceptor_.join();
  listening_ = Socket();
  if (file_ != 0 && file_number(config_.address.host) == file_) ::unlink(config_.address.host.c_str());
}

}  // namespace dataplane
