// scatter.cc: gradients of a model's tensors -> one gradient per unique id. Every row belongs to one piece of work, and
// sums run in order of occurrence: the same bits for any number of threads.
#include <algorithm>
#include <array>

#include "block.h"
#include "engine/layout/step_plan.h"
#include "wiring.h"

namespace engine::layout {

namespace {

using FeatureBags = StepPlan::FeatureBags;

// Rows of one piece: they stay in the L2 cache while wire after wire is added.
constexpr std::size_t kPieceBytes = std::size_t{512} << 10;
// Every piece of a table walks through all its places, so there are few.
constexpr std::size_t kMostPieces = 16;

// How far ahead of its use a gradient is fetched.
constexpr std::size_t kAhead = 16;

// The rows of some unique ids, zeroed as they are first met: numbers grow in order of occurrence, so the rows met so
// far are always the first ones.
class RowRange {
 public:
  RowRange(MatrixView<float> rows, std::size_t begin, std::size_t end)
      : rows_(rows), begin_(begin), size_(end - begin), met_(begin) {}

  [[nodiscard, gnu::always_inline]] bool has(std::uint32_t number) const noexcept { return number - begin_ < size_; }
  [[nodiscard, gnu::always_inline]] float* row(std::uint32_t number) const noexcept {
    return rows_.data + number * rows_.columns;
  }
  [[gnu::always_inline]] void meet(std::uint32_t number) noexcept {
    if (number >= met_) zero_until(std::size_t{number} + 1);
  }
  void meet_all() noexcept { zero_until(begin_ + size_); }

  [[nodiscard]] double sum_of_squares() const noexcept {
    const float* value = rows_.data + begin_ * rows_.columns;
    const std::size_t count = size_ * rows_.columns;
    std::array<double, 8> sums{};
    std::size_t i = 0;
    for (; i + sums.size() <= count; i += sums.size()) {
      for (std::size_t k = 0; k < sums.size(); ++k) sums[k] += double{value[i + k]} * double{value[i + k]};
    }
    for (; i < count; ++i) sums[0] += double{value[i]} * double{value[i]};
    return ((sums[0] + sums[1]) + (sums[2] + sums[3])) + ((sums[4] + sums[5]) + (sums[6] + sums[7]));
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

// One wire of one feature, for some rows.
template <std::size_t kWidth>
class WireScatter {
 public:
  WireScatter(const Wire& wire, const Feature& feature, const FeatureBags& bags, MatrixView<const float> grad,
              RowRange& rows)
      : wire_(wire), feature_(feature), bags_(bags), grad_(grad), rows_(rows) {}

  void run() const {
    const std::size_t bags = bags_.is_shared ? 1 : grad_.rows;
    if (feature_.pooling == Pooling::kFirst) {
      for (std::size_t bag = 0; bag < bags; ++bag) scatter_places(bag);
    } else if (bags_.offsets == nullptr && !bags_.is_shared) {
      for (std::size_t bag = 0; bag < bags; ++bag) {
        fetch_grad(std::min(bag + kAhead, bags - 1));
        add(bag, Block<kWidth>(grad_at(bag)));
      }
    } else {
      for (std::size_t bag = 0; bag < bags; ++bag) scatter_bag(bag);
    }
  }

 private:
  [[nodiscard]] std::size_t begin_of(std::size_t bag) const noexcept {
    return bags_.offsets == nullptr ? bag : bags_.offsets[bag];
  }
  [[nodiscard, gnu::always_inline]] const float* grad_at(std::size_t example) const noexcept {
    return grad_.data + (example * grad_.columns + wire_.offset);
  }
  // Examples are further apart than any hardware looks ahead.
  [[gnu::always_inline]] void fetch_grad(std::size_t example) const noexcept {
    prefetch(grad_at(example));
    if constexpr (kWidth > 1) prefetch(grad_at(example) + kWidth - 1);
  }
  [[gnu::always_inline]] void add(std::size_t at, const Block<kWidth>& grad) const noexcept {
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

  void scatter_bag(std::size_t bag) const {
    const std::size_t begin = begin_of(bag);
    const std::size_t end = begin_of(bag + 1);
    if (begin == end) return;
    Block<kWidth> grad = grad_of(bag, 0);
    if (feature_.pooling == Pooling::kMean && end - begin > 1) grad.scale(1.0F / static_cast<float>(end - begin));
    for (std::size_t at = begin; at < end; ++at) add(at, grad);
  }

  void scatter_places(std::size_t bag) const {
    const std::size_t begin = begin_of(bag);
    const std::size_t end = begin_of(bag + 1);
    for (std::size_t at = begin; at < end; ++at) add(at, grad_of(bag, (at - begin) * wire_.stride));
  }

  const Wire& wire_;
  const Feature& feature_;
  const FeatureBags& bags_;
  MatrixView<const float> grad_;
  RowRange& rows_;
};

struct Piece {
  std::size_t table;
  std::size_t begin;
  std::size_t end;
  double squares = 0.0;
};

// Depends on the data alone, so the sums of squares do too.
std::vector<Piece> cut_tables(const Wiring& wiring, const StepPlan& plan) {
  std::vector<Piece> pieces;
  for (std::size_t table = 0; table < wiring.table_dims.size(); ++table) {
    const std::size_t rows = plan.unique(table).ids.size();
    const std::size_t bytes = rows * wiring.table_dims[table] * sizeof(float);
    const std::size_t count = std::clamp<std::size_t>(bytes / kPieceBytes, 1, kMostPieces);
    for (std::size_t i = 0; i < count; ++i) pieces.push_back({table, rows * i / count, rows * (i + 1) / count});
  }
  return pieces;
}

}  // namespace

std::vector<double> StepPlan::scatter(std::span<const MatrixView<const float>> grads,
                                      std::span<const MatrixView<float>> rows, Pool& team) const {
  check_outputs(grads);
  check_rows(rows);
  const Wiring& wiring = *wiring_;
  std::vector<Piece> pieces = cut_tables(wiring, *this);
  team.run(pieces.size(), [&](std::size_t i) {
    Piece& piece = pieces[i];
    RowRange range(rows[piece.table], piece.begin, piece.end);
    for (const std::uint32_t f : wiring.table_features[piece.table]) {
      for (const Wire& wire : wiring.wires[f]) {
        if (grads[wire.output].data == nullptr) continue;
        with_wire_width(wire.width, [&](auto width) {
          WireScatter<width.value>(wire, wiring.features[f], features_[f], grads[wire.output], range).run();
        });
      }
    }
    range.meet_all();
    piece.squares = range.sum_of_squares();
  });
  std::vector<double> squares(tables_.size(), 0.0);
  for (const Piece& piece : pieces) squares[piece.table] += piece.squares;
  return squares;
}

}  // namespace engine::layout
