// table_image.h: a serving table as one file that is used where it lies. Loading maps it: no row is read, copied or
// hashed; the index is checked and built. Changes stay in the process: the pages that they touch become private, all
// others are shared with every process that maps the file.
//
//   file    := magic[8], zeros up to byte 64, part*, footer, u32 footer bytes, u32 crc32c(footer), magic[8]
//   part    := bucket*, row*, zeros up to a multiple of 64
//   bucket  := i64 ids[4], u32 rows[4], u32 times[4]      a row is its number in the part + 1; 0 = nothing stands here
//   row     := the compressed values of all slices, zeros up to a multiple of 4
//   footer  := u32 version, u32 row bytes, i64 newest time, u32 layout bytes, layout, u32 parts,
//              per part: u64 rows, u64 buckets, u32 crc32c of the buckets, u32 crc32c of the rows
//   layout  := per slice: u32 dim, u32 value bytes, u32 kind bytes, kind
//
// All numbers are little-endian. With h = the engine's mix(id), an id is in part h >> 58, and stands in bucket
// ((h mod 2^32) * buckets) >> 32, or in the first one after it, around the ring, that was not full. The entries of a
// bucket are its first ones, and rows are numbered as their entries stand.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "engine/index.h"
#include "engine/table.h"

namespace engine {

class InputFile;
class MappingGuard;

struct ImageFile {
  std::uint64_t bytes = 0;
  std::uint64_t rows = 0;
};

// Writes the rows of a serving table as they are now to a new file, and syncs it. Expired rows are left out.
// Throws IoError; then no file is left.
ImageFile write_image(Table& table, const std::string& path);

// The bytes of an image in memory, for a table to use. Releases them when destroyed.
class TableImage {
 public:
  struct Part {
    Index index;
    std::vector<std::uint32_t> times;  // by row
    std::byte* rows = nullptr;
  };
  enum class Memory : std::uint8_t {
    kMapped,  // read instead where the file system is not of this machine: others could take the file away
    kRead,
  };

  // Checks sizes, footer and index, so that any row bytes are safe to use. `table` has the expected layout.
  // Throws SnapshotCorrupt with file and reason, or IoError.
  TableImage(const std::string& path, std::uint64_t bytes, const Table& table, Memory memory);
  ~TableImage();
  TableImage(const TableImage&) = delete;
  TableImage& operator=(const TableImage&) = delete;

  // A part, for a table to keep. Its rows stay here.
  [[nodiscard]] Part take_part(std::size_t number) { return std::move(parts_[number]); }
  [[nodiscard]] std::int64_t max_time_s() const noexcept { return max_time_s_; }
  [[nodiscard]] bool is_mapped() const noexcept { return block_.data() == nullptr; }
  // Throws SnapshotCorrupt when another program has cut the mapped file off: rows that were read since may be zeros.
  void check_whole() const;

 private:
  void map(const std::string& path, int descriptor);
  void check(const Table& table, const InputFile& file);

  std::string path_;
  std::byte* data_ = nullptr;
  std::size_t bytes_ = 0;
  std::unique_ptr<const MappingGuard> guard_;  // of a mapped file
  Block block_;                                // the whole file, when it was read and not mapped
  std::vector<Part> parts_;
  std::int64_t max_time_s_ = 0;
};

}  // namespace engine
