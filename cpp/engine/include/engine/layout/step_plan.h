// step_plan.h: the ids of one batch, numbered: from rows of unique ids to tensors, and from their gradients back.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "engine/data/records.h"
#include "engine/pool.h"

namespace engine::layout {

struct Wiring;

// A row-major matrix of another owner; no data = absent.
template <class T>
struct MatrixView {
  T* data = nullptr;
  std::size_t rows = 0;
  std::size_t columns = 0;
};

// Immutable: every method is concurrent. Its memory comes from the buffer pool and returns to it.
class StepPlan {
 public:
  // The bags of one feature, as places among the unique ids of its table.
  struct FeatureBags {
    const std::uint32_t* places = nullptr;   // kPadding readable entries follow the last
    const std::uint32_t* offsets = nullptr;  // (bags + 1); null: every bag has exactly one id
    std::size_t count = 0;                   // places
    bool is_shared = false;
  };
  struct UniqueIds {
    std::span<const std::int64_t> ids;
    std::span<const std::uint32_t> counts;
  };
  static constexpr std::size_t kPadding = 16;
  // A packed plan begins with one PackedTable per table and one PackedFeature per feature. Their arrays follow.
  struct PackedTable {
    std::uint64_t ids;    // byte of its unique ids, int64
    std::uint64_t rows;   // floats before its rows, where those of all tables follow each other from multiples of four
    std::uint64_t sums;   // the same where every row is padded to a multiple of four floats
    std::uint32_t count;  // unique ids
    std::uint32_t first_row;  // unique ids of the tables before it
  };
  struct PackedFeature {
    std::uint64_t places;   // byte of its places, uint32
    std::uint64_t offsets;  // byte of its offsets, uint32; 0: every bag has exactly one id
    std::uint32_t count;    // places
    std::uint32_t first;    // places of the features before it
    std::uint32_t is_shared;
    std::uint32_t unused;
  };

  StepPlan(std::shared_ptr<const Wiring> wiring, std::size_t rows, std::shared_ptr<const data::Buffer> memory,
           std::vector<FeatureBags> features, std::vector<UniqueIds> tables);

  [[nodiscard]] std::size_t rows() const noexcept { return rows_; }
  [[nodiscard]] std::size_t occurrences() const noexcept { return occurrences_; }
  [[nodiscard]] std::size_t tables() const noexcept { return tables_.size(); }
  // The unique ids of a table, in order of first occurrence, and how often each occurs.
  [[nodiscard]] const UniqueIds& unique(std::size_t table) const noexcept { return tables_[table]; }

  // Fills every output (rows, width) from one row per unique id of each table (unique ids, dim).
  void pool(std::span<const MatrixView<const float>> rows, std::span<const MatrixView<float>> outputs,
            Pool& team) const;

  // The way back: fills the gradient of every unique id's row and returns the sum of its squares per table. An output
  // without a gradient counts as zeros. Sums run in order of occurrence, so the number of threads changes no bit.
  [[nodiscard]] std::vector<double> scatter(std::span<const MatrixView<const float>> grads,
                                            std::span<const MatrixView<float>> rows, Pool& team) const;

  // A copy of the plan in one buffer, for a device that fills outputs and sums gradients itself.
  [[nodiscard]] std::size_t packed_bytes() const;
  // Throws DimensionMismatch for a buffer of another size.
  void pack(std::span<std::byte> out, Pool& team) const;

 private:
  // Returns the size of a packed plan; fills `out` if there is a team.
  std::size_t fill_packed(std::span<std::byte> out, Pool* team) const;
  template <class T>
  void check_rows(std::span<const MatrixView<T>> rows) const;
  template <class T>
  void check_outputs(std::span<const MatrixView<T>> outputs) const;

  std::shared_ptr<const Wiring> wiring_;
  std::size_t rows_;
  std::size_t occurrences_ = 0;
  std::shared_ptr<const data::Buffer> memory_;
  std::vector<FeatureBags> features_;
  std::vector<UniqueIds> tables_;
};

}  // namespace engine::layout
