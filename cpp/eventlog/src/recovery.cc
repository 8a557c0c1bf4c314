// recovery.cc: rebuilds HEAD from the segments, cuts torn tails, verifies and repairs. All under the flock.
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "engine/crc32c.h"
#include "engine/error.h"
#include "engine/failpoint.h"
#include "eventlog/error.h"
#include "eventlog/partition.h"
#include "files.h"

namespace eventlog {

namespace {

constexpr std::size_t kMostTornBytes = std::size_t{1} << 20;

std::uint64_t read_epoch(const std::string& path) {
  const std::vector<std::byte> bytes = read_small(path);
  std::uint64_t epoch = 0;
  std::uint32_t crc = 0;
  if (bytes.size() != 12) return 0;
  std::memcpy(&epoch, bytes.data(), 8);
  std::memcpy(&crc, bytes.data() + 8, 4);
  return crc == engine::crc32c(0, bytes.data(), 8) ? epoch : 0;
}

bool has_batches(Bytes segment, std::uint64_t base) {
  return segment.size() > kSegmentHeaderBytes &&
         (batch_at(segment, kSegmentHeaderBytes, base, 0) || find_batch(segment, kSegmentHeaderBytes, base, 0));
}

bool header_fits(const Settings& settings, const SegmentHeader& header, std::uint64_t base) {
  return header.base == base && header.log == settings.log && header.partition == settings.partition &&
         header.partitions == settings.partitions;
}

// Rebuilds the header of the last segment where it is damaged and batches follow it.
bool repair_header(const Settings& settings) {
  const std::string lock_path = settings.folder + "/LOCK";
  const Descriptor lock = open_file(lock_path, O_RDWR | O_CREAT);
  const FileLock held(lock, lock_path);
  const std::vector<std::uint64_t> bases = segment_bases(settings.folder);
  if (bases.empty()) return false;
  const std::string path = segment_path(settings.folder, bases.back(), ".log");
  const MappedFile file(path);
  check_version(file.bytes(), path);
  const auto header = decode_segment_header(file.bytes());
  if ((header && header_fits(settings, *header, bases.back())) || !has_batches(file.bytes(), bases.back()))
    return false;
  const Scan scan = scan_segment(file.bytes(), bases.back(), 0);
  const auto first = decode_batch_header(file.bytes().subspan(scan.index.front().position));
  std::byte bytes[kSegmentHeaderBytes];
  encode(SegmentHeader{.base = bases.back(),
                       .log = settings.log,
                       .partition = settings.partition,
                       .partitions = settings.partitions,
                       .created_ms = first->append_ms,
                       .epoch = first->epoch},
         bytes);
  const Descriptor segment = open_file(path, O_RDWR);
  if (const int code = write_at(segment, bytes, 0); code != 0) throw engine::IoError("write", path, code);
  if (::fsync(segment.fd()) != 0) throw engine::IoError("sync", path, errno);
  return true;
}

}  // namespace

void Partition::write_epoch(std::uint64_t epoch) {
  std::byte bytes[12];
  std::memcpy(bytes, &epoch, 8);
  const std::uint32_t crc = engine::crc32c(0, bytes, 8);
  std::memcpy(bytes + 8, &crc, 4);
  replace_file(settings_.folder, settings_.folder + "/EPOCH", bytes);
}

void Partition::recover_locked() {
  counts_.recoveries += 1;
  // The name of this folder may be new. The process that made it may be dead, so every recovery syncs it.
  sync_folder(settings_.folder + "/..");
  const std::uint64_t saved_epoch = read_epoch(settings_.folder + "/EPOCH");
  std::uint64_t epoch = std::max<std::uint64_t>(saved_epoch, 1);
  std::vector<std::uint64_t> bases = segments();
  if (bases.empty()) {
    create_segment(0, epoch);
    bases.push_back(0);
  }
  for (const std::uint64_t base : bases) {
    std::byte bytes[kSegmentHeaderBytes];
    const Descriptor file = open_file(path_of(base), O_RDONLY);
    if (::pread(file.fd(), bytes, sizeof bytes, 0) != static_cast<ssize_t>(sizeof bytes)) continue;
    check_version(bytes, path_of(base));
    if (const auto header = decode_segment_header(bytes)) epoch = std::max(epoch, header->epoch);
  }
  Scan scan = recover_last_locked(bases.back(), epoch);
  if (bases.size() > 1 && scan.batches == 0) {
    const Scan before = tail_of(bases[bases.size() - 2]);
    scan.append_ms = before.append_ms;
    epoch = std::max(epoch, before.epoch);
  }
  // Another boot, or HEAD is lost: whole batches may be gone that readers have seen. Their offsets get another epoch.
  const bool is_same_boot = std::memcmp(head()->magic, "MLOGHEAD", 8) == 0 && head()->boot == boot_;
  if (!is_same_boot && saved_epoch > 0) ++epoch;
  if (read_epoch(settings_.folder + "/EPOCH") != epoch) write_epoch(epoch);
  const Descriptor file = open_file(path_of(bases.back()), O_RDWR);
  if (::fdatasync(file.fd()) != 0) fail_sync(path_of(bases.back()), errno);
  engine::failpoint("eventlog_in_recovery");
  head()->first = bases.front();
  fill_head(bases.back(), scan, epoch);
}

void Partition::fill_head(std::uint64_t base, const Scan& scan, std::uint64_t epoch) {
  Head& h = *head();
  const bool is_known = std::memcmp(h.magic, "MLOGHEAD", 8) == 0 && h.boot == boot_;
  if (!is_known) h.failed = 0;
  h.recoveries = is_known ? h.recoveries + 1 : static_cast<std::uint64_t>(wall_ms());
  h.owners_version = is_known ? h.owners_version + 1 : static_cast<std::uint64_t>(wall_ms());
  h.active_base = base;
  h.written_bytes = scan.end_bytes;
  h.epoch = epoch;
  h.largest_ms = is_known ? std::max(h.largest_ms.load(), scan.largest_ms) : scan.largest_ms;
  h.append_ms = scan.append_ms;
  h.segment_largest_ms = scan.largest_ms;
  h.index_bytes = scan.index.empty() ? 0 : kIndexHeaderBytes + scan.index.size() * kIndexEntryBytes;
  h.indexed_position = scan.index.empty() ? 0 : scan.index.back().position;
  std::byte bytes[kSegmentHeaderBytes];
  const Descriptor file = open_file(path_of(base), O_RDONLY);
  h.segment_created_ms = wall_ms();
  if (::pread(file.fd(), bytes, sizeof bytes, 0) == static_cast<ssize_t>(sizeof bytes)) {
    if (const auto header = decode_segment_header(bytes)) h.segment_created_ms = header->created_ms;
  }
  h.durable_end.store(scan.end_offset, std::memory_order_release);
  h.written_end.store(scan.end_offset, std::memory_order_release);
  h.boot = boot_;
  std::memcpy(h.magic, "MLOGHEAD", 8);
  h.dirty.store(0, std::memory_order_release);
}

Scan Partition::recover_last_locked(std::uint64_t base, std::uint64_t& epoch) {
  const std::string path = path_of(base);
  const MappedFile file(path);
  const Bytes segment = file.bytes();
  const auto header = decode_segment_header(segment);
  if (!header && !has_batches(segment, base)) return replace_torn_segment(base, epoch);
  if (!header || !header_fits(settings_, *header, base)) {
    throw engine::RecordCorrupt(settings_.stream + ": the header of '" + path + "' is " +
                                (header ? "that of another log" : "damaged, and whole batches follow it") +
                                ", expected log " + std::to_string(settings_.log) +
                                "; nothing was changed, run 'monolith log repair'");
  }
  Scan scan = scan_segment(segment, base, header->epoch);
  epoch = std::max(epoch, scan.epoch);
  if (scan.is_torn) {
    // The epoch first: a crash between the two only skips a number.
    write_epoch(++epoch);
    engine::failpoint("eventlog_before_cut");
    cut_tail(base, segment, scan.end_bytes);
  }
  if (!scan.bad.empty()) note_bad_ranges(base, scan);
  check_index(base, segment.first(scan.end_bytes), scan);
  return scan;
}

Scan Partition::replace_torn_segment(std::uint64_t base, std::uint64_t& epoch) {
  const std::string path = path_of(base);
  const std::string aside = path + ".torn-" + std::to_string(wall_ms());
  struct stat info{};
  if (::stat(path.c_str(), &info) == 0) counts_.torn_bytes += static_cast<std::uint64_t>(info.st_size);
  counts_.torn_tails += 1;
  write_epoch(++epoch);
  if (::rename(path.c_str(), aside.c_str()) != 0) throw engine::IoError("rename", path, errno);
  create_segment(base, epoch);
  ::unlink(path_of(base, ".idx").c_str());
  return Scan{.end_offset = base, .epoch = epoch};
}

void Partition::cut_tail(std::uint64_t base, Bytes segment, std::uint64_t end_bytes) {
  const std::string path = path_of(base);
  const Bytes torn = segment.subspan(end_bytes);
  counts_.torn_tails += 1;
  counts_.torn_bytes += torn.size();
  try {
    const Descriptor aside = open_file(path + ".torn-" + std::to_string(wall_ms()), O_WRONLY | O_CREAT | O_TRUNC);
    (void)write_at(aside, torn.first(std::min(torn.size(), kMostTornBytes)), 0);
  } catch (const engine::IoError&) {
    // The copy is for people. A full disk must not stop a recovery.
  }
  const Descriptor file = open_file(path, O_RDWR);
  if (::ftruncate(file.fd(), static_cast<off_t>(end_bytes)) != 0) throw engine::IoError("cut", path, errno);
}

void Partition::note_bad_ranges(std::uint64_t base, const Scan& scan) {
  std::string text = "[";
  for (const BadRange& bad : scan.bad) {
    counts_.bad_records += bad.end - bad.begin;
    text += (text.size() > 1 ? ", " : "") + std::string("{\"begin\": ") + std::to_string(bad.begin) +
            ", \"end\": " + std::to_string(bad.end) + ", \"first_byte\": " + std::to_string(bad.first_byte) +
            ", \"end_byte\": " + std::to_string(bad.end_byte) + "}";
  }
  text += "]\n";
  replace_file(settings_.folder, path_of(base, ".bad"), {reinterpret_cast<const std::byte*>(text.data()), text.size()});
}

void Partition::check_index(std::uint64_t base, Bytes segment, Scan& scan) {
  const std::string path = path_of(base, ".idx");
  const auto entries = decode_index(base, read_small(path));
  if (entries && index_fits(segment, base, *entries, segment.size())) {
    scan.index = *entries;
    return;
  }
  // In place: processes hold the file open.
  const std::vector<std::byte> bytes = encode_index(base, scan.index);
  const Descriptor file = open_file(path, O_RDWR | O_CREAT);
  if (write_at(file, bytes, 0) != 0 || ::ftruncate(file.fd(), static_cast<off_t>(bytes.size())) != 0) {
    scan.index.clear();
    ::unlink(path.c_str());
  }
}

std::vector<Verified> Partition::verify() const {
  const std::uint64_t active = head()->active_base.load(std::memory_order_acquire);
  const std::uint64_t written = head()->written_bytes.load(std::memory_order_acquire);
  std::vector<Verified> all;
  for (const std::uint64_t base : segments()) {
    if (base > active) break;
    try {
      const MappedFile file(path_of(base), base == active ? written : ~std::uint64_t{0});
      const auto header = decode_segment_header(file.bytes());
      const Scan scan = scan_segment(file.bytes(), base, 0);
      all.push_back({.base = base,
                     .end = scan.end_offset,
                     .bytes = file.bytes().size(),
                     .batches = scan.batches,
                     .records = scan.records,
                     .largest_ms = scan.largest_ms,
                     .append_ms = scan.append_ms,
                     .has_header = header && header_fits(settings_, *header, base),
                     .is_torn = scan.is_torn,
                     .bad = scan.bad});
    } catch (const engine::IoError& error) {
      if (error.code() != ENOENT) throw;  // retention has removed the segment meanwhile
    }
  }
  return all;
}

std::vector<std::string> Partition::repair(const Settings& settings) {
  std::vector<std::string> changes;
  if (repair_header(settings)) changes.push_back("rebuilt the header of the last segment");
  Partition partition(settings);
  const Counts counts = partition.counts();
  if (counts.torn_tails > 0) changes.push_back("cut " + std::to_string(counts.torn_bytes) + " torn bytes");
  if (counts.bad_records > 0) changes.push_back("found " + std::to_string(counts.bad_records) + " damaged records");
  if (partition.clear_failure()) changes.push_back("started a new segment after a failed fdatasync");
  return changes;
}

bool Partition::clear_failure() {
  const std::lock_guard in_process(mutex_);
  const FileLock held(lock_, lock_path_);
  Head& h = *head();
  if (h.failed == 0) return false;
  recover_locked();
  h.failed.store(0, std::memory_order_release);
  roll_locked();
  return true;
}

}  // namespace eventlog
