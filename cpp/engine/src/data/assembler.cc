// assembler.cc: one pass counts, so that every array is made once at its right size; a second pass fills.
#include "engine/data/assembler.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <optional>
#include <string_view>
#include <utility>

#include "../rows.h"
#include "cell_arrays.h"
#include "engine/data/quantized.h"
#include "engine/error.h"
#include "engine/fid.h"
#include "memory_check.h"
#include "wire.h"

namespace engine::data {

namespace {

using wire::kBlock;
using wire::Reader;
using wire::Tag;

// Text as an error shows it: bytes that are not printable ASCII are escaped.
std::string shown(std::string_view text) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  std::string out;
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte >= 0x20 && byte < 0x7f) {
      out += c;
    } else {
      out += "\\x";
      out += kDigits[byte >> 4];
      out += kDigits[byte & 15];
    }
  }
  return out;
}

}  // namespace

// One call of assemble.
class Assembler::Pass {
 public:
  Pass(Assembler& assembler, const Rows& rows)
      : config_(assembler.config_),
        assembler_(assembler),
        rows_(rows),
        count_(rows.size()),
        batch_(std::make_shared<BatchData>()) {}

  std::shared_ptr<BatchData> run() {
    batch_->rows = static_cast<std::uint32_t>(count_);
    batch_->heads = config_.labels;
    find_runs();
    is_scattered_ = assembler_.runs_.size() * kLeastRun > count_;
    make_ids();
    make_dense();
    make_labels();
    make_line_fields();
    assembler_.batch_bytes_ = taken_;
    return std::move(batch_);
  }

 private:
  // Neighbours in a block are neighbours in its columns; rows in shuffled order are runs of one.
  void find_runs() {
    auto& runs = assembler_.runs_;
    runs.clear();
    for (const Rows::Ref& ref : rows_.refs) {
      Block* block = rows_.blocks[ref.block].get();
      if (!runs.empty() && runs.back().block == block && runs.back().begin + runs.back().count == ref.row) {
        ++runs.back().count;
      } else {
        runs.push_back({block, ref.row, 1});
      }
    }
  }

  static constexpr std::uint32_t kAhead = 8;
  // Rows in shorter runs than kLeastRun are scattered: their cells are copied together first, kCellsAhead fetched
  // ahead.
  static constexpr std::size_t kCellsAhead = 24;
  static constexpr std::size_t kLeastRun = 8;
  // Of flat ids, which the processor does not fetch by itself between so many writes.
  static constexpr std::size_t kFlatBytesAhead = 512;
  static constexpr std::size_t kMostShown = 80;  // characters of a text in an error

  // Calls `use(cell, row in the batch)` for each row, until it returns false.
  template <typename Use>
  void for_each_cell_while(std::uint32_t column, Use&& use) {
    if (is_scattered_) {
      const Cell* const cells = collect_cells(column);
      for (std::size_t i = 0; i < count_; ++i) {
        __builtin_prefetch(cells[i + kAhead].data);
        if (!use(cells[i], i)) return;
      }
      return;
    }
    std::size_t row = 0;
    for (const Run& run : assembler_.runs_) {
      const Cell* cells = run.block->find_column(column);
      if (cells == nullptr) {
        for (std::uint32_t i = 0; i < run.count; ++i) {
          if (!use(Cell{}, row++)) return;
        }
        continue;
      }
      cells += run.begin;
      for (std::uint32_t i = 0; i < run.count; ++i) {
        // In formats that are written row by row, neighbours in a column lie far apart.
        if (i + kAhead < run.count) __builtin_prefetch(cells[i + kAhead].data);
        if (!use(cells[i], row++)) return;
      }
    }
  }

  // Calls `use(cell, row in the batch)` for each row.
  template <typename Use>
  void for_each_cell(std::uint32_t column, Use&& use) {
    for_each_cell_while(column, [&](const Cell& cell, std::size_t row) __attribute__((always_inline)) {
      use(cell, row);
      return true;
    });
  }

  // Copies the cells of a column together, in order of the rows; kAhead readable ones follow. A column is read twice:
  // to count and to write.
  const Cell* collect_cells(std::uint32_t column) {
    auto& cells = assembler_.cells_;
    if (column == collected_) return cells.data();
    collected_ = column;
    cells.resize(count_ + kAhead);
    bases_.clear();
    for (const auto& block : rows_.blocks) bases_.push_back(block->find_column(column));
    const auto* const refs = rows_.refs.data();
    for (std::size_t i = 0; i < count_; ++i) {
      if (i + kCellsAhead < count_) {
        const Rows::Ref later = refs[i + kCellsAhead];
        if (bases_[later.block] != nullptr) __builtin_prefetch(bases_[later.block] + later.row);
      }
      const Cell* const base = bases_[refs[i].block];
      cells[i] = base == nullptr ? Cell{} : base[refs[i].row];
    }
    std::fill(cells.begin() + static_cast<std::ptrdiff_t>(count_), cells.end(), Cell{});
    return cells.data();
  }

