// wires.h: kernels of layouts, which carry floats between rows of unique ids and tensors. Included by kernels only,
// hence unnamed.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>

#include "../layout/row_range.h"
#include "vectors.h"

namespace engine {
namespace {

using layout::Feature;
using layout::MatrixView;
using layout::RowRange;
using layout::StepPlan;
using layout::Wire;

constexpr std::size_t kLineFloats = kLineBytes / sizeof(float);

struct Examples {
  std::size_t begin;
  std::size_t end;
};

// One wire of one feature, for some examples. Holds copies: a write to the outputs could change the value that a
// reference refers to, for all the compiler knows, and it would read it again each time.
template <std::size_t kWidth>
class WirePool {
 public:
  WirePool(const Wire& wire, const Feature& feature, const StepPlan::FeatureBags& bags, MatrixView<const float> rows,
           MatrixView<float> output)
      : wire_(wire), feature_(feature), bags_(bags), rows_(rows), output_(output) {}

  void run(Examples examples) const {
    const bool keeps_places = feature_.pooling == Pooling::kFirst && feature_.first_n > 1;
    if (keeps_places) return place_bags(examples);
    if (bags_.is_shared) return repeat_bag(examples);
    if (bags_.offsets == nullptr) return wire_.stores ? single<true>(examples) : single<false>(examples);
    add_bags(examples);
  }

 private:
  [[nodiscard, gnu::always_inline]] const float* row(std::size_t at) const noexcept {
    return rows_.data + (bags_.places[at] * rows_.columns + wire_.column);
  }
  // As row(), and fetches a row to come. There are always kPadding places to look ahead to.
  [[nodiscard, gnu::always_inline]] const float* row_and_ahead(std::size_t at) const noexcept {
    const float* later = row(at + StepPlan::kPadding);
    prefetch(later);
    if constexpr (kWidth > 1) prefetch(later + kWidth - 1);
    return row(at);
  }
  [[nodiscard, gnu::always_inline]] float* out(std::size_t example) const noexcept {
    return output_.data + (example * output_.columns + wire_.offset);
  }
  [[gnu::always_inline]] void put(const Block<kWidth>& block, float* to) const noexcept {
    wire_.stores ? block.store(to) : block.add_to(to);
  }
  [[nodiscard]] std::size_t begin_of(std::size_t bag) const noexcept {
    return bags_.offsets == nullptr ? bag : bags_.offsets[bag];
  }

  // Fetches the lines that an example's floats will fill. Another processor read or wrote them in the last step, and a
  // store that waits for its line holds up all later ones.
  [[gnu::always_inline]] void fetch_out(std::size_t example) const noexcept {
    for (std::size_t at = 0; at < kWidth; at += kLineFloats) prefetch_for_write(out(example) + at);
  }

  template <bool kStores>
  void single(Examples examples) const {
    constexpr std::size_t kOutputsAhead = kStores && kWidth >= kLineFloats / 2 ? 24 : 0;
    for (std::size_t i = 0; i < std::min(kOutputsAhead, examples.end - examples.begin); ++i) {
      fetch_out(examples.begin + i);
    }
    for (std::size_t example = examples.begin; example < examples.end; ++example) {
      if (kOutputsAhead > 0 && example + kOutputsAhead < examples.end) fetch_out(example + kOutputsAhead);
      const Block<kWidth> block(row_and_ahead(example));
      kStores ? block.store(out(example)) : block.add_to(out(example));
    }
  }

  [[nodiscard, gnu::always_inline]] Block<kWidth> total_of(std::size_t begin, std::size_t end) const noexcept {
    if (begin == end) return {};
    Block<kWidth> total(row_and_ahead(begin));
    for (std::size_t at = begin + 1; at < end; ++at) total.add(Block<kWidth>(row_and_ahead(at)));
    if (feature_.pooling == Pooling::kMean && end - begin > 1) total.scale(1.0F / static_cast<float>(end - begin));
    return total;
  }

  void add_bags(Examples examples) const {
    for (std::size_t bag = examples.begin; bag < examples.end; ++bag) {
      const std::size_t begin = bags_.offsets[bag];
      const std::size_t end = bags_.offsets[bag + 1];
      if (begin < end || wire_.stores) put(total_of(begin, end), out(bag));
    }
  }

  void repeat_bag(Examples examples) const {
    const Block<kWidth> total = total_of(begin_of(0), begin_of(1));
    for (std::size_t example = examples.begin; example < examples.end; ++example) put(total, out(example));
  }

  void place_bags(Examples examples) const {
    for (std::size_t example = examples.begin; example < examples.end; ++example) {
      const std::size_t bag = bags_.is_shared ? 0 : example;
      const std::size_t begin = begin_of(bag);
      const std::size_t length = begin_of(bag + 1) - begin;
      float* to = out(example);
      for (std::size_t i = 0; i < length; ++i) put(Block<kWidth>(row_and_ahead(begin + i)), to + i * wire_.stride);
      if (!wire_.stores) continue;
      for (std::size_t i = length; i < feature_.first_n; ++i) Block<kWidth>().store(to + i * wire_.stride);
    }
  }

  Wire wire_;
  Feature feature_;
  StepPlan::FeatureBags bags_;
  MatrixView<const float> rows_;
  MatrixView<float> output_;
};

// Examples that are looked at together, and how far ahead of its use a gradient is fetched.
constexpr std::size_t kStride = 1024;
constexpr std::size_t kGradsAhead = 16;

// One wire of one feature, for some rows. Holds copies: a write to the rows could change the value that a reference
// refers to, for all the compiler knows, and it would read it again each time.
template <std::size_t kWidth>
class WireScatter {
 public:
  WireScatter(const Wire& wire, const Feature& feature, const StepPlan::FeatureBags& bags, MatrixView<const float> grad,
              const RowRange& rows)
      : wire_(wire), feature_(feature), bags_(bags), grad_(grad), rows_(rows) {}

