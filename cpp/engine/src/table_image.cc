// table_image.cc: writes, maps and checks table images. See table_image.h for the format.
#include "engine/table_image.h"

#include <sys/mman.h>
#include <sys/vfs.h>

#include <algorithm>
#include <array>
#include <new>

#include "engine/crc32c.h"
#include "engine/error.h"
#include "engine/failpoint.h"
#include "file.h"
#include "image_format.h"
#include "mapping_guard.h"
#include "row_columns.h"

namespace engine {

namespace {

// Rows taken from a table under one hold of its lock.
constexpr std::size_t kPieceRows = 16384;
// One more row for every so many finds room in the index before it must be rebuilt.
constexpr std::size_t kRoomShare = 16;
constexpr std::size_t kReadBytes = std::size_t{8} << 20;
// A load reads and maps files up to this size whole. A kernel before 5.14 refuses that, and reads pages on demand.
constexpr std::size_t kSmallBytes = std::size_t{16} << 20;
constexpr int kPopulateRead = 22;  // MADV_POPULATE_READ, which older headers do not name
// File systems whose files other machines, or a program of the user, may cut off or lose while they are mapped here:
// NFS, SMB (three), FUSE and virtiofs, 9P and gVisor, Ceph, AFS (two), Lustre, GPFS, GFS2, OCFS2, BeeGFS, OrangeFS,
// PanFS, StorNext, Coda, NCP, VirtualBox, VMware, Parallels. A page that is gone would end the process.
constexpr std::array<std::uint64_t, 22> kForeign{0x6969,     0x517B,     0xFF534D42, 0xFE534D42, 0x65735546, 0x01021997,
                                                 0x00C36400, 0x5346414F, 0x6B414653, 0x0BD00BD0, 0x47504653, 0x01161970,
                                                 0x7461636F, 0x19830326, 0x20030528, 0xAAD7AAEA, 0xBEEFDEAD, 0x73757245,
                                                 0x564C,     0x786F4256, 0xBACBACBC, 0x7C7C6673};

bool is_foreign(int descriptor) noexcept {
  struct statfs info{};
  if (::fstatfs(descriptor, &info) != 0) return true;
  return std::ranges::find(kForeign, static_cast<std::uint64_t>(info.f_type) & 0xFFFFFFFFU) != kForeign.end();
}

const std::size_t kPageBytes = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));

std::vector<std::byte> layout_of(const Table& table) {
  std::vector<std::byte> layout;
  for (const SliceConfig& slice : table.config().slices) {
    const std::string& kind = slice.compressor.kind;
    put(layout, slice.dim);
    put(layout, static_cast<std::uint32_t>(make_compressor(slice.compressor)->bytes(slice.dim)));
    put(layout, static_cast<std::uint32_t>(kind.size()));
    for (const char c : kind) layout.push_back(static_cast<std::byte>(c));
  }
  return layout;
}

// One part on its way into the file: index and rows, in the order of the index.
class PartBuilder {
 public:
  explicit PartBuilder(std::size_t row_bytes) : row_bytes_(row_bytes) {}

  void take(const Table::CutRows& piece) {
    ids_.insert(ids_.end(), piece.ids.begin(), piece.ids.end());
    times_.insert(times_.end(), piece.times.begin(), piece.times.end());
    for (const RowView& row : piece.rows) rows_.insert(rows_.end(), row.values, row.values + row_bytes_);
  }

  ImagePart append_to(OutputFile& file) {
    RingIndex index;
    if (!ids_.empty()) index.reserve(ids_.size() + ids_.size() / kRoomShare + 1);
    for (std::size_t i = 0; i < ids_.size(); ++i) {
      index.insert(ids_[i], static_cast<std::uint32_t>(i), times_[i]);
    }
    std::vector<RingIndex::Bucket> buckets(index.buckets().begin(), index.buckets().end());
    std::vector<std::byte> ordered(rows_.size());
    std::uint32_t number = 0;
    for (RingIndex::Bucket& bucket : buckets) {
      for (std::size_t i = 0; i < RingIndex::kWidth && bucket.rows[i] != 0; ++i) {
        const std::byte* row = rows_.data() + std::size_t{bucket.rows[i] - 1} * row_bytes_;
        std::copy_n(row, row_bytes_, ordered.data() + std::size_t{number} * row_bytes_);
        bucket.rows[i] = ++number;
      }
    }
    const auto lines = std::as_bytes(std::span(buckets));
    file.append(lines);
    file.append(ordered);
    const std::array<std::byte, kImageAlignment> zeros{};
    file.append(std::span(zeros).first(image_aligned(file.size()) - file.size()));
    return {.rows = ids_.size(),
            .buckets = buckets.size(),
            .index_crc = crc32c(0, lines.data(), lines.size()),
            .rows_crc = crc32c(0, ordered.data(), ordered.size())};
  }