  template <typename Value>
  std::span<Value> take(std::size_t count) {
    const std::size_t exact = count * sizeof(Value);
    const std::size_t bytes = kChecksMemory ? exact : (exact + 63) / 64 * 64;
    if (batch_->buffers.empty() || used_ + bytes > room_ || kChecksMemory) {
      // Batches are much alike: the first buffer is as large as the last batch was, a little more, and mostly is
      // enough.
      constexpr std::size_t kPiece = kChecksMemory ? 1 : 1 << 18;
      const std::size_t all = batch_->buffers.empty() && !kChecksMemory ? assembler_.batch_bytes_ * 9 / 8 : 0;
      batch_->buffers.push_back(Buffer::take(std::max({bytes, kPiece, all})));
      room_ = batch_->buffers.back()->size();
      used_ = 0;
    }
    auto* data = reinterpret_cast<Value*>(batch_->buffers.back()->data() + used_);
    used_ += bytes;
    taken_ += bytes;
    return {data, count};
  }

  [[noreturn]] void refuse(const std::string& name, std::size_t row, const std::string& reason) const {
    throw SchemaMismatch("feature '" + name + "', row " + std::to_string(row) + " of the batch: " + reason);
  }

  // --- ids ---

  std::span<std::int64_t> take_ids(std::size_t count) { return take<std::int64_t>(count + kSlack).first(count); }

  void make_ids() {
    const std::size_t features = config_.sparse.size();
    batch_->ids.resize(features);
    flat_roles_.assign(features, FlatRole::kNone);
    const bool has_flat = has_flat_fids();
    if (has_flat) find_flat_roles();
    const bool is_filled = has_flat && fill_flat_at_once();
    if (has_flat && !is_filled) make_flat_offsets();
    for (std::size_t place = 0; place < features; ++place) {
      if (flat_roles_[place] != FlatRole::kAll) make_ids_of(place);
    }
    if (has_flat && !is_filled) fill_flat();
    if (has_flat) learn_flat_rates();
    note_kinds();
  }

  void note_kinds() {
    batch_->value_kinds.reserve(config_.sparse.size());
    for (std::size_t place = 0; place < config_.sparse.size(); ++place) {
      const SparseFeature& feature = config_.sparse[place];
      if (flat_roles_[place] != FlatRole::kNone && !batch_->ids[place].values.empty()) {
        // Only flat ids leave the kind of a feature with values open.
        if (feature.kind == ValueKind::kUnknown) assembler_.config_.sparse[place].kind = ValueKind::kFid;
        if (flat_roles_[place] == FlatRole::kAll && !takes_fids(feature)) refuse_arm(feature, 0, Arm::kFidV1);
      }
      batch_->value_kinds.push_back(static_cast<char>(feature.kind));
    }
  }

  void make_ids_of(std::size_t place) {
    if (config_.sparse[place].kind == ValueKind::kUnknown) learn_kind(place);
    const SparseFeature& feature = config_.sparse[place];
    auto& ids = batch_->ids[place];
    const bool may_be_flat = flat_roles_[place] == FlatRole::kSome;
    if (!may_be_flat && is_shared(feature.column)) {
      const Cell cell = rows_.cell(0, feature.column);
      ids.is_shared = true;
      ids.offsets = take<std::int64_t>(2);
      ids.values = take_ids(count_values(cell));
      ids.offsets[0] = 0;
      ids.offsets[1] = static_cast<std::int64_t>(ids.values.size());
      write_ids(feature, cell, 0, ids.values.data());
      return;
    }
    ids.offsets = take<std::int64_t>(count_ + 1);
    if (!may_be_flat && write_single_values(feature, ids)) return;
    const std::uint32_t* flat = may_be_flat ? flat_counts_[place].data() : nullptr;
    std::size_t integer_bytes = 0;
    const std::size_t total = count_ids(feature, flat, ids.offsets, integer_bytes);
    if (integer_bytes == 0) {
      ids.values = take_ids(total);
      write_cells(feature, flat, ids.values.data(), [](std::size_t, std::int64_t*) {});
      return;
    }
    // How many integers there are is known when they have been read; to read them twice would cost more than to copy.
    auto& scratch = assembler_.scratch_;
    scratch.resize(std::max(scratch.size(), total + integer_bytes + kSlack));
    std::int64_t* const begin = scratch.data();
    std::int64_t* const end = write_cells(
        feature, flat, begin, [&](std::size_t row, const std::int64_t* out) { ids.offsets[row + 1] = out - begin; });
    ids.values = take_ids(static_cast<std::size_t>(end - begin));
    std::copy(begin, end, ids.values.data());
  }

  // Writes the ids of a feature with one integer or one text in each row, as most columns of tables have: one pass, and
  // the offsets are known. Returns false at the first other row; the ids are then written in the general way.
  bool write_single_values(const SparseFeature& feature, BatchData::RaggedIds& ids) {
    if (count_ == 0) return false;
    const Arm arm = rows_.cell(0, feature.column).arm;
    if ((!is_integer(arm) || feature.kind != ValueKind::kInteger) && arm != Arm::kBytes) return false;
    ids.values = take_ids(count_);
    std::int64_t* const out = ids.values.data();
    bool is_single = true;
    for_each_cell_while(feature.column, [&](const Cell& cell, std::size_t row) {
      std::string_view text;
      if (cell.arm != arm) {
        is_single = false;
      } else if (arm == Arm::kInt64) {
        is_single = varints::single(cell.bytes(), out[row]);
      } else if (arm == Arm::kFixedInt64) {
        is_single = cell.size == sizeof(std::int64_t);
        if (is_single) out[row] = load<std::int64_t>(cell.data);
      } else if (only_text(cell, text)) {
        out[row] = text_id(feature, text, row);
      } else {
        is_single = false;
      }
      return is_single;
    });
    if (!is_single) return false;
    for (std::size_t row = 0; row <= count_; ++row) ids.offsets[row] = static_cast<std::int64_t>(row);
    return true;
  }

