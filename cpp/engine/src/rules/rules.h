// rules.h: the list of all update rules. Kernels are numbered by a rule's place in it.
#pragma once

#include <cstddef>
#include <type_traits>

#include "adagrad.h"
#include "adam.h"
#include "averages.h"
#include "ftrl.h"

namespace engine::rules {

template <class... Rules>
struct RuleList {
  static constexpr std::size_t kCount = sizeof...(Rules);

  template <class Rule>
  static consteval std::size_t index_of() {
    static_assert((std::is_same_v<Rule, Rules> || ...), "the rule is not in the list");
    std::size_t index = 0;
    bool is_found = false;
    ((is_found = is_found || std::is_same_v<Rule, Rules>, index += is_found ? 0 : 1), ...);
    return index;
  }
};

using AllRules = RuleList<Sgd, MovingAverage, Momentum, Adadelta, Rmsprop, RmspropV2, BatchSoftmax, Adagrad,
                          DynamicWdAdagrad, GroupAdagrad, Adam, Amsgrad, Ftrl, GroupFtrl>;

inline constexpr std::size_t kRuleCount = AllRules::kCount;

}  // namespace engine::rules
