// file.h: reading and writing whole files by hand, with errors that name the file.
#pragma once

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <new>
#include <span>
#include <string>
#include <utility>

#include "engine/error.h"

namespace engine {

[[noreturn]] inline void fail_io(const char* verb, const std::string& path) { throw IoError(verb, path, errno); }

// Whether large reads and writes go through the page cache or past it, where the file system allows that. Past it is
// faster for a file that is read or written once: the copy and the pages of the cache cost processor time.
enum class Cache : std::uint8_t { kPast, kThrough };

// Transfers past the page cache begin and end at multiples of this, in the file and in memory.
inline constexpr std::size_t kDirectAlignment = 4096;

struct FreeAligned {
  void operator()(std::byte* data) const noexcept { ::operator delete(data, std::align_val_t{kDirectAlignment}); }
};
using AlignedBytes = std::unique_ptr<std::byte, FreeAligned>;

inline AlignedBytes allocate_aligned(std::size_t bytes) {
  return AlignedBytes(static_cast<std::byte*>(::operator new(bytes, std::align_val_t{kDirectAlignment})));
}

// Memory for reads past the page cache; grows to the largest read.
class ReadBuffer {
 public:
  // Room for `bytes`, whose content is undefined.
  std::byte* get(std::size_t bytes) {
    if (bytes > capacity_) {
      data_.reset();
      capacity_ = 0;
      data_ = allocate_aligned(bytes);
      capacity_ = bytes;
    }
    return data_.get();
  }

 private:
  AlignedBytes data_;
  std::size_t capacity_ = 0;
};

// A file to read from, anywhere in it.
class InputFile {
 public:
  explicit InputFile(const std::string& path, Cache cache = Cache::kThrough)
      : path_(path), fd_(::open(path.c_str(), O_RDONLY | O_CLOEXEC)) {
    if (fd_ < 0) fail_io("open", path_);
#ifdef O_DIRECT
    if (cache == Cache::kPast) direct_fd_ = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_DIRECT);
#endif
    // Only headers are read through the cache then: the system must not read ahead of them.
    if (direct_fd_ >= 0) ::posix_fadvise(fd_, 0, 0, POSIX_FADV_RANDOM);
  }
  InputFile(InputFile&& other) noexcept
      : path_(std::move(other.path_)),
        fd_(std::exchange(other.fd_, -1)),
        direct_fd_(std::exchange(other.direct_fd_, -1)) {}
  InputFile(const InputFile&) = delete;
  InputFile& operator=(const InputFile&) = delete;
  ~InputFile() {
    if (fd_ >= 0) ::close(fd_);
    if (direct_fd_ >= 0) ::close(direct_fd_);
  }

  [[nodiscard]] const std::string& path() const noexcept { return path_; }
  [[nodiscard]] int descriptor() const noexcept { return fd_; }

  [[nodiscard]] std::uint64_t size() const {
    struct stat info{};
    if (::fstat(fd_, &info) != 0) fail_io("stat", path_);
    return static_cast<std::uint64_t>(info.st_size);
  }

  // Starts to read a range into the page cache, without waiting; for read_large(). A hint: a system that ignores it
  // reads later.
  void fetch(std::uint64_t offset, std::size_t bytes) const noexcept {
    if (direct_fd_ >= 0) return;
    ::posix_fadvise(fd_, static_cast<off_t>(offset), static_cast<off_t>(bytes), POSIX_FADV_WILLNEED);
  }

  // False when the file ends before `bytes`.
  [[nodiscard]] bool read_at(std::uint64_t offset, std::byte* data, std::size_t bytes) const {
    while (bytes > 0) {
      const ssize_t got = ::pread(fd_, data, bytes, static_cast<off_t>(offset));
      if (got < 0 && errno == EINTR) continue;
      if (got < 0) fail_io("read", path_);
      if (got == 0) return false;
      data += got;
      offset += static_cast<std::uint64_t>(got);
      bytes -= static_cast<std::size_t>(got);
    }
    return true;
  }

  // The bytes of a range, in `buffer`, read as the constructor was asked to. Null when the file ends before `bytes`.
  [[nodiscard]] const std::byte* read_large(std::uint64_t offset, std::size_t bytes, ReadBuffer& buffer) const {
    const std::uint64_t begin = offset / kDirectAlignment * kDirectAlignment;
    const std::size_t skipped = static_cast<std::size_t>(offset - begin);
    const std::size_t whole = (skipped + bytes + kDirectAlignment - 1) / kDirectAlignment * kDirectAlignment;
    std::byte* const data = buffer.get(whole);
    std::size_t filled = direct_fd_ < 0 ? skipped : read_direct(begin, data, whole);
    if (filled < skipped) filled = skipped;
    // The rest: all of it without direct reads, and the bytes that the file system refuses to read directly.
    if (filled < skipped + bytes && !read_at(begin + filled, data + filled, skipped + bytes - filled)) return nullptr;
    return data + skipped;
  }

