// kernels.h: the list of kernels, which are the engine's inner loops. Private.
//
// level.h holds their code. Each level is one file that includes level.h and that the compiler translates for other
// instructions: baseline.cc (NEON on AArch64, SSE2 on x86-64), avx2.cc, avx512.cc. dispatch.cc chooses a level.
//
// All levels give the same bits, because every loop runs IEEE operations in the written order and none is fused. Only
// the sign and payload of a NaN may differ.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "../distinct_ids.h"
#include "../layout/row_range.h"
#include "../layout/wiring.h"
#include "../rules/rules.h"
#include "engine/bags.h"
#include "engine/layout/step_plan.h"
#include "engine/optimizer.h"
#include "engine/pairs.h"

namespace engine {

// The index and the rows of one part of a table. Copied out of the part: all places of a table fit few lines, which no
// writer touches.
struct PartPlace {
  Index::View buckets;
  std::byte* const* slabs;  // of an empty part: one null pointer
};

// Ids whose rows are searched.
struct RowSearch {
  const std::int64_t* ids;
  std::size_t count;
  const PartPlace* places;      // by part
  const Index* const* indexes;  // by part, for ids that are not in their bucket
  RowStore::Shape shape;
  const std::byte** rows;  // by id: where its row is, or null
};

// Occurrences [first, first + count) of a pooled lookup.
struct BagSums {
  const std::byte* const* rows;  // by occurrence; null adds nothing
  std::size_t count;
  std::size_t first;
  const std::int64_t* offsets;
  UnitRange bags;  // those that have occurrences here
  float* out;      // by bag; holds the sum of earlier occurrences
  std::size_t width;
  std::size_t ahead;  // occurrences between the fetch of a row and its use
};

// Gradients of the distinct ids of a part.
struct GradientSums {
  const float* grads;            // by target
  const std::uint32_t* targets;  // those of one id side by side, in order of occurrence
  std::size_t occurrences;       // at least those of the ids: gradients behind them come next
  const RowHandle* handles;      // by distinct id
  std::size_t distinct;
  std::size_t width;
  float* sums;                 // room for the ids that occur more than once
  const float** out;           // by distinct id: `grads` or `sums`
  std::uint8_t* is_finite;     // by distinct id; null: not asked for
  const std::uint32_t* times;  // by row: fetched for the stamps that follow; null: no fetch
};

// Examples [begin, end) of sum_pairs and pair_gradients; see engine/pairs.h.
struct PairSums {
  Vectors vectors;
  std::size_t begin;
  std::size_t end;
  float* together;
  float* pairs;
};

struct PairGradients {
  Vectors vectors;
  std::size_t begin;
  std::size_t end;
  const float* together;
  const float* grads;
  const float* others;  // null: none
  float* out;
};

struct Kernels {
  const char* level;

  // --- optimizers; by rule, see rules/rules.h. The first argument is the rule. ---
  using StepRows = void (*)(const void* rule, const RowBatch& batch, const StepArgs& args, std::size_t dim) noexcept;
  std::array<StepRows, rules::kRuleCount> step_rows;
  // Rounds the values of each row to halves, up or down at random.
  void (*round_rows)(const RowBatch& batch, const StepArgs& args, std::size_t dim) noexcept;
  // Writes the delay-compensated gradient of row i to out[i] + value_offset.
  void (*correct_gradients)(const RowBatch& batch, float lambda, std::size_t dim, float* const* out) noexcept;

  // --- lookups ---
  void (*find_rows)(const RowSearch& search) noexcept;

  // --- sums ---
  void (*sum_bags)(const BagSums& sums) noexcept;
  // Returns true when all gradients are finite, or when that is not asked for.
  bool (*sum_gradients)(const GradientSums& sums) noexcept;
  bool (*is_finite)(const float* values, std::size_t count) noexcept;
  double (*sum_squares)(const float* values, std::size_t count) noexcept;

  // --- serving formats; bytes have any alignment ---
  void (*encode_halves)(const float* values, std::byte* out, std::size_t count) noexcept;
  void (*decode_halves)(const std::byte* in, float* values, std::size_t count) noexcept;
  void (*encode_levels)(const float* values, std::byte* out, std::size_t count, float step) noexcept;
  void (*decode_levels)(const std::byte* in, float* values, std::size_t count, float step) noexcept;
  void (*round_to_levels)(const float* values, float* out, std::size_t count, float step) noexcept;

  // --- layouts ---
  void (*pool_wire)(const layout::PoolWire& work) noexcept;
  void (*scatter_wire)(const layout::ScatterWire& work) noexcept;

  // --- pairs of vectors ---
  void (*sum_pairs)(const PairSums& sums) noexcept;
  void (*pair_gradients)(const PairGradients& gradients) noexcept;
};

extern const Kernels kBaselineKernels;
#if defined(ENGINE_HAS_AVX2)
extern const Kernels kAvx2Kernels;
#endif
#if defined(ENGINE_HAS_AVX512)
extern const Kernels kAvx512Kernels;
#endif

// The level in use. Throws ConfigError at the first call if MONOLITH_KERNELS is not a level of this processor.
[[nodiscard]] const Kernels& kernels();

// Levels of this processor, slowest first.
[[nodiscard]] std::vector<const Kernels*> runnable_kernels();

// For tests: later calls of kernels() return `level`. Optimizers and compressors keep the level of their creation.
void use_kernels(const Kernels& level) noexcept;

}  // namespace engine
