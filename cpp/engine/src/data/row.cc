// row.cc: blocks, columns and sequences of rows.
#include "engine/data/row.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "engine/data/row_op.h"
#include "memory_check.h"

namespace engine::data {

// --- Arena ---

std::byte* Arena::take(std::size_t size, std::size_t alignment) {
  constexpr std::size_t kPiece = kChecksMemory ? 1 : 64 << 10;
  std::size_t begin = (used_ + alignment - 1) / alignment * alignment;
  if (pieces_.empty() || begin + size > pieces_.back()->size()) {
    pieces_.push_back(Buffer::take(std::max(size, kPiece)));
    begin = 0;
  }
  used_ = begin + size;
  return pieces_.back()->data() + begin;
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

void Block::set_cell(std::uint32_t row, std::uint32_t column, Cell cell) {
  if (column >= columns_) {
    columns_ = column + 1;
    cells_.resize(std::size_t{rows_} * columns_);
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
  constexpr std::size_t kAhead = 32;      // of cells
  constexpr std::size_t kBytesAhead = 8;  // of the bytes that cells point to
  constexpr std::uint32_t kMostCopied = 64;
  std::vector<Rows> pieces;
  std::uint32_t columns = 0;
  for (const auto& block : blocks) columns = std::max(columns, block->columns());
  for (std::size_t begin = 0; begin < size(); begin += most) {
    const std::size_t count = std::min(most, size() - begin);
    auto block = std::make_shared<Block>(static_cast<std::uint32_t>(count), columns);
    std::vector<bool> is_kept(blocks.size(), false);
    Rows& piece = pieces.emplace_back();
    for (std::uint32_t i = 0; i < count; ++i) {
      const Ref ref = refs[begin + i];
      block->info(i) = blocks[ref.block]->info(ref.row);
      if (!is_kept[ref.block]) block->keep(blocks[ref.block]);
      is_kept[ref.block] = true;
      piece.refs.push_back({0, i});
    }
    piece.blocks.push_back(std::move(block));
  }
  // Column by column over all pieces: the cells of one column stay in a cache.
  std::vector<const Cell*> bases(blocks.size());
  std::vector<bool> is_shared(blocks.size());  // all rows of the block have one value, which stays one
  for (std::uint32_t column = 0; column < columns; ++column) {
    for (std::size_t i = 0; i < blocks.size(); ++i) {
      bases[i] = column < blocks[i]->columns() ? blocks[i]->column(column) : nullptr;
      is_shared[i] = bases[i] != nullptr && blocks[i]->rows() > 1 && bases[i][0].data == bases[i][1].data;
    }
    for (std::size_t begin = 0, number = 0; begin < size(); begin += most, ++number) {
      const std::size_t end = std::min(begin + most, size());
      Block& block = *pieces[number].blocks[0];
      Cell* out = block.column(column);
      for (std::size_t i = begin; i < end; ++i) {
        if (i + kAhead < size()) {
          const Ref later = refs[i + kAhead];
          if (bases[later.block] != nullptr) __builtin_prefetch(bases[later.block] + later.row);
        }
        if (i + kBytesAhead < size()) {
          const Ref next = refs[i + kBytesAhead];
          if (bases[next.block] != nullptr) __builtin_prefetch(bases[next.block][next.row].data);
        }
        const Cell* const base = bases[refs[i].block];
        if (base == nullptr) continue;
        Cell cell = base[refs[i].row];
        if (cell.size - 1 < kMostCopied && !is_shared[refs[i].block])
          cell.data = block.arena().copy(cell.bytes()).data();
        out[i - begin] = cell;
      }
    }
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
