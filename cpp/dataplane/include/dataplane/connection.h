// connection.h: the client's side of one server: its address, its greeting, and sockets that wait for a call.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <string>
#include <vector>

#include "dataplane/socket.h"
#include "dataplane/wire.h"

namespace dataplane {

// Concurrent: each call has a separate socket, made when no idle one exists.
class Connection {
 public:
  // Connects on first use; then `timeout` is for connecting and handshake. Throws ConfigError.
  Connection(const std::string& address, Hello hello, std::chrono::milliseconds timeout);

  // Connects now unless a socket is there, and returns the server's instance. Throws CallFailed.
  std::uint64_t connect();
  // Closes the sockets that wait. Later calls connect again.
  void close() noexcept;

  [[nodiscard]] const Address& address() const noexcept { return address_; }
  [[nodiscard]] const Hello& hello() const noexcept { return hello_; }
  [[nodiscard]] std::chrono::milliseconds timeout() const noexcept { return timeout_; }
  // Of the server that answered the last handshake; 0 before the first.
  [[nodiscard]] std::uint64_t instance() const noexcept { return instance_.load(std::memory_order_relaxed); }
  // Limits of the server, from the last handshake.
  [[nodiscard]] std::uint64_t max_frame_bytes() const noexcept {
    return max_frame_bytes_.load(std::memory_order_relaxed);
  }
  [[nodiscard]] std::size_t idle_sockets() const;

 private:
  friend class Exchange;

  // An idle greeted socket, or a closed one.
  Socket take();
  void give_back(Socket socket) noexcept;
  void welcome_by(const Welcome& welcome) noexcept {
    instance_.store(welcome.instance, std::memory_order_relaxed);
    max_frame_bytes_.store(welcome.max_frame_bytes, std::memory_order_relaxed);
  }
  std::uint64_t next_request() noexcept { return requests_.fetch_add(1, std::memory_order_relaxed); }

  Address address_;
  Hello hello_;
  std::chrono::milliseconds timeout_;
  std::atomic<std::uint64_t> instance_{0};
  std::atomic<std::uint64_t> max_frame_bytes_{0};
  std::atomic<std::uint64_t> requests_{1};
  mutable std::mutex mutex_;
  std::vector<Socket> idle_;
};

}  // namespace dataplane
