// files.h: whole files of a partition: mapped, replaced and synced.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "eventlog/format.h"
#include "eventlog/shared_page.h"

namespace eventlog {

// A file mapped for reading. Only bytes that no process cuts off may be looked at.
class MappedFile {
 public:
  // Throws engine::IoError. `most_bytes` bounds the mapping.
  explicit MappedFile(const std::string& path, std::uint64_t most_bytes = ~std::uint64_t{0});
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  [[nodiscard]] Bytes bytes() const noexcept { return bytes_; }

 private:
  Bytes bytes_;
};

// Opens a file. Throws engine::IoError.
[[nodiscard]] Descriptor open_file(const std::string& path, int flags);
// The bytes of a small file; empty for an absent one.
[[nodiscard]] std::vector<std::byte> read_small(const std::string& path);
// Writes beside, syncs, renames, syncs the folder.
void replace_file(const std::string& folder, const std::string& path, Bytes bytes);
// The base offsets in the names of segments, ascending.
[[nodiscard]] std::vector<std::uint64_t> segment_bases(const std::string& folder);
// The path of a segment, or of a file beside it.
[[nodiscard]] std::string segment_path(const std::string& folder, std::uint64_t base, const char* suffix);
void sync_folder(const std::string& folder);
// Writes all bytes; 0 or the errno.
[[nodiscard]] int write_at(const Descriptor& file, Bytes bytes, std::uint64_t position) noexcept;

// Throws engine::ConfigError on a network file system, where locks and shared memory do not join machines.
void refuse_network_folder(const std::string& folder);

}  // namespace eventlog
