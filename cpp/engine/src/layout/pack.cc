// pack.cc: a plan in one buffer, for a device that fills outputs and sums gradients itself.
#include <algorithm>
#include <cstring>
#include <string>

#include "engine/error.h"
#include "engine/layout/step_plan.h"
#include "wiring.h"

namespace engine::layout {

namespace {

// Bytes that are worth waking another thread for.
constexpr std::size_t kPieceBytes = std::size_t{256} << 10;
constexpr std::size_t kAlignment = 16;

struct Copy {
  const void* from;
  std::size_t to;
  std::size_t bytes;
};

// The content of a packed plan: its two lists of descriptions, and the arrays behind them.
struct Packing {
  std::vector<StepPlan::PackedTable> tables;
  std::vector<StepPlan::PackedFeature> features;
  std::vector<Copy> arrays;
  std::size_t bytes = 0;

  std::size_t add(const void* from, std::size_t size) {
    const std::size_t to = bytes;
    arrays.push_back({from, to, size});
    bytes += (size + kAlignment - 1) / kAlignment * kAlignment;
    return to;
  }
};

}  // namespace

std::size_t StepPlan::packed_bytes() const { return fill_packed({}, nullptr); }

void StepPlan::pack(std::span<std::byte> out, Pool& team) const {
  const std::size_t bytes = packed_bytes();
  if (out.size() != bytes) {
    throw DimensionMismatch("the buffer of a packed plan has " + std::to_string(out.size()) + " bytes, expected " +
                            std::to_string(bytes) + "; see packed_bytes");
  }
  fill_packed(out, &team);
}

std::size_t StepPlan::fill_packed(std::span<std::byte> out, Pool* team) const {
  Packing packing;
  packing.bytes = tables_.size() * sizeof(PackedTable) + features_.size() * sizeof(PackedFeature);
  std::uint64_t rows = 0;
  std::uint64_t sums = 0;
  std::uint32_t first_row = 0;
  for (std::size_t i = 0; i < tables_.size(); ++i) {
    const std::uint64_t dim = wiring_->table_dims[i];
    const auto count = static_cast<std::uint32_t>(tables_[i].ids.size());
    packing.tables.push_back(
        {packing.add(tables_[i].ids.data(), tables_[i].ids.size_bytes()), rows, sums, count, first_row});
    rows += (count * dim + 3) / 4 * 4;
    sums += count * ((dim + 3) / 4 * 4);
    first_row += count;
  }
  std::uint32_t first = 0;
  for (std::size_t i = 0; i < features_.size(); ++i) {
    const FeatureBags& bags = features_[i];
    const std::size_t bounds = bags.offsets == nullptr ? 0 : (bags.is_shared ? 1 : rows_) + 1;
    const std::uint64_t places = packing.add(bags.places, bags.count * sizeof(std::uint32_t));
    const std::uint64_t offsets = bounds == 0 ? 0 : packing.add(bags.offsets, bounds * sizeof(std::uint32_t));
    const auto count = static_cast<std::uint32_t>(bags.count);
    packing.features.push_back({places, offsets, count, first, bags.is_shared ? 1U : 0U, 0});
    first += count;
  }
  if (team == nullptr) return packing.bytes;
  const std::size_t tables = packing.tables.size() * sizeof(PackedTable);
  std::memcpy(out.data(), packing.tables.data(), tables);
  std::memcpy(out.data() + tables, packing.features.data(), packing.features.size() * sizeof(PackedFeature));
  std::vector<Copy> pieces;
  for (const Copy& array : packing.arrays) {
    for (std::size_t at = 0; at < array.bytes; at += kPieceBytes) {
      const auto* from = static_cast<const std::byte*>(array.from) + at;
      pieces.push_back({from, array.to + at, std::min(kPieceBytes, array.bytes - at)});
    }
  }
  team->run(pieces.size(),
            [&](std::size_t i) { std::memcpy(out.data() + pieces[i].to, pieces[i].from, pieces[i].bytes); });
  return packing.bytes;
}

}  // namespace engine::layout
