// grpc_frame.cc: prefixes, timeouts and escapes of gRPC.
#include "serving/grpc_frame.h"

#include <algorithm>
#include <charconv>

namespace serving {

std::optional<GrpcPrefix> read_grpc_prefix(std::string_view bytes) {
  if (bytes.size() < kGrpcPrefixBytes || static_cast<unsigned char>(bytes[0]) > 1) return std::nullopt;
  GrpcPrefix prefix;
  prefix.is_compressed = bytes[0] == 1;
  for (std::size_t i = 1; i < kGrpcPrefixBytes; ++i) {
    prefix.size = (prefix.size << 8) | static_cast<unsigned char>(bytes[i]);
  }
  return prefix;
}

void append_grpc_prefix(std::size_t size, std::string& out) {
  out += '\0';
  for (int shift = 24; shift >= 0; shift -= 8) out += static_cast<char>((size >> shift) & 0xff);
}

std::optional<Clock::duration> read_grpc_timeout(std::string_view text) {
  if (text.size() < 2 || text.size() > 9) return std::nullopt;
  std::int64_t count = 0;
  const char* const end = text.data() + text.size() - 1;
  const auto [read, error] = std::from_chars(text.data(), end, count);
  if (error != std::errc{} || read != end || count < 0) return std::nullopt;
  switch (text.back()) {
    case 'H':
      return std::chrono::hours(std::min<std::int64_t>(count, 24 * 365));
    case 'M':
      return std::chrono::minutes(std::min<std::int64_t>(count, 60 * 24 * 365));
    case 'S':
      return std::chrono::seconds(count);
    case 'm':
      return std::chrono::milliseconds(count);
    case 'u':
      return std::chrono::microseconds(count);
    case 'n':
      return std::chrono::nanoseconds(count);
    default:
      return std::nullopt;
  }
}

std::string escape_grpc_message(std::string_view text) {
  constexpr std::string_view kDigits = "0123456789ABCDEF";
  std::string out;
  for (const char sign : text) {
    const auto byte = static_cast<unsigned char>(sign);
    if (sign >= ' ' && sign <= '~' && sign != '%') {
      out += sign;
    } else {
      out += '%';
      out += kDigits[byte >> 4];
      out += kDigits[byte & 15];
    }
  }
  return out;
}

}  // namespace serving
