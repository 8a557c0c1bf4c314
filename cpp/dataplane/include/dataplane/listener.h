// listener.h: serves a shard to every client that knows the token: one thread per connection.
#pragma once

#include <atomic>
#include <cstddef>
#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "dataplane/byte_budget.h"
#include "dataplane/shard.h"
#include "dataplane/socket.h"

namespace dataplane {

struct ListenerConfig {
  Address address;
  std::string token;
  std::size_t max_frame_bytes = std::size_t{256} << 20;  // of a request, and of a reply
  std::size_t max_connections = 1024;
  std::size_t max_inflight_bytes = std::size_t{1} << 30;  // of all requests that are read or served at a time
};

// Concurrent.
class Listener {
 public:
  // Listens when it returns. Throws ConfigError, IoError.
  Listener(std::shared_ptr<Shard> shard, ListenerConfig config);
  ~Listener() { close(); }
  Listener(const Listener&) = delete;
  Listener& operator=(const Listener&) = delete;

  // With the port that was chosen.
  [[nodiscard]] std::string address() const { return config_.address.text(); }
  [[nodiscard]] std::size_t connections() const;
  // Bytes that requests under way take.
  [[nodiscard]] std::size_t inflight_bytes() const { return budget_.used(); }
  // Breaks off all connections and waits for their threads; a push that has begun is applied. May be called again.
  void close();

 private:
  struct Connection {
    Socket socket;
    std::thread thread;
    bool has_ended = false;
  };

  void accept_until_closed();
  void accept_one();
  void reap(bool all);
  void wake() noexcept;

  std::shared_ptr<Shard> shard_;
  ListenerConfig config_;
  ByteBudget budget_{config_.max_inflight_bytes};
  Socket listening_;
  Socket wake_;  // readable when a connection has ended, or all shall
  std::uint64_t file_ = 0;
  mutable std::mutex mutex_;
  std::list<Connection> connections_;
  bool is_closing_ = false;
  std::mutex close_mutex_;
  std::thread acceptor_;
};

}  // namespace dataplane
