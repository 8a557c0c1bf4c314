// scatter.cc: gradients of a model's tensors -> one gradient per unique id. Every row belongs to one piece of work, and
// sums run in order of occurrence: the same bits for any number of threads.
#include <algorithm>
#include <array>
#include <numeric>

#include "block.h"
#include "engine/layout/step_plan.h"
#include "wiring.h"

namespace engine::layout {

namespace {

using FeatureBags = StepPlan::FeatureBags;

// Examples that are looked at together, and how far ahead of its use a gradient is fetched.
constexpr std::size_t kStride = 1024;
constexpr std::size_t kAhead = 16;
// Squares are summed in blocks of as many rows, and pieces of work begin at blocks: the sums know no threads.
constexpr std::size_t kBlockRows = 1024;

double sum_of_squares(std::span<const float> values) noexcept {
  std::array<double, 8> sums{};
  std::size_t i = 0;
  for (; i + sums.size() <= values.size(); i += sums.size()) {
    for (std::size_t k = 0; k < sums.size(); ++k) sums[k] += double{values[i + k]} * double{values[i + k]};
  }
  for (; i < values.size(); ++i) sums[0] += double{values[i]} * double{values[i]};
  return ((sums[0] + sums[1]) + (sums[2] + sums[3])) + ((sums[4] + sums[5]) + (sums[6] + sums[7]));
}

// The rows of some unique ids, zeroed as they are first met: numbers grow in order of occurrence, so the rows met so
// far are always the first ones.
class RowRange {
 public:
  RowRange(MatrixView<float> rows, std::size_t begin, std::size_t end)
      : rows_(rows), begin_(begin), size_(end - begin), met_(begin) {}

  [[nodiscard]] bool is_whole() const noexcept { return size_ == rows_.rows; }
  [[nodiscard, gnu::always_inline]] bool has(std::uint32_t number) const noexcept { return number - begin_ < size_; }
  [[nodiscard, gnu::always_inline]] float* row(std::uint32_t number) const noexcept {
    return rows_.data + number * rows_.columns;
  }
  [[gnu::always_inline]] void meet(std::uint32_t number) noexcept {
    if (number >= met_) zero_until(std::size_t{number} + 1);
  }
  void meet_all() noexcept { zero_until(begin_ + size_); }

  // Writes the sum of the squares of each block of rows.
  void sum_squares(double* blocks) const noexcept {
    for (std::size_t row = begin_; row < begin_ + size_; row += kBlockRows) {
      const std::size_t count = std::min(kBlockRows, begin_ + size_ - row);
      blocks[row / kBlockRows] = sum_of_squares({rows_.data + row * rows_.columns, count * rows_.columns});
    }
  }

 private:
  void zero_until(std::size_t end) noexcept {
    if (end <= met_) return;
    std::fill(rows_.data + met_ * rows_.columns, rows_.data + end * rows_.columns, 0.0F);
    met_ = end;
  }

  MatrixView<float> rows_;
  std::size_t begin_;
  std::size_t size_;
  std::size_t met_;
};

// One wire of one feature, for some rows. Holds copies: a write to the rows could change the value that a reference
// refers to, for all the compiler knows, and it would read it again each time.
template <std::size_t kWidth>
class WireScatter {
 public:
  WireScatter(const Wire& wire, const Feature& feature, const FeatureBags& bags, MatrixView<const float> grad,
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
    std::transform(sums.begin(), sums.end(), total.begin(), [](double sum) { return static_cast<float>(sum); });
    return Block<kWidth>(total.data());
  }

  // Bags of one id.
  void scatter_singles() {
    if (rows_.is_whole()) {
      for (std::size_t bag = 0; bag < grad_.rows; ++bag) add_single(bag, std::min(bag + kAhead, grad_.rows - 1));
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
      for (std::size_t i = 0; i < count; ++i) add_single(found[i], found[std::min(i + kAhead, count - 1)]);
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
  FeatureBags bags_;
  MatrixView<const float> grad_;
  RowRange rows_;
};

struct Piece {
  std::size_t table;
  std::size_t begin;
  std::size_t end;
};

std::size_t blocks_of(const StepPlan& plan, std::size_t table) {
  return (plan.unique(table).ids.size() + kBlockRows - 1) / kBlockRows;
}

// A piece per table, more for a table that has more than one thread's share of the ids. No more than that: every piece
// of a table walks through all its places.
std::vector<Piece> cut_tables(const StepPlan& plan, std::span<const std::size_t> occurrences, unsigned threads) {
  std::vector<Piece> pieces;
  for (std::size_t table = 0; table < plan.tables(); ++table) {
    const std::size_t rows = plan.unique(table).ids.size();
    const std::size_t blocks = blocks_of(plan, table);
    const std::size_t share = occurrences[table] * threads / std::max<std::size_t>(1, plan.occurrences());
    const std::size_t count = std::clamp<std::size_t>(share, 1, std::max<std::size_t>(1, blocks));
    for (std::size_t i = 0; i < count; ++i) {
      pieces.push_back({table, blocks * i / count * kBlockRows, std::min(rows, blocks * (i + 1) / count * kBlockRows)});
    }
  }
  return pieces;
}

}  // namespace

std::vector<double> StepPlan::scatter(std::span<const MatrixView<const float>> grads,
                                      std::span<const MatrixView<float>> rows, Pool& team) const {
  check_outputs(grads);
  check_rows(rows);
  const Wiring& wiring = *wiring_;
  std::vector<std::size_t> occurrences(tables_.size(), 0);
  for (std::size_t i = 0; i < features_.size(); ++i) occurrences[wiring.features[i].table] += features_[i].count;
  std::vector<std::vector<double>> block_squares;
  for (std::size_t table = 0; table < tables_.size(); ++table) block_squares.emplace_back(blocks_of(*this, table));
  const std::vector<Piece> pieces = cut_tables(*this, occurrences, team.threads());
  team.run(pieces.size(), [&](std::size_t i) {
    const Piece& piece = pieces[i];
    RowRange range(rows[piece.table], piece.begin, piece.end);
    for (const std::uint32_t f : wiring.table_features[piece.table]) {
      for (const Wire& wire : wiring.wires[f]) {
        if (grads[wire.output].data == nullptr) continue;
        with_wire_width(wire.width, [&](auto width) {
          range = WireScatter<width.value>(wire, wiring.features[f], features_[f], grads[wire.output], range).run();
        });
      }
    }
    range.meet_all();
    range.sum_squares(block_squares[piece.table].data());
  });
  std::vector<double> squares;
  for (const auto& blocks : block_squares) squares.push_back(std::accumulate(blocks.begin(), blocks.end(), 0.0));
  return squares;
}

}  // namespace engine::layout