  // Counts ids row by row and fills the offsets. Cells of integers are not counted, unless there are very many: their
  // bytes are, which are at least as many.
  std::size_t count_ids(const SparseFeature& feature, const std::uint32_t* flat, std::span<std::int64_t> offsets,
                        std::size_t& integer_bytes) {
    constexpr std::size_t kMostScratchBytes = 1 << 20;
    std::int64_t total = 0;
    offsets[0] = 0;
    for_each_cell(feature.column, [&](const Cell& cell, std::size_t row) {
      if (cell.arm == Arm::kFidV2 || cell.arm == Arm::kFidV1 || cell.arm == Arm::kFixedInt64) [[likely]] {
        total += cell.size / 8;
      } else if (cell.arm != Arm::kNone) {
        if (cell.arm == Arm::kInt64 && integer_bytes + cell.size <= kMostScratchBytes) {
          integer_bytes += cell.size;
        } else {
          total += static_cast<std::int64_t>(count_values(cell));
        }
      } else if (flat != nullptr) {
        if (flat[row] != 0 && !takes_fids(feature)) refuse_arm(feature, row, Arm::kFidV1);
        total += flat[row];
      }
      offsets[row + 1] = total;
    });
    return static_cast<std::size_t>(total);
  }

  // Writes the ids of all rows, leaves room for the flat ones, and calls `end_row(row, out)` after each.
  template <typename EndRow>
  std::int64_t* write_cells(const SparseFeature& feature, const std::uint32_t* flat, std::int64_t* out,
                            EndRow&& end_row) {
    for_each_cell(feature.column, [&](const Cell& cell, std::size_t row) {
      if (cell.arm == Arm::kNone) {
        if (flat != nullptr) out += flat[row];
      } else {
        out = write_ids(feature, cell, row, out);
      }
      end_row(row, out);
    });
    return out;
  }

  // The first value of a feature decides its kind: whole floats are integers too.
  void learn_kind(std::size_t place) {
    ValueKind& kind = assembler_.config_.sparse[place].kind;
    const bool may_be_flat = flat_roles_[place] == FlatRole::kSome;
    for (std::size_t row = 0; row < count_; ++row) {
      const Arm arm = value_arm(rows_.cell(row, config_.sparse[place].column).arm);
      const bool is_flat = arm == Arm::kNone && may_be_flat && flat_counts_[place][row] != 0;
      if (is_flat || arm == Arm::kFidV1 || arm == Arm::kFidV2) {
        kind = ValueKind::kFid;
      } else if (arm != Arm::kNone) {
        kind = arm == Arm::kBytes ? ValueKind::kText : ValueKind::kInteger;
      }
      if (kind != ValueKind::kUnknown) return;
    }
  }

  // Writes the ids of one cell.
  std::int64_t* write_ids(const SparseFeature& feature, const Cell& cell, std::size_t row, std::int64_t* out) const {
    switch (cell.arm) {
      case Arm::kNone:
        return out;
      case Arm::kFidV1:
      case Arm::kFidV2:
        if (!takes_fids(feature)) [[unlikely]]
          refuse_arm(feature, row, cell.arm);
        return cell.arm == Arm::kFidV1 && !config_.keeps_fid_version ? write_fids<true>(cell, out)
                                                                     : write_fids<false>(cell, out);
      case Arm::kInt64:
        return write_integers(feature, cell, row, out);
      case Arm::kFixedInt64:
        if (feature.kind == ValueKind::kInteger) [[likely]]
          return write_fids<false>(cell, out);
        each_int(cell, [&](std::int64_t value) { return *out++ = integer_id(feature, value, row), true; });
        return out;
      case Arm::kFloat:
        for (std::size_t at = 0; at < cell.size; at += 4) {
          *out++ = real_id(feature, static_cast<double>(load<float>(cell.data + at)), kMostFloat, row);
        }
        return out;
      case Arm::kDouble:
        for (std::size_t at = 0; at < cell.size; at += 8) {
          *out++ = real_id(feature, load<double>(cell.data + at), kMostDouble, row);
        }
        return out;
      case Arm::kBytes:
        if (std::string_view only; only_text(cell, only)) [[likely]] {
          *out++ = text_id(feature, only, row);
          return out;
        }
        for_each_block(cell.bytes(), cell.field, [&](Bytes text) {
          *out++ = text_id(feature, {reinterpret_cast<const char*>(text.data()), text.size()}, row);
        });
        return out;
      default:
        for_each_list(cell, [&](const Cell& list) { out = write_ids(feature, list, row, out); });
        return out;
    }
  }

  std::int64_t* write_integers(const SparseFeature& feature, const Cell& cell, std::size_t row,
                               std::int64_t* out) const {
    if (feature.kind == ValueKind::kInteger) [[likely]] {
      varints::for_each(cell.bytes(), [&](std::uint64_t value) { *out++ = static_cast<std::int64_t>(value); });
    } else {
      varints::for_each(cell.bytes(), [&](std::uint64_t value) {
        *out++ = integer_id(feature, static_cast<std::int64_t>(value), row);
      });
    }
    return out;
  }

