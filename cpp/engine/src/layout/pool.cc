// pool.cc: rows of unique ids -> the tensors of a model. Examples are shared out; nothing is written twice.
#include <algorithm>

#include "../kernels/kernels.h"
#include "engine/layout/step_plan.h"
#include "row_range.h"
#include "wiring.h"

namespace engine::layout {

namespace {

// Examples per piece of work: their outputs stay in the L2 cache while feature after feature is written.
constexpr std::size_t kPieceExamples = 128;

struct Examples {
  std::size_t begin;
  std::size_t end;
};

}  // namespace

void StepPlan::pool(std::span<const MatrixView<const float>> rows, std::span<const MatrixView<float>> outputs,
                    Pool& team) const {
  check_rows(rows);
  check_outputs(outputs);
  const Wiring& wiring = *wiring_;
  const Kernels& loops = kernels();
  const auto fill = [&](Examples examples) {
    for (const std::uint32_t output : wiring.outputs_with_gaps) {
      const MatrixView<float>& out = outputs[output];
      std::fill(out.data + examples.begin * out.columns, out.data + examples.end * out.columns, 0.0F);
    }
    for (std::size_t i = 0; i < features_.size(); ++i) {
      const Feature& feature = wiring.features[i];
      for (const Wire& wire : wiring.wires[i]) {
        loops.pool_wire(
            {wire, feature, features_[i], rows[feature.table], outputs[wire.output], examples.begin, examples.end});
      }
    }
  };
  const std::size_t pieces = (rows_ + kPieceExamples - 1) / kPieceExamples;
  team.run(pieces,
           [&](std::size_t piece) { fill({piece * kPieceExamples, std::min(rows_, (piece + 1) * kPieceExamples)}); });
}

}  // namespace engine::layout
