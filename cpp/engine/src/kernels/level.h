// level.h: the code of all kernels, for the instructions that the including file is compiled for.
//
// Code here must not leave this file under a name that other files use: the linker would keep one of the copies, and a
// processor without these instructions might run it. Hence the unnamed namespaces, and [[gnu::flatten]], which inlines
// all functions that a kernel calls. scripts/test_x86.sh looks for such names in the object files.
#pragma once

#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>

#include "../rows.h"
#include "../rules/rules.h"
#include "engine/half.h"
#include "engine/hash.h"
#include "formats.h"
#include "kernels.h"
#include "pairs.h"
#include "search.h"
#include "sums.h"
#include "wires.h"

namespace engine {
namespace {

// Copies whose address is not taken can stay in registers while rows are written.
template <class Rule>
[[gnu::flatten]] void step_rows(const void* given_rule, const RowBatch& rows, const StepArgs& given,
                                std::size_t dim) noexcept {
  const RowBatch batch = rows;
  const StepArgs args = given;
  const Rule rule = *static_cast<const Rule*>(given_rule);
  for (std::size_t i = 0; i < batch.count; ++i) {
    if (i + kAhead < batch.end) {
      prefetch_row(batch.rows[i + kAhead].values, batch.fetched_value_bytes);
      prefetch_row(batch.rows[i + kAhead].state, batch.fetched_state_bytes);
    }
    const RowWords row = batch.rows[i];
    rule.update(row.values + batch.value_offset, row.state + batch.state_offset, batch.grads[i] + batch.value_offset,
                dim, args);
  }
}

// The draw depends on the position in the row, so that two slices of a row draw different numbers.
[[gnu::flatten]] void round_rows(const RowBatch& batch, const StepArgs& args, std::size_t dim) noexcept {
  for (std::size_t i = 0; i < batch.count; ++i) {
    const auto id = static_cast<std::uint64_t>(batch.ids[i]);
    const std::uint64_t draw = scramble(scramble(args.seed ^ scramble(id)) ^ static_cast<std::uint64_t>(args.step));
    float* row = batch.rows[i].values;
    for (std::size_t k = batch.value_offset; k < batch.value_offset + dim; ++k) {
      row[k] = round_to_half(row[k], unit_float(scramble(draw + k)));
    }
  }
}

// g + lambda g^2 (w - w_then), or g where the square overflows.
[[gnu::flatten]] void correct_gradients(const RowBatch& batch, float lambda, std::size_t dim,
                                        float* const* out) noexcept {
  for (std::size_t i = 0; i < batch.count; ++i) {
    const float* w = batch.rows[i].values + batch.value_offset;
    const float* w_then = batch.latest[i] + batch.value_offset;
    const float* g = batch.grads[i] + batch.value_offset;
    float* __restrict corrected = out[i] + batch.value_offset;
    for (std::size_t k = 0; k < dim; ++k) {
      const float sum = g[k] + lambda * g[k] * g[k] * (w[k] - w_then[k]);
      corrected[k] = std::isfinite(sum) ? sum : g[k];
    }
  }
}

template <class... Rules>
consteval std::array<Kernels::StepRows, sizeof...(Rules)> step_rows_of(rules::RuleList<Rules...>) {
  return {step_rows<Rules>...};
}

consteval Kernels make_kernels(const char* level) {
  return {.level = level,
          .step_rows = step_rows_of(rules::AllRules{}),
          .round_rows = round_rows,
          .correct_gradients = correct_gradients,
          .find_rows = find_rows,
          .sum_bags = sum_bags,
          .sum_gradients = sum_gradients,
          .is_finite = is_finite,
          .sum_squares = sum_squares,
          .encode_halves = encode_half_values,
          .decode_halves = decode_half_values,
          .encode_levels = encode_level_values,
          .decode_levels = decode_level_values,
          .round_to_levels = round_to_level_values,
          .pool_wire = pool_wire,
          .scatter_wire = scatter_wire,
          .sum_pairs = sum_pairs,
          .pair_gradients = pair_gradients};
}

}  // namespace
}  // namespace engine
