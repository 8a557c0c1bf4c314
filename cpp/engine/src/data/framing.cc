#include "engine/data/framing.h"

#include <algorithm>
#include <cstring>
#include <span>
#include <utility>

#include "engine/error.h"
#include "engine/tfrecord.h"

namespace engine::data {

namespace {

constexpr std::size_t kWord = 8;

std::uint64_t load_word(const std::byte* at) noexcept {
  std::uint64_t word = 0;
  std::memcpy(&word, at, sizeof word);
  return word;
}

void append_word(std::vector<std::byte>& out, std::uint64_t word) {
  const auto* bytes = reinterpret_cast<const std::byte*>(&word);
  out.insert(out.end(), bytes, bytes + sizeof word);
}

void append_bytes(std::vector<std::byte>& out, Bytes bytes) { out.insert(out.end(), bytes.begin(), bytes.end()); }

std::string number(std::uint64_t value) { return std::to_string(value); }

// Reads words from the front of a frame and notes how many bytes it needs to continue.
class Words {
 public:
  explicit Words(Bytes bytes) : bytes_(bytes) {}

  [[nodiscard]] bool word(std::uint64_t& out) {
    if (!has(kWord)) return false;
    out = load_word(bytes_.data() + at_);
    at_ += kWord;
    return true;
  }

  [[nodiscard]] bool block(std::uint64_t size, Bytes& out) {
    if (!has(size)) return false;
    out = bytes_.subspan(at_, static_cast<std::size_t>(size));
    at_ += static_cast<std::size_t>(size);
    return true;
  }

  [[nodiscard]] std::size_t at() const noexcept { return at_; }
  [[nodiscard]] std::uint64_t needed() const noexcept { return needed_; }

 private:
  bool has(std::uint64_t size) {
    if (size <= bytes_.size() - at_) return true;
    needed_ = at_ + size;
    return false;
  }

