// wire_writer.h: writes the protobuf wire format: numbers and blocks, innermost message first.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

namespace serving {

inline void append_varint(std::string& out, std::uint64_t value) {
  while (value > 0x7f) {
    out += static_cast<char>((value & 0x7f) | 0x80);
    value >>= 7;
  }
  out += static_cast<char>(value);
}

class WireWriter {
 public:
  void number(std::uint32_t field, std::uint64_t value) {
    append_varint(bytes_, field << 3);
    append_varint(bytes_, value);
  }
  void block(std::uint32_t field, std::string_view content) {
    append_varint(bytes_, (field << 3) | 2);
    append_varint(bytes_, content.size());
    bytes_ += content;
  }
  void block(std::uint32_t field, const WireWriter& message) { block(field, std::string_view(message.bytes_)); }

  [[nodiscard]] std::string_view bytes() const noexcept { return bytes_; }
  [[nodiscard]] std::string take() { return std::move(bytes_); }

 private:
  std::string bytes_;
};

}  // namespace serving