  std::int64_t integer_id(const SparseFeature& feature, std::int64_t value, std::size_t row) const {
    switch (feature.kind) {
      case ValueKind::kText:
        return static_cast<std::int64_t>(hash_of_decimal(value));
      case ValueKind::kFid:
        if (feature.slot < 0) return value;
        if (!fits_slot(value) && !feature.hashes_wide) {
          refuse(feature.name, row,
                 "integer is " + std::to_string(value) + ", expected 0 to 2^48 - 1 beside slot " +
                     std::to_string(feature.slot) +
                     "; declare value_type='integer' to keep all 64 bits, or hash_wide=True to hash it");
        }
        return slot_id(static_cast<std::uint32_t>(feature.slot), value);
      case ValueKind::kBucket:
        return make_fid_v2(slot_or_zero(feature), log2_bucket(static_cast<double>(value)));
      case ValueKind::kSlot48:
        return make_fid_v2(needed_slot(feature, row), static_cast<std::uint64_t>(value));
      default:
        return value;
    }
  }

  std::int64_t real_id(const SparseFeature& feature, double value, double most, std::size_t row) const {
    if (feature.kind == ValueKind::kBucket) return make_fid_v2(slot_or_zero(feature), log2_bucket(value));
    if (feature.kind == ValueKind::kSlot48) return make_fid_v2(needed_slot(feature, row), log2_bucket(value));
    const std::optional<std::int64_t> whole = parse_whole(value, most);
    if (!whole) {
      refuse(feature.name, row,
             "float is " + std::to_string(value) + ", expected a whole number of at most 2^" +
                 (most == kMostFloat ? "24" : "53") +
                 "; store ids as integers or text, or declare value_type='bucket' for powers of two");
    }
    return integer_id(feature, *whole, row);
  }

  std::int64_t text_id(const SparseFeature& feature, std::string_view text, std::size_t row) const {
    switch (feature.kind) {
      case ValueKind::kInteger: {
        const std::optional<std::int64_t> number = parse_decimal(text);
        if (!number) {
          refuse(feature.name, row,
                 "text is '" + shown(text.substr(0, kMostShown)) +
                     "', expected an integer; declare value_type='text' and train again to use text");
        }
        return *number;
      }
      case ValueKind::kFid:
        if (feature.slot < 0) return static_cast<std::int64_t>(hash_of(text));
        return make_fid_v2(static_cast<std::uint32_t>(feature.slot), hash_of(text));
      case ValueKind::kSlot48:
        return make_fid_v2(needed_slot(feature, row), hash_of(text));
      case ValueKind::kBucket:
        refuse_arm(feature, row, Arm::kBytes);
      default:
        return static_cast<std::int64_t>(hash_of(text));
    }
  }

  [[noreturn]] void refuse_arm(const SparseFeature& feature, std::size_t row, Arm arm) const {
    refuse(feature.name, row,
           "values are " + std::string(name_of(arm)) + ", expected the value_type '" +
               std::string(name_of(feature.kind)) + "'; convert the data, or train a model with this type");
  }

  static bool takes_fids(const SparseFeature& feature) {
    return feature.kind == ValueKind::kFid || feature.kind == ValueKind::kSlot48;
  }

  static std::uint32_t slot_or_zero(const SparseFeature& feature) {
    return static_cast<std::uint32_t>(std::max(feature.slot, 0));
  }

  std::uint32_t needed_slot(const SparseFeature& feature, std::size_t row) const {
    if (feature.slot < 0) refuse(feature.name, row, "slot is missing, expected one to make ids of plain values");
    return static_cast<std::uint32_t>(feature.slot);
  }

  bool is_shared(std::uint32_t column) const {
    if (count_ < 2) return false;
    const Cell first = rows_.cell(0, column);
    if (first.arm == Arm::kNone) return false;
    for (std::size_t row = 1; row < count_; ++row) {
      // A cell without values may lie where another row's values begin.
      const Cell cell = rows_.cell(row, column);
      if (cell.data != first.data || cell.size != first.size) return false;
    }
    return true;
  }

  // --- flat ids, of all slots of a row together ---

  [[nodiscard]] bool has_flat_fids() const {
    return std::any_of(assembler_.runs_.begin(), assembler_.runs_.end(), [](const Run& run) {
      for (std::uint32_t i = 0; i < run.count; ++i) {
        if (!run.block->info(run.begin + i).flat_fids.empty()) return true;
      }
      return false;
    });
  }

  [[nodiscard]] bool has_cells(std::uint32_t column) const {
    return std::any_of(assembler_.runs_.begin(), assembler_.runs_.end(), [column](const Run& run) {
      const Cell* const cells = run.block->find_column(column);
      if (cells == nullptr) return false;
      const auto holds_something = [](const Cell& cell) { return cell.arm != Arm::kNone; };
      return std::any_of(cells + run.begin, cells + run.begin + run.count, holds_something);
    });
  }

  void find_flat_roles() {
    for (std::size_t place = 0; place < config_.sparse.size(); ++place) {
      const SparseFeature& feature = config_.sparse[place];
      if (!feature.takes_flat_fids) continue;
      flat_roles_[place] = has_cells(feature.column) ? FlatRole::kSome : FlatRole::kAll;
    }
  }

