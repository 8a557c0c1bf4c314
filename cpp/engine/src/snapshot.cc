// snapshot.cc: writes and reads part files. See snapshot.h for the format.
#include "engine/snapshot.h"

#include <algorithm>
#include <cstdio>
#include <optional>
#include <random>

#include "engine/crc32c.h"
#include "engine/error.h"
#include "engine/failpoint.h"
#include "file.h"
#include "row_columns.h"

namespace engine {

namespace {

constexpr char kMagic[8] = {'M', 'N', 'L', 'T', 'R', 'O', 'W', 'S'};
constexpr std::uint32_t kSnapshotVersion = 1;
constexpr std::uint32_t kBlockMark = 0x4B434C42;  // "BLCK"
constexpr std::uint32_t kTailMark = 0x4C494154;   // "TAIL"
constexpr std::size_t kTailBytes = 24;
constexpr std::size_t kBlockRows = 16384;
// Wide rows come in smaller blocks, which bounds the buffer of a writer and the time that a part is locked.
constexpr std::size_t kBlockBytes = std::size_t{4} << 20;
constexpr std::size_t kLeastBlockRows = 64;
constexpr std::size_t kMostSnapshotHeaderBytes = 1 << 20;
// Files written at the same time: while one waits for the disk, another is packed.
constexpr std::size_t kMostWriters = 4;
// Files that stay open during a restore, each with two descriptors; a process may have only 1024. The files of a
// snapshot with more parts are opened again for each block.
constexpr std::size_t kMostOpenFiles = 128;
// Blocks that the disk reads ahead of each stream of a restore that goes through the page cache.
constexpr std::size_t kBlocksAhead = 2;
// Readers of a restore: while some wait for the disk, others take rows.
constexpr unsigned kReadersPerThread = 2;
constexpr unsigned kLeastReaders = 8;

// Everything that must agree for two tables' rows to mean the same.
std::vector<std::byte> header_body(const RowSchema& schema, std::uint64_t generation, std::uint32_t part,
                                   std::uint32_t parts) {
  std::vector<std::byte> body;
  put(body, kSnapshotVersion);
  put(body, generation);
  put(body, part);
  put(body, parts);
  put(body, std::uint32_t{schema.is_serving()});
  put(body, static_cast<std::uint32_t>(schema.slices().size()));
  for (const RowSchema::Slice& slice : schema.slices()) {
    put(body, slice.dim);
    put(body, static_cast<std::uint32_t>(slice.optimizer_kind.size()));
    put(body, static_cast<std::uint32_t>(slice.optimizer->state_words() * sizeof(float)));
    put(body, static_cast<std::uint32_t>(schema.is_serving() ? slice.compressor->bytes(slice.dim)
                                                             : slice.dim * sizeof(float)));
    for (const char c : slice.optimizer_kind) body.push_back(static_cast<std::byte>(c));
  }
  return body;
}

// A block of rows as columns, laid out where the file's buffer has room for it.
class BlockBuilder {
 public:
  explicit BlockBuilder(const RowSchema& schema)
      : schema_(schema),
        columns_(columns_of(schema)),
        most_rows_(std::clamp(kBlockBytes / stored_row_bytes(columns_), kLeastBlockRows, kBlockRows)) {}

  [[nodiscard]] std::size_t most_rows() const noexcept { return most_rows_; }
  [[nodiscard]] std::size_t most_bytes() const noexcept { return bytes_of(most_rows_); }

  void pack(const Table::CutRows& rows, std::byte* block) {
    count_ = rows.ids.size();
    block_ = block;
    const auto row_at = [&](std::size_t i) { return rows.rows[i]; };
    pack_columns(schema_, columns_, rows.ids, rows.times, row_at, block + header_bytes());
  }

  // Adds the checksums; returns the bytes of the block.
  [[nodiscard]] std::size_t seal() {
    std::vector<std::byte> header;
    put(header, kBlockMark);
    put(header, static_cast<std::uint32_t>(count_));
    const std::byte* at = block_ + header_bytes();
    const auto add_column = [&](std::size_t bytes) {
      put(header, crc32c(0, at, bytes));
      at += bytes;
    };
    add_column(count_ * sizeof(std::int64_t));
    add_column(count_ * sizeof(std::uint32_t));
    for (const Column& column : columns_) add_column(count_ * column.bytes);
    put(header, crc32c(0, header.data(), header.size()));
    std::copy(header.begin(), header.end(), block_);
    return bytes_of(count_);
  }

