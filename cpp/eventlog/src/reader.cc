// reader.cc: reads partitions in order.
#include "eventlog/reader.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <utility>

#include "clock.h"
#include "engine/error.h"
#include "eventlog/error.h"
#include "files.h"

namespace eventlog {

namespace {

constexpr std::size_t kReadBytes = std::size_t{1} << 20;
constexpr std::int64_t kMostWaitMs = 1000;

// Reads up to `bytes`; fewer at the end of the file.
std::size_t read_at(const Descriptor& file, std::byte* data, std::size_t bytes, std::uint64_t position) {
  std::size_t got = 0;
  while (got < bytes) {
    const ssize_t some = ::pread(file.fd(), data + got, bytes - got, static_cast<off_t>(position + got));
    if (some < 0 && errno == EINTR) continue;
    if (some < 0) throw engine::IoError("read", "segment", errno);
    if (some == 0) break;
    got += static_cast<std::size_t>(some);
  }
  return got;
}

}  // namespace

PartitionReader::PartitionReader(std::shared_ptr<Partition> partition, ReaderOptions options)
    : partition_(std::move(partition)),
      options_(options),
      next_(partition_->first()),
      head_epoch_(partition_->epoch()) {}

// --- seeking
// ----------------------------------------------------------------------------------------------------------

void PartitionReader::seek(std::uint64_t offset, std::uint64_t epoch) {
  const std::uint64_t end = partition_->visible_end();
  if (offset > end) {
    partition_->check_sound();  // its end is the last byte that is surely on the disk, until it is repaired
    throw DataError(stream() + ": offset " + std::to_string(offset) + " is above the end " + std::to_string(end) +
                    "; the tail of the log was cut, start without the saved position");
  }
  if (epoch != 0 && offset > partition_->first()) {
    const auto found = epoch_of(offset - 1);
    if (found && *found != epoch) {
      throw DataError(stream() + ": offset " + std::to_string(offset - 1) + " has epoch " + std::to_string(*found) +
                      ", expected " + std::to_string(epoch) +
                      "; the tail was cut and written again, start without the saved position");
    }
  }
  next_ = offset;
  epoch_ = static_cast<std::uint32_t>(epoch);
  if (epoch == 0 && offset > partition_->first()) epoch_ = epoch_of(offset - 1).value_or(0);
  head_epoch_ = partition_->epoch();
  file_ = Descriptor();
}

std::optional<std::uint32_t> PartitionReader::epoch_of(std::uint64_t offset) {
  if (offset < partition_->first() || offset >= partition_->visible_end()) return std::nullopt;
  PartitionReader other(partition_, {.skips_lost = true, .skips_corrupt = true});
  other.next_ = offset;
  const auto chunk = other.read(1, ~std::uint64_t{0});
  if (!chunk || chunk->begin != offset) return std::nullopt;
  return chunk->epoch;
}

std::optional<std::int64_t> PartitionReader::next_append_ms() {
  if (next_ >= partition_->visible_end()) return std::nullopt;
  PartitionReader other(partition_, {.skips_lost = true, .skips_corrupt = true});
  other.next_ = next_;
  other.base_ = base_;
  const auto chunk = other.read(1, ~std::uint64_t{0});
  if (!chunk) return std::nullopt;
  return chunk->append_ms.front();
}

std::uint64_t PartitionReader::find_time(std::int64_t time_ms) {
  const std::uint64_t end = partition_->visible_end();
  for (const std::uint64_t base : partition_->segments()) {
    try {
      const MappedFile file(partition_->path_of(base));
      const auto entries =
          decode_index(base, read_small(partition_->path_of(base, ".idx"))).value_or(std::vector<IndexEntry>());
      const auto entry =
          last_entry(file.bytes(), entries, [&](const IndexEntry& each) { return each.before_ms < time_ms; });
      Bytes left = file.bytes();
      std::uint64_t at = entry ? entry->position : kSegmentHeaderBytes;
      std::uint64_t offset = entry ? entry->offset : base;
      while (offset < end && at < left.size()) {
        auto header = batch_at(left, at, offset, 0);
        if (!header) {
          const auto found = resync(left, at, offset, 0);
          if (!found) break;
          header = found->header;
          at = found->position;
        }
        if (header->base >= end) break;
        if (header->largest_ms >= time_ms) {
          Bytes body = left.subspan(at + kBatchHeaderBytes, header->body_bytes);
          for (std::uint64_t each = header->base; each < std::min(header->end(), end); ++each) {
            if (take_record(body).time_ms >= time_ms) return std::max(each, partition_->first());
          }
        }
        offset = header->end();
        at += header->bytes();
      }
    } catch (const engine::IoError& error) {
      if (error.code() != ENOENT) throw;  // retention has removed the segment meanwhile
    }
  }
  return end;
}

// --- reading
// ----------------------------------------------------------------------------------------------------------

std::optional<Chunk> PartitionReader::read(std::size_t most_records, std::uint64_t limit) {
  const std::uint64_t end = std::min(partition_->visible_end(), limit);
  if (partition_->epoch() != head_epoch_) check_epoch();
  if (next_ >= end) {
    if (next_ > end && limit > next_) {
      partition_->check_sound();
      throw DataError(stream() + ": offset " + std::to_string(next_) + " is above the end " + std::to_string(end) +
                      "; the tail of the log was cut, start without the saved position");
    }
    return std::nullopt;
  }
  Chunk chunk;
  chunk.partition = partition_->settings().partition;
  while (next_ < end) {
    if (!file_.is_open() && !open_segment()) continue;
    if (take_batches(chunk, std::max<std::size_t>(most_records, 1), end)) return chunk;
  }
  return std::nullopt;
}

void PartitionReader::check_epoch() {
  head_epoch_ = partition_->epoch();
  if (epoch_ == 0 || next_ == 0 || next_ <= partition_->first()) return;
  if (next_ > partition_->visible_end()) return;  // `read` raises
  const auto found = epoch_of(next_ - 1);
  if (found && *found != epoch_) {
    throw DataError(stream() + ": offset " + std::to_string(next_ - 1) + " has epoch " + std::to_string(*found) +
                    ", expected " + std::to_string(epoch_) + "; the tail was cut and written again, read it again");
  }
}

// Opens the segment of the next record. False where `next_` has moved and must be looked at again.
bool PartitionReader::open_segment() {
  const std::vector<std::uint64_t> bases = partition_->segments();
  const auto above = std::upper_bound(bases.begin(), bases.end(), next_);
  if (above == bases.begin()) {
    const std::uint64_t first = std::max(partition_->first(), bases.empty() ? next_ : bases.front());
    if (!options_.skips_lost) {
      throw DataError(stream() + ": offset " + std::to_string(next_) + " is removed, the first offset is " +
                      std::to_string(first) + "; read more often than retention removes, or set on_lost='earliest'");
    }
    lost_ += first - next_;
    next_ = first;
    return false;
  }
  const std::uint64_t base = *(above - 1);
  Descriptor file(::open(partition_->path_of(base).c_str(), O_RDONLY | O_CLOEXEC));
  if (!file.is_open()) {
    if (errno == ENOENT) return false;  // removed meanwhile: the next listing tells
    throw engine::IoError("open", partition_->path_of(base), errno);
  }
  std::byte opening[kSegmentHeaderBytes];
  if (read_at(file, opening, sizeof opening, 0) == sizeof opening) check_version(opening, partition_->path_of(base));
  file_ = std::move(file);
  base_ = base;
  position_ = kSegmentHeaderBytes;
  position_offset_ = base;
  if (next_ == base) return true;
  const auto entries =
      decode_index(base, read_small(partition_->path_of(base, ".idx"))).value_or(std::vector<IndexEntry>());
  for (std::size_t i = entries.size(); i-- > 0;) {
    if (entries[i].offset > next_) continue;
    std::byte bytes[kBatchHeaderBytes];
    if (read_at(file_, bytes, sizeof bytes, entries[i].position) != sizeof bytes) continue;
    const auto header = decode_batch_header(bytes);
    if (!header || header->base != entries[i].offset) continue;
    position_ = entries[i].position;
    position_offset_ = entries[i].offset;
    break;
  }
  return true;
}

// Takes whole batches at the position. False where nothing was taken and the caller must look again.
bool PartitionReader::take_batches(Chunk& chunk, std::size_t most_records, std::uint64_t end) {
  std::size_t wanted = kReadBytes;
  for (;;) {
    auto buffer = engine::data::Buffer::take(wanted);
    const std::size_t got = read_at(file_, buffer->data(), wanted, position_);
    const Bytes bytes(buffer->data(), got);
    if (got == 0) return step_to_next_segment();
    std::size_t at = 0;
    chunk.begin = next_;
    std::uint64_t offset = next_;
    const char* damage = nullptr;
    std::size_t missing = 0;
    while (at < got && offset < end && chunk.times_ms.size() < most_records) {
      const auto header = decode_batch_header(bytes.subspan(at));
      if (got - at < kBatchHeaderBytes) {
        if (got == wanted) {
          missing = kBatchHeaderBytes;
        } else {
          damage = "the file ends inside a batch header";
        }
        break;
      }
      if (!header || header->base > offset) {
        damage = header ? "the batch has another offset" : "the header checksum does not hold";
        break;
      }
      if (header->end() <= offset) {  // before the wanted offset: an index entry lies further back
        at += header->bytes();
        position_offset_ = header->end();
        continue;
      }
      if (got - at < header->bytes()) {
        if (got == wanted) {
          missing = header->bytes();
        } else {
          damage = "the file ends inside a batch";
        }
        break;
      }
      Bytes body = bytes.subspan(at + kBatchHeaderBytes, header->body_bytes);
      if (!body_fits(*header, body)) {
        damage = "the body checksum does not hold";
        break;
      }
      const std::uint64_t batch_end = std::min(header->end(), end);
      std::uint64_t each = header->base;
      for (; each < batch_end && chunk.times_ms.size() < most_records; ++each) {
        const Record record = take_record(body);
        if (each < offset) continue;
        const auto place = [&](Bytes part) { return static_cast<std::uint64_t>(part.data() - buffer->data()); };
        chunk.records.entries.push_back(
            {place(record.value), static_cast<std::uint32_t>(record.value.size()), 0, each});
        chunk.keys.push_back({place(record.key), static_cast<std::uint32_t>(record.key.size()), 0, each});
        chunk.times_ms.push_back(record.time_ms);
        chunk.append_ms.push_back(header->append_ms);
      }
      chunk.epoch = header->epoch;
      offset = each;
      position_offset_ = header->base;
      if (offset < header->end()) break;  // the batch is needed again
      at += header->bytes();
      position_offset_ = header->end();
    }
    position_ += at;
    if (!chunk.times_ms.empty()) {
      next_ = chunk.end = offset;
      epoch_ = chunk.epoch;
      chunk.records.source = stream();
      chunk.records.buffer = std::move(buffer);
      return true;
    }
    if (damage != nullptr) {
      skip_damage(damage);
      return false;
    }
    if (missing > kReadBytes) wanted = std::max(wanted, missing);
    // Else the walk passed batches before the wanted offset: read on from the new position.
  }
}

bool PartitionReader::step_to_next_segment() {
  const std::vector<std::uint64_t> bases = partition_->segments();
  const auto next = std::upper_bound(bases.begin(), bases.end(), base_);
  if (next == bases.end()) {
    throw engine::RecordCorrupt(stream() + ": '" + partition_->path_of(base_) + "' ends before offset " +
                                std::to_string(next_) + ", expected records to " +
                                std::to_string(partition_->visible_end()) + "; run 'monolith log verify'");
  }
  if (*next > next_ && *next > partition_->first()) jump_over(*next, position_, "a segment is missing or short");
  file_ = Descriptor();
  return false;
}

void PartitionReader::skip_damage(const char* reason) {
  const std::uint64_t end = partition_->visible_end();
  const std::uint64_t position = position_;
  const MappedFile file(partition_->path_of(base_));
  // The walk may have begun before the wanted offset: damage there hides no record that is wanted.
  const std::uint64_t damaged = std::min(position_offset_, next_);
  if (const auto found = resync(file.bytes(), position, damaged, 0); found && found->header.base < end) {
    if (found->header.base > next_) jump_over(found->header.base, position, reason);
    position_ = found->position;
    position_offset_ = found->header.base;
    return;
  }
  const std::vector<std::uint64_t> bases = partition_->segments();
  const auto next = std::upper_bound(bases.begin(), bases.end(), base_);
  jump_over(next == bases.end() ? end : *next, position, reason);
  file_ = Descriptor();
}

void PartitionReader::jump_over(std::uint64_t end, std::uint64_t position, const std::string& reason) {
  if (!options_.skips_corrupt) {
    throw engine::RecordCorrupt(stream() + ": offsets " + std::to_string(next_) + " to " + std::to_string(end - 1) +
                                " at byte " + std::to_string(position) + " of '" + partition_->path_of(base_) +
                                "' cannot be read: " + reason +
                                "; run 'monolith log verify', or set on_corrupt='skip'");
  }
  corrupt_batches_ += 1;
  corrupt_records_ += end - next_;
  next_ = end;
}

// --- several partitions
// -----------------------------------------------------------------------------------------------

TopicReader::TopicReader(std::vector<std::shared_ptr<Partition>> partitions, const std::string& wake_path,
                         ReaderOptions options)
    : unsynced_since_ms_(partitions.size(), 0), wake_(wake_path) {
  for (auto& partition : partitions)
    readers_.push_back(std::make_unique<PartitionReader>(std::move(partition), options));
}

std::optional<Chunk> TopicReader::read(std::size_t most_records, std::int64_t wait_ms) {
  const std::int64_t deadline_ms = steady_ms() + wait_ms;
  for (;;) {
    const std::uint32_t seen = wake_.value();  // before the look: a commit after it changes the word
    if (is_interrupted_) return std::nullopt;
    if (auto chunk = read_any(most_records)) return chunk;
    const std::int64_t left_ms = deadline_ms - steady_ms();
    if (left_ms <= 0) return std::nullopt;
    wake_.wait(seen, std::min(left_ms, kMostWaitMs));
    help_sync();
  }
}

std::optional<Chunk> TopicReader::read_any(std::size_t most_records) {
  for (std::size_t i = 0; i < readers_.size(); ++i) {
    PartitionReader& reader = *readers_[turn_];
    if (readers_.size() > 1) turn_ = (turn_ + 1) % readers_.size();
    if (auto chunk = reader.read(most_records, ~std::uint64_t{0})) return chunk;
  }
  return std::nullopt;
}

// The writer that owes an fdatasync may be dead: after a second, a reader syncs in its place.
void TopicReader::help_sync() {
  for (std::size_t i = 0; i < readers_.size(); ++i) {
    Partition& partition = readers_[i]->partition();
    partition.refresh();
    const bool is_waiting = partition.settings().durability == Durability::kCommit && !partition.has_failed() &&
                            partition.durable_end() < partition.written_end();
    if (!is_waiting) {
      unsynced_since_ms_[i] = 0;
    } else if (unsynced_since_ms_[i] == 0) {
      unsynced_since_ms_[i] = steady_ms();
    } else if (steady_ms() - unsynced_since_ms_[i] >= kMostWaitMs) {
      partition.sync(partition.written_end());
      unsynced_since_ms_[i] = 0;
    }
  }
}

void TopicReader::interrupt() noexcept {
  is_interrupted_ = true;
  wake_.notify();
}

}  // namespace eventlog
