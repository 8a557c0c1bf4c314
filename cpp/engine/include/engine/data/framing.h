// framing.h: how records are set apart in a stream: find them in pieces that arrive, and write them. Knows no message.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/data/records.h"

namespace engine::data {

// No record comes near; a larger size is damage, or wrong flags.
inline constexpr std::uint64_t kMaxFrameBytes = std::uint64_t{1} << 30;
// Sort ids are keys such as a user id.
inline constexpr std::uint64_t kMaxSortIdBytes = std::uint64_t{1} << 20;
// A size that no record may have.
inline constexpr std::uint64_t kReservedSize = 0xfefefefe;

// Header before each payload. With flags, in this order, every word 8 bytes little-endian:
//   lagrangex_header (then the other three mean nothing):  [lgx]                            [size] payload
//   otherwise:                             [prefix] [sort id length, sort id] [skipped word] [size] payload
struct Framing {
  enum class Kind : std::uint8_t {
    kFlags,     // the words above
    kTfRecord,  // length, checksum, payload, checksum
    kBare,      // nothing: the whole stream is one record
  };
  // Bits of the number by which bindings name a framing.
  static constexpr std::uint32_t kSortId = 1, kKafkaDump = 2, kKafkaDumpPrefix = 4, kLagrangexHeader = 8,
                                 kTfRecord = 16, kBare = 32;

  Kind kind = Kind::kFlags;
  bool sort_id = false;
  bool kafka_dump = false;
  bool kafka_dump_prefix = false;
  bool lagrangex_header = false;

  // Throws ConfigError for bits that name no framing.
  [[nodiscard]] static Framing of(std::uint32_t bits);
};

// Fields of one frame besides its payload.
struct FrameHeader {
  std::size_t bytes = 0;           // before the payload
  std::uint64_t payload_size = 0;  //
  std::size_t footer_bytes = 0;    // after the payload
  std::uint64_t lagrangex_word = 0;
  std::uint64_t prefix_word = 0;
  std::uint64_t skipped_word = 0;
  Bytes sort_id;

  // The data source of a lagrangex header; its low byte names the message and is ignored.
  [[nodiscard]] std::uint32_t source_key() const noexcept {
    return static_cast<std::uint32_t>(lagrangex_word) & 0xffffff00U;
  }
};

// Bytes that a stream beginning with `bytes` needs before its first header can be read, and the header once it can.
// `damage` tells why the header is invalid. kBare has no header.
struct HeaderScan {
  std::optional<FrameHeader> header;
  std::uint64_t needed_bytes = 0;  // at least, from the start of the frame
  std::string damage;
};
[[nodiscard]] HeaderScan scan_header(const Framing& framing, Bytes bytes);

// Appends one frame. Throws ConfigError when the framing has no place for a given field. Exclusive on `out`.
void append_frame(std::vector<std::byte>& out, const Framing& framing, Bytes payload, Bytes sort_id = {},
                  std::uint32_t source_key = 0);

// The records of one stream, from pieces as they come. Each piece is copied once, into a pooled buffer that the records
// given out share; only untaken bytes move on to the next buffer. Exclusive.
class FrameReader {
 public:
  // `source` names the stream in errors; `offset` and `record` are where in it the first piece begins.
  FrameReader(const Framing& framing, std::string source, std::uint64_t offset = 0, std::uint64_t record = 0);

  // Adds the next piece of the stream.
  void feed(Bytes piece);
  // Gives the next lot: as many records as fit both limits, at least one. Nothing when the bytes here do not make a
  // full lot and more may come; with `allow_short`, only when there is no complete record. So the lots of a stream are
  // the same however it is cut into pieces. Throws RecordCorrupt, after all good records before the bad one were given.
  [[nodiscard]] std::optional<Records> take(std::size_t most_records, std::size_t most_bytes, bool allow_short);
  // Ends the stream. Throws RecordCorrupt when the rest is an unfinished record.
  void finish();

  // Where the stream stands after the records taken, and how many there were from its start.
  [[nodiscard]] std::uint64_t offset() const noexcept { return offset_; }
  [[nodiscard]] std::uint64_t records() const noexcept { return record_; }
  [[nodiscard]] const std::string& source() const noexcept { return source_; }
  // The sort id of the first record that was seen: when it looks like a record itself, the flags are wrong.
  [[nodiscard]] Bytes first_sort_id() const noexcept { return first_sort_id_; }

 private:
  struct Found {
    std::size_t begin;  // of the payload, from the start of the rest
    std::uint32_t size;
    std::uint32_t source_key;
    std::size_t end;  // of the frame
  };

  // Bytes not taken yet.
  [[nodiscard]] Bytes rest() const noexcept;
  // Finds one more record behind those found. False when it is incomplete; `needed_bytes_` is then its size.
  [[nodiscard]] bool find();
  [[nodiscard]] bool find_flagged(Bytes bytes);
  [[nodiscard]] bool find_tfrecord(Bytes bytes);
  [[nodiscard]] bool find_bare(Bytes bytes);
  [[nodiscard]] std::size_t found_end() const noexcept { return found_.empty() ? 0 : found_.back().end; }
  [[nodiscard]] Records give(std::size_t count);
  [[noreturn]] void fail(const std::string& reason) const;
  [[noreturn]] void fail_unfinished() const;

  Framing framing_;
  std::string source_;
  std::uint64_t offset_;
  std::uint64_t record_;
  std::shared_ptr<Buffer> buffer_;
  std::size_t begin_ = 0;   // of the rest, in buffer_
  std::size_t filled_ = 0;  // end of the rest
  std::vector<Found> found_;
  std::uint64_t needed_bytes_ = 0;     // of the unfinished record, from its start, as far as known
  std::uint64_t unfinished_size_ = 0;  // its payload, when known
  std::vector<std::byte> first_sort_id_;
  bool has_seen_one_ = false;
  bool is_ended_ = false;
};

}  // namespace engine::data
