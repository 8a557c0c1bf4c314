// snapshot.cc: the state of a core as a file.
//
// Magic, watermark, counters, feature heads, entries, CRC32C of all bytes before it. Little-endian; varints where
// marked by put_varint. Restoring an entry sets its timers, so the file holds none.
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <limits>
#include <string>

#include "core_state.h"
#include "engine/crc32c.h"
#include "engine/error.h"
#include "joiner/core.h"
#include "joiner/hashes.h"
#include "wire.h"

namespace joiner {

namespace {

constexpr std::string_view kMagic = "MJOIN001";
constexpr std::size_t kBlock = 1 << 20;
constexpr std::uint32_t kSpillEntries = 1 << 16;

class Writer {
 public:
  explicit Writer(const std::string& path)
      : path_(path), descriptor_(::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600)) {
    if (descriptor_ < 0) throw engine::IoError("open", path_, errno);
  }
  ~Writer() { ::close(descriptor_); }
  Writer(const Writer&) = delete;
  Writer& operator=(const Writer&) = delete;

  std::string& out() {
    if (buffer_.size() >= kBlock) flush();
    return buffer_;
  }

  void finish() {
    flush();
    put_fixed(buffer_, crc_);
    flush();
    if (::fsync(descriptor_) != 0) throw engine::IoError("sync", path_, errno);
  }

 private:
  void flush() {
    crc_ = engine::crc32c(crc_, buffer_.data(), buffer_.size());
    const char* at = buffer_.data();
    std::size_t left = buffer_.size();
    while (left > 0) {
      const auto count = ::write(descriptor_, at, left);
      if (count < 0 && errno == EINTR) continue;
      if (count <= 0) throw engine::IoError("write", path_, count == 0 ? ENOSPC : errno);
      at += count;
      left -= static_cast<std::size_t>(count);
    }
    buffer_.clear();
  }

  std::string path_;
  int descriptor_;
  std::string buffer_;
  std::uint32_t crc_ = 0;
};

// Reads a file block by block. The caller checks the CRC first.
class Reader {
 public:
  explicit Reader(const std::string& path) : path_(path), descriptor_(::open(path.c_str(), O_RDONLY | O_CLOEXEC)) {
    if (descriptor_ < 0) throw engine::IoError("open", path_, errno);
    struct stat status{};
    if (::fstat(descriptor_, &status) != 0) throw engine::IoError("stat", path_, errno);
    size_ = static_cast<std::uint64_t>(status.st_size);
    check();
  }
  ~Reader() { ::close(descriptor_); }
  Reader(const Reader&) = delete;
  Reader& operator=(const Reader&) = delete;

  template <class Number>
  Number number() {
    Number value{};
    std::memcpy(&value, take(sizeof value).data(), sizeof value);
    return value;
  }

  std::uint64_t varint() {
    std::uint64_t value = 0;
    for (int shift = 0; shift < 64; shift += 7) {
      const auto byte = number<std::uint8_t>();
      value |= static_cast<std::uint64_t>(byte & 0x7F) << shift;
      if (byte < 0x80) return value;
    }
    fail("a number is too long");
  }

  std::string_view bytes() { return take(varint()); }

  // Returns the next bytes, which stay valid until the next call.
  std::string_view take(std::uint64_t count) {
    if (count > left_ + (buffer_.size() - at_)) fail("it ends early");
    if (buffer_.size() - at_ < count) {
      buffer_.erase(0, at_);
      at_ = 0;
      const std::size_t have = buffer_.size();
      const std::size_t more = std::min<std::uint64_t>(left_, std::max<std::uint64_t>(kBlock, count - have));
      buffer_.resize(have + more);
      read(buffer_.data() + have, more);
      left_ -= more;
    }
    const std::string_view taken{buffer_.data() + at_, static_cast<std::size_t>(count)};
    at_ += count;
    return taken;
  }

  [[nodiscard]] bool is_at_end() const { return left_ == 0 && at_ == buffer_.size(); }

  [[noreturn]] void fail(const std::string& reason) const {
    throw engine::SnapshotCorrupt("'" + path_ + "' is corrupt: " + reason + "; use an older snapshot");
  }

 private:
  void check() {
    if (size_ < kMagic.size() + sizeof(std::uint32_t)) fail("it is too short");
    std::string block(kBlock, '\0');
    std::uint32_t crc = 0;
    std::uint64_t left = size_ - sizeof crc;
    while (left > 0) {
      const auto count = static_cast<std::size_t>(std::min<std::uint64_t>(left, kBlock));
      read(block.data(), count);
      crc = engine::crc32c(crc, block.data(), count);
      left -= count;
    }
    std::uint32_t stored = 0;
    read(reinterpret_cast<char*>(&stored), sizeof stored);
    if (stored != crc) fail("its checksum does not match");
    if (::lseek(descriptor_, 0, SEEK_SET) != 0) throw engine::IoError("seek", path_, errno);
    left_ = size_ - sizeof crc;
  }

  void read(char* to, std::size_t count) {
    while (count > 0) {
      const auto got = ::read(descriptor_, to, count);
      if (got < 0 && errno == EINTR) continue;
      if (got < 0) throw engine::IoError("read", path_, errno);
      if (got == 0) fail("it ends early");
      to += got;
      count -= static_cast<std::size_t>(got);
    }
  }

