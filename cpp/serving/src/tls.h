// tls.h: TLS of accepted sockets by OpenSSL, whose library is opened at run time.
#pragma once

#include <cstddef>
#include <memory>
#include <string>

#include "serving/server.h"

namespace serving {

// Result of a transfer that takes no time: bytes, or one of these.
inline constexpr std::ptrdiff_t kWouldBlock = -1;
inline constexpr std::ptrdiff_t kBroken = -2;
inline constexpr std::ptrdiff_t kEnded = 0;

// One encrypted connection. Exclusive.
class TlsStream {
 public:
  virtual ~TlsStream() = default;
  [[nodiscard]] virtual std::ptrdiff_t receive(char* data, std::size_t size) = 0;
  [[nodiscard]] virtual std::ptrdiff_t send(const char* data, std::size_t size) = 0;
  // Tells the peer that no more comes.
  virtual void end() = 0;
};

// Certificates and settings. Concurrent.
class TlsContext {
 public:
  virtual ~TlsContext() = default;
  [[nodiscard]] virtual std::unique_ptr<TlsStream> accept(int socket, bool is_http2) const = 0;
};

// Throws engine::ConfigError where the files do not fit each other, or OpenSSL is missing.
[[nodiscard]] std::shared_ptr<const TlsContext> open_tls(const TlsFiles& files);
// Throws engine::ConfigError where this process cannot encrypt.
void check_tls();

}  // namespace serving
