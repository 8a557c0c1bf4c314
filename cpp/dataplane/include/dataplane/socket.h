// socket.h: stream sockets on this host or over TCP, and moving scattered memory through them before a deadline.
#pragma once

#include <sys/socket.h>
#include <sys/uio.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "dataplane/error.h"

namespace dataplane {

// A file descriptor that is closed with its owner.
class Socket {
 public:
  Socket() = default;
  explicit Socket(int fd) noexcept : fd_(fd) {}
  Socket(Socket&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Socket& operator=(Socket&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~Socket();

  [[nodiscard]] int fd() const noexcept { return fd_; }
  [[nodiscard]] bool is_open() const noexcept { return fd_ >= 0; }

 private:
  int fd_ = -1;
};

// "unix:/path" or "tcp:host:port"; an IPv6 host stands in brackets.
struct Address {
  bool is_unix = false;
  std::string host;  // or the path
  std::uint16_t port = 0;

  // Throws ConfigError.
  [[nodiscard]] static Address parse(const std::string& text);
  [[nodiscard]] std::string text() const;
};

struct Endpoint {
  sockaddr_storage address{};
  socklen_t bytes = 0;
};

// The places that an address stands for, at least one. Looks names up, which may wait for a name server.
// Throws ConfigError for a path that is too long, Disconnected for an unknown name.
[[nodiscard]] std::vector<Endpoint> resolve(const Address& address);

// Binds and listens. A socket file that no process listens at is replaced; only its owner may connect to a new one.
// Sets the port when it was 0. Throws engine::IoError.
[[nodiscard]] Socket listen_at(Address& address, int backlog);
// An open socket that is connected, or about to be: writable once it is. Throws Disconnected.
[[nodiscard]] Socket start_connecting(const Endpoint& endpoint);
// How the attempt ended: 0 or the error number.
[[nodiscard]] int connect_error(const Socket& socket) noexcept;
// Settings of a connection: no delay, signs of life, generous buffers.
void tune(const Socket& socket) noexcept;
// False when the peer has closed, or has sent unrequested bytes.
[[nodiscard]] bool is_quiet(const Socket& socket) noexcept;
// True when the peer has closed its side.
[[nodiscard]] bool has_hung_up(const Socket& socket) noexcept;

// Milliseconds for poll(), rounded up; 0 when the deadline has passed.
[[nodiscard]] int poll_ms(Deadline deadline) noexcept;
// Waits for events of poll(); false when the deadline passes first.
[[nodiscard]] bool wait_for(const Socket& socket, short events, Deadline deadline);

// Pieces of memory that are sent, or filled, one after the other without being copied together.
class Pieces {
 public:
  void add(const void* data, std::size_t bytes);
  void append(Pieces other);
  void add_padding(std::size_t bytes);  // zeros up to the next multiple of 8 after an array of so many bytes

  [[nodiscard]] std::size_t bytes() const noexcept { return bytes_; }
  [[nodiscard]] std::size_t moved() const noexcept { return moved_; }
  [[nodiscard]] bool is_done() const noexcept { return moved_ == bytes_; }

  // Move as much as goes without waiting and return how much; 0 = wait first. Throw Disconnected.
  std::size_t send(const Socket& socket);
  std::size_t receive(const Socket& socket);

  // Move all. Throw Late when the deadline passes first.
  void send_all(const Socket& socket, Deadline deadline);
  void receive_all(const Socket& socket, Deadline deadline);

 private:
  void advance(std::size_t bytes) noexcept;
  [[nodiscard]] msghdr rest() noexcept;

  std::vector<iovec> vectors_;
  std::size_t at_ = 0;
  std::size_t bytes_ = 0;
  std::size_t moved_ = 0;
};

}  // namespace dataplane
