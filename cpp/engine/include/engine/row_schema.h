// row_schema.h: the layout of a row. Training rows hold values and optimizer state, serving rows compressed
// values. A table keeps values and state apart; a packed row, as files and callers take it, has its state behind its
// values.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "engine/compressor.h"
#include "engine/config.h"
#include "engine/initializer.h"
#include "engine/optimizer.h"
#include "engine/row_store.h"

namespace engine {

// Columns of all slices of a table together: 1 MiB of values per row. Offsets and sums then fit any integer here.
inline constexpr std::uint32_t kMostColumns = std::uint32_t{1} << 18;

class RowSchema {
 public:
  struct Slice {
    std::uint32_t dim = 0;
    std::string optimizer_kind;
    std::size_t value_offset = 0;  // floats from the start of a row's values
    std::size_t state_offset = 0;  // training: words from the start of the state
    std::size_t byte_offset = 0;   // serving: bytes from the start of the row
    std::unique_ptr<Optimizer> optimizer;
    std::unique_ptr<Initializer> initializer;
    std::unique_ptr<Compressor> compressor;
  };

  // `seed` already mixes the table's seed and name. Throws ConfigError, for example past kMostColumns.
  RowSchema(std::span<const SliceConfig> slices, std::uint64_t seed, bool is_serving);

  [[nodiscard]] std::span<const Slice> slices() const noexcept { return slices_; }
  [[nodiscard]] std::uint32_t dim() const noexcept { return dim_; }
  [[nodiscard]] std::size_t value_bytes() const noexcept { return value_bytes_; }
  [[nodiscard]] std::size_t state_bytes() const noexcept { return initial_state_.size() * sizeof(float); }
  // Of a packed row.
  [[nodiscard]] std::size_t row_bytes() const noexcept { return value_bytes() + state_bytes(); }
  [[nodiscard]] RowView packed(const std::byte* row) const noexcept {
    return {.values = row, .state = row + value_bytes_};
  }
  void append_packed(const RowView& row, std::vector<std::byte>& out) const;
  [[nodiscard]] bool is_serving() const noexcept { return is_serving_; }
  // True when a row starts with the very floats that a lookup returns.
  [[nodiscard]] bool is_plain() const noexcept { return is_plain_; }
  // True when gradients reach the stored values unchanged.
  [[nodiscard]] bool is_transparent() const noexcept { return is_transparent_; }

  // First values of an id, all slices; and a whole new row.
  void initial_values(std::int64_t id, float* values) const noexcept;
  void init(std::int64_t id, std::byte* values, std::byte* state) const noexcept;

  // Values that a lookup returns, out of the values of a row. `scales` has one number per slice.
  void read(const std::byte* row, float* out, std::span<const float> scales) const noexcept;
  // Values that a lookup of an absent id returns when it shows initial values. Training only.
  void read_initial(std::int64_t id, float* out, std::span<const float> scales) const noexcept;
  // The stored values themselves, uncompressed; and back.
  void get(const std::byte* row, float* values) const noexcept;
  void set(std::byte* row, const float* values) const noexcept;

 private:
  std::vector<Slice> slices_;
  std::vector<float> initial_state_;
  std::uint64_t seed_;
  bool is_serving_;
  bool is_plain_ = true;
  bool is_transparent_ = true;
  std::uint32_t dim_ = 0;
  std::size_t value_bytes_ = 0;
};

}  // namespace engine