 private:
  // Reads past the page cache until the end of the file or a refusal; returns the bytes read.
  std::size_t read_direct(std::uint64_t begin, std::byte* data, std::size_t bytes) const {
    std::size_t filled = 0;
    while (filled < bytes && filled % kDirectAlignment == 0) {
      const ssize_t got = ::pread(direct_fd_, data + filled, bytes - filled, static_cast<off_t>(begin + filled));
      if (got < 0 && errno == EINTR) continue;
      if (got < 0 && errno != EINVAL) fail_io("read", path_);
      if (got <= 0) break;
      filled += static_cast<std::size_t>(got);
    }
    return filled;
  }

  std::string path_;
  int fd_;
  int direct_fd_ = -1;
};

// A new file to append to. Large writes bypass the page cache where the file system allows it: no process reads a
// snapshot back soon, and the copy through the cache costs more than packing the rows does. A file that will be mapped
// soon goes through it, in writes as large as huge pages, so that it lies there in such where the file system can.
class OutputFile {
 public:
  explicit OutputFile(const std::string& path, Cache cache = Cache::kPast) : path_(path) {
    constexpr int kFlags = O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC;
#ifdef O_DIRECT
    if (cache == Cache::kPast) fd_ = ::open(path.c_str(), kFlags | O_DIRECT, 0644);
#endif
    if (fd_ < 0) fd_ = ::open(path.c_str(), kFlags, 0644);
    if (fd_ < 0) fail_io("create", path_);
    take_buffer(kBufferBytes);
  }
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;
  ~OutputFile() {
    if (fd_ >= 0) ::close(fd_);
  }

  // Bytes appended so far.
  [[nodiscard]] std::uint64_t size() const noexcept { return size_; }

  void append(std::span<const std::byte> bytes) {
    size_ += bytes.size();
    while (!bytes.empty()) {
      const std::size_t some = std::min(bytes.size(), capacity_ - filled_);
      std::memcpy(buffer_.get() + filled_, bytes.data(), some);
      filled_ += some;
      bytes = bytes.subspan(some);
      if (filled_ == capacity_) flush(capacity_);
    }
  }

  // Makes room for `bytes` in the buffer, so that the next claim waits for no disk.
  void make_room(std::size_t bytes) {
    if (capacity_ - filled_ >= bytes) return;
    const std::size_t whole = filled_ / kDirectAlignment * kDirectAlignment;
    const std::size_t rest = filled_ - whole;
    flush(whole);
    std::memmove(buffer_.get(), buffer_.get() + whole, rest);
    filled_ = rest;
    if (capacity_ - filled_ >= bytes) return;
    const AlignedBytes before = std::move(buffer_);
    take_buffer((filled_ + bytes + kBufferBytes - 1) / kBufferBytes * kBufferBytes);
    std::memcpy(buffer_.get(), before.get(), filled_);
  }

  // The end of the buffer, to be filled in place, and appended by commit(). make_room() comes first.
  [[nodiscard]] std::byte* claim() noexcept { return buffer_.get() + filled_; }
  void commit(std::size_t bytes) noexcept {
    filled_ += bytes;
    size_ += bytes;
  }

  // Writes the rest of the buffer and waits until the disk has everything.
  void finish() {
    // A write past the cache comes in whole sectors; ftruncate removes the padding.
    const std::size_t whole = (filled_ + kDirectAlignment - 1) / kDirectAlignment * kDirectAlignment;
    std::memset(buffer_.get() + filled_, 0, whole - filled_);
    flush(whole);
    if (::ftruncate(fd_, static_cast<off_t>(size_)) != 0) fail_io("cut", path_);
    if (::fsync(fd_) != 0) fail_io("sync", path_);
  }

 private:
  static constexpr std::size_t kBufferBytes = std::size_t{8} << 20;

  void take_buffer(std::size_t bytes) {
    buffer_ = allocate_aligned(bytes);
    capacity_ = bytes;
  }

  void flush(std::size_t bytes) {
    const std::byte* data = buffer_.get();
    while (bytes > 0) {
      const ssize_t written = ::write(fd_, data, bytes);
      if (written < 0 && errno == EINTR) continue;
      if (written < 0 && errno == EINVAL && stop_going_past_the_cache()) continue;
      if (written < 0) fail_io("write", path_);
      data += written;
      bytes -= static_cast<std::size_t>(written);
    }
    filled_ = 0;
  }

  // Some file systems take the flag and then refuse the write.
  bool stop_going_past_the_cache() noexcept {
#ifdef O_DIRECT
    const int flags = ::fcntl(fd_, F_GETFL);
    return flags >= 0 && (flags & O_DIRECT) != 0 && ::fcntl(fd_, F_SETFL, flags & ~O_DIRECT) == 0;
#else
    return false;
#endif
  }

  std::string path_;
  int fd_ = -1;
  AlignedBytes buffer_;
  std::size_t capacity_ = 0;
  std::size_t filled_ = 0;
  std::uint64_t size_ = 0;
};

}  // namespace engine
