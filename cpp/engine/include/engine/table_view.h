// table_view.h: addresses of the parts of a table, for callers that keep writers out.
//
// A lookup locks every part of its table, and reads the addresses out of each part. That is much work for a hundred ids
// of one table. A view holds the addresses side by side, and one call reads the rows of many tables.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "engine/index.h"
#include "engine/part.h"
#include "engine/table.h"

namespace engine {

// Valid until the next change of the table, which outlives the view. Concurrent.
class TableView {
 public:
  // The caller keeps writers out.
  explicit TableView(const Table& table);

  [[nodiscard]] std::uint32_t dim() const noexcept { return table_->schema().dim(); }

  struct Gather {
    const TableView* view = nullptr;
    std::span<const std::int64_t> ids;
    float* out = nullptr;  // (ids, dim)
  };
  // Writes the values that Table::lookup returns, on the calling thread. The caller keeps writers out of all tables.
  static void gather_all(std::span<const Gather> gathers);

 private:
  class Block;

  struct Place {
    Index::View buckets;
    const std::byte* const* slabs = nullptr;
    const std::byte* first_slab = nullptr;  // most parts of small tables have one slab
  };

  [[nodiscard]] const std::byte* row_at(const Place& place, std::uint32_t row) const noexcept {
    const std::byte* slab = row <= shape_.mask ? place.first_slab : place.slabs[row >> shape_.shift];
    return slab + (row & shape_.mask) * shape_.row_bytes;
  }
  void read(const std::byte* row, std::int64_t id, float* out, std::span<const float> scales) const noexcept;

  const Table* table_;
  RowStore::Shape shape_;
  alignas(kLineBytes) std::array<Place, kParts> places_;
};

}  // namespace engine
