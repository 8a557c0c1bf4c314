// partition.cc: appends, durability, owners and retention of one partition. Recovery is in recovery.cc.
#include "eventlog/partition.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <utility>

#include "engine/crc32c.h"
#include "engine/error.h"
#include "engine/failpoint.h"
#include "eventlog/error.h"
#include "files.h"
#include "owners.h"

namespace eventlog {

namespace {

void raise_to(std::atomic<std::uint64_t>& word, std::uint64_t value) noexcept {
  std::uint64_t seen = word.load(std::memory_order_acquire);
  while (seen < value && !word.compare_exchange_weak(seen, value, std::memory_order_acq_rel)) {
  }
}

// Calls `see` with the header of each batch in a segment; steps over damage.
template <typename See>
void walk_batches(Bytes segment, std::uint64_t base, const See& see) {
  std::uint64_t at = kSegmentHeaderBytes;
  std::uint64_t offset = base;
  while (at < segment.size()) {
    auto header = decode_batch_header(segment.subspan(at));
    if (!header || header->base != offset) {
      const auto found = resync(segment, at, offset, 0);
      if (!found) return;
      header = found->header;
      at = found->position;
    }
    see(*header);
    offset = header->end();
    at += header->bytes();
  }
}

std::string text_of(const std::vector<std::byte>& bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

}  // namespace

std::int64_t wall_ms() noexcept {
  using namespace std::chrono;
  return duration_cast<milliseconds>(system_clock::now().time_since_epoch()).count();
}

// --- batches
// ----------------------------------------------------------------------------------------------------------

void check_record(const Record& record) {
  if (record.key.size() > kMostKeyBytes) {
    throw engine::ConfigError("key has " + std::to_string(record.key.size()) + " bytes, expected at most " +
                              std::to_string(kMostKeyBytes) + "; shorten the key");
  }
  if (record.key.size() + record.value.size() > kMostRecordBytes) {
    throw engine::ConfigError("record has " + std::to_string(record.key.size() + record.value.size()) +
                              " bytes, expected at most " + std::to_string(kMostRecordBytes) + "; split the record");
  }
  if (record.time_ms < 0 || record.time_ms > kMostTimeMs) {
    throw engine::ConfigError("time_ms is " + std::to_string(record.time_ms) + ", expected 0 to " +
                              std::to_string(kMostTimeMs) + "; give unix milliseconds");
  }
}

bool PendingBatch::fits(const Record& record) const noexcept {
  return body_bytes() + kRecordHeaderBytes + record.key.size() + record.value.size() <= kMostBodyBytes;
}

void PendingBatch::add(const Record& record) {
  check_record(record);
  if (!fits(record)) {
    throw engine::ConfigError("batch has more than " + std::to_string(kMostBodyBytes) +
                              " bytes, expected at most that; append several batches");
  }
  append_record(bytes_, record);
  ++records_;
  largest_ms_ = std::max(largest_ms_, record.time_ms);
}

// --- opening
// ----------------------------------------------------------------------------------------------------------

Partition::Partition(Settings settings) : settings_(std::move(settings)), process_(::getpid()), boot_(boot_hash()) {
  if (settings_.partitions == 0 || settings_.partitions > kMostPartitions ||
      settings_.partition >= settings_.partitions) {
    throw engine::ConfigError("partition is " + std::to_string(settings_.partition) + " of " +
                              std::to_string(settings_.partitions) + ", expected at most " +
                              std::to_string(kMostPartitions) + " partitions");
  }
  if (::mkdir(settings_.folder.c_str(), 0755) != 0 && errno != EEXIST) {
    throw engine::IoError("create", settings_.folder, errno);
  }
  refuse_network_folder(settings_.folder);
  lock_path_ = settings_.folder + "/LOCK";
  lock_ = open_file(lock_path_, O_RDWR | O_CREAT);
  const FileLock held(lock_, lock_path_);
  map_head();
  prepare_locked();
}

void Partition::map_head() {
  pages_.push_back(std::make_unique<SharedPage>(settings_.folder + "/HEAD"));
  page_.store(pages_.back().get(), std::memory_order_release);
}

void Partition::check_process() const {
  if (process_ != ::getpid()) {
    throw engine::ConfigError(settings_.stream +
                              " was opened before a fork, expected a handle of this process; open the log again");
  }
}

void Partition::prepare_locked() {
  if (page_.load()->is_unlinked()) map_head();
  const Head& h = *head();
  if (std::memcmp(h.magic, "MLOGHEAD", 8) != 0 || h.boot != boot_ || h.dirty != 0) recover_locked();
}

void Partition::refresh() {
  if (!page_.load()->is_unlinked()) return;
  const std::lock_guard in_process(mutex_);
  check_process();
  const FileLock held(lock_, lock_path_);
  prepare_locked();
}

std::string Partition::path_of(std::uint64_t base, const char* suffix) const {
  return segment_path(settings_.folder, base, suffix);
}

std::vector<std::uint64_t> Partition::segments() const { return segment_bases(settings_.folder); }

std::uint64_t Partition::visible_end() const noexcept {
  const Head& h = *head();
  const bool is_bounded = settings_.durability == Durability::kCommit || h.failed.load(std::memory_order_acquire) != 0;
  return (is_bounded ? h.durable_end : h.written_end).load(std::memory_order_acquire);
}

// --- appending
// --------------------------------------------------------------------------------------------------------

void Partition::check_sound() const {
  if (!has_failed()) return;
  throw DataError(settings_.stream +
                  " has failed: an earlier fdatasync did not succeed; check the disk, then run "
                  "'monolith log repair'");
}

std::uint64_t Partition::append(PendingBatch& batch) {
  try {
    return append_batch(batch);
  } catch (const engine::IoError& error) {
    throw AppendRefused(settings_.stream + ": " + error.what() +
                        "; the batch is not in the log, free space and flush again");
  }
}

std::uint64_t Partition::append_batch(PendingBatch& batch) {
  const Bytes body = Bytes(batch.bytes_).subspan(kBatchHeaderBytes);
  if (batch.records_ == 0) throw engine::ConfigError("batch has 0 records, expected at least 1");
  const std::uint32_t body_crc = engine::crc32c(0, body.data(), body.size());
  const std::lock_guard in_process(mutex_);
  check_process();
  const FileLock held(lock_, lock_path_);
  prepare_locked();
  Head& h = *head();
  check_sound();
  if (batch.producer != 0) check_owner_locked(batch);
  if (h.written_end + batch.records_ > std::uint64_t{1} << 62) {
    throw DataError(settings_.stream + " has no offsets left; write to a new topic");
  }
  if (settings_.segment_age_ms > 0 && h.written_bytes > kSegmentHeaderBytes &&
      wall_ms() - h.segment_created_ms > settings_.segment_age_ms) {
    roll_locked();
  }
  const BatchHeader header{.body_bytes = static_cast<std::uint32_t>(body.size()),
                           .base = h.written_end,
                           .records = batch.records_,
                           .epoch = static_cast<std::uint32_t>(h.epoch),
                           .largest_ms = batch.largest_ms_,
                           .append_ms = std::max(wall_ms(), h.append_ms.load()),
                           .producer = batch.producer,
                           .sequence = batch.sequence,
                           .body_crc = body_crc};
  encode(header, std::span<std::byte, kBatchHeaderBytes>(batch.bytes_.data(), kBatchHeaderBytes));
  // Owners that cannot be read raise here: after the write, the caller would append the batch again.
  if (h.written_bytes + header.bytes() >= settings_.segment_bytes) load_owners_locked();
  write_batch_locked(batch);
  note_index_locked(header, h.written_bytes);
  h.largest_ms = std::max(h.largest_ms.load(), header.largest_ms);
  h.segment_largest_ms = std::max(h.segment_largest_ms.load(), header.largest_ms);
  h.append_ms = header.append_ms;
  h.written_bytes = h.written_bytes + header.bytes();
  engine::failpoint("eventlog_before_head");
  h.written_end.store(header.end(), std::memory_order_release);
  h.dirty.store(0, std::memory_order_release);
  if (h.written_bytes >= settings_.segment_bytes) {
    try {
      roll_locked();
    } catch (const engine::Error&) {
      // The batch is in the log. The next append recovers and rolls again, or raises where an fdatasync failed.
    }
  }
  return header.base;
}

void Partition::write_batch_locked(PendingBatch& batch) {
  Head& h = *head();
  open_active(active_, true);
  const std::uint64_t position = h.written_bytes;
  h.dirty.store(1, std::memory_order_release);
  engine::failpoint("eventlog_before_write");
  const int code = write_at(active_.file, batch.bytes_, position);
  if (code == 0) return;
  // Dirty stays set where the file cannot be cut back: the next process recovers.
  if (::ftruncate(active_.file.fd(), static_cast<off_t>(position)) == 0) h.dirty.store(0, std::memory_order_release);
  throw AppendRefused(settings_.stream + ": cannot append " + std::to_string(batch.records_) + " records to '" +
                      path_of(h.active_base) + "': " + std::strerror(code) +
                      "; the log is unchanged, free space and flush again");
}

void Partition::note_index_locked(const BatchHeader& header, std::uint64_t position) {
  Head& h = *head();
  const bool is_first = h.indexed_position == 0;
  if (!is_first && position - h.indexed_position < kIndexStepBytes) return;
  std::vector<std::byte> bytes;
  if (h.index_bytes == 0) bytes = encode_index(h.active_base, {});
  append_entry(bytes, {header.base, position, h.segment_largest_ms});
  if (write_at(active_.index, bytes, h.index_bytes) != 0) return;  // a hint: readers walk further without it
  h.index_bytes = h.index_bytes + bytes.size();
  h.indexed_position = position;
}

void Partition::open_active(OpenSegment& segment, bool with_index) const {
  const Head& h = *head();
  if (segment.base == h.active_base && segment.recoveries == h.recoveries && segment.file.is_open()) return;
  std::uint64_t base = h.active_base;
  segment.recoveries = h.recoveries;
  for (;;) {
    try {
      segment.file = open_file(path_of(base), O_RDWR);
      break;
    } catch (const engine::IoError&) {
      // A caller without the flock may lose the file to retention.
      if (std::exchange(base, h.active_base.load()) == h.active_base) throw;
    }
  }
  // The index is a hint: an append does not fail because its file cannot be made.
  if (with_index) segment.index = Descriptor(::open(path_of(base, ".idx").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644));
  segment.base = base;
}

void Partition::create_segment(std::uint64_t base, std::uint64_t epoch) {
  std::byte bytes[kSegmentHeaderBytes];
  encode(SegmentHeader{.base = base,
                       .log = settings_.log,
                       .partition = settings_.partition,
                       .partitions = settings_.partitions,
                       .created_ms = wall_ms(),
                       .epoch = epoch},
         bytes);
  replace_file(settings_.folder, path_of(base), bytes);
}

void Partition::roll() {
  const std::lock_guard in_process(mutex_);
  check_process();
  const FileLock held(lock_, lock_path_);
  prepare_locked();
  if (head()->written_bytes > kSegmentHeaderBytes) roll_locked();
}

void Partition::roll_locked() {
  Head& h = *head();
  open_active(active_, true);
  const std::uint64_t old_base = h.active_base;
  if (::fdatasync(active_.file.fd()) != 0) fail_sync(path_of(old_base), errno);
  // From here on files change: a failure leaves dirty set, and the next process recovers.
  h.dirty.store(1, std::memory_order_release);
  raise_to(h.durable_end, h.written_end);
  save_hints_locked(old_base);
  const std::uint64_t base = h.written_end;
  engine::failpoint("eventlog_before_roll");
  create_segment(base, h.epoch);
  engine::failpoint("eventlog_after_roll");
  h.index_bytes = 0;
  h.indexed_position = 0;
  h.segment_largest_ms = kNoTime;
  h.segment_created_ms = wall_ms();
  h.written_bytes = kSegmentHeaderBytes;
  h.active_base.store(base, std::memory_order_release);
  h.dirty.store(0, std::memory_order_release);
  retain_locked(wall_ms());
}

// --- durability
// -------------------------------------------------------------------------------------------------------

void Partition::sync(std::uint64_t end) {
  if (durable_end() >= end) return;
  const std::lock_guard in_process(sync_mutex_);
  check_process();
  // Callers queue here while one of them syncs; the next one then syncs for all of them. The flock of HEAD, not of
  // LOCK: appends continue meanwhile.
  const FileLock held(page_.load()->file(), settings_.folder + "/HEAD");
  Head& h = *head();
  if (h.failed != 0) {
    throw DataError(settings_.stream + " has failed: an fdatasync did not succeed; run 'monolith log repair'");
  }
  if (durable_end() >= end) return;
  // In this order: older segments were synced before the active one appeared.
  const std::uint64_t written = written_end();
  open_active(synced_, false);
  const auto begin = std::chrono::steady_clock::now();
  if (::fdatasync(synced_.file.fd()) != 0) fail_sync(path_of(synced_.base), errno);
  const auto took = std::chrono::steady_clock::now() - begin;
  syncs_ += 1;
  sync_us_ += static_cast<std::uint64_t>(std::chrono::duration_cast<std::chrono::microseconds>(took).count());
  raise_to(h.durable_end, written);
}

void Partition::fail_sync(const std::string& path, int code) {
  // The kernel may drop the dirty pages and report the error once: a second fdatasync would prove nothing.
  head()->failed.store(1, std::memory_order_release);
  throw DataError(settings_.stream + ": fdatasync of '" + path + "' failed: " + std::strerror(code) +
                  "; the partition takes no more appends, check the disk, then run 'monolith log repair'");
}

// --- owners
// -----------------------------------------------------------------------------------------------------------

void Partition::load_owners_locked() {
  const std::string path = settings_.folder + "/OWNERS";
  const std::vector<std::byte> bytes = read_small(path);
  auto owners = bytes.empty() ? std::map<std::uint64_t, Owner>() : decode_owners(text_of(bytes));
  if (!owners) throw engine::RecordCorrupt("'" + path + "' is not a list of owners; restore it, or delete it");
  owners_ = std::move(*owners);
  owners_version_ = head()->owners_version;
}

void Partition::save_owners_locked() {
  const std::string text = encode_owners(owners_);
  replace_file(settings_.folder, settings_.folder + "/OWNERS",
               {reinterpret_cast<const std::byte*>(text.data()), text.size()});
  owners_version_ = ++head()->owners_version;
}

void Partition::check_owner_locked(const PendingBatch& batch) {
  if (owners_version_ != head()->owners_version) load_owners_locked();
  const auto found = owners_.find(batch.producer);
  if (found != owners_.end() && found->second.owner > batch.owner) {
    throw Fenced(settings_.stream + ": producer " + std::to_string(batch.producer) + " has owner " +
                 std::to_string(found->second.owner) + ", and this process is owner " + std::to_string(batch.owner) +
                 "; another process has taken over, stop this one");
  }
}

std::uint64_t Partition::take_producer(std::uint64_t producer) {
  if (producer == 0) throw engine::ConfigError("producer is 0, expected a positive id");
  const std::lock_guard in_process(mutex_);
  check_process();
  const FileLock held(lock_, lock_path_);
  prepare_locked();
  load_owners_locked();
  const std::uint64_t owner = ++owners_[producer].owner;
  save_owners_locked();
  return owner;
}

void Partition::save_hints_locked(std::uint64_t base) {
  load_owners_locked();
  if (owners_.empty()) return;
  const MappedFile file(path_of(base), head()->written_bytes);
  bool has_changed = false;
  walk_batches(file.bytes(), base, [&](const BatchHeader& header) {
    if (header.producer == 0) return;
    auto& sequence = owners_[header.producer].sequence;
    has_changed = has_changed || header.sequence > sequence;
    sequence = std::max(sequence, header.sequence);
  });
  if (has_changed) save_owners_locked();
}

std::uint64_t Partition::last_sequence(std::uint64_t producer) {
  const std::lock_guard in_process(mutex_);
  check_process();
  const FileLock held(lock_, lock_path_);
  prepare_locked();
  load_owners_locked();
  std::uint64_t sequence = owners_.contains(producer) ? owners_[producer].sequence : 0;
  const MappedFile file(path_of(head()->active_base), head()->written_bytes);
  walk_batches(file.bytes(), head()->active_base, [&](const BatchHeader& header) {
    if (header.producer == producer) sequence = std::max(sequence, header.sequence);
  });
  return sequence;
}

// --- retention
// --------------------------------------------------------------------------------------------------------

std::size_t Partition::retain(std::int64_t now_ms) {
  const std::lock_guard in_process(mutex_);
  check_process();
  const FileLock held(lock_, lock_path_);
  prepare_locked();
  return retain_locked(now_ms);
}

std::size_t Partition::trim(std::uint64_t offset) {
  const std::lock_guard in_process(mutex_);
  check_process();
  const FileLock held(lock_, lock_path_);
  prepare_locked();
  std::uint64_t end_base = 0;
  for (const std::uint64_t base : segments()) {
    if (base <= offset) end_base = base;
  }
  return remove_segments_locked(std::min(end_base, head()->active_base.load()));
}

std::size_t Partition::retain_locked(std::int64_t now_ms) {
  if (settings_.retain_bytes == 0 && settings_.retain_ms == 0) return 0;
  const std::vector<std::uint64_t> bases = segments();
  std::vector<std::uint64_t> sizes;
  std::uint64_t total = 0;
  for (const std::uint64_t base : bases) {
    struct stat info{};
    sizes.push_back(::stat(path_of(base).c_str(), &info) == 0 ? static_cast<std::uint64_t>(info.st_size) : 0);
    total += sizes.back();
  }
  std::uint64_t end_base = 0;
  for (std::size_t i = 0; i + 1 < bases.size() && bases[i] != head()->active_base; ++i) {
    const bool is_excess = settings_.retain_bytes > 0 && total > settings_.retain_bytes;
    const bool is_old = settings_.retain_ms > 0 && now_ms - last_append_ms(bases, i, now_ms) > settings_.retain_ms;
    if (!is_excess && !is_old) break;
    total -= sizes[i];
    end_base = bases[i + 1];
  }
  return remove_segments_locked(end_base);
}

std::size_t Partition::remove_segments_locked(std::uint64_t end_base) {
  Head& h = *head();
  if (end_base <= h.first) return 0;
  h.first.store(end_base, std::memory_order_release);
  std::size_t removed = 0;
  for (const std::uint64_t base : segments()) {
    if (base >= end_base || base == h.active_base) break;
    ::unlink(path_of(base, ".idx").c_str());
    if (::unlink(path_of(base).c_str()) == 0) ++removed;
  }
  return removed;
}

// The time of the last append to a segment. One in the future comes from a clock that was ahead: later batches keep it,
// and the headers of later segments do not.
std::int64_t Partition::last_append_ms(const std::vector<std::uint64_t>& bases, std::size_t place,
                                       std::int64_t now_ms) const {
  std::int64_t time_ms = tail_of(bases[place]).append_ms;
  for (std::size_t i = place + 1; time_ms > now_ms && i < bases.size(); ++i) {
    const MappedFile file(path_of(bases[i]), kSegmentHeaderBytes);
    if (const auto header = decode_segment_header(file.bytes())) time_ms = std::min(time_ms, header->created_ms);
  }
  return time_ms;
}

Scan Partition::tail_of(std::uint64_t base) const {
  const MappedFile file(path_of(base));
  const auto entries = decode_index(base, read_small(path_of(base, ".idx")));
  return walk_tail(file.bytes(), base, entries.value_or(std::vector<IndexEntry>()));
}

Partition::Counts Partition::counts() const {
  const std::lock_guard in_process(mutex_);
  Counts counts = counts_;
  counts.syncs = syncs_;
  counts.sync_us = sync_us_;
  return counts;
}

}  // namespace eventlog