  // How many ids a feature has in a row is much the same from batch to batch. So room is made for a quarter more than
  // last time and the ids are put there in one pass; should it not do, they are counted first after all.
  bool fill_flat_at_once() {
    const auto& rates = assembler_.flat_rates_;
    if (rates.empty() || std::find(flat_roles_.begin(), flat_roles_.end(), FlatRole::kSome) != flat_roles_.end()) {
      return false;
    }
    std::size_t most = 0;  // ids of one row
    for_each_row([&most](std::size_t, Bytes fids) { most = std::max(most, fids.size() / 8); });
    struct Taker {
      std::size_t place;
      std::int64_t* begin;
      std::int64_t* end;  // behind it there is room for one more row
      std::int64_t* offsets;
    };
    std::vector<Taker> takers;
    std::vector<std::int64_t*> cursors(config_.sparse.size(), nullptr);
    for (std::size_t place = 0; place < cursors.size(); ++place) {
      if (flat_roles_[place] != FlatRole::kAll) continue;
      const auto room = static_cast<std::size_t>(rates[place] * 1.25 * static_cast<double>(count_)) + 1;
      auto& ids = batch_->ids[place];
      ids.offsets = take<std::int64_t>(count_ + 1);
      ids.offsets[0] = 0;
      ids.values = take_ids(room + most);
      cursors[place] = ids.values.data();
      takers.push_back({place, ids.values.data(), ids.values.data() + room, ids.offsets.data() + 1});
    }
    const bool converts = !config_.keeps_fid_version;
    // Each row writes to two arrays per feature. No prefetcher follows so many, and each new line would delay all later
    // stores.
    constexpr std::size_t kLineIds = kLineBytes / sizeof(std::int64_t);
    constexpr std::size_t kIdsAhead = 2 * kLineIds;
    bool has_room = true;
    for_each_row([&](std::size_t row, Bytes fids) {
      if (!has_room) return;
      for_each_flat(fids, [&](std::size_t place, std::int64_t fid) {
        std::int64_t*& cursor = cursors[place];
        prefetch_for_write(cursor + kIdsAhead);
        *cursor++ = converts ? fid_v1_to_v2(fid) : fid;
      });
      if (row % kLineIds == 0) {
        for (const Taker& taker : takers) prefetch_for_write(taker.offsets + row + kIdsAhead);
      }
      for (const Taker& taker : takers) {
        taker.offsets[row] = cursors[taker.place] - taker.begin;
        has_room = has_room && cursors[taker.place] <= taker.end;
      }
    });
    if (!has_room) return false;
    for (const Taker& taker : takers) {
      auto& ids = batch_->ids[taker.place];
      ids.values = ids.values.first(static_cast<std::size_t>(cursors[taker.place] - taker.begin));
    }
    return true;
  }

  void learn_flat_rates() {
    auto& rates = assembler_.flat_rates_;
    rates.resize(config_.sparse.size());
    for (std::size_t place = 0; place < rates.size(); ++place) {
      rates[place] = static_cast<double>(batch_->ids[place].values.size()) / static_cast<double>(count_);
    }
  }

  // Row by row, the ids of each feature are counted. Where no row has the feature under its name, which is usual, the
  // counts are its offsets; else they are kept for make_ids_of, as a feature of that name wins over the flat ids.
  void make_flat_offsets() {
    struct Taker {
      std::size_t place;
      std::int64_t* offsets;
      std::uint32_t* counts;
      std::int64_t total;
    };
    std::vector<Taker> takers;
    const std::size_t features = config_.sparse.size();
    flat_counts_.resize(features);
    for (std::size_t place = 0; place < features; ++place) {
      if (flat_roles_[place] == FlatRole::kNone) continue;
      if (flat_roles_[place] == FlatRole::kSome) {
        flat_counts_[place].resize(count_);
        takers.push_back({place, nullptr, flat_counts_[place].data(), 0});
      } else {
        auto& ids = batch_->ids[place];
        ids.offsets = take<std::int64_t>(count_ + 1);
        ids.offsets[0] = 0;
        takers.push_back({place, ids.offsets.data() + 1, nullptr, 0});
      }
    }
    std::vector<std::uint32_t> counts(features);
    for_each_row([&](std::size_t row, Bytes fids) {
      for_each_flat(fids, [&](std::size_t place, std::int64_t) { ++counts[place]; });
      for (Taker& taker : takers) {
        const std::uint32_t count = std::exchange(counts[taker.place], 0U);
        if (taker.offsets != nullptr) [[likely]] {
          taker.total += count;
          taker.offsets[row] = taker.total;
        } else {
          taker.counts[row] = count;
        }
      }
    });
    for (const Taker& taker : takers) {
      if (taker.offsets != nullptr) batch_->ids[taker.place].values = take_ids(static_cast<std::size_t>(taker.total));
    }
  }

