// http2_fuzz.cc: frames of HTTP/2 as a gRPC client sends them. The connection reads them from a socket, as a server
// does.
//
// Input: options, the size of the pieces, then frames. The preface and the settings of the client come first, unless
// the options leave them out.
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>

#include "io_thread.h"
#include "serving/service.h"
#include "target.h"

namespace {

constexpr std::string_view kPreface("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\4\0\0\0\0\0", 33);
constexpr std::size_t kMaxBody = 1 << 12;
constexpr std::size_t kMaxPending = 1 << 13;

// Made once. The I/O thread is not started: the target calls the connection itself.
struct Bench {
  Bench() {
    serving::ServiceConfig queue;
    queue.queue.threads = 1;
    queue.max_waiting = 64;
    service = std::make_shared<serving::Service>(queue);
    auto config = std::make_shared<serving::ServerConfig>();
    config->max_body = kMaxBody;
    config->max_pending = kMaxPending;
    config->max_streams = 8;
    config->max_resets = 20;
    config->idle = config->read = config->answer = std::chrono::hours(1);
    stats = std::make_shared<serving::TransportStats>();
    io = std::make_shared<serving::IoThread>(config, service, stats, nullptr);
  }

  std::shared_ptr<serving::Service> service;
  std::shared_ptr<serving::TransportStats> stats;
  std::shared_ptr<serving::IoThread> io;
};

// Null where this machine has no library of HTTP/2.
Bench* find_bench() {
  static Bench* const bench = [] { return fuzz::accepts([] { serving::check_http2(); }) ? new Bench : nullptr; }();
  return bench;
}

void discard(int socket) {
  std::array<char, 4096> buffer;
  while (recv(socket, buffer.data(), buffer.size(), MSG_DONTWAIT) > 0) {
  }
}

void run(fuzz::Bytes bytes) {
  Bench* const bench = find_bench();
  if (bench == nullptr) return;
  fuzz::Input input(bytes);
  const bool has_preface = (input.byte() & 1) == 0;
  const std::size_t step = std::size_t{input.byte()} * 4 + 1;
  const fuzz::Bytes frames = input.rest();
  std::string text(has_preface ? kPreface : std::string_view());
  text.append(reinterpret_cast<const char*>(frames.data()), frames.size());

  int ends[2] = {};
  fuzz::expect(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends) == 0, "no socket is free");
  const auto connection = serving::make_http2(*bench->io, ends[0], nullptr);
  for (std::size_t at = 0; at < text.size() && connection->is_open(); at += step) {
    const std::string_view piece = std::string_view(text).substr(at, step);
    fuzz::expect(send(ends[1], piece.data(), piece.size(), MSG_NOSIGNAL) == static_cast<ssize_t>(piece.size()),
                 "a piece does not fit a socket");
    connection->on_ready(EPOLLIN);
    discard(ends[1]);
    while (const auto call = bench->service->next_call({})) {
      fuzz::expect(call->request.body.size() <= kMaxBody, "a message is too large");
      fuzz::expect(call->request.api == serving::Api::kGrpc && call->request.method == "POST", "a call is no POST");
    }
    fuzz::expect(bench->stats->pending_bytes <= kMaxPending, "messages take more memory than all clients may");
  }
  connection->check(serving::Clock::now());
  connection->close();
  ::close(ends[1]);
  fuzz::expect(bench->stats->pending_bytes == 0, "a closed connection holds memory of messages");
}

const fuzz::Target target("http2", run, fuzz::Layout::kBytes, 2);

}  // namespace
