// server.h: listens, and moves bytes between sockets and the service. I/O threads wait for many connections with epoll.
//
// Every resource of a client is bounded: connections, the head, the body, the bytes of all bodies together, streams,
// and the time of silence, sending and reading. A client that breaks the protocol loses its own connection only.
#pragma once

#include <atomic>
#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "serving/answer.h"
#include "serving/service.h"

namespace serving {

struct TlsFiles {
  std::string certificate;  // PEM files; empty = no TLS
  std::string key;
  std::string authority;  // of client certificates; empty = none are asked for
};

struct ServerConfig {
  std::string host = "127.0.0.1";
  int rest_port = -1;  // -1 = none, 0 = any
  int grpc_port = -1;
  std::size_t io_threads = 1;
  std::size_t max_body = std::size_t{64} << 20;
  std::size_t max_pending = std::size_t{256} << 20;  // bytes of all bodies whose requests are not answered yet
  std::size_t max_connections = 1024;
  std::size_t max_streams = 256;  // of one connection of HTTP/2
  std::size_t max_resets = 200;   // streams per minute that one connection of HTTP/2 may reset
  Clock::duration idle{};         // between two requests
  Clock::duration read{};         // to send a request, plus one second per 64 KiB; also for reading an answer
  Clock::duration answer{};       // of a request
  std::string token;              // empty = none; so for the next one
  std::string admin_token;
  TlsFiles tls;
};

// Counters of the transport.
struct TransportStats {
  std::atomic<std::size_t> connections{0};
  std::atomic<std::size_t> pending_bytes{0};
  std::atomic<std::size_t> resets{0};
  std::atomic<std::size_t> accept_pauses{0};  // no descriptor or memory was free
};

class IoThread;

// Throws engine::ConfigError with the reason where a library of the transport is missing.
void check_transport(bool needs_http2, bool needs_tls);

// Listens from construction to close(). Concurrent.
class Server {
 public:
  // Throws engine::IoError for a port in use, engine::ConfigError for TLS files or a library that cannot be used.
  Server(ServerConfig config, std::shared_ptr<Service> service);
  ~Server() { close({}); }
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;

  [[nodiscard]] int rest_port() const noexcept { return rest_port_; }
  [[nodiscard]] int grpc_port() const noexcept { return grpc_port_; }
  [[nodiscard]] const TransportStats& stats() const noexcept { return *stats_; }
  // Stops listening, lets current requests end for `drain`, and closes all connections. May be called again.
  void close(Clock::duration drain);

 private:
  std::shared_ptr<const ServerConfig> config_;
  std::shared_ptr<Service> service_;
  std::shared_ptr<TransportStats> stats_ = std::make_shared<TransportStats>();
  std::vector<std::shared_ptr<IoThread>> threads_;
  int rest_port_ = 0;
  int grpc_port_ = 0;
};

}  // namespace serving
