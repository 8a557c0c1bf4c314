// row.cc: blocks, columns and sequences of rows.
#include "engine/data/row.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <memory>
#include <utility>

#include "engine/data/row_op.h"
#include "memory_check.h"

namespace engine::data {

namespace {

// Copies a few bytes. One to four words are copied without a branch on their number, which cannot be predicted.
void copy_small(std::byte* to, const std::byte* from, std::uint32_t size) noexcept {
  constexpr std::uint32_t kWord = 8;
  if (size < kWord || size > 4 * kWord) {
    std::memcpy(to, from, size);
    return;
  }
  const std::uint32_t last = size - kWord;
  const std::uint32_t second = std::min(kWord, last);
  const std::uint32_t third = std::min(2 * kWord, last);
  const auto load = [from](std::uint32_t at) {
    std::uint64_t word = 0;
    std::memcpy(&word, from + at, sizeof word);
    return word;
  };
  const auto store = [to](std::uint32_t at, std::uint64_t word) { std::memcpy(to + at, &word, sizeof word); };
  const std::uint64_t words[] = {load(0), load(second), load(third), load(last)};
  store(0, words[0]);
  store(second, words[1]);
  store(third, words[2]);
  store(last, words[3]);
}

}  // namespace

// --- Arena ---

std::byte* Arena::grow(std::size_t size) {
  // Pieces grow with the arena: a small one wastes little, a large one is a few buffers.
  constexpr std::size_t kLeast = 64 << 10;
  constexpr std::size_t kMost = 1 << 20;
  const std::size_t piece = kChecksMemory ? 1 : std::clamp(all_, kLeast, kMost);
  pieces_.push_back(Buffer::take(std::max(size, piece)));
  piece_ = pieces_.back()->data();
  room_ = pieces_.back()->size();
  all_ += room_;
  used_ = size;
  return piece_;
}

Bytes Arena::copy(Bytes bytes) {
  std::byte* copy = take(bytes.size(), 1);
  if (!bytes.empty()) std::memcpy(copy, bytes.data(), bytes.size());
  return {copy, bytes.size()};
}

// --- Columns ---

std::uint32_t Columns::want(std::string_view name) {
  if (const auto found = index_.find(name); found != index_.end()) return found->second;
  const auto column = size();
  index_.emplace(names_.emplace_back(name), column);
  return column;
}

std::uint32_t Columns::find(std::string_view name) const noexcept {
  const auto found = index_.find(name);
  return found == index_.end() ? kUnwanted : found->second;
}

// --- Block ---

Block::Block(std::uint32_t rows, std::uint32_t columns) : rows_(rows), columns_(columns), infos_(rows) {
  const std::size_t count = std::size_t{rows} * columns;
  memory_ = Buffer::take(std::max<std::size_t>(count, 1) * sizeof(Cell));
  cells_ = reinterpret_cast<Cell*>(memory_->data());
  std::uninitialized_fill_n(cells_, count, Cell{});
}

void Block::set_cell(std::uint32_t row, std::uint32_t column, Cell cell) {
  if (column >= columns_) {
    const std::size_t before = std::size_t{rows_} * columns_;
    const std::size_t count = std::size_t{rows_} * (column + 1);
    auto memory = Buffer::take(std::max<std::size_t>(count, 1) * sizeof(Cell));
    auto* cells = reinterpret_cast<Cell*>(memory->data());
    std::uninitialized_copy_n(cells_, before, cells);
    std::uninitialized_fill_n(cells + before, count - before, Cell{});
    memory_ = std::move(memory);
    cells_ = cells;
    columns_ = column + 1;
  }
  cells_[std::size_t{column} * rows_ + row] = cell;
}

// --- Rows ---

Rows Rows::slice(std::size_t begin, std::size_t end) const {
  Rows part;
  part.refs.assign(refs.begin() + static_cast<std::ptrdiff_t>(begin), refs.begin() + static_cast<std::ptrdiff_t>(end));
  std::vector<std::uint32_t> renamed(blocks.size(), 0xffffffff);
  for (Ref& ref : part.refs) {
    std::uint32_t& block = renamed[ref.block];
    if (block == 0xffffffff) {
      block = static_cast<std::uint32_t>(part.blocks.size());
      part.blocks.push_back(blocks[ref.block]);
    }
    ref.block = block;
  }
  return part;
}

std::vector<Rows> Rows::copy_in_order(std::size_t most) const {
  constexpr std::uint32_t kNowhere = 0xffffffff;
  constexpr std::uint32_t kMostCopied = 64;
  const std::size_t piece_rows = std::bit_floor(std::max<std::size_t>(most, 1));
  const auto shift = static_cast<unsigned>(std::countr_zero(piece_rows));
  std::uint32_t columns = 0;
  for (const auto& block : blocks) columns = std::max(columns, block->columns());

  std::vector<Rows> pieces;
  std::vector<std::vector<std::uint32_t>> places(blocks.size());  // of the rows of each block in the new order
  for (std::size_t i = 0; i < blocks.size(); ++i) places[i].assign(blocks[i]->rows(), kNowhere);
  for (std::size_t begin = 0; begin < size(); begin += piece_rows) {
    const std::size_t count = std::min(piece_rows, size() - begin);
    auto block = std::make_shared<Block>(static_cast<std::uint32_t>(count), columns);
    std::vector<bool> is_kept(blocks.size(), false);
    Rows& piece = pieces.emplace_back();
    for (std::uint32_t i = 0; i < count; ++i) {
      const Ref ref = refs[begin + i];
      places[ref.block][ref.row] = static_cast<std::uint32_t>(begin + i);
      block->info(i) = blocks[ref.block]->info(ref.row);
      if (!is_kept[ref.block]) block->keep(blocks[ref.block]);
      is_kept[ref.block] = true;
      piece.refs.push_back({0, i});
    }
    piece.blocks.push_back(std::move(block));
  }

  // Column by column, and in the order in which cells and bytes lie in memory: the reads are sequential, and scattered
  // writes need no waiting.
  std::vector<std::uint32_t> starts(size());  // of the bytes of each row, in its piece
  std::vector<Cell*> cells(pieces.size());
  std::vector<std::byte*> bytes(pieces.size());
  for (std::uint32_t column = 0; column < columns; ++column) {
    const auto each = [&](auto&& use) {
      for (std::size_t i = 0; i < blocks.size(); ++i) {
        if (column >= blocks[i]->columns()) continue;
        const Cell* const base = blocks[i]->column(column);
        // All rows of the block have one value, which stays one.
        const bool is_shared = blocks[i]->rows() > 1 && base[0].data == base[1].data;
        const std::uint32_t* const place = places[i].data();
        for (std::uint32_t row = 0, rows = blocks[i]->rows(); row < rows; ++row) {
          if (place[row] == kNowhere) continue;
          use(place[row], base[row], base[row].size - 1 < kMostCopied && !is_shared);
        }
      }
    };
    std::fill(starts.begin(), starts.end(), 0);
    each([&](std::uint32_t place, const Cell& cell, bool is_copied) { starts[place] = is_copied ? cell.size : 0; });
    for (std::size_t number = 0; number < pieces.size(); ++number) {
      std::uint32_t total = 0;
      const std::size_t end = std::min((number + 1) << shift, size());
      for (std::size_t i = number << shift; i < end; ++i) total += std::exchange(starts[i], total);
      Block& block = *pieces[number].blocks[0];
      cells[number] = block.column(column);
      bytes[number] = block.arena().take(total, 1);
    }
    each([&](std::uint32_t place, Cell cell, bool is_copied) {
      const std::size_t number = place >> shift;
      if (is_copied) {
        std::byte* const to = bytes[number] + starts[place];
        copy_small(to, cell.data, cell.size);
        cell.data = to;
      }
      cells[number][place & (piece_rows - 1)] = cell;
    });
  }
  return pieces;
}

void Rows::append(const Rows& other) {
  const auto first = static_cast<std::uint32_t>(blocks.size());
  blocks.insert(blocks.end(), other.blocks.begin(), other.blocks.end());
  refs.reserve(refs.size() + other.refs.size());
  for (const Ref& ref : other.refs) refs.push_back({first + ref.block, ref.row});
}

void Rows::shuffle(std::uint64_t seed) {
  for (std::size_t left = refs.size(); left > 1; --left) {
    const auto chosen = static_cast<std::size_t>(unit(mix(seed, left)) * static_cast<double>(left));
    std::swap(refs[left - 1], refs[chosen]);
  }
}

}  // namespace engine::data
