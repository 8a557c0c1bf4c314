// spill_store.cc: see spill_store.h.
#include "spill_store.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <utility>

#include "engine/error.h"

namespace joiner {

namespace fs = std::filesystem;

SpillStore::SpillStore(std::string folder) : folder_(std::move(folder)) {
  std::error_code error;
  fs::create_directories(folder_, error);
  if (error) throw engine::IoError("create", folder_, error.value());
  for (const auto& file : fs::directory_iterator(folder_)) {
    if (file.path().extension() == ".spill") fs::remove(file.path(), error);
  }
}

SpillStore::~SpillStore() {
  for (auto& [number, file] : files_) {
    ::close(file.descriptor);
    ::unlink(file.path.c_str());
  }
}

std::uint64_t SpillStore::append(std::int64_t number, std::string_view bytes, std::uint64_t strings) {
  auto found = files_.find(number);
  if (found == files_.end()) {
    std::string path = folder_ + "/" + std::to_string(number) + ".spill";
    const int descriptor = ::open(path.c_str(), O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    if (descriptor < 0) throw engine::IoError("open", path, errno);
    found = files_.emplace(number, File{descriptor, std::move(path)}).first;
  }
  File& file = found->second;
  std::size_t written = 0;
  while (written < bytes.size()) {
    const auto count = ::pwrite(file.descriptor, bytes.data() + written, bytes.size() - written,
                                static_cast<off_t>(file.size + written));
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) {
      const int code = count == 0 ? ENOSPC : errno;
      if (::ftruncate(file.descriptor, static_cast<off_t>(file.size)) != 0) {
        // The bytes after `size` are never read.
      }
      const engine::IoError error("write", file.path, code);
      if (file.strings == 0) remove(found);
      throw error;
    }
    written += static_cast<std::size_t>(count);
  }
  const std::uint64_t begin = file.size;
  file.size += bytes.size();
  file.strings += strings;
  bytes_ += bytes.size();
  return begin;
}

std::string SpillStore::read(std::int64_t number, std::uint64_t offset) const {
  const File& file = files_.at(number);
  std::uint32_t size = 0;
  const auto read_all = [&](char* to, std::size_t count, std::uint64_t from) {
    while (count > 0) {
      const auto got = ::pread(file.descriptor, to, count, static_cast<off_t>(from));
      if (got < 0 && errno == EINTR) continue;
      if (got <= 0) throw engine::IoError("read", file.path, got == 0 ? EIO : errno);
      to += got;
      from += static_cast<std::uint64_t>(got);
      count -= static_cast<std::size_t>(got);
    }
  };
  read_all(reinterpret_cast<char*>(&size), sizeof size, offset);
  std::string body(size, '\0');
  read_all(body.data(), size, offset + sizeof size);
  return body;
}

void SpillStore::release(std::int64_t number) {
  const auto found = files_.find(number);
  if (--found->second.strings == 0) remove(found);
}

void SpillStore::remove(std::map<std::int64_t, File>::iterator found) {
  const File& file = found->second;
  ::close(file.descriptor);
  ::unlink(file.path.c_str());
  bytes_ -= file.size;
  files_.erase(found);
}

}  // namespace joiner