 private:
  [[nodiscard]] std::size_t header_bytes() const noexcept {
    return (2 + columns_.size() + 2 + 1) * sizeof(std::uint32_t);
  }
  [[nodiscard]] std::size_t bytes_of(std::size_t rows) const noexcept {
    return header_bytes() + rows * stored_row_bytes(columns_);
  }

  const RowSchema& schema_;
  std::vector<Column> columns_;
  std::size_t most_rows_;
  std::byte* block_ = nullptr;
  std::size_t count_ = 0;
};

class PartWriter {
 public:
  PartWriter(const RowSchema& schema, std::string path, std::vector<std::byte> header)
      : path_(std::move(path)),
        temporary_(path_ + ".tmp-" + std::to_string(std::random_device()())),
        file_(temporary_),
        builder_(schema) {
    std::vector<std::byte> opening;
    for (const char c : kMagic) opening.push_back(static_cast<std::byte>(c));
    put(opening, static_cast<std::uint32_t>(header.size()));
    opening.insert(opening.end(), header.begin(), header.end());
    put(opening, crc32c(0, header.data(), header.size()));
    file_.append(opening);
    file_.make_room(builder_.most_bytes());
  }

  ~PartWriter() {
    if (!is_done_) ::unlink(temporary_.c_str());
  }
  PartWriter(const PartWriter&) = delete;
  PartWriter& operator=(const PartWriter&) = delete;

  [[nodiscard]] std::size_t block_rows() const noexcept { return builder_.most_rows(); }

  // Copies rows into the buffer: short, because the part of the table is locked meanwhile.
  void pack(const Table::CutRows& rows) {
    builder_.pack(rows, file_.claim());
    rows_ += rows.ids.size();
    ++blocks_;
  }
  void flush() {
    file_.commit(builder_.seal());
    file_.make_room(builder_.most_bytes());
  }

  SnapshotPart finish() {
    std::vector<std::byte> tail;
    put(tail, kTailMark);
    put(tail, rows_);
    put(tail, blocks_);
    put(tail, crc32c(0, tail.data(), tail.size()));
    file_.append(tail);
    file_.finish();
    failpoint("snapshot.part_written");
    if (::rename(temporary_.c_str(), path_.c_str()) != 0) fail_io("rename a temporary file to", path_);
    is_done_ = true;
    return {.path = path_, .bytes = file_.size(), .rows = rows_};
  }

 private:
  std::string path_;
  std::string temporary_;
  OutputFile file_;
  BlockBuilder builder_;
  std::uint64_t rows_ = 0;
  std::uint64_t blocks_ = 0;
  bool is_done_ = false;
};

// Reads one part file; every complaint names file, offset and reason.
class PartReader {
 public:
  struct BlockPlace {
    std::uint64_t offset;
    std::uint32_t rows;
  };

  PartReader(const RowSchema& schema, std::uint64_t generation, std::uint32_t part, std::uint32_t parts,
             const SnapshotPart& expected, Cache cache)
      : path_(expected.path), cache_(cache), columns_(columns_of(schema)) {
    file_.emplace(path_, cache_);
    const std::uint64_t size = file_->size();
    if (size != expected.bytes) {
      fail(std::min(size, expected.bytes), "the file has " + std::to_string(size) + " bytes, expected " +
                                               std::to_string(expected.bytes) + " by the manifest");
    }
    const std::uint64_t first_block = check_opening(header_body(schema, generation, part, parts));
    list_blocks(first_block, size, expected.rows);
    if (parts > kMostOpenFiles) file_.reset();
  }

  [[nodiscard]] std::span<const BlockPlace> blocks() const noexcept { return blocks_; }

  void fetch(const BlockPlace& place) const noexcept {
    if (file_) file_->fetch(place.offset, block_header_bytes() + place.rows * row_width());
  }

