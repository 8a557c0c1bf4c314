#include "engine/tfrecord.h"

#include <cstring>
#include <utility>

#include "engine/crc32c.h"
#include "engine/error.h"

namespace engine {
namespace {

template <typename Word>
Word load(const std::byte* bytes) noexcept {
  Word word{};
  std::memcpy(&word, bytes, sizeof word);
  return word;
}

template <typename Word>
void store(std::byte* bytes, Word word) noexcept {
  std::memcpy(bytes, &word, sizeof word);
}

}  // namespace

std::size_t begin_record(std::vector<std::byte>& out) {
  const std::size_t begin = out.size();
  out.resize(begin + kRecordHeaderBytes);
  return begin;
}

void finish_record(std::vector<std::byte>& out, std::size_t begin) {
  const std::size_t end = out.size();
  out.resize(end + kRecordFooterBytes);
  std::byte* header = out.data() + begin;
  const std::uint64_t length = end - begin - kRecordHeaderBytes;
  store(header, length);
  store(header + sizeof length, masked_crc32c(header, sizeof length));
  store(out.data() + end, masked_crc32c(header + kRecordHeaderBytes, length));
}

void append_record(std::vector<std::byte>& out, std::span<const std::byte> payload) {
  const std::size_t begin = begin_record(out);
  out.insert(out.end(), payload.begin(), payload.end());
  finish_record(out, begin);
}

RecordScanner::RecordScanner(std::span<const std::byte> bytes, std::uint64_t base_offset, std::string source)
    : bytes_(bytes), base_offset_(base_offset), source_(std::move(source)) {}

bool RecordScanner::next(std::span<const std::byte>& record) {
  const std::size_t left = bytes_.size() - consumed_;
  if (left < kRecordHeaderBytes) return false;
  const std::byte* header = bytes_.data() + consumed_;
  const auto length = load<std::uint64_t>(header);
  if (load<std::uint32_t>(header + sizeof length) != masked_crc32c(header, sizeof length)) {
    fail_at(consumed_, "the checksum of the record length does not match");
  }
  if (length > kMaxRecordBytes) {
    fail_at(consumed_,
            "record length " + std::to_string(length) + " is above the limit of " + std::to_string(kMaxRecordBytes));
  }
  if (left - kRecordHeaderBytes < length + kRecordFooterBytes) return false;
  const std::byte* payload = header + kRecordHeaderBytes;
  if (load<std::uint32_t>(payload + length) != masked_crc32c(payload, length)) {
    fail_at(consumed_, "the checksum of the record's " + std::to_string(length) + " bytes does not match");
  }
  last_ = consumed_;
  consumed_ += kRecordHeaderBytes + length + kRecordFooterBytes;
  record = {payload, static_cast<std::size_t>(length)};
  return true;
}

void RecordScanner::finish() const {
  const std::size_t left = bytes_.size() - consumed_;
  if (left == 0) return;
  std::string reason = "the stream ends inside a record, " + std::to_string(left) + " bytes after its start";
  if (left >= kRecordHeaderBytes) {
    const auto length = load<std::uint64_t>(bytes_.data() + consumed_);
    reason += "; it needs " + std::to_string(kRecordHeaderBytes + length + kRecordFooterBytes);
  }
  fail_at(consumed_, reason);
}

void RecordScanner::fail(const std::string& reason) const { fail_at(last_, reason); }

void RecordScanner::fail_at(std::uint64_t offset, const std::string& reason) const {
  throw RecordCorrupt(source_ + ": record at byte " + std::to_string(base_offset_ + offset) + ": " + reason);
}

}  // namespace engine
