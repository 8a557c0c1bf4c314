// io_thread.h: one thread that waits for many sockets.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <unordered_map>
#include <vector>

#include "serving/answer.h"
#include "serving/server.h"
#include "tls.h"

namespace serving {

class Connection;

// post(), adopt(), answer() are concurrent; all else runs in the thread itself.
class IoThread : public std::enable_shared_from_this<IoThread> {
 public:
  IoThread(std::shared_ptr<const ServerConfig> config, std::shared_ptr<Service> service,
           std::shared_ptr<TransportStats> stats, std::shared_ptr<const TlsContext> tls);
  ~IoThread();
  IoThread(const IoThread&) = delete;
  IoThread& operator=(const IoThread&) = delete;

  void start();
  // Accepts sockets of a listening one, and shares them out among `threads`. Before start().
  void listen(int socket, Api api, std::vector<std::weak_ptr<IoThread>> threads);
  // Makes a connection of an accepted socket.
  void adopt(int socket, Api api);
  void answer(std::weak_ptr<Connection> connection, std::uint64_t ticket, Answer answer);
  // Stops accepting and closes idle connections; the others close after their current requests.
  void drain();
  // Runs `act` in the thread.
  void post(std::function<void()> act);
  // Closes all connections and ends the thread.
  void stop();
  [[nodiscard]] bool is_empty() const noexcept { return size_.load() == 0; }

  // --- for connections ---
  [[nodiscard]] const ServerConfig& config() const noexcept { return *config_; }
  [[nodiscard]] Service& service() const noexcept { return *service_; }
  [[nodiscard]] TransportStats& stats() const noexcept { return *stats_; }
  [[nodiscard]] bool is_draining() const noexcept { return is_draining_; }
  void watch(int socket, std::uint32_t events, bool is_new) const;
  void forget(int socket);
  // Memory for one read.
  [[nodiscard]] std::vector<char>& scratch() noexcept { return scratch_; }
  // Counts bytes of bodies against those of all clients; false where there are too many.
  [[nodiscard]] bool reserve(std::size_t bytes) const noexcept;
  void release(std::size_t bytes) const noexcept;
  // Whether a caller with this header may call.
  [[nodiscard]] bool is_admitted(std::string_view authorization) const;

 private:
  struct Listening {
    int socket;
    Api api;
    std::vector<std::weak_ptr<IoThread>> threads;
    std::size_t next = 0;
    bool is_paused = false;  // no descriptors were left
  };
  struct PostedAnswer {
    std::weak_ptr<Connection> connection;
    std::uint64_t ticket;
    Answer answer;
  };

  void run();
  void wake() const noexcept;
  void accept_from(Listening& listening);
  void open(int socket, Api api);
  void sweep(Clock::time_point now);
  void take_posts();

  std::shared_ptr<const ServerConfig> config_;
  std::shared_ptr<Service> service_;
  std::shared_ptr<TransportStats> stats_;
  std::shared_ptr<const TlsContext> tls_;
  int epoll_ = -1;
  int wake_ = -1;
  std::vector<Listening> listening_;
  std::unordered_map<int, std::shared_ptr<Connection>> connections_;
  std::atomic<std::size_t> size_{0};
  std::vector<char> scratch_;
  bool is_draining_ = false;
  bool is_stopped_ = false;
  std::mutex mutex_;
  std::vector<PostedAnswer> answers_;
  std::vector<std::function<void()>> acts_;
  std::thread thread_;
};

// One client. Runs in its I/O thread.
class Connection : public std::enable_shared_from_this<Connection> {
 public:
  // The socket is closed by close(), not by a constructor that fails.
  Connection(IoThread& io, int socket, std::unique_ptr<TlsStream> tls);
  virtual ~Connection() = default;
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;

  void on_ready(std::uint32_t events);
  virtual void on_answer(std::uint64_t ticket, Answer answer) = 0;
  // Called about once a second.
  virtual void check(Clock::time_point now) = 0;
  virtual void close_if_idle() = 0;
  void close();
  [[nodiscard]] bool is_open() const noexcept { return socket_ >= 0; }

 protected:
  virtual void on_data(std::string_view data) = 0;
  // The client ended its sending half.
  virtual void on_end() = 0;
  // All bytes are sent.
  virtual void on_flushed() {}
  virtual void on_close() {}

  void send(std::string_view bytes);
  [[nodiscard]] bool has_unsent() const noexcept { return sent_ < out_.size(); }
  [[nodiscard]] std::size_t unsent() const noexcept { return out_.size() - sent_; }
  // Bytes that are sent of those since the last time when none were left.
  [[nodiscard]] std::size_t sent() const noexcept { return sent_; }
  void set_reading(bool is_reading);
  void end_sending();
  [[nodiscard]] bool has_tls() const noexcept { return tls_ != nullptr; }

  IoThread& io_;

 private:
  void read_all();
  // Reads on after the other connections had their turn.
  void read_later();
  bool flush();
  void update_watch();

  int socket_;
  std::unique_ptr<TlsStream> tls_;
  std::string out_;
  std::size_t sent_ = 0;
  bool is_reading_ = true;
  bool is_ending_ = false;  // the sending half ends after the last byte
  bool is_read_later_ = false;
  std::uint32_t watched_ = 0;
};

// The client of one request on a connection. The bytes of the body count until the request is answered or gone, also
// where the client has left.
class ConnectionCaller final : public Caller {
 public:
  ConnectionCaller(std::shared_ptr<IoThread> io, std::weak_ptr<Connection> connection, std::uint64_t ticket)
      : io_(std::move(io)), connection_(std::move(connection)), ticket_(ticket) {}
  ~ConnectionCaller() override { release(); }
  void answer(Answer answer) override {
    release();
    io_->answer(connection_, ticket_, std::move(answer));
  }
  // Takes over bytes that are reserved.
  void hold(std::size_t reserved) noexcept { reserved_ = reserved; }

 private:
  void release() noexcept { io_->release(reserved_.exchange(0)); }

  std::shared_ptr<IoThread> io_;
  std::weak_ptr<Connection> connection_;
  std::uint64_t ticket_;
  std::atomic<std::size_t> reserved_{0};
};

[[nodiscard]] std::shared_ptr<Connection> make_http1(IoThread& io, int socket, std::unique_ptr<TlsStream> tls);
// Throws engine::ConfigError where nghttp2 is missing.
[[nodiscard]] std::shared_ptr<Connection> make_http2(IoThread& io, int socket, std::unique_ptr<TlsStream> tls);
// Throws engine::ConfigError where this process cannot speak HTTP/2.
void check_http2();

}  // namespace serving