  Bytes bytes_;
  std::size_t at_ = 0;
  std::uint64_t needed_ = 0;
};

// Fills `header` up to the size word. False when bytes are missing or `damage` is set.
bool read_words(const Framing& framing, Words& words, FrameHeader& header, std::string& damage) {
  if (framing.lagrangex_header) return words.word(header.lagrangex_word);
  std::uint64_t sort_id_bytes = 0;
  bool has_length = false;
  if (framing.kafka_dump_prefix) {
    if (!words.word(header.prefix_word)) return false;
    if (header.prefix_word == 0) {
      std::uint64_t ignored = 0;
      if (!words.word(ignored)) return false;
    } else if (!framing.sort_id) {
      damage =
          "the prefix word is " + number(header.prefix_word) +
          ", the length of a sort id on an aggregate page; set sort_id=True to read such pages, or check the flags";
      return false;
    } else {
      sort_id_bytes = header.prefix_word;
      has_length = true;
    }
  }
  if (framing.sort_id) {
    if (!has_length && !words.word(sort_id_bytes)) return false;
    if (sort_id_bytes > kMaxSortIdBytes) {
      damage = "a sort id of " + number(sort_id_bytes) + " bytes is above the limit of " + number(kMaxSortIdBytes) +
               "; check the framing flags";
      return false;
    }
    if (!words.block(sort_id_bytes, header.sort_id)) return false;
  }
  return !framing.kafka_dump || words.word(header.skipped_word);
}

HeaderScan scan_tfrecord(Bytes bytes) {
  HeaderScan scan;
  scan.needed_bytes = kRecordHeaderBytes;
  if (bytes.size() < kRecordHeaderBytes) return scan;
  // The scanner checks the length before it finds the payload missing.
  RecordScanner scanner(bytes.first(kRecordHeaderBytes), 0, "");
  Bytes none;
  try {
    if (scanner.next(none)) return scan;
  } catch (const RecordCorrupt& error) {
    scan.damage = std::string(error.what()).substr(std::strlen(": record at byte 0: "));
    return scan;
  }
  FrameHeader header;
  header.bytes = kRecordHeaderBytes;
  header.payload_size = load_word(bytes.data());
  header.footer_bytes = kRecordFooterBytes;
  scan.header = header;
  return scan;
}

}  // namespace

Framing Framing::of(std::uint32_t bits) {
  if (bits >= 2 * kBare || (bits & (kTfRecord | kBare)) == (kTfRecord | kBare)) {
    throw ConfigError("framing " + number(bits) +
                      " is not possible; give flags 0 to 15, 16 for TFRecord or 32 for none");
  }
  Framing framing;
  if ((bits & kTfRecord) != 0) framing.kind = Kind::kTfRecord;
  if ((bits & kBare) != 0) framing.kind = Kind::kBare;
  framing.sort_id = (bits & kSortId) != 0;
  framing.kafka_dump = (bits & kKafkaDump) != 0;
  framing.kafka_dump_prefix = (bits & kKafkaDumpPrefix) != 0;
  framing.lagrangex_header = (bits & kLagrangexHeader) != 0;
  return framing;
}

HeaderScan scan_header(const Framing& framing, Bytes bytes) {
  if (framing.kind == Framing::Kind::kTfRecord) return scan_tfrecord(bytes);
  HeaderScan scan;
  FrameHeader header;
  if (framing.kind == Framing::Kind::kBare) {
    scan.header = header;
    return scan;
  }
  Words words(bytes);
  if (!read_words(framing, words, header, scan.damage) || !words.word(header.payload_size)) {
    scan.needed_bytes = words.needed();
    return scan;
  }
  if (header.payload_size == kReservedSize) {
    scan.damage = "the size word is 0xfefefefe, a reserved value; check the framing flags";
    return scan;
  }
  if (header.payload_size > kMaxFrameBytes) {
    scan.damage = "a record of " + number(header.payload_size) + " bytes is above the limit of " +
                  number(kMaxFrameBytes) + "; check the framing flags";
    return scan;
  }
  header.bytes = words.at();
  scan.header = header;
  scan.needed_bytes = header.bytes + header.payload_size;
  return scan;
}

void append_frame(std::vector<std::byte>& out, const Framing& framing, Bytes payload, Bytes sort_id,
                  std::uint32_t source_key) {
  const bool has_flags = framing.kind == Framing::Kind::kFlags;
  if (payload.size() > kMaxFrameBytes || payload.size() == kReservedSize) {
    throw ConfigError("a record of " + number(payload.size()) + " bytes is above the limit of " +
                      number(kMaxFrameBytes) + "; make it smaller");
  }
  if (!sort_id.empty() && (!has_flags || framing.lagrangex_header || !framing.sort_id)) {
    throw ConfigError("this framing has no place for a sort id; set sort_id=True, or give none");
  }
  if (sort_id.size() > kMaxSortIdBytes) {
    throw ConfigError("a sort id of " + number(sort_id.size()) + " bytes is above the limit of " +
                      number(kMaxSortIdBytes) + "; give a shorter one");
  }
  if (source_key != 0 && (!has_flags || !framing.lagrangex_header)) {
    throw ConfigError("this framing has no place for a data source; set lagrangex_header=True, or give none");
  }
  if ((source_key & 0xffU) != 0) {
    throw ConfigError("data source key " + number(source_key) +
                      " does not end in a zero byte; it is a hash shifted by 8");
  }
  if (framing.kind == Framing::Kind::kTfRecord) return append_record(out, payload);
  if (framing.kind == Framing::Kind::kBare) return append_bytes(out, payload);
  if (framing.lagrangex_header) {
    append_word(out, source_key);
  } else {
    if (framing.kafka_dump_prefix) append_word(out, 0), append_word(out, 0);
    if (framing.sort_id) append_word(out, sort_id.size()), append_bytes(out, sort_id);
    if (framing.kafka_dump) append_word(out, 0);
  }
  append_word(out, payload.size());
  append_bytes(out, payload);
}

FrameReader::FrameReader(const Framing& framing, std::string source, std::uint64_t offset, std::uint64_t record)
    : framing_(framing), source_(std::move(source)), offset_(offset), record_(record) {}

Bytes FrameReader::rest() const noexcept {
  if (buffer_ == nullptr) return {};
  return {buffer_->data() + begin_, filled_ - begin_};
}

void FrameReader::feed(Bytes piece) {
  if (is_ended_) throw ConfigError(source_ + ": a piece came after the end of the stream; make a new reader");
  if (piece.empty()) return;
  const Bytes left = rest();
  if (buffer_ == nullptr || piece.size() > buffer_->size() - filled_) {
    std::size_t size = left.size() + piece.size();
    // Room for the rest of a long record, but never more than as much again as has really come.
    const std::uint64_t wanted = framing_.kind == Framing::Kind::kBare ? kMaxFrameBytes : found_end() + needed_bytes_;
    if (!left.empty() && wanted > size) size = static_cast<std::size_t>(std::min<std::uint64_t>(wanted, 2 * size));
    auto next = Buffer::take(size);
    if (!left.empty()) std::memcpy(next->data(), left.data(), left.size());
    buffer_ = std::move(next);
    begin_ = 0;
    filled_ = left.size();
  }
  std::memcpy(buffer_->data() + filled_, piece.data(), piece.size());
  filled_ += piece.size();
}

std::optional<Records> FrameReader::take(std::size_t most_records, std::size_t most_bytes, bool allow_short) {
  most_records = std::max<std::size_t>(most_records, 1);
  std::uint64_t bytes = 0;
  std::size_t count = 0;
  const auto fits = [&](std::uint64_t size) { return count == 0 || bytes + size <= most_bytes; };
  bool is_full = false;
  while (!is_full) {
    if (count == found_.size()) {
      bool is_here = false;
      try {
        is_here = find();
      } catch (const RecordCorrupt&) {
        // The records before the damage go out first; the next call meets the damage again.
        if (count == 0) throw;
        is_full = true;
        break;
      }
      if (!is_here) {
        is_full = needed_bytes_ > 0 && unfinished_size_ > 0 && !fits(unfinished_size_);
        break;
      }
    }
    if (!fits(found_[count].size)) break;
    bytes += found_[count].size;
    is_full = ++count == most_records;
  }
  if (count < found_.size()) is_full = true;
  if (count == 0) {
    if (is_ended_ && !rest().empty()) fail_unfinished();
    return std::nullopt;
  }
  if (!is_full && !allow_short && !is_ended_) return std::nullopt;
  return give(count);
}

void FrameReader::finish() {
  is_ended_ = true;
  if (found_.empty() && !find() && !rest().empty()) fail_unfinished();
}

bool FrameReader::find() {
  const Bytes bytes = rest().subspan(found_end());
  needed_bytes_ = 0;
  unfinished_size_ = 0;
  if (bytes.empty()) return false;
  switch (framing_.kind) {
    case Framing::Kind::kTfRecord:
      return find_tfrecord(bytes);
    case Framing::Kind::kBare:
      return find_bare(bytes);
    case Framing::Kind::kFlags:
      break;
  }
  return find_flagged(bytes);
}

bool FrameReader::find_flagged(Bytes bytes) {
  const HeaderScan scan = scan_header(framing_, bytes);
  if (!scan.damage.empty()) fail(scan.damage);
  needed_bytes_ = scan.needed_bytes;
  if (!scan.header.has_value()) return false;
  unfinished_size_ = scan.header->payload_size;
  if (bytes.size() < scan.needed_bytes) return false;
  if (!has_seen_one_) {
    has_seen_one_ = true;
    first_sort_id_.assign(scan.header->sort_id.begin(), scan.header->sort_id.end());
  }
  const std::size_t begin = found_end() + scan.header->bytes;
  const auto size = static_cast<std::uint32_t>(scan.header->payload_size);
  found_.push_back({begin, size, scan.header->source_key(), begin + size});
  return true;
}

bool FrameReader::find_tfrecord(Bytes bytes) {
  RecordScanner scanner(bytes, offset_ + found_end(), source_);
  Bytes record;
  bool is_here = false;
  try {
    is_here = scanner.next(record);
  } catch (const RecordCorrupt& error) {
    // The scanner knows the place, not the number of the record.
    const std::string text = error.what();
    throw RecordCorrupt(source_ + ": record " + number(record_ + found_.size()) +
                        text.substr(source_.size() + std::strlen(": record")));
  }
  if (!is_here) {
    needed_bytes_ = kRecordHeaderBytes;
    if (bytes.size() >= kRecordHeaderBytes) {
      unfinished_size_ = load_word(bytes.data());
      needed_bytes_ += unfinished_size_ + kRecordFooterBytes;
    }
    return false;
  }
  const std::size_t begin = found_end() + kRecordHeaderBytes;
  found_.push_back({begin, static_cast<std::uint32_t>(record.size()), 0, found_end() + scanner.consumed()});
  return true;
}

bool FrameReader::find_bare(Bytes bytes) {
  if (bytes.size() > kMaxFrameBytes) {
    fail("more than " + number(kMaxFrameBytes) + " bytes without framing are no record; check the framing");
  }
  if (!is_ended_) return false;
  found_.push_back({found_end(), static_cast<std::uint32_t>(bytes.size()), 0, found_end() + bytes.size()});
  return true;
}

Records FrameReader::give(std::size_t count) {
  Records records;
  records.source = source_;
  records.buffer = buffer_;
  records.entries.reserve(count);
  for (std::size_t i = 0; i < count; ++i) {
    const Found& found = found_[i];
    records.entries.push_back({begin_ + found.begin, found.size, found.source_key, offset_ + found.begin});
  }
  const std::size_t end = found_[count - 1].end;
  found_.erase(found_.begin(), found_.begin() + static_cast<std::ptrdiff_t>(count));
  for (Found& found : found_) found.begin -= end, found.end -= end;
  begin_ += end;
  offset_ += end;
  record_ += count;
  // The records keep the buffer; this reader needs it only for the rest.
  if (begin_ == filled_) buffer_.reset(), begin_ = filled_ = 0;
  return records;
}

void FrameReader::fail(const std::string& reason) const {
  throw RecordCorrupt(source_ + ": record " + number(record_ + found_.size()) + " at byte " +
                      number(offset_ + found_end()) + ": " + reason);
}

void FrameReader::fail_unfinished() const {
  const std::size_t left = rest().size() - found_end();
  fail("the stream ends inside a record, " + number(left) + " bytes after its start; it needs at least " +
       number(needed_bytes_) + "; the file is cut short, or the framing flags are wrong");
}

}  // namespace engine::data