  void fill_flat() {
    const std::size_t features = config_.sparse.size();
    std::vector<std::int64_t*> cursors(features, nullptr);
    std::vector<std::size_t> mixed;
    for (std::size_t place = 0; place < features; ++place) {
      cursors[place] = batch_->ids[place].values.data();
      if (flat_roles_[place] == FlatRole::kSome) mixed.push_back(place);
    }
    const bool converts = !config_.keeps_fid_version;
    if (mixed.empty()) {
      for_each_row([&](std::size_t, Bytes fids) {
        for_each_flat(
            fids, [&](std::size_t place, std::int64_t fid) { *cursors[place]++ = converts ? fid_v1_to_v2(fid) : fid; });
      });
      return;
    }
    for_each_row([&](std::size_t row, Bytes fids) {
      for (const std::size_t place : mixed) {
        const auto& ids = batch_->ids[place];
        const bool is_named = rows_.cell(row, config_.sparse[place].column).arm != Arm::kNone;
        cursors[place] = is_named ? nullptr : ids.values.data() + ids.offsets[row];
      }
      for_each_flat(fids, [&](std::size_t place, std::int64_t fid) {
        if (cursors[place] != nullptr) *cursors[place]++ = converts ? fid_v1_to_v2(fid) : fid;
      });
    });
  }

  template <typename Use>
  void for_each_row(Use&& use) {
    std::size_t row = 0;
    for (const Run& run : assembler_.runs_) {
      for (std::uint32_t i = 0; i < run.count; ++i) use(row++, run.block->info(run.begin + i).flat_fids);
    }
  }

  template <typename Use>
  void for_each_flat(Bytes fids, Use&& use) const {
    const std::int32_t* places = assembler_.sparse_of_slot_.data();
    for (std::size_t at = 0; at < fids.size(); at += 8) {
      if (at % kLineBytes == 0) __builtin_prefetch(fids.data() + at + kFlatBytesAhead);
      const auto fid = load<std::int64_t>(fids.data() + at);
      const std::int32_t place = places[slot_v1(fid)];
      if (place >= 0) use(static_cast<std::size_t>(place), fid);
    }
  }

  // --- dense ---

  void make_dense() {
    const std::size_t features = config_.dense.size();
    batch_->dense.resize(features);
    for (std::size_t place = 0; place < features; ++place) {
      const DenseFeature& feature = config_.dense[place];
      batch_->dense[place].width = feature.width;
      switch (feature.kind) {
        case DenseKind::kFloat:
          batch_->dense[place].reals = make_numbers<float>(feature);
          break;
        case DenseKind::kInt64:
          batch_->dense[place].integers = make_numbers<std::int64_t>(feature);
          break;
        case DenseKind::kText:
          batch_->dense[place].texts = make_texts(feature);
          break;
      }
    }
  }

  template <typename Value>
  std::span<Value> make_numbers(const DenseFeature& feature) {
    const std::size_t width = feature.width;
    const auto values = take<Value>(count_ * width);
    for_each_cell(feature.column, [&](const Cell& cell, std::size_t row) {
      Value* out = values.data() + row * width;
      if (cell.arm == Arm::kFloat && cell.size == width * sizeof(float) && std::is_same_v<Value, float>) [[likely]] {
        std::memcpy(out, cell.data, cell.size);
        return;
      }
      if (cell.arm == Arm::kDouble && cell.size == sizeof(double) && width == 1 && std::is_same_v<Value, float>) {
        *out = static_cast<Value>(load<double>(cell.data));
        return;
      }
      std::size_t count = 0;
      const auto put = [&](Value value) {
        if (count < width) out[count] = value;
        ++count;
      };
      bool is_kind = for_each_number<Value>(cell, put);
      if constexpr (std::is_same_v<Value, float>) {
        if (!is_kind && cell.arm == Arm::kBytes) is_kind = read_quantized(feature, cell, row, put);
      }
      if (!is_kind) {
        refuse(feature.name, row,
               "it holds " + std::string(name_of(cell.arm)) + ", which are no " +
                   (std::is_same_v<Value, float> ? "numbers" : "integers"));
      }
      check_width(feature, count, row);
      std::fill(out + std::min(count, width), out + width, static_cast<Value>(feature.default_value));
    });
    return values;
  }

  void check_width(const DenseFeature& feature, std::size_t count, std::size_t row) const {
    if (count == 0 || count == feature.width || feature.pads) return;
    refuse(feature.name, row,
           "it has " + std::to_string(count) + " values, its width is " + std::to_string(feature.width) +
               "; correct the width, or declare it with pad=True");
  }

  template <typename Put>
  bool read_quantized(const DenseFeature& feature, const Cell& cell, std::size_t row, Put&& put) const {
    bool is_quantized = false;
    for_each_block(cell.bytes(), cell.field, [&](Bytes text) {
      if (is_quantized || !has_quantized_prefix(text)) return;
      is_quantized = true;
      std::vector<float> values(feature.width);
      if (!decode_quantized(text, values)) {
        refuse(feature.name, row,
               "a quantised vector of " + std::to_string(text.size()) + " bytes does not have " +
                   std::to_string(feature.width) + " values");
      }
      for (const float value : values) put(value);
    });
    return is_quantized;
  }

  BatchData::Texts make_texts(const DenseFeature& feature) {
    std::vector<std::string_view> found;
    found.reserve(count_ * feature.width);
    std::size_t bytes = 0;
    for_each_cell(feature.column, [&](const Cell& cell, std::size_t row) {
      std::size_t count = 0;
      if (cell.arm == Arm::kBytes) {
        for_each_block(cell.bytes(), cell.field, [&](Bytes text) {
          if (count++ >= feature.width) return;
          found.emplace_back(reinterpret_cast<const char*>(text.data()), text.size());
          bytes += text.size();
        });
      } else if (cell.arm != Arm::kNone) {
        refuse(feature.name, row, "it holds " + std::string(name_of(cell.arm)) + ", which are no byte strings");
      }
      check_width(feature, count, row);
      found.resize((row + 1) * feature.width);
    });
    return copy_texts(feature.name, found, bytes);
  }

