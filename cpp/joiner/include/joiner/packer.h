// packer.h: Examples without their names.
//
// The features of a stream repeat their names and sizes in every record. A packer stores each distinct beginning of a
// feature (name, kind, size) once and numbers it; a packed Example holds the number and the values. Packing loses
// nothing: any bytes come back as they were. One thread uses a packer.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace joiner {

class Packer {
 public:
  // Appends the packed form of `payload` to `out`.
  void pack(std::string_view payload, std::string& out);
  // Appends the packed form of a feature field, if its head is known and needs no check of the values; else returns
  // false. `place` is the place of the feature in its record: records of a stream mostly have the same heads in the
  // same order.
  bool pack_known(std::string_view field, std::size_t place, std::string& out);
  // Appends the packed form of a feature field. `is_fixed`: any values of this size are valid under its head.
  void pack_feature(std::string_view field, std::size_t place, bool is_fixed, std::string& out);
  // Appends bytes that are stored as they are.
  static void pack_raw(std::string_view bytes, std::string& out);

  // Calls `on_head(head, values)` and `on_raw(bytes)` for the parts of a packed Example, in order. Throws
  // engine::SnapshotCorrupt if `packed` has an unknown number.
  template <class OnHead, class OnRaw>
  void visit(std::string_view packed, OnHead&& on_head, OnRaw&& on_raw) const;

  // Appends the original bytes to `out`. Throws engine::SnapshotCorrupt if `packed` has an unknown number.
  void unpack(std::string_view packed, std::string& out) const;

  // Adds a head with the next number, while a snapshot is restored.
  void add_head(std::string_view head, std::uint32_t values_size);

  struct Head {
    std::string bytes;
    std::uint32_t values_size;
    bool is_fixed = false;  // found sound by `pack_feature` in this process
  };
  [[nodiscard]] const std::deque<Head>& heads() const noexcept { return heads_; }
  [[nodiscard]] std::size_t memory() const noexcept { return memory_; }

 private:
  std::deque<Head> heads_;  // number - 1 is the place; addresses are stable
  std::unordered_map<std::string_view, std::uint32_t> numbers_;
  std::vector<std::uint32_t> expected_;  // number of the last head at each place of a record
  std::size_t memory_ = 0;

  [[noreturn]] static void fail(const char* reason);
};

template <class OnHead, class OnRaw>
void Packer::visit(std::string_view packed, OnHead&& on_head, OnRaw&& on_raw) const {
  const char* at = packed.data();
  const char* end = at + packed.size();
  const auto varint = [&]() -> std::uint64_t {
    std::uint64_t value = 0;
    for (int shift = 0; shift < 64 && at != end; shift += 7) {
      const auto byte = static_cast<std::uint8_t>(*at++);
      value |= static_cast<std::uint64_t>(byte & 0x7F) << shift;
      if (byte < 0x80) return value;
    }
    fail("truncated number");
  };
  while (at != end) {
    const std::uint64_t number = varint();
    if (number > heads_.size()) fail("unknown feature head");
    const std::uint64_t size = number == 0 ? varint() : heads_[number - 1].values_size;
    if (size > static_cast<std::uint64_t>(end - at)) fail("truncated values");
    const std::string_view bytes{at, static_cast<std::size_t>(size)};
    at += size;
    if (number == 0) {
      on_raw(bytes);
    } else {
      on_head(std::string_view(heads_[number - 1].bytes), bytes);
    }
  }
}

}  // namespace joiner
