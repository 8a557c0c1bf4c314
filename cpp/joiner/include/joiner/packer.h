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

namespace joiner {

class Packer {
 public:
  // Appends the packed form of `payload` to `out`.
  void pack(std::string_view payload, std::string& out);
  // Appends the original bytes to `out`. Throws engine::SnapshotCorrupt if `packed` has an unknown number.
  void unpack(std::string_view packed, std::string& out) const;

  // Adds a head with the next number, while a snapshot is restored.
  void add_head(std::string_view head, std::uint32_t values_size);

  struct Head {
    std::string bytes;
    std::uint32_t values_size;
  };
  [[nodiscard]] const std::deque<Head>& heads() const noexcept { return heads_; }
  [[nodiscard]] std::size_t memory() const noexcept { return memory_; }

 private:
  std::deque<Head> heads_;  // number - 1 is the place; addresses are stable
  std::unordered_map<std::string_view, std::uint32_t> numbers_;
  std::size_t memory_ = 0;
};

}  // namespace joiner