  BatchData::Texts copy_texts(const std::string& name, const std::vector<std::string_view>& found, std::size_t bytes) {
    // Rows may share one long text; each gets a copy of it.
    constexpr std::size_t kMostTextBytes = std::size_t{1} << 30;
    if (bytes > kMostTextBytes) {
      throw SchemaMismatch("feature '" + name + "': its texts take " + std::to_string(bytes) +
                           " bytes in one batch, more than the limit of " + std::to_string(kMostTextBytes) +
                           "; make the batches smaller");
    }
    BatchData::Texts texts{take<std::byte>(bytes), take<std::int64_t>(found.size() + 1)};
    std::size_t at = 0;
    for (std::size_t i = 0; i < found.size(); ++i) {
      texts.offsets[i] = static_cast<std::int64_t>(at);
      if (!found[i].empty()) std::memcpy(texts.bytes.data() + at, found[i].data(), found[i].size());
      at += found[i].size();
    }
    texts.offsets[found.size()] = static_cast<std::int64_t>(at);
    return texts;
  }

  // --- labels and LineId ---

  void make_labels() {
    const std::size_t heads = config_.labels;
    batch_->labels = take<float>(count_ * heads);
    batch_->label_mask = take<bool>(count_ * heads);
    batch_->weights = take<float>(count_);
    for (std::size_t row = 0; row < count_; ++row) {
      if (row + kAhead < count_) __builtin_prefetch(rows_.info(row + kAhead).labels);
      const RowInfo& info = rows_.info(row);
      batch_->weights[row] = info.weight;
      for (std::size_t head = 0; head < heads; ++head) {
        const float label = head < info.label_count ? info.labels[head] : kInvalidLabel;
        const bool is_there = label != kInvalidLabel && !std::isnan(label);
        batch_->labels[row * heads + head] = is_there ? label : config_.missing_label;
        batch_->label_mask[row * heads + head] = is_there;
      }
    }
  }

  void make_line_fields() {
    batch_->sample_rates = take<float>(count_);
    batch_->times_s = take<std::int64_t>(count_);
    batch_->uids = take<std::int64_t>(count_);
    batch_->actions.offsets = take<std::int64_t>(count_ + 1);
    batch_->actions.offsets[0] = 0;
    prepare_extras();
    actions_.clear();
    for (std::size_t row = 0; row < count_; ++row) {
      if (row + kAhead < count_) __builtin_prefetch(rows_.info(row + kAhead).line.data());
      read_line(rows_.info(row).line, row);
      batch_->actions.offsets[row + 1] = static_cast<std::int64_t>(actions_.size());
    }
    batch_->actions.values = take<std::int64_t>(actions_.size());
    std::copy(actions_.begin(), actions_.end(), batch_->actions.values.begin());
    for (std::size_t place = 0; place < config_.extras.size(); ++place) {
      if (config_.extras[place].field.kind != FieldKind::kText) continue;
      std::size_t bytes = 0;
      for (const std::string_view text : extra_texts_[place]) bytes += text.size();
      batch_->extras[place].texts = copy_texts(config_.extras[place].field.name, extra_texts_[place], bytes);
    }
  }

  void prepare_extras() {
    const std::size_t extras = config_.extras.size();
    batch_->extras.resize(extras);
    extra_texts_.resize(extras);
    extra_counts_.assign(extras, 0);
    for (std::size_t place = 0; place < extras; ++place) {
      const auto& [field, width] = config_.extras[place];
      batch_->extras[place].width = width;
      switch (field.kind) {
        case FieldKind::kText:
          extra_texts_[place].assign(count_ * width, {});
          break;
        case FieldKind::kFloat:
        case FieldKind::kDouble:
          batch_->extras[place].reals = take<float>(count_ * width);
          std::fill(batch_->extras[place].reals.begin(), batch_->extras[place].reals.end(),
                    static_cast<float>(field.default_value));
          break;
        default:
          batch_->extras[place].integers = take<std::int64_t>(count_ * width);
          std::fill(batch_->extras[place].integers.begin(), batch_->extras[place].integers.end(),
                    static_cast<std::int64_t>(field.default_value));
      }
    }
  }

