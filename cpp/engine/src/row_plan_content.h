// row_plan_content.h: the memory of a RowPlan, for the lookup that fills it and the update that reads it.
#pragma once

#include <array>
#include <vector>

#include "distinct_ids.h"
#include "engine/error.h"
#include "engine/row_plan.h"
#include "partition.h"

namespace engine {

struct RowPlan::Content {
  std::uint64_t table = 0;  // serial number of the table; 0: not filled
  Partition grouped;
  std::vector<std::int64_t> offsets;
  Bags bags;  // over `grouped` and `offsets`: the ids are in order of parts
  Reused<std::int64_t> ids;
  Reused<RowHandle> handles;
  Reused<std::uint32_t> numbers;
  Reused<float> values;
  std::array<DistinctIds, kParts> parts{};
  std::array<Index::History, kParts> histories{};  // of the part's index when its rows were searched

  // Takes memory for the occurrences in `grouped`.
  void reserve(std::size_t dim) {
    const std::size_t count = grouped.ids().size();
    ids.get(count);
    handles.get(count);
    numbers.get(count);
    values.get(count * dim);
    for (std::size_t part = 0; part < kParts; ++part) {
      const std::size_t begin = grouped.begin(part);
      parts[part] = {.ids = ids.get(0) + begin, .handles = handles.get(0) + begin, .numbers = numbers.get(0) + begin};
    }
  }
  // The looked-up values of a part's distinct ids, by number.
  [[nodiscard]] float* values_of(std::size_t part, std::size_t dim) {
    return values.get(0) + grouped.begin(part) * dim;
  }
};

// Keeps other calls away from a plan.
class RowPlan::Use {
 public:
  explicit Use(RowPlan& plan) : plan_(&plan) {
    if (plan.is_used_.exchange(true, std::memory_order_acquire)) {
      throw ConfigError("the plan is in use by another call, expected one call at a time; use one plan per thread");
    }
  }
  ~Use() {
    if (plan_ != nullptr) plan_->is_used_.store(false, std::memory_order_release);
  }
  Use(Use&& other) noexcept : plan_(std::exchange(other.plan_, nullptr)) {}
  Use(const Use&) = delete;
  Use& operator=(const Use&) = delete;
  Use& operator=(Use&&) = delete;

 private:
  RowPlan* plan_;
};

}  // namespace engine