 private:
  std::size_t row_bytes_;
  std::vector<std::int64_t> ids_;
  std::vector<std::uint32_t> times_;
  std::vector<std::byte> rows_;
};

void write_parts(Table& table, const Table::Cut& cut, OutputFile& file, ImageFooter& footer) {
  for (std::size_t part = 0; part < kParts; ++part) {
    PartBuilder builder(footer.row_bytes);
    table.visit_cut(cut, part, kPieceRows, [&](const Table::CutRows& rows) { builder.take(rows); }, [] {});
    footer.parts.push_back(builder.append_to(file));
  }
}

}  // namespace

ImageFile write_image(Table& table, const std::string& path) {
  if (!table.schema().is_serving()) {
    throw ConfigError("table '" + table.config().name + "' is a training table; images are of serving tables");
  }
  const Table::Cut cut = table.begin_cut();
  struct EndCut {
    Table& table;
    ~EndCut() { table.end_cut(); }
  } const end_cut{table};
  try {
    OutputFile file(path, Cache::kThrough);
    std::vector<std::byte> opening(kImageAlignment);
    std::memcpy(opening.data(), kImageMagic, sizeof kImageMagic);
    file.append(opening);
    ImageFooter footer{.row_bytes = static_cast<std::uint32_t>(table.schema().row_bytes()),
                       .max_time_s = cut.max_time_s,
                       .layout = layout_of(table),
                       .parts = {}};
    write_parts(table, cut, file, footer);
    std::vector<std::byte> tail = encode_footer(footer);
    const std::uint32_t crc = crc32c(0, tail.data(), tail.size());
    put(tail, static_cast<std::uint32_t>(tail.size()));
    put(tail, crc);
    for (const char c : kImageMagic) tail.push_back(static_cast<std::byte>(c));
    file.append(tail);
    file.finish();
    failpoint("image.written");
    return {.bytes = file.size(), .rows = footer.rows()};
  } catch (...) {
    ::unlink(path.c_str());
    throw;
  }
}

TableImage::TableImage(const std::string& path, std::uint64_t bytes, const Table& table, Memory memory) : path_(path) {
  const InputFile file(path);
  const std::uint64_t size = file.size();
  const auto fail = [&](const std::string& reason) { throw SnapshotCorrupt("'" + path + "': " + reason); };
  if (size != bytes) {
    fail("the file has " + std::to_string(size) + " bytes, expected " + std::to_string(bytes) + " by the manifest");
  }
  if (size < kImageAlignment + kImageTailBytes) fail("it is too short for a table");
  bytes_ = size;
  if (memory == Memory::kMapped && !is_foreign(file.descriptor())) {
    map(path, file.descriptor());
    guard_ = std::make_unique<MappingGuard>(data_, bytes_);
  } else {
    block_ = Block(size);
    data_ = block_.data();
    table.pool().run((size + kReadBytes - 1) / kReadBytes, [&](std::size_t piece) {
      const std::size_t at = piece * kReadBytes;
      if (!file.read_at(at, data_ + at, std::min(kReadBytes, bytes_ - at))) fail("it became shorter meanwhile");
    });
  }
  try {
    check(table, file);
    check_whole();
  } catch (const SnapshotCorrupt& error) {
    if (is_mapped()) ::munmap(data_, bytes_);
    fail(error.what());
  } catch (...) {
    if (is_mapped()) ::munmap(data_, bytes_);
    throw;
  }
}

TableImage::~TableImage() {
  guard_.reset();
  if (is_mapped()) ::munmap(data_, bytes_);
}

void TableImage::check_whole() const {
  if (guard_ == nullptr || !guard_->is_damaged()) return;
  throw SnapshotCorrupt("'" + path_ + "' was cut off while it was mapped; restore the file and load it again");
}

