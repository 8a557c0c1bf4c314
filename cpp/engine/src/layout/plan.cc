// plan.cc: from the ids of a batch to unique ids per table and the place of every occurrence.
#include <algorithm>
#include <string>

#include "engine/error.h"
#include "engine/fid.h"
#include "engine/layout/layouts.h"
#include "engine/pages.h"
#include "numbering.h"
#include "wiring.h"

namespace engine::layout {

namespace {

// Ids that are worth waking another thread for.
constexpr std::size_t kPieceIds = 4096;
// Ids of a batch.
constexpr std::uint32_t kMostIds = 0xFFFFFFF0U;

// Cuts a buffer into arrays that begin at cache lines: first with no memory, to learn the size, then with it.
class Carver {
 public:
  explicit Carver(std::byte* memory = nullptr) : memory_(memory) {}

  template <class T>
  T* take(std::size_t count) {
    std::byte* at = memory_ == nullptr ? nullptr : memory_ + used_;
    used_ += (count * sizeof(T) + kLineBytes - 1) / kLineBytes * kLineBytes;
    return reinterpret_cast<T*>(at);
  }
  [[nodiscard]] std::size_t used() const noexcept { return used_; }

 private:
  std::byte* memory_;
  std::size_t used_ = 0;
};

// The arrays of a plan while they are written.
struct FeatureArrays {
  std::uint32_t* places;
  std::uint32_t* offsets;
};
struct TableArrays {
  std::int64_t* ids;
  std::uint32_t* counts;
};
struct Arrays {
  std::vector<FeatureArrays> features;
  std::vector<TableArrays> tables;
};

Arrays carve(Carver& carver, const Wiring& wiring, std::span<const FeatureIds> ids) {
  Arrays arrays;
  std::vector<std::size_t> table_ids(wiring.table_dims.size(), 0);
  for (std::size_t i = 0; i < ids.size(); ++i) {
    table_ids[wiring.features[i].table] += ids[i].values.size();
    arrays.features.push_back({carver.take<std::uint32_t>(ids[i].values.size() + StepPlan::kPadding),
                               carver.take<std::uint32_t>(ids[i].offsets.size())});
  }
  for (const std::size_t count : table_ids) {
    arrays.tables.push_back({carver.take<std::int64_t>(count), carver.take<std::uint32_t>(count)});
  }
  return arrays;
}

// Checks the offsets of a feature; returns whether every bag has exactly one id.
bool check_offsets(std::size_t number, const FeatureIds& ids, std::size_t rows) {
  const std::string name = "feature " + std::to_string(number);
  const std::size_t bags = ids.is_shared ? 1 : rows;
  if (ids.offsets.size() != bags + 1) {
    throw DimensionMismatch(name + " has " + std::to_string(ids.offsets.size()) + " offsets; " +
                            (ids.is_shared
                                 ? "a shared feature has 2"
                                 : "a batch of " + std::to_string(rows) + " has " + std::to_string(bags + 1)));
  }
  if (ids.offsets.front() != 0 || ids.offsets.back() != static_cast<std::int64_t>(ids.values.size())) {
    throw DimensionMismatch(name + " has offsets from " + std::to_string(ids.offsets.front()) + " to " +
                            std::to_string(ids.offsets.back()) + "; they must go from 0 to its " +
                            std::to_string(ids.values.size()) + " ids");
  }
  bool rises = true;
  bool is_single = true;
  for (std::size_t bag = 0; bag < bags; ++bag) {
    const std::int64_t length = ids.offsets[bag + 1] - ids.offsets[bag];
    rises &= length >= 0;
    is_single &= length == 1;
  }
  if (!rises) throw DimensionMismatch(name + " has offsets that fall; bag i is values[offsets[i]:offsets[i + 1]]");
  return is_single;
}

// The ids of a kFirst feature that count, and the offsets of its shortened bags. Valid until this thread's next call.
std::span<const std::int64_t> first_ids(const FeatureIds& ids, std::uint32_t first_n, std::uint32_t* offsets) {
  static thread_local std::vector<std::int64_t> kept;
  kept.clear();
  offsets[0] = 0;
  for (std::size_t bag = 0; bag + 1 < ids.offsets.size(); ++bag) {
    const std::int64_t length = std::min<std::int64_t>(ids.offsets[bag + 1] - ids.offsets[bag], first_n);
    const auto begin = ids.values.begin() + ids.offsets[bag];
    kept.insert(kept.end(), begin, begin + length);
    offsets[bag + 1] = static_cast<std::uint32_t>(kept.size());
  }
  return kept;
}

// The ids of a feature inside its vocabulary. Valid until this thread's next call.
std::span<const std::int64_t> transformed_ids(std::span<const std::int64_t> values, const IdTransform& transform) {
  static thread_local std::vector<std::int64_t> ids;
  ids.resize(values.size());
  std::transform(values.begin(), values.end(), ids.begin(), [&](std::int64_t id) { return transform.apply(id); });
  return ids;
}

StepPlan::FeatureBags number_feature(std::size_t index, const Feature& feature, const FeatureIds& ids, std::size_t rows,
                                     const FeatureArrays& arrays, const TableArrays& table, Numbering& numbering) {
  const bool is_single = check_offsets(index, ids, rows);
  std::span<const std::int64_t> values = ids.values;
  if (!is_single && feature.pooling == Pooling::kFirst) {
    values = first_ids(ids, feature.first_n, arrays.offsets);
  } else if (!is_single) {
    std::transform(ids.offsets.begin(), ids.offsets.end(), arrays.offsets,
                   [](std::int64_t offset) { return static_cast<std::uint32_t>(offset); });
  }
  if (feature.transform) values = transformed_ids(values, *feature.transform);
  numbering.number(values, arrays.places, table.ids, table.counts);
  std::fill_n(arrays.places + values.size(), StepPlan::kPadding, 0U);
  return {arrays.places, is_single ? nullptr : arrays.offsets, values.size(), ids.is_shared};
}

std::uint32_t ids_of(std::size_t table, const Wiring& wiring, std::span<const FeatureIds> ids) {
  std::size_t count = 0;
  for (const std::uint32_t feature : wiring.table_features[table]) count += ids[feature].values.size();
  return static_cast<std::uint32_t>(count);
}

// Neighbouring tables, about kPieceIds ids together.
std::vector<std::size_t> cut_tables(const Wiring& wiring, std::span<const FeatureIds> ids) {
  std::vector<std::size_t> begins{0};
  std::size_t piece = 0;
  for (std::size_t table = 0; table < wiring.table_dims.size(); ++table) {
    if (piece >= kPieceIds) {
      begins.push_back(table);
      piece = 0;
    }
    piece += ids_of(table, wiring, ids);
  }
  begins.push_back(wiring.table_dims.size());
  return begins;
}

void check_sizes(const Wiring& wiring, std::span<const FeatureIds> ids) {
  if (ids.size() != wiring.features.size()) {
    throw DimensionMismatch("there are ids of " + std::to_string(ids.size()) + " features, and the layouts have " +
                            std::to_string(wiring.features.size()) + "; give every feature's, in order");
  }
  std::size_t total = 0;
  for (const FeatureIds& feature : ids) total += feature.values.size();
  if (total > kMostIds) {
    throw DimensionMismatch("the batch has " + std::to_string(total) + " ids; use smaller batches, of less than 2^32");
  }
}

}  // namespace

std::int64_t IdTransform::apply(std::int64_t id) const noexcept {
  const auto bits = static_cast<std::uint64_t>(id);
  std::uint64_t place = bits & kFidV2SignatureMask;
  if (size != 0) {
    place %= size;
  } else if ((place >> (kFidV2SignatureBits - 1)) != 0) {
    place = 0;
  }
  if (divisor != 0) place = is_quotient ? divisor + place / divisor : place % divisor;
  return static_cast<std::int64_t>((bits & ~kFidV2SignatureMask) | place);
}

StepPlan Layouts::plan(std::size_t rows, std::span<const FeatureIds> ids, Pool& pool) const {
  const Wiring& wiring = *wiring_;
  check_sizes(wiring, ids);
  Carver measure;
  carve(measure, wiring, ids);
  auto memory = data::Buffer::take(measure.used());
  Carver carver(memory->data());
  const Arrays arrays = carve(carver, wiring, ids);

  std::vector<StepPlan::FeatureBags> features(ids.size());
  std::vector<StepPlan::UniqueIds> tables(wiring.table_dims.size());
  const auto number_table = [&](std::size_t table) {
    static thread_local Numbering numbering;
    numbering.begin(wiring.usual_sizes[table].load(std::memory_order_relaxed), ids_of(table, wiring, ids));
    for (const std::uint32_t i : wiring.table_features[table]) {
      features[i] =
          number_feature(i, wiring.features[i], ids[i], rows, arrays.features[i], arrays.tables[table], numbering);
    }
    wiring.usual_sizes[table].store(numbering.size(), std::memory_order_relaxed);
    tables[table] = {{arrays.tables[table].ids, numbering.size()}, {arrays.tables[table].counts, numbering.size()}};
  };
  const std::vector<std::size_t> begins = cut_tables(wiring, ids);
  pool.run(begins.size() - 1, [&](std::size_t piece) {
    for (std::size_t table = begins[piece]; table < begins[piece + 1]; ++table) number_table(table);
  });
  return {wiring_, rows, std::move(memory), std::move(features), std::move(tables)};
}

}  // namespace engine::layout
