// status.cc: codes as HTTP statuses and as names.
#include "serving/status.h"

namespace serving {

int http_status(Code code) noexcept {
  switch (code) {
    case Code::kOk:
      return 200;
    case Code::kInvalidArgument:
      return 400;
    case Code::kDeadlineExceeded:
      return 504;
    case Code::kResourceExhausted:
    case Code::kUnavailable:
      return 503;
    case Code::kUnimplemented:
      return 501;
    case Code::kUnauthenticated:
      return 401;
    default:
      return 500;
  }
}

const char* code_name(Code code) noexcept {
  switch (code) {
    case Code::kOk:
      return "OK";
    case Code::kInvalidArgument:
      return "INVALID_ARGUMENT";
    case Code::kDeadlineExceeded:
      return "DEADLINE_EXCEEDED";
    case Code::kResourceExhausted:
      return "RESOURCE_EXHAUSTED";
    case Code::kUnimplemented:
      return "UNIMPLEMENTED";
    case Code::kUnavailable:
      return "UNAVAILABLE";
    case Code::kUnauthenticated:
      return "UNAUTHENTICATED";
    default:
      return "INTERNAL";
  }
}

std::string client_text(std::string text) {
  constexpr std::size_t kMost = 1000;
  if (text.size() <= kMost) return text;
  text.resize(kMost);
  // A character of UTF-8 is cut as a whole.
  while (!text.empty() && (static_cast<unsigned char>(text.back()) & 0xc0U) == 0x80U) text.pop_back();
  if (!text.empty() && (static_cast<unsigned char>(text.back()) & 0x80U) != 0) text.pop_back();
  return text + "...";
}

}  // namespace serving
