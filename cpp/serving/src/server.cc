// server.cc: listening sockets and the life of the I/O threads.
#include "serving/server.h"

#include <netdb.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <thread>

#include "engine/error.h"
#include "io_thread.h"

namespace serving {

namespace {

constexpr int kBacklog = 1024;

struct Listened {
  int socket;
  int port;
};

int port_of(int socket) {
  sockaddr_storage bound{};
  socklen_t size = sizeof bound;
  if (getsockname(socket, reinterpret_cast<sockaddr*>(&bound), &size) != 0) return 0;
  char text[NI_MAXSERV] = {};
  getnameinfo(reinterpret_cast<sockaddr*>(&bound), size, nullptr, 0, text, sizeof text, NI_NUMERICSERV);
  return std::stoi(text);
}

Listened listen_on(const std::string& host, int port) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_PASSIVE;
  addrinfo* found = nullptr;
  const std::string text = std::to_string(port);
  if (getaddrinfo(host.empty() ? nullptr : host.c_str(), text.c_str(), &hints, &found) != 0 || found == nullptr) {
    throw engine::IoError("listen on", host + ":" + text, EADDRNOTAVAIL, "give an interface of this machine");
  }
  const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> owner(found, freeaddrinfo);
  const int socket = ::socket(found->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  const int on = 1;
  if (socket >= 0) setsockopt(socket, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  if (socket < 0 || bind(socket, found->ai_addr, found->ai_addrlen) != 0 || ::listen(socket, kBacklog) != 0) {
    const int code = errno;
    if (socket >= 0) ::close(socket);
    throw engine::IoError("listen on", host + ":" + text, code, "give a free port");
  }
  return {socket, port_of(socket)};
}

}  // namespace

void check_transport(bool needs_http2, bool needs_tls) {
  if (needs_http2) check_http2();
  if (needs_tls) check_tls();
}

Server::Server(ServerConfig config, std::shared_ptr<Service> service)
    : config_(std::make_shared<const ServerConfig>(std::move(config))), service_(std::move(service)) {
  if (config_->grpc_port >= 0) check_http2();
  const auto tls = config_->tls.certificate.empty() ? nullptr : open_tls(config_->tls);
  std::vector<std::shared_ptr<IoThread>> threads;
  std::vector<std::weak_ptr<IoThread>> all;
  for (std::size_t i = 0; i < std::max<std::size_t>(config_->io_threads, 1); ++i) {
    threads.push_back(std::make_shared<IoThread>(config_, service_, stats_, tls));
    all.push_back(threads.back());
  }
  if (config_->rest_port >= 0) {
    const Listened rest = listen_on(config_->host, config_->rest_port);
    rest_port_ = rest.port;
    threads.front()->listen(rest.socket, Api::kRest, all);
  }
  if (config_->grpc_port >= 0) {
    const Listened grpc = listen_on(config_->host, config_->grpc_port);
    grpc_port_ = grpc.port;
    threads.front()->listen(grpc.socket, Api::kGrpc, all);
  }
  threads_ = std::move(threads);
  try {
    for (const auto& thread : threads_) thread->start();
  } catch (...) {
    close({});
    throw;
  }
}

void Server::close(Clock::duration drain) {
  const Clock::time_point end = Clock::now() + drain;
  for (const auto& thread : threads_) thread->drain();
  const auto is_busy = [this] {
    for (const auto& thread : threads_) {
      if (!thread->is_empty()) return true;
    }
    return false;
  };
  while (is_busy() && Clock::now() < end) std::this_thread::sleep_for(std::chrono::milliseconds(5));
  for (const auto& thread : threads_) thread->stop();
  threads_.clear();
}

}  // namespace serving
