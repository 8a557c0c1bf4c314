// tfrecord.h: TFRecord framing over memory: append records, and scan a stream that arrives in pieces.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace engine {

// A record: length (u64), masked CRC of the length (u32), payload, masked CRC of the payload (u32).
inline constexpr std::size_t kRecordHeaderBytes = 12;
inline constexpr std::size_t kRecordFooterBytes = 4;
// No record of ours or of the original comes near; a larger length is damage that kept its checksum, or malice.
inline constexpr std::uint64_t kMaxRecordBytes = std::uint64_t{1} << 30;

// Appends one framed record. Exclusive on `out`.
void append_record(std::vector<std::byte>& out, std::span<const std::byte> payload);

// For payloads written in place: reserves the header and returns its offset in `out`; `finish_record` frames
// everything appended since.
[[nodiscard]] std::size_t begin_record(std::vector<std::byte>& out);
void finish_record(std::vector<std::byte>& out, std::size_t begin);

// Walks the complete records of one piece of a stream. Exclusive. Keeps views, so the bytes must outlive it.
class RecordScanner {
 public:
  // `base_offset` is where `bytes` begin in the stream, `source` its name in errors.
  RecordScanner(std::span<const std::byte> bytes, std::uint64_t base_offset, std::string source);

  // Gives the next record, or false when the rest is not a complete one. Throws RecordCorrupt.
  [[nodiscard]] bool next(std::span<const std::byte>& record);
  // Bytes of complete records given so far: the caller keeps the rest and appends to it.
  [[nodiscard]] std::size_t consumed() const noexcept { return consumed_; }
  // To be called at the end of the stream: throws RecordCorrupt when bytes are left over.
  void finish() const;
  // Throws RecordCorrupt about the record given last, with its place in the stream.
  [[noreturn]] void fail(const std::string& reason) const;

 private:
  [[noreturn]] void fail_at(std::uint64_t offset, const std::string& reason) const;

  std::span<const std::byte> bytes_;
  std::uint64_t base_offset_;
  std::string source_;
  std::size_t consumed_ = 0;
  std::size_t last_ = 0;
};

}  // namespace engine
