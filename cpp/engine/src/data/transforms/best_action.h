// best_action.h: the action of a row that a priority list puts first. Private to the engine.
#pragma once

#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "data/transforms/int_map.h"

namespace engine::data {

class Priority {
 public:
  static constexpr std::int32_t kUnlisted = std::numeric_limits<std::int32_t>::max();

  Priority() = default;
  explicit Priority(std::span<const std::int64_t> best_first) : places_(best_first) {}

  [[nodiscard]] bool empty() const noexcept { return places_.empty(); }
  // 0 is the best; kUnlisted when the list does not have it.
  [[nodiscard]] std::int32_t rank(std::int64_t action) const noexcept {
    const std::int32_t place = places_.find(action);
    return place < 0 ? kUnlisted : place;
  }

  struct Best {
    std::int32_t rank = kUnlisted;
    std::int64_t action = 0;  // meaningful when rank is listed
  };
  [[nodiscard]] Best best(std::span<const std::int64_t> actions) const noexcept {
    Best found;
    for (const std::int64_t action : actions) {
      if (const std::int32_t here = rank(action); here < found.rank) found = {here, action};
    }
    return found;
  }

 private:
  IntMap places_;
};

}  // namespace engine::data
