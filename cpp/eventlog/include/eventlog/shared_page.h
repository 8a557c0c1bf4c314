// shared_page.h: pages of memory that the processes of a topic share: HEAD of a partition, WAKE of a topic.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>

namespace eventlog {

// A file descriptor that closes with its owner.
class Descriptor {
 public:
  Descriptor() = default;
  explicit Descriptor(int fd) noexcept : fd_(fd) {}
  Descriptor(Descriptor&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~Descriptor();

  [[nodiscard]] int fd() const noexcept { return fd_; }
  [[nodiscard]] bool is_open() const noexcept { return fd_ >= 0; }

 private:
  int fd_ = -1;
};

// An exclusive flock that ends with its owner. It belongs to the open file: threads need a mutex beside it.
class FileLock {
 public:
  FileLock(const Descriptor& file, const std::string& path);
  ~FileLock();
  FileLock(const FileLock&) = delete;
  FileLock& operator=(const FileLock&) = delete;

 private:
  int fd_;
};

// Where the tail of a partition is. A cache: recovery rebuilds it. The fields after `owners_version` are hints for
// writers.
struct Head {
  char magic[8];
  std::atomic<std::uint64_t> boot;
  std::atomic<std::uint64_t> active_base;
  std::atomic<std::uint64_t> written_end;
  std::atomic<std::uint64_t> written_bytes;
  std::atomic<std::uint64_t> durable_end;
  std::atomic<std::uint64_t> first;
  std::atomic<std::uint64_t> epoch;
  std::atomic<std::int64_t> largest_ms;
  std::atomic<std::int64_t> append_ms;
  std::atomic<std::uint32_t> dirty;
  std::atomic<std::uint32_t> failed;
  std::atomic<std::uint64_t> owners_version;
  std::atomic<std::uint64_t> index_bytes;
  std::atomic<std::uint64_t> indexed_position;   // of the last index entry
  std::atomic<std::int64_t> segment_largest_ms;  // of the active segment
  std::atomic<std::int64_t> segment_created_ms;
  std::atomic<std::uint64_t> recoveries;  // a recovery may replace files that a process holds open
};
static_assert(offsetof(Head, written_end) == 24 && offsetof(Head, largest_ms) == 64);
static_assert(offsetof(Head, dirty) == 80 && offsetof(Head, owners_version) == 88);

// The first page of a file, mapped for reading and writing.
class SharedPage {
 public:
  static constexpr std::size_t kBytes = 4096;

  // Creates the file where it is absent. Throws engine::IoError.
  explicit SharedPage(const std::string& path);
  ~SharedPage();
  SharedPage(const SharedPage&) = delete;
  SharedPage& operator=(const SharedPage&) = delete;

  [[nodiscard]] void* data() const noexcept { return data_; }
  [[nodiscard]] const Descriptor& file() const noexcept { return file_; }
  // True if the file was deleted, so that new processes map another one.
  [[nodiscard]] bool is_unlinked() const noexcept;

 private:
  Descriptor file_;
  void* data_ = nullptr;
};

// The futex word of a topic: every commit changes it. Concurrent.
class Wake {
 public:
  explicit Wake(const std::string& path) : page_(path) {}

  [[nodiscard]] std::uint32_t value() const noexcept { return word().load(std::memory_order_acquire); }
  // Changes the word and wakes all waiting readers.
  void notify() noexcept;
  // Returns when the word differs from `seen`, after `most_ms`, or without a reason.
  void wait(std::uint32_t seen, std::int64_t most_ms) const noexcept;

 private:
  [[nodiscard]] std::atomic<std::uint32_t>& word() const noexcept {
    return *static_cast<std::atomic<std::uint32_t>*>(page_.data());
  }

  SharedPage page_;
};

// A hash of the kernel's boot id. Bytes of an earlier boot may be lost, so HEAD of another boot counts for nothing.
[[nodiscard]] std::uint64_t boot_hash();

}  // namespace eventlog
