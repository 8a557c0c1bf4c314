// scatter.cc: gradients of a model's tensors -> one gradient per unique id. Every row belongs to one piece of work, and
// sums run in order of occurrence: the same bits for any number of threads.
#include <algorithm>
#include <numeric>

#include "../kernels/kernels.h"
#include "engine/layout/step_plan.h"
#include "row_range.h"
#include "wiring.h"

namespace engine::layout {

namespace {

// Squares are summed in blocks of as many rows, and pieces of work begin at blocks: the sums know no threads.
constexpr std::size_t kBlockRows = 1024;

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
  const Kernels& loops = kernels();
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
        loops.scatter_wire({wire, wiring.features[f], features_[f], grads[wire.output], range});
      }
    }
    range.meet_all();
    const MatrixView<float>& all = rows[piece.table];
    for (std::size_t row = piece.begin; row < piece.end; row += kBlockRows) {
      const std::size_t count = std::min(kBlockRows, piece.end - row) * all.columns;
      block_squares[piece.table][row / kBlockRows] = loops.sum_squares(all.data + row * all.columns, count);
    }
  });
  std::vector<double> squares;
  for (const auto& blocks : block_squares) squares.push_back(std::accumulate(blocks.begin(), blocks.end(), 0.0));
  return squares;
}

}  // namespace engine::layout