  // The block's columns, checked: where its ids begin in the buffer.
  const std::byte* read(const BlockPlace& place, ReadBuffer& buffer) const {
    const std::size_t header_bytes = block_header_bytes();
    std::optional<InputFile> again;
    if (!file_) again.emplace(path_, cache_);
    const InputFile& file = file_ ? *file_ : *again;
    const std::byte* const block = file.read_large(place.offset, header_bytes + place.rows * row_width(), buffer);
    if (block == nullptr) fail(place.offset, "the block is cut off");
    const std::byte* checksum = block + 2 * sizeof(std::uint32_t);
    const std::byte* at = block + header_bytes;
    const auto check = [&](std::size_t bytes) {
      if (crc32c(0, at, bytes) != get<std::uint32_t>(checksum)) {
        fail(place.offset + static_cast<std::uint64_t>(at - block), "checksum of a column does not match");
      }
      checksum += sizeof(std::uint32_t);
      at += bytes;
    };
    check(place.rows * sizeof(std::int64_t));
    check(place.rows * sizeof(std::uint32_t));
    for (const Column& column : columns_) check(place.rows * column.bytes);
    return block + header_bytes;
  }

 private:
  [[noreturn]] void fail(std::uint64_t offset, const std::string& reason) const {
    throw SnapshotCorrupt("'" + path_ + "' at byte " + std::to_string(offset) + ": " + reason);
  }

  [[nodiscard]] std::size_t block_header_bytes() const noexcept {
    return (2 + 2 + columns_.size() + 1) * sizeof(std::uint32_t);
  }
  [[nodiscard]] std::size_t row_width() const noexcept { return stored_row_bytes(columns_); }

  [[nodiscard]] std::uint64_t check_opening(const std::vector<std::byte>& wanted) const {
    std::vector<std::byte> opening(sizeof kMagic + sizeof(std::uint32_t));
    if (!file_->read_at(0, opening.data(), opening.size())) fail(0, "the file is cut off in its first bytes");
    if (std::memcmp(opening.data(), kMagic, sizeof kMagic) != 0) fail(0, "the file is not a part of a table snapshot");
    const auto bytes = get<std::uint32_t>(opening.data() + sizeof kMagic);
    if (bytes > kMostSnapshotHeaderBytes) fail(sizeof kMagic, "the header claims " + std::to_string(bytes) + " bytes");
    std::vector<std::byte> body(bytes + sizeof(std::uint32_t));
    const std::uint64_t offset = opening.size();
    if (!file_->read_at(offset, body.data(), body.size())) fail(offset, "the header is cut off");
    if (crc32c(0, body.data(), bytes) != get<std::uint32_t>(body.data() + bytes)) {
      fail(offset, "checksum of the header does not match");
    }
    body.resize(bytes);
    if (body.size() < sizeof(std::uint32_t)) fail(offset, "the header has no format version");
    if (const auto version = get<std::uint32_t>(body.data()); version != kSnapshotVersion) {
      fail(offset, "the format version is " + std::to_string(version) + ", expected " +
                       std::to_string(kSnapshotVersion) + "; use the release that wrote it");
    }
    if (body != wanted) fail(offset, "the header belongs to another snapshot, part or table layout");
    return offset + bytes + sizeof(std::uint32_t);
  }

  void list_blocks(std::uint64_t offset, std::uint64_t size, std::uint64_t expected_rows) {
    std::uint64_t rows = 0;
    std::vector<std::byte> header(block_header_bytes());
    while (offset + kTailBytes < size) {
      if (offset + header.size() > size || !file_->read_at(offset, header.data(), header.size())) {
        fail(offset, "a block header is cut off");
      }
      const std::size_t checked = header.size() - sizeof(std::uint32_t);
      if (get<std::uint32_t>(header.data()) != kBlockMark ||
          crc32c(0, header.data(), checked) != get<std::uint32_t>(header.data() + checked)) {
        fail(offset, "checksum of a block header does not match");
      }
      const auto count = get<std::uint32_t>(header.data() + sizeof(std::uint32_t));
      const std::uint64_t bytes = header.size() + count * row_width();
      if (count > kBlockRows || offset + bytes + kTailBytes > size) fail(offset, "a block is longer than the file");
      blocks_.push_back({offset, count});
      rows += count;
      offset += bytes;
    }
    std::vector<std::byte> tail(kTailBytes);
    if (offset + kTailBytes != size || !file_->read_at(offset, tail.data(), tail.size()))
      fail(offset, "the tail is cut off");
    if (get<std::uint32_t>(tail.data()) != kTailMark ||
        crc32c(0, tail.data(), kTailBytes - 4) != get<std::uint32_t>(tail.data() + kTailBytes - 4)) {
      fail(offset, "checksum of the tail does not match");
    }
    if (get<std::uint64_t>(tail.data() + 4) != rows || get<std::uint64_t>(tail.data() + 12) != blocks_.size() ||
        rows != expected_rows) {
      fail(offset, "the file holds " + std::to_string(rows) + " rows, its tail or the manifest expects another number");
    }
  }