void TableImage::map(const std::string& path, int descriptor) {
  // Where the page cache holds the file in huge pages they can be mapped as such, if addresses fit: room for a huge
  // page more is reserved first, and the bytes outside are unmapped.
  const std::size_t room = bytes_ < kHugePageBytes ? bytes_ : bytes_ + kHugePageBytes;
  void* whole = ::mmap(nullptr, room, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (whole == MAP_FAILED) throw std::bad_alloc();
  auto* begin = static_cast<std::byte*>(whole);
  const std::size_t past = reinterpret_cast<std::uintptr_t>(begin) % kHugePageBytes;
  const std::size_t skipped = room == bytes_ || past == 0 ? 0 : kHugePageBytes - past;
  // Private and writable: a page that is changed becomes our own, and the file never sees it. Not reserved, because
  // hardly any page will be.
  void* data =
      ::mmap(begin + skipped, bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_NORESERVE | MAP_FIXED, descriptor, 0);
  if (data == MAP_FAILED) {
    const int error = errno;
    ::munmap(begin, room);
    throw IoError("map", path, error);
  }
  data_ = static_cast<std::byte*>(data);
  if (skipped > 0) ::munmap(begin, skipped);
  const std::size_t pages = (bytes_ + kPageBytes - 1) / kPageBytes * kPageBytes;
  if (skipped + pages < room) ::munmap(data_ + pages, room - skipped - pages);
  if (bytes_ >= kHugePageBytes) ::madvise(data_, bytes_, MADV_HUGEPAGE);  // pages not cached yet are read as huge ones
  if (bytes_ <= kSmallBytes) ::madvise(data_, bytes_, kPopulateRead);     // requests then wait for no page
}

void TableImage::check(const Table& table, const InputFile& file) {
  const std::byte* tail = data_ + bytes_ - kImageTailBytes;
  if (std::memcmp(data_, kImageMagic, sizeof kImageMagic) != 0 ||
      std::memcmp(tail + 2 * sizeof(std::uint32_t), kImageMagic, sizeof kImageMagic) != 0) {
    throw SnapshotCorrupt("the file is not a table image, or it is cut off");
  }
  const auto footer_bytes = get<std::uint32_t>(tail);
  if (footer_bytes > bytes_ - kImageAlignment - kImageTailBytes) throw SnapshotCorrupt("the footer is too long");
  const std::byte* start = tail - footer_bytes;
  if (crc32c(0, start, footer_bytes) != get<std::uint32_t>(tail + sizeof(std::uint32_t))) {
    throw SnapshotCorrupt("checksum of the footer does not match");
  }
  const ImageFooter footer =
      decode_footer({start, footer_bytes}, static_cast<std::uint32_t>(table.schema().row_bytes()), layout_of(table));
  std::uint64_t end = 0;
  const std::vector<ImagePlace> places = image_places(footer, &end);
  if (end != static_cast<std::uint64_t>(start - data_)) throw SnapshotCorrupt("the parts do not fill the file");
  max_time_s_ = footer.max_time_s;
  parts_.resize(places.size());
  table.pool().run(parts_.size(), [&](std::size_t i) {
    const ImagePart& from = footer.parts[i];
    parts_[i].rows = data_ + places[i].rows;
    // Copied first, then checked: a program that writes to the mapped file can then change rows, but send no search
    // astray.
    std::vector<RingIndex::Bucket> copy(is_mapped() ? from.buckets : 0);
    const auto copied = std::as_writable_bytes(std::span(copy));
    if (!copied.empty() && !file.read_at(places[i].index, copied.data(), copied.size())) {
      throw SnapshotCorrupt("it became shorter meanwhile");
    }
    const std::span<const RingIndex::Bucket> buckets =
        is_mapped() ? std::span<const RingIndex::Bucket>(copy)
                    : std::span(reinterpret_cast<const RingIndex::Bucket*>(data_ + places[i].index), from.buckets);
    if (buckets.empty()) return;
    check_image_index(buckets, from.rows, i);
    const auto lines = std::as_bytes(buckets);
    if (crc32c(0, lines.data(), lines.size()) != from.index_crc) {
      throw SnapshotCorrupt("checksum of the index of part " + std::to_string(i) + " does not match");
    }
    parts_[i].index.reserve(from.rows + from.rows / kRoomShare);
    read_image_index(buckets, parts_[i].index, parts_[i].times);
  });
}

}  // namespace engine
