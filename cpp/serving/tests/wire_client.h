// wire_client.h: blocking clients of both interfaces over raw sockets, for tests. Every wait has a timeout.
#pragma once

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include <cstdint>
#include <cstring>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "wire_reader.h"
#include "wire_writer.h"

namespace serving::testing {

class Socket {
 public:
  explicit Socket(int port) : fd_(::socket(AF_INET, SOCK_STREAM, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<std::uint16_t>(port));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    const timeval timeout{.tv_sec = 60, .tv_usec = 0};
    setsockopt(fd_, SOL_SOCKET, SO_RCVTIMEO, &timeout, sizeof timeout);
    setsockopt(fd_, SOL_SOCKET, SO_SNDTIMEO, &timeout, sizeof timeout);
    if (fd_ < 0 || connect(fd_, reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) {
      if (fd_ >= 0) ::close(fd_);
      throw std::runtime_error("cannot connect");
    }
  }
  ~Socket() { ::close(fd_); }
  Socket(const Socket&) = delete;
  Socket& operator=(const Socket&) = delete;

  void send(std::string_view bytes) {
    while (!bytes.empty()) {
      const auto sent = ::send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (sent <= 0) throw std::runtime_error("the server closed while the client sent");
      bytes.remove_prefix(static_cast<std::size_t>(sent));
    }
  }
  // Reads until at least `size` bytes are there, and takes them.
  std::string take(std::size_t size) {
    while (received_.size() < size) receive();
    std::string taken = received_.substr(0, size);
    received_.erase(0, size);
    return taken;
  }
  // Reads to the end of `mark`, and takes the bytes before it.
  std::string take_until(std::string_view mark) {
    for (;;) {
      const std::size_t at = received_.find(mark);
      if (at != std::string::npos) {
        std::string taken = received_.substr(0, at);
        received_.erase(0, at + mark.size());
        return taken;
      }
      receive();
    }
  }

 private:
  void receive() {
    char bytes[4096];
    const auto size = ::recv(fd_, bytes, sizeof bytes, 0);
    if (size <= 0) throw std::runtime_error("the server closed while the client waited");
    received_.append(bytes, static_cast<std::size_t>(size));
  }

  int fd_;
  std::string received_;
};

// One HTTP/1.1 connection.
class RestClient {
 public:
  explicit RestClient(int port) : socket_(port) {}

  // Returns status and body.
  std::pair<int, std::string> call(std::string_view method, std::string_view path, std::string_view body) {
    socket_.send(std::string(method) + " " + std::string(path) + " HTTP/1.1\r\nHost: test\r\nContent-Length: " +
                 std::to_string(body.size()) + "\r\n\r\n" + std::string(body));
    const std::string head = socket_.take_until("\r\n\r\n");
    const std::size_t at = head.find("Content-Length: ");
    if (head.size() < 12 || at == std::string::npos) throw std::runtime_error("the answer has no head: " + head);
    return {std::stoi(head.substr(9, 3)), socket_.take(std::stoul(head.substr(at + 16)))};
  }

 private:
  Socket socket_;
};

// One HTTP/2 connection of gRPC with one call at a time. Answers must fit the initial window.
class GrpcClient {
 public:
  static constexpr std::uint8_t kData = 0, kHeaders = 1, kReset = 3, kSettings = 4, kPing = 6, kGoAway = 7;
  static constexpr std::uint8_t kEndStream = 1, kAck = 1, kEndHeaders = 4;

  explicit GrpcClient(int port) : socket_(port) {
    socket_.send("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n");
    send_frame(kSettings, 0, 0, "");
  }

  // Starts a call; returns its stream.
  std::uint32_t open(std::string_view path, std::string_view message) {
    const std::uint32_t stream = next_stream_;
    next_stream_ += 2;
    std::string headers;
    for (const auto& [name, value] :
         std::vector<std::pair<std::string_view, std::string_view>>{{":method", "POST"},
                                                                    {":scheme", "http"},
                                                                    {":path", path},
                                                                    {":authority", "test"},
                                                                    {"content-type", "application/grpc"},
                                                                    {"te", "trailers"}}) {
      headers += '\0';  // a literal that no table keeps
      append_text(headers, name);
      append_text(headers, value);
    }
    send_frame(kHeaders, kEndHeaders, stream, headers);
    std::string body(1, '\0');
    append_number(body, static_cast<std::uint32_t>(message.size()), 4);
    send_frame(kData, kEndStream, stream, body + std::string(message));
    return stream;
  }
  void reset(std::uint32_t stream) {
    std::string code;
    append_number(code, 8, 4);  // CANCEL
    send_frame(kReset, 0, stream, code);
  }
  // Returns the message of a call; nothing for a call that failed.
  std::optional<std::string> read(std::uint32_t stream) {
    std::string body;
    for (;;) {
      const std::string head = socket_.take(9);
      const auto byte = [&](std::size_t at) {
        return static_cast<std::uint32_t>(static_cast<unsigned char>(head[at]));
      };
      const std::string payload = socket_.take(byte(0) << 16 | byte(1) << 8 | byte(2));
      const std::uint32_t type = byte(3), flags = byte(4);
      const std::uint32_t id = (byte(5) & 0x7f) << 24 | byte(6) << 16 | byte(7) << 8 | byte(8);
      if (type == kSettings && (flags & kAck) == 0) send_frame(kSettings, kAck, 0, "");
      if (type == kPing && (flags & kAck) == 0) send_frame(kPing, kAck, 0, payload);
      if (type == kGoAway) throw std::runtime_error("the server ended the connection");
      if (id != stream) continue;
      if (type == kReset) return std::nullopt;
      if (type == kData) body += payload;
      if ((type == kHeaders || type == kData) && (flags & kEndStream) != 0) {
        if (body.size() < 5) return std::nullopt;
        return body.substr(5);
      }
    }
  }
  void send_frame(std::uint8_t type, std::uint8_t flags, std::uint32_t stream, std::string_view payload) {
    std::string frame;
    append_number(frame, static_cast<std::uint32_t>(payload.size()), 3);
    frame += static_cast<char>(type);
    frame += static_cast<char>(flags);
    append_number(frame, stream, 4);
    socket_.send(frame + std::string(payload));
  }

 private:
  static void append_number(std::string& out, std::uint32_t value, int bytes) {
    for (int at = bytes - 1; at >= 0; --at) out += static_cast<char>(value >> (8 * at) & 0xff);
  }
  static void append_text(std::string& out, std::string_view text) {  // shorter than 127 bytes
    out += static_cast<char>(text.size());
    out += text;
  }

  Socket socket_;
  std::uint32_t next_stream_ = 1;
};

}  // namespace serving::testing