  std::string path_;
  Cache cache_;
  std::optional<InputFile> file_;  // while it stays open
  std::vector<Column> columns_;
  std::vector<BlockPlace> blocks_;
};

// Calls begin(rows) with the number of all rows, once the files are known to have them: the claim of a manifest takes
// no memory. Then reads all blocks with `threads` threads at work and hands each to take(rows, columns). Blocks far
// apart are read at the same time: they belong to different parts of the table, so the readers do not wait for each
// other's locks. With one thread, blocks come in the order of the files, and the page cache reads ahead.
template <class Begin, class Take>
void read_blocks(const RowSchema& schema, std::uint64_t generation, std::span<const SnapshotPart> parts,
                 unsigned threads, Begin&& begin, Take&& take) {
  struct Piece {
    const PartReader* reader;
    PartReader::BlockPlace place;
  };
  Pool pool(threads == 1 ? 1 : std::max(threads * kReadersPerThread, kLeastReaders));
  std::vector<std::unique_ptr<PartReader>> readers(parts.size());
  pool.run(parts.size(), [&](std::size_t i) {
    readers[i] = std::make_unique<PartReader>(schema, generation, static_cast<std::uint32_t>(i),
                                              static_cast<std::uint32_t>(parts.size()), parts[i],
                                              threads == 1 ? Cache::kThrough : Cache::kPast);
  });
  std::vector<Piece> pieces;
  for (const auto& reader : readers) {
    for (const PartReader::BlockPlace& place : reader->blocks()) pieces.push_back({reader.get(), place});
  }
  std::size_t expected = 0;
  for (const Piece& piece : pieces) expected += piece.place.rows;
  begin(expected);
  const std::size_t streams = pool.threads();
  const std::size_t stride = (pieces.size() + streams - 1) / streams;
  pool.run(stride * streams, [&](std::size_t i) {
    const std::size_t at = i % streams * stride + i / streams;
    if (at >= pieces.size()) return;
    // The disk reads the next blocks of this stream while the rows of this one are taken.
    for (std::size_t ahead = i < streams ? 1 : kBlocksAhead; ahead <= kBlocksAhead; ++ahead) {
      if (i / streams + ahead < stride && at + ahead < pieces.size()) {
        pieces[at + ahead].reader->fetch(pieces[at + ahead].place);
      }
    }
    static thread_local ReadBuffer buffer;
    take(pieces[at].place.rows, pieces[at].reader->read(pieces[at].place, buffer));
  });
}

}  // namespace

std::vector<SnapshotPart> write_snapshot(Table& table, const Table::Cut& cut, std::uint64_t generation,
                                         const std::vector<std::string>& paths, std::uint32_t first,
                                         std::uint32_t count) {
  struct EndCut {
    Table& table;
    ~EndCut() { table.end_cut(); }
  } const end_cut{table};
  std::vector<SnapshotPart> parts(paths.size());
  try {
    Pool writers(static_cast<unsigned>(std::min(paths.size(), kMostWriters)));
    writers.run(paths.size(), [&](std::size_t i) {
      PartWriter writer(table.schema(), paths[i],
                        header_body(table.schema(), generation, first + static_cast<std::uint32_t>(i), count));
      for (std::size_t part = 0; part < kParts; ++part) {
        if (part * paths.size() / kParts != i) continue;
        table.visit_cut(
            cut, part, writer.block_rows(), [&](const Table::CutRows& rows) { writer.pack(rows); },
            [&] { writer.flush(); });
      }
      parts[i] = writer.finish();
    });
  } catch (...) {
    for (const std::string& path : paths) ::unlink(path.c_str());
    throw;
  }
  return parts;
}

void verify_snapshot(const RowSchema& schema, std::uint64_t generation, std::span<const SnapshotPart> parts,
                     Pool& pool) {
  read_blocks(schema, generation, parts, pool.threads(), [](std::size_t) {}, [](std::size_t, const std::byte*) {});
}

namespace {

// Rows are numbered as they come in; a deterministic table takes them in the order of the files.
unsigned threads_of(const Table& table) { return table.config().is_deterministic ? 1 : table.pool().threads(); }

// The ids and times of a block, and which of its rows they belong to, for the wanted ids.
struct KeptIds {
  std::vector<std::int64_t> ids;
  std::vector<std::uint32_t> times;
  std::vector<std::uint32_t> positions;  // empty: all

