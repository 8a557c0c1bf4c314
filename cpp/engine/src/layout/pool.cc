// pool.cc: rows of unique ids -> the tensors of a model. Examples are shared out; nothing is written twice.
#include <algorithm>

#include "block.h"
#include "engine/layout/step_plan.h"
#include "wiring.h"

namespace engine::layout {

namespace {

using FeatureBags = StepPlan::FeatureBags;

// Examples per piece of work: their outputs stay in the L2 cache while feature after feature is written.
constexpr std::size_t kPieceExamples = 128;

struct Examples {
  std::size_t begin;
  std::size_t end;
};

// One wire of one feature, for some examples. Holds copies: a write to the outputs could change the value that a
// reference refers to, for all the compiler knows, and it would read it again each time.
template <std::size_t kWidth>
class WirePool {
 public:
  WirePool(const Wire& wire, const Feature& feature, const FeatureBags& bags, MatrixView<const float> rows,
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

  template <bool kStores>
  void single(Examples examples) const {
    for (std::size_t example = examples.begin; example < examples.end; ++example) {
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
  FeatureBags bags_;
  MatrixView<const float> rows_;
  MatrixView<float> output_;
};

}  // namespace

void StepPlan::pool(std::span<const MatrixView<const float>> rows, std::span<const MatrixView<float>> outputs,
                    Pool& team) const {
  check_rows(rows);
  check_outputs(outputs);
  const Wiring& wiring = *wiring_;
  const auto fill = [&](Examples examples) {
    for (const std::uint32_t output : wiring.outputs_with_gaps) {
      const MatrixView<float>& out = outputs[output];
      std::fill(out.data + examples.begin * out.columns, out.data + examples.end * out.columns, 0.0F);
    }
    for (std::size_t i = 0; i < features_.size(); ++i) {
      const Feature& feature = wiring.features[i];
      for (const Wire& wire : wiring.wires[i]) {
        with_wire_width(wire.width, [&](auto width) {
          WirePool<width.value>(wire, feature, features_[i], rows[feature.table], outputs[wire.output]).run(examples);
        });
      }
    }
  };
  const std::size_t pieces = (rows_ + kPieceExamples - 1) / kPieceExamples;
  team.run(pieces,
           [&](std::size_t piece) { fill({piece * kPieceExamples, std::min(rows_, (piece + 1) * kPieceExamples)}); });
}

}  // namespace engine::layout
