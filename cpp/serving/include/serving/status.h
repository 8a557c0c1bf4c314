// status.h: status codes of answers, and the failure that carries one. The table is that of monolith.rpc.status.
#pragma once

#include <stdexcept>
#include <string>

namespace serving {

// The numbers are those of gRPC.
enum class Code : int {
  kOk = 0,
  kInvalidArgument = 3,
  kDeadlineExceeded = 4,
  kResourceExhausted = 8,
  kUnimplemented = 12,
  kInternal = 13,
  kUnavailable = 14,
  kUnauthenticated = 16,
};

// A request that cannot be answered; the text is for its client.
class Failure : public std::runtime_error {
 public:
  Failure(Code code, const std::string& text) : std::runtime_error(text), code_(code) {}
  [[nodiscard]] Code code() const noexcept { return code_; }

 private:
  Code code_;
};

[[nodiscard]] int http_status(Code code) noexcept;
[[nodiscard]] const char* code_name(Code code) noexcept;
// The text of a failed request for its client; bounded, because it travels in a header of HTTP/2.
[[nodiscard]] std::string client_text(std::string text);

}  // namespace serving