  void take(std::size_t rows, const std::byte* columns, ShardFilter keep) {
    ids.resize(rows);
    times.resize(rows);
    std::memcpy(ids.data(), columns, rows * sizeof(std::int64_t));
    std::memcpy(times.data(), columns + rows * sizeof(std::int64_t), rows * sizeof(std::uint32_t));
    positions.clear();
    if (keep.count <= 1) return;
    for (std::size_t i = 0; i < rows; ++i) {
      if (static_cast<std::uint64_t>(ids[i]) % keep.count != keep.index) continue;
      ids[positions.size()] = ids[i];
      times[positions.size()] = times[i];
      positions.push_back(static_cast<std::uint32_t>(i));
    }
    ids.resize(positions.size());
    times.resize(positions.size());
  }
};

// Moves the rows of the wanted ids to the front; returns their number.
std::size_t keep_rows(RawRows& rows, ShardFilter keep, std::size_t row_bytes) {
  if (keep.count <= 1) return rows.ids.size();
  std::size_t count = 0;
  for (std::size_t i = 0; i < rows.ids.size(); ++i) {
    if (static_cast<std::uint64_t>(rows.ids[i]) % keep.count != keep.index) continue;
    rows.ids[count] = rows.ids[i];
    rows.times[count] = rows.times[i];
    std::memmove(rows.rows.data() + count * row_bytes, rows.rows.data() + i * row_bytes, row_bytes);
    ++count;
  }
  return count;
}

}  // namespace

std::size_t read_snapshot(Table& table, std::uint64_t generation, std::span<const SnapshotPart> parts,
                          ShardFilter keep) {
  const auto begin = [&](std::size_t rows) {
    if (table.size() == 0) table.reserve(rows / keep.count);
  };
  const std::vector<Column> columns = columns_of(table.schema());
  std::atomic<std::size_t> taken{0};
  read_blocks(table.schema(), generation, parts, threads_of(table), begin, [&](std::size_t rows, const std::byte* at) {
    static thread_local KeptIds kept;
    kept.take(rows, at, keep);
    const std::byte* const values = at + rows * (sizeof(std::int64_t) + sizeof(std::uint32_t));
    // The caller restores the clock: a row may be stamped later than it.
    table.import_columns(kept.ids, kept.times, {table.schema(), columns, rows, values, kept.positions});
    taken.fetch_add(kept.ids.size(), std::memory_order_relaxed);
  });
  return taken;
}

void convert_snapshot(const RowSchema& saved, Table& table, std::uint64_t generation,
                      std::span<const SnapshotPart> parts, ShardFilter keep) {
  const auto begin = [&](std::size_t rows) {
    if (table.size() == 0) table.reserve(rows / keep.count);
  };
  const std::vector<Column> columns = columns_of(saved);
  read_blocks(saved, generation, parts, threads_of(table), begin, [&](std::size_t block_rows, const std::byte* at) {
    static thread_local RawRows rows;
    unpack_columns(columns, block_rows, at, saved.row_bytes(), rows.ids, rows.times, rows.rows);
    const std::size_t count = keep_rows(rows, keep, saved.row_bytes());
    table.import_values(saved, {rows.ids.data(), count}, {rows.times.data(), count}, rows.rows.data());
  });
}

}  // namespace engine