  std::string path_;
  int descriptor_;
  std::uint64_t size_ = 0;
  std::uint64_t left_ = 0;
  std::string buffer_;
  std::size_t at_ = 0;
};

void put_code_times(std::string& out, const std::vector<CodeTime>& codes) {
  put_varint(out, codes.size());
  for (const CodeTime& each : codes) {
    put_fixed(out, each.time);
    put_fixed(out, each.code);
  }
}

std::vector<CodeTime> read_code_times(Reader& reader) {
  std::vector<CodeTime> codes;
  for (std::uint64_t left = reader.varint(); left > 0; --left) {
    const auto time = reader.number<std::int64_t>();
    codes.push_back({time, reader.number<std::int32_t>()});
  }
  return codes;
}

}  // namespace

void Core::save(const std::string& path) const {
  Writer writer(path);
  std::string& head = writer.out();
  head.append(kMagic);
  head.push_back(watermark_ ? '\1' : '\0');
  put_fixed(head, watermark_.value_or(0));
  head.append(reinterpret_cast<const char*>(&counters_), sizeof counters_);
  put_varint(head, packer_.heads().size());
  for (const auto& each : packer_.heads()) {
    std::string& out = writer.out();
    put_varint(out, each.bytes.size());
    out.append(each.bytes);
    put_varint(out, each.values_size);
  }
  put_varint(writer.out(), live_);
  std::string scratch;
  for (std::uint32_t place = 0; place < state_->slab.size(); ++place) {
    const Entry& entry = state_->slab[place];
    if (!entry.is(kLive)) continue;
    std::string& out = writer.out();
    out.push_back(static_cast<char>(entry.flags & ~static_cast<std::uint32_t>(kSpilled)));
    put_fixed(out, entry.item);
    put_fixed(out, entry.time);
    const std::string_view body = state_->body_of(entry, scratch);
    put_varint(out, body.size());
    out.append(body);
    out.push_back(entry.extra != nullptr ? '\1' : '\0');
    if (entry.extra == nullptr) continue;
    put_code_times(out, entry.extra->codes);
    put_code_times(out, entry.extra->after);
    put_code_times(out, entry.extra->held);
    put_varint(out, entry.extra->emitted.size());
    for (const std::int32_t code : entry.extra->emitted) put_fixed(out, code);
    put_varint(out, entry.extra->emission);
  }
  writer.finish();
}

void Core::restore(const std::string& path, std::size_t memory_bytes) {
  if (live_ > 0 || watermark_) throw engine::ConfigError("the joiner has state, expected a new one; make a new joiner");
  Reader reader(path);
  if (reader.take(kMagic.size()) != kMagic) reader.fail("it is not a snapshot of a joiner");
  const auto has_watermark = reader.number<std::uint8_t>();
  const auto watermark = reader.number<std::int64_t>();
  if (has_watermark != 0) watermark_ = watermark;
  counters_ = reader.number<Counters>();
  for (std::uint64_t left = reader.varint(); left > 0; --left) {
    const std::string head(reader.bytes());
    packer_.add_head(head, static_cast<std::uint32_t>(reader.varint()));
  }
  std::uint64_t left = reader.varint();
  for (std::uint64_t number = 1; left > 0; --left, ++number) {
    const auto flags = reader.number<std::uint8_t>();
    const auto item = reader.number<std::uint64_t>();
    const auto time = reader.number<std::int64_t>();
    const std::string body(reader.bytes());
    if (!Body(body).is_whole() || (flags & kLive) == 0) reader.fail("an entry has no key");
    const auto [entry, place] = state_->take_slot();
    entry.item = item;
    entry.time = time;
    entry.hash = static_cast<std::uint32_t>(mix(identity_hash(Body(body).key(), item)));
    entry.flags = flags;
    state_->set_body(entry, body);
    state_->table.add(*state_, place);
    ++live_;
    if (reader.number<std::uint8_t>() != 0) {
      Extra& extra = entry.make_extra();
      extra.codes = read_code_times(reader);
      extra.after = read_code_times(reader);
      extra.held = read_code_times(reader);
      for (std::uint64_t codes = reader.varint(); codes > 0; --codes) {
        extra.emitted.push_back(reader.number<std::int32_t>());
      }
      extra.emission = static_cast<std::uint32_t>(reader.varint());
      ++extras_;
      code_times_ += extra.codes.size() + extra.after.size() + extra.held.size();
      held_ += extra.held.size();
      if (!extra.held.empty()) {
        ++held_entries_;
        state_->holds.add({extra.held.front().time + settings_.orphan_hold, state_->ref(place)}, HoldOrder{*state_});
      }
    }
    if (entry.is(kImpression)) {
      const std::int64_t close_time = time + settings_.window;
      if (entry.is(kClosed)) {
        state_->expiries.add({close_time + settings_.horizon, state_->ref(place)}, DueOrder{});
      } else {
        ++open_;
        if (!settings_.is_fast) judge_again(entry, time);  // the window may have another size now
        state_->closes.add({close_time, state_->ref(place)}, CloseOrder{*state_});
      }
    }
    if (number % kSpillEntries == 0) spill(memory_bytes);
  }
  if (!reader.is_at_end()) reader.fail("bytes follow its end");
}

}  // namespace joiner
