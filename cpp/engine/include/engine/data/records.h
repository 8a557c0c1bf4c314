// records.h: raw records in memory: one shared buffer and where each record lies in it. Knows no format. Rows of a
// table are one record, which is cells instead of a message.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace engine::data {

using Bytes = std::span<const std::byte>;

// Memory that comes from a process-wide pool and returns to it: steady work allocates nothing. Exclusive while written,
// concurrent once it is shared as const.
class Buffer {
 public:
  ~Buffer();
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;

  // A buffer of `size` bytes, their content undefined. Concurrent.
  [[nodiscard]] static std::shared_ptr<Buffer> take(std::size_t size);
  // Bytes that the pool holds for reuse. Concurrent.
  [[nodiscard]] static std::size_t pooled_bytes() noexcept;

  [[nodiscard]] std::byte* data() noexcept { return data_; }
  [[nodiscard]] const std::byte* data() const noexcept { return data_; }
  [[nodiscard]] std::size_t size() const noexcept { return size_; }

 private:
  Buffer(std::byte* data, std::size_t size, std::size_t capacity) : data_(data), size_(size), capacity_(capacity) {}

  std::byte* data_;
  std::size_t size_;
  std::size_t capacity_;
};

struct CellTable;

// Some records of one stream, in order. Immutable once filled.
struct Records {
  struct Entry {
    std::uint64_t begin;          // in `buffer`
    std::uint32_t size;           // payload bytes
    std::uint32_t source_key;     // the data source of a lagrangex header, 0 without one
    std::uint64_t stream_offset;  // where the payload begins in the stream, for errors and for resuming
  };

  std::string source;  // name of the stream in errors
  std::shared_ptr<const Buffer> buffer;
  std::vector<Entry> entries;
  // The one record as cells, which point into `buffer`; null = records are messages. See `to_messages`.
  std::shared_ptr<const CellTable> table;

  [[nodiscard]] std::size_t size() const noexcept { return entries.size(); }
  [[nodiscard]] Bytes operator[](std::size_t index) const noexcept {
    return {buffer->data() + entries[index].begin, entries[index].size};
  }
};

}  // namespace engine::data
