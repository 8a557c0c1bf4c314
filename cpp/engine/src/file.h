// file.h: reading and writing whole files by hand, with errors that name the file.
#pragma once

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <utility>

#include "engine/error.h"

namespace engine {

class File {
 public:
  static File create(const std::string& path) { return File(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, "create"); }
  static File open(const std::string& path) { return File(path, O_RDONLY | O_CLOEXEC, "open"); }

  File(File&& other) noexcept : path_(std::move(other.path_)), fd_(std::exchange(other.fd_, -1)) {}
  File(const File&) = delete;
  File& operator=(const File&) = delete;
  ~File() {
    if (fd_ >= 0) ::close(fd_);
  }

  [[nodiscard]] const std::string& path() const noexcept { return path_; }

  [[nodiscard]] std::uint64_t size() const {
    struct stat info{};
    if (::fstat(fd_, &info) != 0) fail("stat");
    return static_cast<std::uint64_t>(info.st_size);
  }

  void write(const std::byte* data, std::size_t bytes) {
    while (bytes > 0) {
      const ssize_t written = ::write(fd_, data, bytes);
      if (written < 0 && errno == EINTR) continue;
      if (written < 0) fail("write");
      data += written;
      bytes -= static_cast<std::size_t>(written);
    }
  }

  // Asks the kernel to start writing what was written since `from`, so that the final sync finds little to do.
  void start_writeback([[maybe_unused]] std::uint64_t from, [[maybe_unused]] std::uint64_t bytes) noexcept {
#ifdef __linux__
    ::sync_file_range(fd_, static_cast<off64_t>(from), static_cast<off64_t>(bytes), SYNC_FILE_RANGE_WRITE);
#endif
  }

  void sync() {
    if (::fsync(fd_) != 0) fail("sync");
  }

  // False when the file ends before `bytes`.
  [[nodiscard]] bool read_at(std::uint64_t offset, std::byte* data, std::size_t bytes) const {
    while (bytes > 0) {
      const ssize_t got = ::pread(fd_, data, bytes, static_cast<off_t>(offset));
      if (got < 0 && errno == EINTR) continue;
      if (got < 0) fail("read");
      if (got == 0) return false;
      data += got;
      offset += static_cast<std::uint64_t>(got);
      bytes -= static_cast<std::size_t>(got);
    }
    return true;
  }

 private:
  File(const std::string& path, int flags, const char* verb) : path_(path), fd_(::open(path.c_str(), flags, 0644)) {
    if (fd_ < 0) fail(verb);
  }

  [[noreturn]] void fail(const char* verb) const {
    throw IoError(std::string("cannot ") + verb + " '" + path_ + "': " + std::strerror(errno));
  }

  std::string path_;
  int fd_;
};

}  // namespace engine
