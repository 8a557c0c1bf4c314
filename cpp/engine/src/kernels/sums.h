// sums.h: kernels that add rows and gradients up, in order of occurrence. Included by kernels only, hence unnamed.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>

#include "kernels.h"
#include "vectors.h"

namespace engine {
namespace {

// A row being added up: in registers when the width is known and not too large, in place otherwise. A store per row
// would make the loads behind it wait.
template <class Width>
class RowSum {
 public:
  [[gnu::always_inline]] RowSum(float* out, Width width) noexcept : out_(out), width_(width) {}
  [[gnu::always_inline]] void add(const float* row) noexcept {
    std::size_t i = 0;
    for (; i + kRegisterFloats <= width_.value; i += kRegisterFloats) Block<kRegisterFloats>(row + i).add_to(out_ + i);
    for (; i + 4 <= width_.value; i += 4) Block<4>(row + i).add_to(out_ + i);
    for (; i < width_.value; ++i) out_[i] += row[i];
  }
  [[gnu::always_inline]] void store(float*) const noexcept {}

 private:
  float* out_;
  Width width_;
};

// Whole vectors, or a vector and a bias.
template <std::size_t kWidth>
  requires(kWidth > 1 && kWidth % 4 == 0 && kWidth <= 64)
class RowSum<std::integral_constant<std::size_t, kWidth>> {
 public:
  [[gnu::always_inline]] RowSum(const float* out, std::integral_constant<std::size_t, kWidth>) noexcept : sum_(out) {}
  [[gnu::always_inline]] void add(const float* row) noexcept { sum_.add(Block<kWidth>(row)); }
  [[gnu::always_inline]] void store(float* out) const noexcept { sum_.store(out); }

 private:
  Block<kWidth> sum_;
};

template <std::size_t kWidth>
  requires(kWidth > 1 && kWidth % 4 == 1 && kWidth <= 65)
class RowSum<std::integral_constant<std::size_t, kWidth>> {
 public:
  [[gnu::always_inline]] RowSum(const float* out, std::integral_constant<std::size_t, kWidth>) noexcept
      : sum_(out), bias_(out[kWidth - 1]) {}
  [[gnu::always_inline]] void add(const float* row) noexcept {
    sum_.add(Block<kWidth - 1>(row));
    bias_ += row[kWidth - 1];
  }
  [[gnu::always_inline]] void store(float* out) const noexcept {
    sum_.store(out);
    out[kWidth - 1] = bias_;
  }

 private:
  Block<kWidth - 1> sum_;
  float bias_;
};

template <>
class RowSum<std::integral_constant<std::size_t, 1>> {
 public:
  [[gnu::always_inline]] RowSum(const float* out, std::integral_constant<std::size_t, 1>) noexcept : sum_(*out) {}
  [[gnu::always_inline]] void add(const float* row) noexcept { sum_ += *row; }
  [[gnu::always_inline]] void store(float* out) const noexcept { *out = sum_; }

 private:
  float sum_;
};

// A function per width: one for all of them would be too large to optimise well.
template <class Width>
[[gnu::flatten, gnu::noinline]] void sum_bags_of(const BagSums& sums, Width width) noexcept {
  const BagSums work = sums;  // a copy whose address is not taken can stay in registers while rows are written
  const std::size_t end = work.first + work.count;
  for (std::size_t bag = work.bags.begin; bag < work.bags.end; ++bag) {
    const std::size_t from = std::max(work.first, static_cast<std::size_t>(work.offsets[bag])) - work.first;
    const std::size_t to = std::min(end, static_cast<std::size_t>(work.offsets[bag + 1])) - work.first;
    float* const out = work.out + bag * width.value;
    RowSum<Width> sum(out, width);
    for (std::size_t i = from; i < to; ++i) {
      if (i + work.ahead < work.count) prefetch_row(work.rows[i + work.ahead], width.value * sizeof(float));
      if (work.rows[i] != nullptr) sum.add(reinterpret_cast<const float*>(work.rows[i]));
    }
    sum.store(out);
  }
}

void sum_bags(const BagSums& sums) noexcept {
  with_width(sums.width, [&](auto width) { sum_bags_of(sums, width); });
}

// True when every float is finite: NaN and Inf have all exponent bits set. In integers, which vectorise.
template <class Width>
[[gnu::always_inline]] inline bool is_finite_row(const float* values, Width width) noexcept {
  constexpr std::uint32_t kExponent = 0x7F800000U;
  std::uint32_t largest = 0;
  for (std::size_t i = 0; i < width.value; ++i) {
    const std::uint32_t exponent = std::bit_cast<std::uint32_t>(values[i]) & kExponent;
    largest = largest > exponent ? largest : exponent;
  }
  return largest != kExponent;
}

[[gnu::flatten]] bool is_finite(const float* values, std::size_t count) noexcept {
  return is_finite_row(values, AnyWidth{count});
}

template <class Width>
[[gnu::flatten, gnu::noinline]] bool sum_gradients_of(const GradientSums& sums, Width width) noexcept {
  const GradientSums work = sums;
  const std::size_t dim = width.value;
  float* sum = work.sums;
  const std::uint32_t* target = work.targets;
  const std::uint32_t* const end = work.targets + work.occurrences;
  bool all_finite = true;
  for (std::size_t i = 0; i < work.distinct; ++i) {
    if (work.times != nullptr && work.handles[i].row != kNoRow)
      __builtin_prefetch(work.times + work.handles[i].row, 1, 3);
    const std::size_t count = work.handles[i].count;
    const float* grad = work.grads + *target * dim;
    if (count == 1) {
      if (target + kAhead < end) prefetch_row(work.grads + target[kAhead] * dim, dim * sizeof(float));
      ++target;
    } else {
      std::memset(sum, 0, dim * sizeof(float));
      RowSum<Width> total(sum, width);
      for (const std::uint32_t* const last = target + count; target < last; ++target) {
        if (target + kAhead < end) prefetch_row(work.grads + target[kAhead] * dim, dim * sizeof(float));
        total.add(work.grads + *target * dim);
      }
      total.store(sum);
      grad = sum;
      sum += dim;
    }
    work.out[i] = grad;
    if (work.is_finite != nullptr) {
      const bool is_finite = is_finite_row(grad, width);
      work.is_finite[i] = is_finite ? 1 : 0;
      all_finite = all_finite && is_finite;
    }
  }
  return all_finite;
}

bool sum_gradients(const GradientSums& sums) noexcept {
  bool all_finite = true;
  with_width(sums.width, [&](auto width) { all_finite = sum_gradients_of(sums, width); });
  return all_finite;
}

// Eight sums side by side: a fixed order at every level.
[[gnu::flatten]] double sum_squares(const float* values, std::size_t count) noexcept {
  std::array<double, 8> sums{};
  std::size_t i = 0;
  for (; i + sums.size() <= count; i += sums.size()) {
    for (std::size_t k = 0; k < sums.size(); ++k) sums[k] += double{values[i + k]} * double{values[i + k]};
  }
  for (; i < count; ++i) sums[0] += double{values[i]} * double{values[i]};
  return ((sums[0] + sums[1]) + (sums[2] + sums[3])) + ((sums[4] + sums[5]) + (sums[6] + sums[7]));
}

}  // namespace
}  // namespace engine
