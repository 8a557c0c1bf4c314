// shuffle_window.h: the rows of one window in random order.
//
// The order is known before the first row arrives, so `add` packs each row into the piece of the result that it belongs
// to while the row is in the caches. Blocks of rows are free again as soon as they are added: a window holds packed
// values only, about a byte per cell beside the values.
//
//   piece    1024 neighbours of the result
//   packet   the rows of a piece that one call of `add` brought, or a group of them
//   part     the values of one column in a packet
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "engine/data/row.h"

namespace engine::data {

// Exclusive.
class ShuffleWindow {
 public:
  static constexpr std::size_t kPieceRows = 1024;

  // A window of `size` rows, at most 2^32 - 1, in the order that `seed` chooses.
  ShuffleWindow(std::size_t size, std::uint64_t seed);

  [[nodiscard]] std::size_t missing() const noexcept { return places_.size() - added_; }
  // Rows that `read` still returns.
  [[nodiscard]] std::size_t left() const noexcept { return added_ - returned_; }
  // Adds the next rows. Cells of more than 255 bytes and cells that rows share stay in their block, which is kept.
  // Throws ConfigError for more rows than are missing, or after the first `read`.
  void add(const Rows& rows);
  // Returns the rows of the next piece; none at the end. Fewer rows than `size` get the order of a window of that size.
  [[nodiscard]] Rows read();

 private:
  struct Packet {
    std::size_t first_part;
    std::uint32_t rows;
    std::uint32_t columns;
  };

  // Rows are in order of arrival.
  struct Piece {
    std::shared_ptr<Arena> arena;
    std::vector<RowInfo> infos;
    std::vector<std::uint32_t> places;  // in the piece
    std::vector<Packet> packets;
    std::vector<const std::byte*> parts;  // by packet and column; null = no row has values
    std::vector<std::shared_ptr<const void>> owners;
  };

  // Neighbours in a block.
  struct Run {
    std::shared_ptr<Block> block;
    std::uint32_t begin;
    std::uint32_t count;
  };

  // How the cells of a column in a group are packed.
  struct Form {
    Cell model;              // the first one with values
    std::uint32_t most = 0;  // bytes of a cell; 0 = no row has values
    bool is_wide = false;
  };

  void choose_order(std::size_t size);
  void add_group(const Rows& rows, std::size_t begin, std::size_t end);
  void add_infos();
  void sort_by_piece();
  [[nodiscard]] Form examine(std::uint32_t column) const;
  void add_column(std::uint32_t column, const Form& form);
  [[nodiscard]] const Cell* cells_in_order(std::uint32_t column);
  [[nodiscard]] std::byte* pack_wide(Piece& piece, std::uint32_t column, std::span<const std::uint32_t> picks,
                                     const Cell* cells);
  [[nodiscard]] const std::shared_ptr<Block>& block_of(std::uint32_t row) const;
  static void keep(Piece& piece, const std::shared_ptr<Block>& block);
  [[nodiscard]] std::shared_ptr<Block> unpack(const Piece& piece, bool in_order) const;
  void shrink();

  std::uint64_t seed_;
  std::vector<std::uint32_t> places_;  // of the rows in the result, in order of arrival
  std::vector<Piece> pieces_;
  std::size_t added_ = 0;
  std::size_t returned_ = 0;
  std::size_t next_piece_ = 0;
  std::uint32_t columns_ = 0;

  // Of the group that is being added.
  std::vector<Run> runs_;
  std::vector<std::uint32_t> targets_;  // piece of each row
  std::vector<std::uint32_t> used_;     // pieces
  std::vector<std::uint32_t> counts_;   // rows by piece
  std::vector<std::uint32_t> ends_;     // of the rows of a piece in `picks_`
  std::vector<std::uint32_t> picks_;    // rows by piece in `used_`, in order of arrival
  std::vector<Cell> cells_;             // of a column, where the rows are several runs
};

}  // namespace engine::data
