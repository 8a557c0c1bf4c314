// shuffle_window.cc: a group of rows is packed column by column, and a column piece by piece. A column whose cells have
// one arm becomes compact parts:
//   arm, field, the size of each row in a byte, the bytes of all rows from a multiple of 8 on
// Other columns become wide parts:
//   kWide, kWide, a Cell per row; the bytes of cells that are copied are elsewhere in the arena
#include "engine/data/shuffle_window.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <numeric>
#include <span>
#include <string>
#include <utility>

#include "copy_small.h"
#include "engine/data/row_op.h"
#include "engine/error.h"

namespace engine::data {

namespace {

constexpr std::uint32_t kMostCopied = 255;  // bytes of a cell; a compact part has one byte for the size
constexpr std::size_t kMostInfo = 4096;     // bytes of LineId, flat ids and labels of a row that is copied
constexpr std::byte kWide{0xff};
constexpr std::size_t kHead = 2;
constexpr std::size_t kLeastGroup = 512;
constexpr std::size_t kMostGroup = 16384;
constexpr std::size_t kPacketRows = 16;  // of a packet, about, where a window has many pieces

// Of `unpack`: the column whose parts are fetched, and the bytes of a row in it, about.
constexpr std::uint32_t kColumnsAhead = 2;
constexpr std::size_t kBytesAhead = 17;
constexpr std::size_t kLine = 64;

// Bytes of a compact part before the bytes of its rows.
constexpr std::size_t compact_head(std::size_t rows) { return (kHead + rows + 7) / 8 * 8; }

constexpr unsigned kShift = std::countr_zero(ShuffleWindow::kPieceRows);

}  // namespace

ShuffleWindow::ShuffleWindow(std::size_t size, std::uint64_t seed) : seed_(seed) {
  if (size > 0xffffffff) throw ConfigError("size is " + std::to_string(size) + ", expected at most 4294967295 rows");
  choose_order(size);
}

void ShuffleWindow::choose_order(std::size_t size) {
  std::vector<std::uint32_t> order(size);
  std::iota(order.begin(), order.end(), 0U);
  for (std::size_t left = size; left > 1; --left) {
    const auto chosen = static_cast<std::size_t>(unit(mix(seed_, left)) * static_cast<double>(left));
    std::swap(order[left - 1], order[chosen]);
  }
  places_.resize(size);
  for (std::uint32_t place = 0; place < size; ++place) places_[order[place]] = place;
  pieces_ = std::vector<Piece>((size + kPieceRows - 1) >> kShift);
  counts_.assign(pieces_.size(), 0);
  ends_.assign(pieces_.size(), 0);
}

void ShuffleWindow::add(const Rows& rows) {
  if (rows.size() > missing() || returned_ != 0) {
    throw ConfigError("rows are " + std::to_string(rows.size()) + ", expected at most the " +
                      std::to_string(returned_ != 0 ? 0 : missing()) + " that the window misses");
  }
  const std::size_t group = std::clamp(pieces_.size() * kPacketRows, kLeastGroup, kMostGroup);
  for (std::size_t begin = 0; begin < rows.size(); begin += group) {
    add_group(rows, begin, std::min(begin + group, rows.size()));
  }
}

void ShuffleWindow::add_group(const Rows& rows, std::size_t begin, std::size_t end) {
  runs_.clear();
  targets_.clear();
  used_.clear();
  std::uint32_t columns = 0;
  for (std::size_t i = begin; i < end; ++i) {
    const Rows::Ref ref = rows.refs[i];
    const auto& block = rows.blocks[ref.block];
    if (!runs_.empty() && runs_.back().block == block && runs_.back().begin + runs_.back().count == ref.row) {
      ++runs_.back().count;
    } else {
      runs_.push_back({block, ref.row, 1});
      columns = std::max(columns, block->columns());
    }
    const std::uint32_t place = places_[added_ + (i - begin)];
    const std::uint32_t number = place >> kShift;
    if (counts_[number]++ == 0) used_.push_back(number);
    targets_.push_back(number);
    pieces_[number].places.push_back(place & (kPieceRows - 1));
  }
  columns_ = std::max(columns_, columns);
  for (const std::uint32_t number : used_) {
    Piece& piece = pieces_[number];
    if (piece.arena == nullptr) piece.arena = std::make_shared<Arena>();
    piece.packets.push_back({piece.parts.size(), counts_[number], columns});
    piece.parts.resize(piece.parts.size() + columns, nullptr);
  }
  add_infos();
  sort_by_piece();
  // The examination of a column fetches its bytes.
  Form next = columns == 0 ? Form{} : examine(0);
  for (std::uint32_t column = 0; column < columns; ++column) {
    const Form form = std::exchange(next, column + 1 < columns ? examine(column + 1) : Form{});
    if (form.most != 0) add_column(column, form);
  }
  for (const std::uint32_t number : used_) counts_[number] = 0;
  runs_.clear();
  added_ += end - begin;
}

void ShuffleWindow::add_infos() {
  std::size_t at = 0;
  for (const Run& run : runs_) {
    for (std::uint32_t i = 0; i < run.count; ++i, ++at) {
      Piece& piece = pieces_[targets_[at]];
      RowInfo info = run.block->info(run.begin + i);
      const std::size_t labels = info.label_count * sizeof(float);
      const std::size_t lines = info.line.size() + info.flat_fids.size();
      if (labels + lines > kMostInfo) {
        keep(piece, run.block);
      } else if (labels + lines != 0) {
        std::byte* to = piece.arena->take(labels + lines, alignof(float));
        if (labels != 0) {
          std::memcpy(to, info.labels, labels);
          info.labels = reinterpret_cast<const float*>(to);
        }
        to += labels;
        for (Bytes* bytes : {&info.line, &info.flat_fids}) {
          if (bytes->empty()) continue;
          std::memcpy(to, bytes->data(), bytes->size());
          *bytes = {to, bytes->size()};
          to += bytes->size();
        }
      }
      piece.infos.push_back(info);
    }
  }
}

void ShuffleWindow::keep(Piece& piece, const std::shared_ptr<Block>& block) {
  if (piece.owners.empty() || piece.owners.back() != block) piece.owners.push_back(block);
}

void ShuffleWindow::sort_by_piece() {
  std::uint32_t begin = 0;
  for (const std::uint32_t number : used_) ends_[number] = std::exchange(begin, begin + counts_[number]);
  picks_.resize(targets_.size());
  for (std::uint32_t row = 0; row < targets_.size(); ++row) picks_[ends_[targets_[row]]++] = row;
}

ShuffleWindow::Form ShuffleWindow::examine(std::uint32_t column) const {
  Form form;
  std::uint64_t differences = 0;
  for (const Run& run : runs_) {
    const Cell* const base = run.block->find_column(column);
    if (base == nullptr) continue;
    // All rows of the block have one value, which stays one.
    form.is_wide = form.is_wide || (run.block->rows() > 1 && base[0].size != 0 && base[0].data == base[1].data);
    const Cell* const end = base + run.begin + run.count;
    for (const Cell* cell = base + run.begin; cell != end; ++cell) {
      if (cell->size == 0) [[unlikely]]
        continue;
      __builtin_prefetch(cell->data);
      if (form.most == 0) [[unlikely]]
        form.model = *cell;
      differences |= static_cast<std::uint64_t>(cell->arm != form.model.arm || cell->field != form.model.field);
      form.most = std::max(form.most, cell->size);
    }
  }
  form.is_wide = form.is_wide || differences != 0 || form.most > kMostCopied;
  return form;
}

// The cells of the group in order of arrival.
const Cell* ShuffleWindow::cells_in_order(std::uint32_t column) {
  if (runs_.size() == 1) return runs_[0].block->find_column(column) + runs_[0].begin;  // there, as it is not empty
  cells_.clear();
  for (const Run& run : runs_) {
    if (const Cell* const cells = run.block->find_column(column)) {
      cells_.insert(cells_.end(), cells + run.begin, cells + run.begin + run.count);
    } else {
      cells_.resize(cells_.size() + run.count);
    }
  }
  return cells_.data();
}

namespace {

// Writes the sizes and bytes of some cells; returns the end of the bytes. Cells have at most kWords words, none = any.
template <std::uint32_t kWords>
std::byte* write_cells(const Cell* cells, const std::uint32_t* picks, std::uint32_t count, std::byte* sizes,
                       std::byte* to) {
  for (std::uint32_t i = 0; i < count; ++i) {
    const Cell cell = cells[picks[i]];
    sizes[i] = static_cast<std::byte>(cell.size);
    copy_small<kWords>(to, cell.data, cell.size);
    to += cell.size;
  }
  return to;
}

}  // namespace

void ShuffleWindow::add_column(std::uint32_t column, const Form& form) {
  const Cell* const cells = cells_in_order(column);
  const auto write = form.most <= 8    ? write_cells<1>
                     : form.most <= 16 ? write_cells<2>
                     : form.most <= 24 ? write_cells<3>
                     : form.most <= 32 ? write_cells<4>
                                       : write_cells<0>;
  const std::uint32_t* picks = picks_.data();
  for (const std::uint32_t number : used_) {
    Piece& piece = pieces_[number];
    const std::uint32_t count = counts_[number];
    const std::byte*& part = piece.parts[piece.packets.back().first_part + column];
    if (form.is_wide) {
      part = pack_wide(piece, column, {picks, count}, cells);
    } else {
      const std::size_t head = compact_head(count);
      std::byte* const to = piece.arena->take(head + std::size_t{count} * form.most);
      to[0] = static_cast<std::byte>(form.model.arm);
      to[1] = static_cast<std::byte>(form.model.field);
      piece.arena->give_back(write(cells, picks, count, to + kHead, to + head));
      part = to;
    }
    picks += count;
  }
}

std::byte* ShuffleWindow::pack_wide(Piece& piece, std::uint32_t column, std::span<const std::uint32_t> picks,
                                    const Cell* cells) {
  std::byte* const part = piece.arena->take(kHead + picks.size() * sizeof(Cell));
  part[0] = part[1] = kWide;
  std::byte* to = part + kHead;
  for (const std::uint32_t pick : picks) {
    Cell cell = cells[pick];
    if (cell.size != 0) {
      const std::shared_ptr<Block>& block = block_of(pick);
      const Cell* const base = block->find_column(column);
      const bool is_shared = block->rows() > 1 && base[0].size != 0 && base[0].data == base[1].data;
      if (cell.size > kMostCopied || is_shared) {
        keep(piece, block);
      } else {
        cell.data = piece.arena->copy(cell.bytes()).data();
      }
    }
    std::memcpy(to, &cell, sizeof cell);
    to += sizeof cell;
  }
  return part;
}

// The block of a row of the group.
const std::shared_ptr<Block>& ShuffleWindow::block_of(std::uint32_t row) const {
  auto run = runs_.begin();
  for (; row >= run->count; ++run) row -= run->count;
  return run->block;
}

namespace {

void unpack_part(const std::byte* part, std::span<const std::uint32_t> places, Cell* cells) {
  if (part == nullptr) {
    for (const std::uint32_t place : places) cells[place] = {};
    return;
  }
  if (part[0] == kWide) {
    const std::byte* at = part + kHead;
    for (const std::uint32_t place : places) {
      std::memcpy(&cells[place], at, sizeof(Cell));
      at += sizeof(Cell);
    }
    return;
  }
  const std::byte* size = part + kHead;
  Cell cell{part + compact_head(places.size()), 0, static_cast<Arm>(part[0]), static_cast<std::uint8_t>(part[1])};
  for (const std::uint32_t place : places) {
    cell.size = static_cast<std::uint32_t>(*size++);
    cells[place] = cell.size == 0 ? Cell{} : cell;
    cell.data += cell.size;
  }
}

}  // namespace

// The rows of a piece as a block: in the order of the result, or in that of arrival.
std::shared_ptr<Block> ShuffleWindow::unpack(const Piece& piece, bool in_order) const {
  const auto rows = static_cast<std::uint32_t>(piece.infos.size());
  auto block = std::make_shared<Block>(rows, columns_);
  std::vector<std::uint32_t> places = piece.places;
  if (!in_order) std::iota(places.begin(), places.end(), 0U);
  for (std::uint32_t i = 0; i < rows; ++i) block->info(places[i]) = piece.infos[i];
  for (std::uint32_t column = 0; column < columns_; ++column) {
    const bool has_cells = std::ranges::any_of(piece.packets, [&](const Packet& packet) {
      return column < packet.columns && piece.parts[packet.first_part + column] != nullptr;
    });
    if (!has_cells) continue;
    Cell* const cells = block->unwritten_column(column);
    const std::uint32_t* place = places.data();
    for (const Packet& packet : piece.packets) {
      const std::byte* const* const part = &piece.parts[packet.first_part] + column;
      unpack_part(column < packet.columns ? *part : nullptr, {place, packet.rows}, cells);
      place += packet.rows;
      if (column + kColumnsAhead < packet.columns && part[kColumnsAhead] != nullptr) {
        const std::byte* const end = part[kColumnsAhead] + std::size_t{packet.rows} * kBytesAhead;
        for (const std::byte* at = part[kColumnsAhead]; at < end; at += kLine) __builtin_prefetch(at);
      }
    }
  }
  if (piece.arena != nullptr) block->keep(piece.arena);
  for (const auto& owner : piece.owners) block->keep(owner);
  return block;
}

// Shuffles the rows of a window that was not filled: they get the order of a window of their number.
void ShuffleWindow::shrink() {
  Rows rows;
  for (const Piece& piece : pieces_) rows.blocks.push_back(unpack(piece, false));
  std::vector<std::uint32_t> next(pieces_.size(), 0);
  for (std::size_t i = 0; i < added_; ++i) {
    const std::uint32_t number = places_[i] >> kShift;
    rows.refs.push_back({number, next[number]++});
  }
  choose_order(std::exchange(added_, 0));
  add(rows);
}

Rows ShuffleWindow::read() {
  if (missing() != 0) shrink();
  Rows rows;
  if (next_piece_ == pieces_.size()) return rows;
  const Piece piece = std::move(pieces_[next_piece_++]);
  rows.blocks.push_back(unpack(piece, true));
  rows.refs.reserve(piece.infos.size());
  for (std::uint32_t row = 0; row < piece.infos.size(); ++row) rows.refs.push_back({0, row});
  returned_ += rows.size();
  return rows;
}

}  // namespace engine::data
