// headers.cc: headers by name.
#include "serving/answer.h"

namespace serving {

std::string_view find_header(const Headers& headers, std::string_view name) noexcept {
  for (const auto& [key, value] : headers) {
    if (key == name) return value;
  }
  return {};
}

}  // namespace serving
