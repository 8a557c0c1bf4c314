// optimizer.h: the update rule of one slice, applied to many rows together.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "engine/config.h"

namespace engine {

// First words of a row's values, and of its state: that of each slice in turn.
struct RowWords {
  float* values;
  float* state;
};

// n rows to update.
struct RowBatch {
  std::size_t count = 0;
  std::size_t end = 0;                   // rows that `rows` points to, at least n: those behind the batch come next
  const RowWords* rows = nullptr;        // (n)
  const float* const* grads = nullptr;   // (n) first word of each row's gradient, all slices wide
  const float* const* latest = nullptr;  // (n) values the gradient was computed at, or null: no delay
  const std::int64_t* ids = nullptr;     // (n)
  std::size_t value_offset = 0;          // words from the start of values (and gradient) to this slice's
  std::size_t state_offset = 0;          // words from the start of the state to this slice's
  std::size_t fetched_value_bytes = 0;   // of each row, fetched ahead by the step; 0: the rows are in cache
  std::size_t fetched_state_bytes = 0;
};

struct StepArgs {
  float learning_rate = 0.0F;
  std::int64_t step = 0;
  std::uint64_t seed = 0;
};

// One named field of an optimizer's state, as the original's dumps spell it ("norm", "beta1_power").
struct StateField {
  std::string name;
  std::size_t offset = 0;  // words from the slice's state start
  std::size_t words = 0;   // 32-bit words
  bool is_int64 = false;   // two words holding an int64; otherwise float32 words
};

class Optimizer {
 public:
  virtual ~Optimizer() = default;

  // Number of 32-bit words of state per row.
  [[nodiscard]] virtual std::size_t state_words() const noexcept = 0;
  [[nodiscard]] virtual std::vector<StateField> state_fields() const = 0;
  virtual void init(float* state) const noexcept = 0;
  // Applies one step to every row of the batch. Rows are distinct. Concurrent on disjoint rows.
  virtual void step(const RowBatch& batch, const StepArgs& args) const noexcept = 0;
};

// Throws ConfigError on an unknown kind, a missing or unknown setting, or a bad value.
std::unique_ptr<Optimizer> make_optimizer(const SliceConfig& slice);

}  // namespace engine
