// row.cc: blocks, columns and sequences of rows.
#include "engine/data/row.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <type_traits>
#include <utility>

#include "memory_check.h"

namespace engine::data {

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

Block::Block(std::uint32_t rows, std::uint32_t columns)
    : rows_(rows), first_columns_(columns), columns_(columns, nullptr), infos_(rows) {
  memories_.push_back(Buffer::take(std::max<std::size_t>(std::size_t{rows} * columns, 1) * sizeof(Cell)));
}

Cell* Block::unwritten_column(std::uint32_t column) {
  if (column >= columns_.size()) columns_.resize(column + 1, nullptr);
  Cell*& cells = columns_[column];
  if (cells != nullptr) return cells;
  if (column < first_columns_) {
    cells = reinterpret_cast<Cell*>(memories_[0]->data()) + std::size_t{column} * rows_;
  } else {
    memories_.push_back(Buffer::take(std::max<std::size_t>(rows_, 1) * sizeof(Cell)));
    cells = reinterpret_cast<Cell*>(memories_.back()->data());
  }
  return cells;
}

Cell* Block::make_column(std::uint32_t column) {
  Cell* const cells = unwritten_column(column);
  // A cell that holds nothing has only zero bytes.
  static_assert(std::is_trivially_copyable_v<Cell> && static_cast<int>(Arm::kNone) == 0);
  std::memset(static_cast<void*>(cells), 0, rows_ * sizeof(Cell));
  return cells;
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

void Rows::append(const Rows& other) {
  const auto first = static_cast<std::uint32_t>(blocks.size());
  blocks.insert(blocks.end(), other.blocks.begin(), other.blocks.end());
  refs.reserve(refs.size() + other.refs.size());
  for (const Ref& ref : other.refs) refs.push_back({first + ref.block, ref.row});
}

}  // namespace engine::data
