// wire_reader.h: reads the fields of one protobuf message; a field that is cut ends the message as not whole.
#pragma once

#include <cstdint>
#include <cstring>
#include <string_view>

namespace serving {

struct WireField {
  std::uint32_t number = 0;
  bool is_block = false;  // length-delimited: `block`; any other: `value`
  std::uint64_t value = 0;
  std::string_view block;
};

class WireReader {
 public:
  explicit WireReader(std::string_view bytes) : at_(bytes.data()), end_(bytes.data() + bytes.size()) {}

  // Reads the next field. False at the end, and for invalid bytes.
  bool next(WireField& field) {
    if (at_ == end_) return false;
    std::uint64_t key = 0;
    if (!varint(key) || key >> 32 != 0 || key >> 3 == 0) return fail();
    field.number = static_cast<std::uint32_t>(key >> 3);
    field.is_block = (key & 7) == 2;
    switch (key & 7) {
      case 0:
        return varint(field.value) || fail();
      case 1:
        return fixed(8) || fail();
      case 5:
        return fixed(4) || fail();
      case 2: {
        std::uint64_t size = 0;
        if (!varint(size) || size > static_cast<std::uint64_t>(end_ - at_)) return fail();
        field.block = {at_, static_cast<std::size_t>(size)};
        at_ += size;
        return true;
      }
      default:
        return fail();
    }
  }
  // Whether the message ended with a field.
  [[nodiscard]] bool is_whole() const noexcept { return is_whole_ && at_ == end_; }

 private:
  bool fail() {
    is_whole_ = false;
    return false;
  }
  bool fixed(std::ptrdiff_t size) {
    if (end_ - at_ < size) return false;
    at_ += size;
    return true;
  }
  bool varint(std::uint64_t& value) {
    value = 0;
    for (unsigned shift = 0; shift < 64; shift += 7) {
      if (at_ == end_) return false;
      const auto byte = static_cast<unsigned char>(*at_++);
      value |= static_cast<std::uint64_t>(byte & 0x7fU) << shift;
      if (byte < 0x80) return true;
    }
    return false;
  }

  const char* at_;
  const char* end_;
  bool is_whole_ = true;
};

}  // namespace serving
