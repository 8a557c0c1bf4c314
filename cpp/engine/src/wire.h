// wire.h: the few parts of the protobuf wire format that the engine's own codecs need. Private to the engine.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>

namespace engine::wire {

inline constexpr std::uint32_t kVarint = 0;
inline constexpr std::uint32_t kFixed64 = 1;
inline constexpr std::uint32_t kBlock = 2;
inline constexpr std::uint32_t kFixed32 = 5;

// Why a message cannot be read. The caller knows the place and turns it into an engine error.
struct Malformed {
  std::string reason;
  const std::byte* at = nullptr;  // where in the message, when known
};

constexpr std::size_t varint_bytes(std::uint64_t value) noexcept {
  return (static_cast<std::size_t>(std::bit_width(value | 1U)) + 6) / 7;
}

struct Tag {
  std::uint32_t field;
  std::uint32_t wire;
};

class Reader {
 public:
  explicit Reader(std::span<const std::byte> bytes) : at_(bytes.data()), end_(bytes.data() + bytes.size()) {}

  [[nodiscard]] bool done() const noexcept { return at_ == end_; }
  [[nodiscard]] const std::byte* at() const noexcept { return at_; }

  std::uint64_t varint() {
    if (at_ != end_ && *at_ < std::byte{0x80}) [[likely]]
      return static_cast<std::uint64_t>(*at_++);
    return long_varint();
  }

  Tag tag() {
    const std::uint64_t key = varint();
    if (key >> 32 != 0 || key >> 3 == 0) [[unlikely]]
      fail_field(key);
    return {static_cast<std::uint32_t>(key >> 3), static_cast<std::uint32_t>(key & 7)};
  }

  template <typename Value>
  Value fixed() {
    need(sizeof(Value));
    Value value{};
    std::memcpy(&value, at_, sizeof value);
    at_ += sizeof value;
    return value;
  }

  std::span<const std::byte> block() {
    const std::uint64_t size = varint();
    need(size);
    const std::span<const std::byte> bytes{at_, static_cast<std::size_t>(size)};
    at_ += size;
    return bytes;
  }

  void skip(const Tag& tag) {
    switch (tag.wire) {
      case kVarint:
        varint();
        break;
      case kFixed64:
        need(8), at_ += 8;
        break;
      case kBlock:
        block();
        break;
      case kFixed32:
        need(4), at_ += 4;
        break;
      default:
        throw Malformed{"field " + std::to_string(tag.field) + " has wire type " + std::to_string(tag.wire), at_};
    }
  }

  // Reads one occurrence of a `repeated float` field, packed or not, and all unpacked ones that follow it directly.
  // Returns how many of at most `room` floats were written; `room` + 1 means that there were more.
  std::size_t floats(const Tag& tag, float* out, std::size_t room) {
    if (tag.wire == kBlock) {
      const auto bytes = block();
      if (bytes.size() % sizeof(float) != 0)
        throw Malformed{"packed floats take " + std::to_string(bytes.size()) + " bytes", at_};
      const std::size_t count = bytes.size() / sizeof(float);
      if (count > room) return room + 1;
      if (count > 0) std::memcpy(out, bytes.data(), bytes.size());
      return count;
    }
    if (tag.wire != kFixed32) throw Malformed{"field " + std::to_string(tag.field) + " does not hold floats", at_};
    const auto again = static_cast<std::byte>(tag.field << 3 | kFixed32);  // used below field 16 only
    for (std::size_t count = 0; count < room;) {
      out[count++] = fixed<float>();
      if (end_ - at_ < 5 || *at_ != again || tag.field > 15) return count;
      ++at_;
    }
    return room + 1;
  }

 private:
  // Rare cases stay out of the callers' loops.
  [[gnu::noinline]] std::uint64_t long_varint() {
    std::uint64_t value = 0;
    for (int shift = 0; shift < 64; shift += 7) {
      if (at_ == end_) throw Malformed{"the message ends inside a number", at_};
      const auto byte = static_cast<std::uint64_t>(*at_++);
      if (shift == 63 && byte > 1) break;
      value |= (byte & 0x7f) << shift;
      if (byte < 0x80) return value;
    }
    throw Malformed{"a number is longer than 64 bits", at_};
  }

  [[noreturn, gnu::noinline, gnu::cold]] void fail_field(std::uint64_t key) const {
    throw Malformed{"field number " + std::to_string(key >> 3) + " is not possible", at_};
  }

  [[noreturn, gnu::noinline, gnu::cold]] void fail_short(std::uint64_t bytes) const {
    throw Malformed{
        "a field needs " + std::to_string(bytes) + " bytes, the message has " + std::to_string(end_ - at_) + " left",
        at_};
  }

  void need(std::uint64_t bytes) const {
    if (bytes > static_cast<std::uint64_t>(end_ - at_)) [[unlikely]]
      fail_short(bytes);
  }

  const std::byte* at_;
  const std::byte* end_;
};

// Writes into memory that the caller has sized; every field number is below 16, so a tag is one byte.
class Writer {
 public:
  explicit Writer(std::byte* at) : at_(at) {}

  [[nodiscard]] std::byte* at() const noexcept { return at_; }

  void tag(std::uint32_t field, std::uint32_t wire) noexcept { *at_++ = static_cast<std::byte>(field << 3 | wire); }

  void varint(std::uint64_t value) noexcept {
    for (; value >= 0x80; value >>= 7) *at_++ = static_cast<std::byte>(value | 0x80);
    *at_++ = static_cast<std::byte>(value);
  }

  template <typename Value>
  void fixed(Value value) noexcept {
    std::memcpy(at_, &value, sizeof value);
    at_ += sizeof value;
  }

  void floats(std::uint32_t field, const float* values, std::size_t count) noexcept {
    for (std::size_t i = 0; i < count; ++i) {
      tag(field, kFixed32);
      fixed(values[i]);
    }
  }

  // Writes the first `size` bytes of a word; up to kSlack bytes behind them are overwritten.
  static constexpr std::size_t kSlack = 8;
  void put_word(std::uint64_t word, std::size_t size) noexcept {
    std::memcpy(at_, &word, sizeof word);
    at_ += size;
  }

  void bytes(const void* data, std::size_t size) noexcept {
    if (size > 0) std::memcpy(at_, data, size);
    at_ += size;
  }

 private:
  std::byte* at_;
};

// --- appending to a string, for messages whose size is not known beforehand ---

inline void put_varint(std::string& out, std::uint64_t value) {
  for (; value >= 0x80; value >>= 7) out.push_back(static_cast<char>(value | 0x80));
  out.push_back(static_cast<char>(value));
}

inline void put_tag(std::string& out, std::uint32_t field, std::uint32_t wire) {
  put_varint(out, std::uint64_t{field} << 3 | wire);
}

inline void put_block(std::string& out, std::uint32_t field, std::string_view bytes) {
  put_tag(out, field, kBlock);
  put_varint(out, bytes.size());
  out.append(bytes);
}

}  // namespace engine::wire
