// memory_file.h: a file in memory that engine code opens by its path. One descriptor serves all inputs.
#pragma once

#include <cstddef>
#include <span>
#include <string>

namespace fuzz {

class MemoryFile {
 public:
  MemoryFile();

  // Replaces the content.
  void write(std::span<const std::byte> bytes);
  [[nodiscard]] const std::string& path() const noexcept { return path_; }

 private:
  int descriptor_;
  std::string path_;
};

}  // namespace fuzz
