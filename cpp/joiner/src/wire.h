// wire.h: fields of a protobuf message, read one after the other, and varints.
#pragma once

#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>

namespace joiner {

enum WireType : std::uint32_t { kVarint = 0, kFixed64 = 1, kBytes = 2, kFixed32 = 5 };

struct Field {
  std::uint32_t number;
  std::uint32_t type;
  std::uint64_t value;     // of a varint or a fixed number
  std::string_view body;   // of a field with a length
  std::string_view whole;  // tag, length and body
};

// Reads the fields of a message. After a false `next`, `is_broken` tells a malformed message from its end.
class FieldReader {
 public:
  explicit FieldReader(std::string_view message) : at_(message.data()), end_(message.data() + message.size()) {}

  bool next(Field& field) {
    if (at_ == end_) return false;
    const char* begin = at_;
    std::uint64_t tag = 0;
    if (!varint(tag) || tag >> 32 != 0 || tag >> 3 == 0) return fail();
    field.number = static_cast<std::uint32_t>(tag >> 3);
    field.type = tag & 7;
    field.value = 0;
    field.body = {};
    switch (field.type) {
      case kVarint:
        if (!varint(field.value)) return fail();
        break;
      case kFixed64:
        if (!fixed<std::uint64_t>(field.value)) return fail();
        break;
      case kFixed32:
        if (!fixed<std::uint32_t>(field.value)) return fail();
        break;
      case kBytes: {
        std::uint64_t size = 0;
        if (!varint(size) || size > static_cast<std::uint64_t>(end_ - at_)) return fail();
        field.body = {at_, static_cast<std::size_t>(size)};
        at_ += size;
        break;
      }
      default:
        return fail();
    }
    field.whole = {begin, static_cast<std::size_t>(at_ - begin)};
    return true;
  }

  // Reads a bare varint.
  bool varint(std::uint64_t& value) {
    value = 0;
    for (int shift = 0; shift < 64; shift += 7) {
      if (at_ == end_) return false;
      const auto byte = static_cast<std::uint8_t>(*at_++);
      if (shift == 63 && byte > 1) return false;
      value |= static_cast<std::uint64_t>(byte & 0x7F) << shift;
      if (byte < 0x80) return true;
    }
    return false;
  }

  [[nodiscard]] bool is_broken() const noexcept { return is_broken_; }
  [[nodiscard]] bool is_at_end() const noexcept { return at_ == end_; }
  [[nodiscard]] std::string_view rest() const noexcept { return {at_, static_cast<std::size_t>(end_ - at_)}; }
  // Takes `size` raw bytes, which must be there.
  std::string_view take(std::size_t size) noexcept {
    const std::string_view taken{at_, size};
    at_ += size;
    return taken;
  }

 private:
  template <class Number>
  bool fixed(std::uint64_t& value) {
    Number number;
    if (static_cast<std::size_t>(end_ - at_) < sizeof number) return false;
    std::memcpy(&number, at_, sizeof number);
    at_ += sizeof number;
    value = number;
    return true;
  }

  bool fail() {
    is_broken_ = true;
    return false;
  }

  const char* at_;
  const char* end_;
  bool is_broken_ = false;
};

inline void put_varint(std::string& out, std::uint64_t value) {
  while (value >= 0x80) {
    out.push_back(static_cast<char>(value | 0x80));
    value >>= 7;
  }
  out.push_back(static_cast<char>(value));
}

template <class Number>
void put_fixed(std::string& out, Number number) {
  out.append(reinterpret_cast<const char*>(&number), sizeof number);
}

constexpr std::uint64_t make_tag(std::uint32_t number, WireType type) {
  return static_cast<std::uint64_t>(number) << 3 | type;
}

inline std::uint64_t zigzag(std::int64_t value) {
  return (static_cast<std::uint64_t>(value) << 1) ^ static_cast<std::uint64_t>(value >> 63);
}

inline std::int64_t unzigzag(std::uint64_t value) {
  return static_cast<std::int64_t>(value >> 1) ^ -static_cast<std::int64_t>(value & 1);
}

}  // namespace joiner
