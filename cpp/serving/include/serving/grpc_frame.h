// grpc_frame.h: the parts of gRPC that lie above HTTP/2: message frames, timeouts, and text in trailers.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "serving/answer.h"

namespace serving {

// The prefix of a message: a flag and four bytes of length.
inline constexpr std::size_t kGrpcPrefixBytes = 5;

struct GrpcPrefix {
  bool is_compressed = false;
  std::size_t size = 0;
};

// Reads the prefix; nothing for another flag, or fewer bytes.
[[nodiscard]] std::optional<GrpcPrefix> read_grpc_prefix(std::string_view bytes);
void append_grpc_prefix(std::size_t size, std::string& out);

// Reads grpc-timeout: up to eight digits and a unit of H M S m u n. Nothing for any other text.
[[nodiscard]] std::optional<Clock::duration> read_grpc_timeout(std::string_view text);

// Writes grpc-message: bytes that are not printable ASCII, and %, are escaped.
[[nodiscard]] std::string escape_grpc_message(std::string_view text);

}  // namespace serving
