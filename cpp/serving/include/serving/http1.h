// http1.h: reads the head and the chunked body of HTTP/1.1. Refuses requests that two implementations could read
// differently: two lengths, folded headers, a length beside chunks.
#pragma once

#include <cstddef>
#include <stdexcept>
#include <string>
#include <string_view>

#include "serving/answer.h"

namespace serving {

inline constexpr std::size_t kMaxHeadBytes = 32 << 10;

// A request that the server refuses; the connection closes after it.
class HttpError : public std::runtime_error {
 public:
  HttpError(int status, const std::string& text, Headers headers = {})
      : std::runtime_error(text), status_(status), headers_(std::move(headers)) {}
  [[nodiscard]] int status() const noexcept { return status_; }
  [[nodiscard]] const Headers& headers() const noexcept { return headers_; }

 private:
  int status_;
  Headers headers_;
};

struct Http1Head {
  std::string method;
  std::string path;  // without the query
  Headers headers;   // names in lower case, each once
  bool keeps_alive = true;
  bool is_chunked = false;
  bool expects_continue = false;
  bool is_compressed = false;  // with gzip
  std::size_t length = 0;
};

// Reads a head without its last empty line. Throws HttpError.
[[nodiscard]] Http1Head read_head(std::string_view text, std::size_t max_body);

// Decoder of a chunked body.
class ChunkReader {
 public:
  explicit ChunkReader(std::size_t max_body) : max_body_(max_body) {}
  // Moves content out of the buffer; true when the body is complete. Throws HttpError.
  bool take(std::string& buffer);

  std::string body;

 private:
  [[nodiscard]] std::size_t size_of(std::string_view line) const;

  std::size_t max_body_;
  std::size_t left_ = 0;
  bool needs_end_ = false;
  bool is_last_ = false;
};

// The bytes of an answer.
[[nodiscard]] std::string write_http1(const Answer& answer, bool is_head, bool is_last);

}  // namespace serving