  // Everything that is wanted of one LineId, in one walk. Its structure was checked when it was parsed.
  void read_line(Bytes line, std::size_t row) {
    float sample_rate = 1.0F;
    std::int64_t time_s = 0;
    std::int64_t uid = 0;
    std::fill(extra_counts_.begin(), extra_counts_.end(), 0);
    Reader reader(line);
    while (!reader.done()) {
      const Tag tag = reader.tag();
      const std::byte* begin = reader.at();
      Bytes block;
      if (tag.wire == kBlock) {
        block = reader.block();
      } else {
        reader.skip(tag);
      }
      if (tag.field == line_number::kUid && tag.wire == wire::kFixed64) {
        uid = load<std::int64_t>(begin);
      } else if (tag.field == line_number::kReqTime && tag.wire == wire::kVarint) {
        time_s = static_cast<std::int64_t>(Reader({begin, reader.at()}).varint());
      } else if (tag.field == line_number::kSampleRate && tag.wire == wire::kFixed32) {
        sample_rate = load<float>(begin);
      } else if (tag.field == line_number::kActions) {
        if (tag.wire == kBlock) read_actions(block);
        if (tag.wire == wire::kVarint) read_actions({begin, reader.at()});
      }
      for (std::size_t place = 0; place < config_.extras.size(); ++place) {
        if (config_.extras[place].field.number != tag.field) continue;
        read_extra(place, row, tag, tag.wire == kBlock ? block : Bytes{begin, reader.at()});
      }
    }
    batch_->sample_rates[row] = sample_rate;
    batch_->times_s[row] = time_s;
    batch_->uids[row] = uid;
  }

  void read_actions(Bytes values) {
    Reader reader(values);
    while (!reader.done()) actions_.push_back(static_cast<std::int32_t>(reader.varint()));
  }

  void read_extra(std::size_t place, std::size_t row, const Tag& tag, Bytes value) {
    const LineField& field = config_.extras[place].field;
    const std::size_t width = config_.extras[place].width;
    std::uint32_t& count = extra_counts_[place];
    const auto next = [&](auto&& put) {
      const std::size_t at = field.is_repeated ? count++ : 0;
      if (at < width) put(row * width + at);
    };
    Reader reader(value);
    switch (field.kind) {
      case FieldKind::kText:
        if (tag.wire != kBlock) return;
        return next([&](std::size_t at) {
          extra_texts_[place][at] = {reinterpret_cast<const char*>(value.data()), value.size()};
        });
      case FieldKind::kInt:
        if (tag.wire != wire::kVarint && !(tag.wire == kBlock && field.is_repeated)) return;
        while (!reader.done()) {
          const auto number = static_cast<std::int64_t>(reader.varint());
          next([&](std::size_t at) { batch_->extras[place].integers[at] = number; });
        }
        return;
      case FieldKind::kFixed64:
        return read_fixed<std::int64_t, std::int64_t>(tag, wire::kFixed64, field, value, next,
                                                      batch_->extras[place].integers);
      case FieldKind::kFixed32:
        return read_fixed<std::int32_t, std::int64_t>(tag, wire::kFixed32, field, value, next,
                                                      batch_->extras[place].integers);
      case FieldKind::kFloat:
        return read_fixed<float, float>(tag, wire::kFixed32, field, value, next, batch_->extras[place].reals);
      case FieldKind::kDouble:
        return read_fixed<double, float>(tag, wire::kFixed64, field, value, next, batch_->extras[place].reals);
    }
  }

  template <typename Wire, typename Value, typename Next>
  static void read_fixed(const Tag& tag, std::uint32_t wire, const LineField& field, Bytes value, Next&& next,
                         std::span<Value> out) {
    if (tag.wire != wire && !(tag.wire == kBlock && field.is_repeated)) return;
    for (std::size_t at = 0; at + sizeof(Wire) <= value.size(); at += sizeof(Wire)) {
      next([&](std::size_t place) { out[place] = static_cast<Value>(load<Wire>(value.data() + at)); });
    }
  }

  const AssemblerConfig& config_;
  Assembler& assembler_;
  const Rows& rows_;
  std::size_t count_;
  std::shared_ptr<BatchData> batch_;
  bool is_scattered_ = false;
  std::optional<std::uint32_t> collected_;  // column whose cells are copied together
  std::vector<const Cell*> bases_;          // of that column, by block
  std::size_t used_ = 0;
  std::size_t room_ = 0;
  std::size_t taken_ = 0;
  // Which ids of a feature are flat ones.
  enum class FlatRole : std::uint8_t { kNone, kSome, kAll };
  std::vector<FlatRole> flat_roles_;
  std::vector<std::vector<std::uint32_t>> flat_counts_;  // of features with some, by row
  std::vector<std::int64_t> actions_;
  std::vector<std::vector<std::string_view>> extra_texts_;
  std::vector<std::uint32_t> extra_counts_;
};

Assembler::Assembler(AssemblerConfig config) : config_(std::move(config)), sparse_of_slot_(kFidV1Slots, -1) {
  for (std::size_t place = 0; place < config_.sparse.size(); ++place) {
    SparseFeature& feature = config_.sparse[place];
    if (feature.slot >= static_cast<std::int32_t>(kFidV2Slots)) {
      throw ConfigError("feature '" + feature.name + "' has slot " + std::to_string(feature.slot) +
                        "; slots go from 0 to " + std::to_string(kFidV2Slots - 1));
    }
    if (!feature.takes_flat_fids) continue;
    // Of several features with one slot the first declared has the flat ids; the others go by their names.
    if (feature.slot < 0 || feature.slot >= static_cast<std::int32_t>(kFidV1Slots) ||
        sparse_of_slot_[static_cast<std::size_t>(feature.slot)] >= 0) {
      feature.takes_flat_fids = false;
    } else {
      sparse_of_slot_[static_cast<std::size_t>(feature.slot)] = static_cast<std::int32_t>(place);
    }
  }
}

std::shared_ptr<BatchData> Assembler::assemble(const Rows& rows) { return Pass(*this, rows).run(); }

}  // namespace engine::data