  // Returns the rows, with more of them met.
  [[nodiscard]] RowRange run() {
    const std::size_t bags = bags_.is_shared ? 1 : grad_.rows;
    if (feature_.pooling == Pooling::kFirst) {
      for (std::size_t bag = 0; bag < bags; ++bag) scatter_places(bag);
    } else if (bags_.offsets == nullptr && !bags_.is_shared) {
      scatter_singles();
    } else {
      for (std::size_t bag = 0; bag < bags; ++bag) scatter_bag(bag);
    }
    return rows_;
  }

 private:
  [[nodiscard]] std::size_t begin_of(std::size_t bag) const noexcept {
    return bags_.offsets == nullptr ? bag : bags_.offsets[bag];
  }
  [[nodiscard, gnu::always_inline]] const float* grad_at(std::size_t example) const noexcept {
    return grad_.data + (example * grad_.columns + wire_.offset);
  }
  [[gnu::always_inline]] void add(std::size_t at, const Block<kWidth>& grad) noexcept {
    const std::uint32_t number = bags_.places[at];
    if (!rows_.has(number)) return;
    rows_.meet(number);
    grad.add_to(rows_.row(number) + wire_.column);
  }

  // The gradient of a bag's floats, `further` behind those of its first id. A shared bag has that of all examples.
  [[nodiscard]] Block<kWidth> grad_of(std::size_t bag, std::size_t further) const noexcept {
    if (!bags_.is_shared) return Block<kWidth>(grad_at(bag) + further);
    std::array<double, kWidth> sums{};
    for (std::size_t example = 0; example < grad_.rows; ++example) {
      const float* grad = grad_at(example) + further;
      for (std::size_t i = 0; i < kWidth; ++i) sums[i] += double{grad[i]};
    }
    std::array<float, kWidth> total;
    for (std::size_t i = 0; i < kWidth; ++i) total[i] = static_cast<float>(sums[i]);
    return Block<kWidth>(total.data());
  }

  // Bags of one id.
  void scatter_singles() {
    if (rows_.is_whole()) {
      for (std::size_t bag = 0; bag < grad_.rows; ++bag) add_single(bag, std::min(bag + kGradsAhead, grad_.rows - 1));
      return;
    }
    // First finds the bags whose rows are here, without an unpredictable branch.
    std::array<std::uint32_t, kStride> found;
    for (std::size_t begin = 0; begin < grad_.rows; begin += kStride) {
      std::size_t count = 0;
      for (std::size_t bag = begin; bag < std::min(grad_.rows, begin + kStride); ++bag) {
        found[count] = static_cast<std::uint32_t>(bag);
        count += rows_.has(bags_.places[bag]) ? 1 : 0;
      }
      for (std::size_t i = 0; i < count; ++i) add_single(found[i], found[std::min(i + kGradsAhead, count - 1)]);
    }
  }
  // Adds the gradient of one bag and fetches that of a later one: they are further apart than hardware looks ahead.
  [[gnu::always_inline]] void add_single(std::size_t bag, std::size_t later) noexcept {
    prefetch(grad_at(later));
    if constexpr (kWidth > 1) prefetch(grad_at(later) + kWidth - 1);
    const std::uint32_t number = bags_.places[bag];
    rows_.meet(number);
    Block<kWidth>(grad_at(bag)).add_to(rows_.row(number) + wire_.column);
  }

  void scatter_bag(std::size_t bag) {
    const std::size_t begin = begin_of(bag);
    const std::size_t end = begin_of(bag + 1);
    if (begin == end) return;
    Block<kWidth> grad = grad_of(bag, 0);
    if (feature_.pooling == Pooling::kMean && end - begin > 1) grad.scale(1.0F / static_cast<float>(end - begin));
    for (std::size_t at = begin; at < end; ++at) add(at, grad);
  }

  void scatter_places(std::size_t bag) {
    const std::size_t begin = begin_of(bag);
    const std::size_t end = begin_of(bag + 1);
    for (std::size_t at = begin; at < end; ++at) add(at, grad_of(bag, (at - begin) * wire_.stride));
  }

  Wire wire_;
  Feature feature_;
  StepPlan::FeatureBags bags_;
  MatrixView<const float> grad_;
  RowRange rows_;
};

// A function per width: one for all of them would be too large to optimise well.
template <std::size_t kWidth>
[[gnu::flatten, gnu::noinline]] void pool_wire_of(const layout::PoolWire& work) noexcept {
  WirePool<kWidth>(work.wire, work.feature, work.bags, work.rows, work.output).run({work.begin, work.end});
}

void pool_wire(const layout::PoolWire& work) noexcept {
  layout::with_wire_width(work.wire.width, [&](auto width) { pool_wire_of<width.value>(work); });
}

template <std::size_t kWidth>
[[gnu::flatten, gnu::noinline]] void scatter_wire_of(const layout::ScatterWire& work) noexcept {
  work.rows = WireScatter<kWidth>(work.wire, work.feature, work.bags, work.grad, work.rows).run();
}

void scatter_wire(const layout::ScatterWire& work) noexcept {
  layout::with_wire_width(work.wire.width, [&](auto width) { scatter_wire_of<width.value>(work); });
}

}  // namespace
}  // namespace engine
