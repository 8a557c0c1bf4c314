// delta_reader.h: an open delta segment whose header was read and whose pieces were found.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "engine/delta_segment.h"
#include "file.h"

namespace engine {

// Every complaint names file, offset and reason.
class DeltaReader {
 public:
  // Blocks, tombstones or marks.
  struct Piece {
    std::uint32_t table;
    std::uint32_t rows;
    std::uint64_t offset;
    std::uint64_t bytes;  // without the checksum
  };

  explicit DeltaReader(const std::string& path);

  [[nodiscard]] const DeltaHeader& header() const noexcept { return header_; }
  [[nodiscard]] std::span<const Piece> blocks() const noexcept { return blocks_; }
  [[nodiscard]] std::span<const Piece> tombstones() const noexcept { return tombstones_; }
  [[nodiscard]] const Piece& marks() const noexcept { return marks_; }

  // The bytes of a piece, checked. Concurrent.
  void read(const Piece& piece, std::vector<std::byte>& out) const;
  void verify(Pool& pool) const;

 private:
  [[noreturn]] void fail(std::uint64_t offset, const std::string& reason) const;
  // These return where the next thing begins.
  std::uint64_t read_header();
  std::uint64_t find_pieces(std::uint32_t number, std::uint64_t offset);
  [[nodiscard]] std::uint64_t end_of(const Piece& piece) const;

  InputFile file_;
  std::uint64_t size_;
  DeltaHeader header_;
  std::vector<Piece> blocks_;
  std::vector<Piece> tombstones_;
  Piece marks_{};
};

}  // namespace engine
