// socket.cc: the operating system's side of it.
#include "dataplane/socket.h"

#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <climits>
#include <cstring>
#include <memory>

namespace dataplane {

namespace {

// As large as the system lets us: a reply is sent while the one before it is still being taken.
constexpr int kBufferBytes = 4 << 20;
// Seconds of silence after which a TCP peer is asked for a sign of life, between questions, and their number.
constexpr int kKeepIdleS = 30, kKeepIntervalS = 10, kKeepQuestions = 3;

std::string error_text(int error) {
  return std::string(std::strerror(error)) + " (errno " + std::to_string(error) + ")";
}

void set(const Socket& socket, int level, int option, int value) noexcept {
  ::setsockopt(socket.fd(), level, option, &value, sizeof value);  // a refusal costs speed only
}

int family_of(const Socket& socket) noexcept {
  sockaddr_storage address{};
  socklen_t bytes = sizeof address;
  return ::getsockname(socket.fd(), reinterpret_cast<sockaddr*>(&address), &bytes) == 0 ? address.ss_family : AF_UNSPEC;
}

Endpoint unix_endpoint(const std::string& path) {
  Endpoint endpoint;
  auto& name = reinterpret_cast<sockaddr_un&>(endpoint.address);
  if (path.empty() || path.size() >= sizeof name.sun_path) {
    throw engine::ConfigError("the socket path '" + path + "' has " + std::to_string(path.size()) +
                              " bytes; give 1 to " + std::to_string(sizeof name.sun_path - 1));
  }
  name.sun_family = AF_UNIX;
  std::memcpy(name.sun_path, path.data(), path.size());
  endpoint.bytes = sizeof name;
  return endpoint;
}

Socket open_socket(const Endpoint& endpoint) {
  return Socket(::socket(endpoint.address.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
}

const sockaddr* raw(const Endpoint& endpoint) noexcept { return reinterpret_cast<const sockaddr*>(&endpoint.address); }

// A socket file outlives a process that was killed. Removes it when no process answers there.
void remove_dead_socket(const std::string& path, const Endpoint& endpoint) {
  struct stat status{};
  if (::lstat(path.c_str(), &status) != 0 || !S_ISSOCK(status.st_mode)) return;
  const Socket probe = open_socket(endpoint);
  if (::connect(probe.fd(), raw(endpoint), endpoint.bytes) != 0 && errno == ECONNREFUSED) ::unlink(path.c_str());
}

[[noreturn]] void fail_listening(const Address& address, int error) {
  throw engine::IoError("listen at", address.text(), error, "; give another address, or stop the process that has it");
}

}  // namespace

bool wait_for(const Socket& socket, short events, Deadline deadline) {
  pollfd one{.fd = socket.fd(), .events = events, .revents = 0};
  for (;;) {
    const int ready = ::poll(&one, 1, poll_ms(deadline));
    // A peer that moves a byte now and then does not move the deadline.
    if (Clock::now() >= deadline) return false;
    if (ready > 0) return true;
    if (ready < 0 && errno != EINTR) throw Disconnected("poll failed: " + error_text(errno));
  }
}

Socket::~Socket() {
  if (fd_ >= 0) ::close(fd_);
}

Address Address::parse(const std::string& text) {
  const auto fail = [&] {
    return engine::ConfigError("the address '" + text + "' is not understood; give unix:/path or tcp:host:port");
  };
  if (text.starts_with("unix:") && text.size() > 5) return {.is_unix = true, .host = text.substr(5), .port = 0};
  const std::size_t colon = text.rfind(':');
  if (!text.starts_with("tcp:") || colon < 5 || colon == std::string::npos) throw fail();
  Address address{.is_unix = false, .host = text.substr(4, colon - 4), .port = 0};
  const char* end = text.data() + text.size();
  const auto parsed = std::from_chars(text.data() + colon + 1, end, address.port);
  if (parsed.ec != std::errc() || parsed.ptr != end) throw fail();
  if (address.host.starts_with('[') && address.host.ends_with(']')) {
    address.host = address.host.substr(1, address.host.size() - 2);
  }
  if (address.host.empty()) throw fail();
  return address;
}

std::string Address::text() const {
  if (is_unix) return "unix:" + host;
  const bool is_ipv6 = host.find(':') != std::string::npos;
  return "tcp:" + (is_ipv6 ? "[" + host + "]" : host) + ":" + std::to_string(port);
}

std::vector<Endpoint> resolve(const Address& address) {
  if (address.is_unix) return {unix_endpoint(address.host)};
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICSERV;
  addrinfo* found = nullptr;
  const int error = ::getaddrinfo(address.host.c_str(), std::to_string(address.port).c_str(), &hints, &found);
  if (error != 0) throw Disconnected("the host '" + address.host + "' is not known: " + ::gai_strerror(error));
  const std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)> owner(found, &::freeaddrinfo);
  std::vector<Endpoint> endpoints;
  for (const addrinfo* one = found; one != nullptr; one = one->ai_next) {
    Endpoint& endpoint = endpoints.emplace_back();
    std::memcpy(&endpoint.address, one->ai_addr, one->ai_addrlen);
    endpoint.bytes = one->ai_addrlen;
  }
  return endpoints;
}

Socket listen_at(Address& address, int backlog) {
  Endpoint endpoint;
  try {
    endpoint = resolve(address).front();
  } catch (const Disconnected& error) {
    throw engine::ConfigError("cannot listen at " + address.text() + ": " + error.what());
  }
  Socket socket = open_socket(endpoint);
  if (!socket.is_open()) fail_listening(address, errno);
  if (address.is_unix) {
    remove_dead_socket(address.host, endpoint);
    ::fchmod(socket.fd(), S_IRUSR | S_IWUSR);  // the mode that the file is born with
  } else {
    set(socket, SOL_SOCKET, SO_REUSEADDR, 1);
  }
  if (::bind(socket.fd(), raw(endpoint), endpoint.bytes) != 0) fail_listening(address, errno);
  if (address.is_unix && ::chmod(address.host.c_str(), S_IRUSR | S_IWUSR) != 0) fail_listening(address, errno);
  if (::listen(socket.fd(), backlog) != 0) fail_listening(address, errno);
  if (!address.is_unix && address.port == 0) {
    Endpoint bound;
    bound.bytes = sizeof bound.address;
    if (::getsockname(socket.fd(), reinterpret_cast<sockaddr*>(&bound.address), &bound.bytes) != 0) {
      fail_listening(address, errno);
    }
    address.port = ntohs(bound.address.ss_family == AF_INET6 ? reinterpret_cast<sockaddr_in6&>(bound.address).sin6_port
                                                             : reinterpret_cast<sockaddr_in&>(bound.address).sin_port);
  }
  return socket;
}

Socket start_connecting(const Endpoint& endpoint) {
  Socket socket = open_socket(endpoint);
  if (!socket.is_open()) throw Disconnected("no socket is to be had: " + error_text(errno));
  tune(socket);
  if (::connect(socket.fd(), raw(endpoint), endpoint.bytes) != 0 && errno != EINPROGRESS && errno != EINTR) {
    throw Disconnected(error_text(errno));
  }
  return socket;
}

int connect_error(const Socket& socket) noexcept {
  int error = 0;
  socklen_t bytes = sizeof error;
  return ::getsockopt(socket.fd(), SOL_SOCKET, SO_ERROR, &error, &bytes) == 0 ? error : errno;
}

void tune(const Socket& socket) noexcept {
  set(socket, SOL_SOCKET, SO_SNDBUF, kBufferBytes);
  if (family_of(socket) == AF_UNIX) return;
  // TCP sizes its receive buffer itself, and better than a fixed one.
  set(socket, IPPROTO_TCP, TCP_NODELAY, 1);
  set(socket, SOL_SOCKET, SO_KEEPALIVE, 1);
  set(socket, IPPROTO_TCP, TCP_KEEPIDLE, kKeepIdleS);
  set(socket, IPPROTO_TCP, TCP_KEEPINTVL, kKeepIntervalS);
  set(socket, IPPROTO_TCP, TCP_KEEPCNT, kKeepQuestions);
}

bool is_quiet(const Socket& socket) noexcept {
  char byte = 0;
  return ::recv(socket.fd(), &byte, 1, MSG_PEEK | MSG_DONTWAIT) < 0 && (errno == EAGAIN || errno == EWOULDBLOCK);
}

bool has_hung_up(const Socket& socket) noexcept {
  pollfd one{.fd = socket.fd(), .events = POLLRDHUP, .revents = 0};
  return ::poll(&one, 1, 0) > 0 && (one.revents & (POLLRDHUP | POLLHUP | POLLERR)) != 0;
}

int poll_ms(Deadline deadline) noexcept {
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now()).count();
  return static_cast<int>(std::clamp<std::int64_t>(left, 0, INT_MAX));
}

void Pieces::add(const void* data, std::size_t bytes) {
  if (bytes == 0) return;
  vectors_.push_back({const_cast<void*>(data), bytes});
  bytes_ += bytes;
}

void Pieces::append(Pieces other) {
  vectors_.insert(vectors_.end(), other.vectors_.begin(), other.vectors_.end());
  bytes_ += other.bytes_;
}

void Pieces::add_padding(std::size_t bytes) {
  static constexpr std::byte kZeros[8] = {};
  add(kZeros, (8 - bytes % 8) % 8);
}

msghdr Pieces::rest() noexcept {
  msghdr message{};
  message.msg_iov = vectors_.data() + at_;
  message.msg_iovlen = std::min<std::size_t>(vectors_.size() - at_, IOV_MAX);
  return message;
}

void Pieces::advance(std::size_t bytes) noexcept {
  moved_ += bytes;
  while (bytes > 0) {
    iovec& front = vectors_[at_];
    const std::size_t step = std::min(bytes, front.iov_len);
    front.iov_base = static_cast<std::byte*>(front.iov_base) + step;
    front.iov_len -= step;
    bytes -= step;
    if (front.iov_len == 0) ++at_;
  }
}

std::size_t Pieces::send(const Socket& socket) {
  while (!is_done()) {
    const msghdr message = rest();
    const ssize_t sent = ::sendmsg(socket.fd(), &message, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent >= 0) {
      advance(static_cast<std::size_t>(sent));
      return static_cast<std::size_t>(sent);
    }
    if (errno == EAGAIN || errno == EWOULDBLOCK) return 0;
    if (errno != EINTR) throw Disconnected("the connection broke while sending: " + error_text(errno));
  }
  return 0;
}

std::size_t Pieces::receive(const Socket& socket) {
  while (!is_done()) {
    msghdr message = rest();
    const ssize_t got = ::recvmsg(socket.fd(), &message, MSG_DONTWAIT);
    if (got > 0) {
      advance(static_cast<std::size_t>(got));
      return static_cast<std::size_t>(got);
    }
    if (got == 0) throw Disconnected("the other side closed the connection");
    if (errno == EAGAIN || errno == EWOULDBLOCK) return 0;
    if (errno != EINTR) throw Disconnected("the connection broke while receiving: " + error_text(errno));
  }
  return 0;
}

void Pieces::send_all(const Socket& socket, Deadline deadline) {
  while (!is_done()) {
    if (send(socket) == 0 && !is_done() && !wait_for(socket, POLLOUT, deadline)) throw Late("the peer takes nothing");
  }
}

void Pieces::receive_all(const Socket& socket, Deadline deadline) {
  while (!is_done()) {
    if (receive(socket) == 0 && !is_done() && !wait_for(socket, POLLIN, deadline)) throw Late("the peer sends nothing");
  }
}

}  // namespace dataplane
