// row_schema.cc: lays slices out in a row and reads and writes them.
#include "engine/row_schema.h"

#include <algorithm>
#include <cstring>
#include <string>

#include "engine/error.h"
#include "engine/hash.h"

namespace engine {

namespace {

// Before any slice is made: an initializer or optimizer of a huge width would take the memory itself.
void check_widths(std::span<const SliceConfig> slices) {
  std::uint64_t columns = 0;
  for (const SliceConfig& config : slices) {
    if (config.dim == 0) throw ConfigError("a slice's dim is 0, expected 1 or more");
    columns += config.dim;
    if (columns > kMostColumns) {
      throw ConfigError("the slices of a table have " + std::to_string(columns) +
                        " columns or more, expected at most " + std::to_string(kMostColumns) + "; split the table");
    }
  }
}

}  // namespace

RowSchema::RowSchema(std::span<const SliceConfig> slices, std::uint64_t seed, bool is_serving)
    : seed_(seed), is_serving_(is_serving) {
  if (slices.empty()) throw ConfigError("a table needs at least one slice");
  check_widths(slices);
  std::size_t bytes = 0;
  for (const SliceConfig& config : slices) {
    Slice slice{.dim = config.dim,
                .optimizer_kind = config.optimizer.kind,
                .value_offset = dim_,
                .state_offset = 0,
                .byte_offset = bytes,
                .optimizer = make_optimizer(config),
                .initializer = make_initializer(config.initializer),
                .compressor = make_compressor(config.compressor)};
    dim_ += config.dim;
    bytes += slice.compressor->bytes(config.dim);
    is_transparent_ = is_transparent_ && slice.compressor->is_transparent();
    is_plain_ = is_plain_ && (is_serving ? config.compressor.kind == "fp32" : slice.compressor->is_transparent());
    slices_.push_back(std::move(slice));
  }
  for (Slice& slice : std::span(slices_).first(is_serving ? 0 : slices_.size())) {
    slice.state_offset = initial_state_.size();
    initial_state_.resize(initial_state_.size() + slice.optimizer->state_words());
    slice.optimizer->init(initial_state_.data() + slice.state_offset);
  }
  // Whole words, and room for the link of a freed row.
  value_bytes_ = is_serving ? (bytes + 3) / 4 * 4 : dim_ * sizeof(float);
}

void RowSchema::append_packed(const RowView& row, std::vector<std::byte>& out) const {
  out.insert(out.end(), row.values, row.values + value_bytes_);
  if (state_bytes() > 0) out.insert(out.end(), row.state, row.state + state_bytes());
}

void RowSchema::initial_values(std::int64_t id, float* values) const noexcept {
  for (std::size_t k = 0; k < slices_.size(); ++k) {
    const Slice& slice = slices_[k];
    slice.initializer->fill(scramble(seed_ + k), id, values + slice.value_offset, slice.dim);
  }
}

void RowSchema::init(std::int64_t id, std::byte* values, std::byte* state) const noexcept {
  if (is_serving_) {
    std::memset(values, 0, value_bytes_);
    return;
  }
  initial_values(id, reinterpret_cast<float*>(values));
  if (!initial_state_.empty()) std::memcpy(state, initial_state_.data(), state_bytes());
}

void RowSchema::read(const std::byte* row, float* out, std::span<const float> scales) const noexcept {
  if (is_plain_) {
    std::memcpy(out, row, dim_ * sizeof(float));
    return;
  }
  const auto* words = reinterpret_cast<const float*>(row);
  for (std::size_t k = 0; k < slices_.size(); ++k) {
    const Slice& slice = slices_[k];
    float* values = out + slice.value_offset;
    if (is_serving_) {
      slice.compressor->decode(row + slice.byte_offset, values, slice.dim);
    } else {
      slice.compressor->read(words + slice.value_offset, values, slice.dim, scales[k]);
    }
  }
}

void RowSchema::read_initial(std::int64_t id, float* out, std::span<const float> scales) const noexcept {
  initial_values(id, out);
  if (is_plain_) return;
  for (std::size_t k = 0; k < slices_.size(); ++k) {
    if (slices_[k].compressor->is_transparent()) continue;
    float* values = out + slices_[k].value_offset;
    slices_[k].compressor->read(values, values, slices_[k].dim, scales[k]);
  }
}

void RowSchema::get(const std::byte* row, float* values) const noexcept {
  if (is_serving_) {
    read(row, values, {});
  } else {
    std::memcpy(values, row, dim_ * sizeof(float));
  }
}

void RowSchema::set(std::byte* row, const float* values) const noexcept {
  if (!is_serving_) {
    std::memcpy(row, values, dim_ * sizeof(float));
    return;
  }
  for (const Slice& slice : slices_) {
    slice.compressor->encode(values + slice.value_offset, row + slice.byte_offset, slice.dim);
  }
}

}  // namespace engine
