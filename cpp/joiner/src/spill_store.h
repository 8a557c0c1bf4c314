// spill_store.h: files of byte strings that leave memory. A file holds a span of close times and dies as a whole.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>

namespace joiner {

// One thread uses a store. Its files survive no restart: the owner restores its state from a snapshot.
class SpillStore {
 public:
  // Creates `folder` and removes the files of an earlier store.
  explicit SpillStore(std::string folder);
  ~SpillStore();
  SpillStore(const SpillStore&) = delete;
  SpillStore& operator=(const SpillStore&) = delete;

  // Appends bytes to file `number` with one write and returns where they begin. After a failed write the file is as
  // before. Throws engine::IoError.
  std::uint64_t append(std::int64_t number, std::string_view bytes, std::uint64_t strings);
  // Reads a string that begins with its u32 size. Throws engine::IoError.
  [[nodiscard]] std::string read(std::int64_t number, std::uint64_t offset) const;
  // Counts a string as gone. A file without strings is removed.
  void release(std::int64_t number);

  [[nodiscard]] std::uint64_t bytes() const noexcept { return bytes_; }

 private:
  struct File {
    int descriptor;
    std::string path;
    std::uint64_t size = 0;
    std::uint64_t strings = 0;
  };

  void remove(std::map<std::int64_t, File>::iterator found);

  std::string folder_;
  std::map<std::int64_t, File> files_;
  std::uint64_t bytes_ = 0;
};

}  // namespace joiner
