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
