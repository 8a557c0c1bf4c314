// kernels_test.cc: every level of the kernels that this processor runs gives the bits of plain scalar code, or, for
// rules and layouts, those of the baseline; every search finds the rows of the index. The sign and payload of a NaN are
// free.
#include "kernels/kernels.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <numeric>
#include <random>
#include <span>
#include <utility>
#include <vector>

#include "engine/error.h"
#include "engine/half.h"
#include "engine/kernels.h"
#include "engine/layout/layouts.h"
#include "engine/part.h"
#include "kernels/search.h"
#include "optimizer_row.h"

namespace engine {
namespace {

using optimizer_row::Floats;

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
const std::vector<std::size_t> kWidths = {1, 2, 3, 4, 5, 7, 8, 9, 11, 15, 16, 17, 23, 31, 32, 33, 47, 63, 64, 65, 100};

// Runs the rest of a scope at a level.
class AtLevel {
 public:
  explicit AtLevel(const Kernels& level) : before_(kernels()) { use_kernels(level); }
  ~AtLevel() { use_kernels(before_); }
  AtLevel(const AtLevel&) = delete;
  AtLevel& operator=(const AtLevel&) = delete;

 private:
  const Kernels& before_;
};

class Draw {
 public:
  explicit Draw(std::uint64_t seed) : random_(seed) {}

  std::size_t below(std::size_t end) { return random_() % end; }
  std::int64_t id() { return static_cast<std::int64_t>(random_()); }
  float value() { return static_cast<float>(static_cast<double>(random_() >> 11) * 0x1p-52 - 1.0); }
  // Any bits: subnormals, huge values, infinities, NaN.
  float bits() { return std::bit_cast<float>(static_cast<std::uint32_t>(random_())); }
  Floats values(std::size_t count, bool has_special) {
    Floats values(count);
    for (float& each : values) each = has_special && below(40) == 0 ? special() : value();
    return values;
  }
  float special() {
    const float specials[] = {kInf, -kInf, kNan, 0.0F, -0.0F, 1e-42F, std::numeric_limits<float>::max()};
    return specials[below(std::size(specials))];
  }

 private:
  std::mt19937_64 random_;
};

::testing::AssertionResult are_equal(std::span<const float> actual, std::span<const float> expected) {
  if (actual.size() != expected.size()) return ::testing::AssertionFailure() << "sizes differ";
  for (std::size_t i = 0; i < actual.size(); ++i) {
    if (std::isnan(actual[i]) && std::isnan(expected[i])) continue;
    if (std::bit_cast<std::uint32_t>(actual[i]) == std::bit_cast<std::uint32_t>(expected[i])) continue;
    return ::testing::AssertionFailure() << "float " << i << " is " << actual[i] << ", expected " << expected[i];
  }
  return ::testing::AssertionSuccess();
}

TEST(Kernels, TheChosenLevelIsTheForcedOneOrTheLast) {
  const std::vector<std::string_view> levels = kernel_levels();
  ASSERT_FALSE(levels.empty());
  EXPECT_EQ(levels.front(), "baseline");
  const char* const forced = std::getenv("MONOLITH_KERNELS");
  EXPECT_EQ(kernel_level(), forced == nullptr ? levels.back() : std::string_view(forced));
}

// --- lookups ---

// The indexes of a table, whose rows are numbered in order of insertion.
class Indexes {
 public:
  Indexes() {
    constexpr std::size_t kSlabBytes = (kShape.mask + 1) * kShape.row_bytes;
    memory_.resize(slabs_.size() * kSlabBytes);
    for (std::size_t i = 0; i < slabs_.size(); ++i) slabs_[i] = memory_.data() + i * kSlabBytes;
  }

  Index& of(std::int64_t id) { return indexes_[part_of(mix(static_cast<std::uint64_t>(id)))]; }
  void insert(std::int64_t id) {
    of(id).reserve(1);
    of(id).insert(id, next_row_++);
  }
  void erase(std::int64_t id) { of(id).erase(id); }
  [[nodiscard]] std::vector<PartPlace> places() const {
    std::vector<PartPlace> places;
    for (const Index& index : indexes_) places.push_back({.buckets = index.view(), .slabs = slabs_.data()});
    return places;
  }
  [[nodiscard]] std::vector<const Index*> indexes() const {
    std::vector<const Index*> indexes;
    for (const Index& index : indexes_) indexes.push_back(&index);
    return indexes;
  }
  [[nodiscard]] const std::byte* row_of(std::int64_t id) {
    const std::uint32_t row = of(id).find(id);
    return row == Index::kNoRow ? nullptr : kShape.at(slabs_.data(), row);
  }
  [[nodiscard]] std::size_t displaced() const {
    return std::accumulate(indexes_.begin(), indexes_.end(), std::size_t{0},
                           [](std::size_t sum, const Index& index) { return sum + index.displaced(); });
  }

  static constexpr RowStore::Shape kShape{.shift = 9, .mask = 511, .row_bytes = 12};

 private:
  std::array<Index, kParts> indexes_;
  std::uint32_t next_row_ = 0;
  std::vector<std::byte> memory_;
  std::array<std::byte*, 256> slabs_;
};

using FindRows = void (*)(const RowSearch&) noexcept;

// Both orders of a search, the order of this processor, and the search of each level.
std::vector<std::pair<const char*, FindRows>> searches() {
  std::vector<std::pair<const char*, FindRows>> searches = {
      {"in turns", find_rows_in_turns}, {"in strides", find_rows_in_strides}, {"as chosen", find_rows}};
  for (const Kernels* level : runnable_kernels()) searches.emplace_back(level->level, level->find_rows);
  return searches;
}

void expect_rows(Indexes& indexes, std::span<const std::int64_t> ids) {
  const std::vector<PartPlace> places = indexes.places();
  const std::vector<const Index*> searched = indexes.indexes();
  const auto* const untouched = reinterpret_cast<const std::byte*>(&indexes);
  for (const auto& [name, find] : searches()) {
    std::vector<const std::byte*> rows(ids.size() + 1, untouched);
    find({.ids = ids.data(),
          .count = ids.size(),
          .places = places.data(),
          .indexes = searched.data(),
          .shape = Indexes::kShape,
          .rows = rows.data()});
    for (std::size_t i = 0; i < ids.size(); ++i) {
      ASSERT_EQ(rows[i], indexes.row_of(ids[i])) << name << ", id " << i << " of " << ids.size();
    }
    EXPECT_EQ(rows.back(), untouched) << name;
  }
}

TEST(Kernels, EverySearchFindsTheRowsOfTheIndex) {
  for (const std::size_t count : {0U, 3U, 200U, 3000U, 100'000U}) {
    Draw draw(count);
    Indexes indexes;
    std::vector<std::int64_t> ids;  // present, erased and absent ones
    for (std::size_t i = 0; i < count; ++i) {
      ids.push_back(draw.id());
      indexes.insert(ids.back());
    }
    for (std::size_t i = 0; i < count / 8; ++i) indexes.erase(ids[i]);
    for (std::size_t i = 0; i < count / 8; ++i) indexes.insert(ids[i] ^ 1);
    for (std::size_t i = 0; i < count / 4 + 50; ++i) ids.push_back(draw.id());
    if (count == 100'000) {
      EXPECT_GT(indexes.displaced(), 1000U);
    }
    std::vector<std::int64_t> asked(ids.size() + 2100);
    for (std::int64_t& id : asked) id = ids[draw.below(ids.size())];
    for (std::size_t length = 0; length < 70; ++length) expect_rows(indexes, std::span(asked).first(length));
    for (const std::size_t length : {2047U, 2048U, 2049U}) expect_rows(indexes, std::span(asked).first(length));
    expect_rows(indexes, asked);
  }
}

// --- sums ---

TEST(Kernels, BagsAreSummedInOrderOfOccurrence) {
  for (const std::size_t width : kWidths) {
    for (const std::size_t first : {std::size_t{0}, std::size_t{7}}) {
      Draw draw(width * 2 + first);
      // One float in front: rows have the alignment of a float, as in a table.
      constexpr std::size_t kRows = 90;
      const Floats content = draw.values(1 + kRows * width, true);
      std::vector<std::int64_t> offsets = {0};
      while (offsets.back() < 200) offsets.push_back(offsets.back() + static_cast<std::int64_t>(draw.below(9)));
      std::vector<const std::byte*> rows(static_cast<std::size_t>(offsets.back()) - first);
      for (const std::byte*& row : rows) {
        const float* values = content.data() + 1 + draw.below(kRows) * width;
        row = draw.below(10) == 0 ? nullptr : reinterpret_cast<const std::byte*>(values);
      }
      const std::size_t bags = offsets.size() - 1;
      std::size_t begin = 0;
      while (static_cast<std::size_t>(offsets[begin + 1]) <= first) ++begin;
      const Floats start = draw.values(bags * width, false);
      Floats expected = start;
      for (std::size_t bag = begin; bag < bags; ++bag) {
        for (auto at = std::max(first, static_cast<std::size_t>(offsets[bag]));
             at < static_cast<std::size_t>(offsets[bag + 1]); ++at) {
          if (rows[at - first] == nullptr) continue;
          const auto* row = reinterpret_cast<const float*>(rows[at - first]);
          for (std::size_t k = 0; k < width; ++k) expected[bag * width + k] += row[k];
        }
      }
      for (const Kernels* level : runnable_kernels()) {
        Floats out = start;
        level->sum_bags({.rows = rows.data(),
                         .count = rows.size(),
                         .first = first,
                         .offsets = offsets.data(),
                         .bags = {begin, bags},
                         .out = out.data(),
                         .width = width,
                         .ahead = 16});
        EXPECT_TRUE(are_equal(out, expected)) << level->level << ", width " << width;
      }
    }
  }
}

TEST(Kernels, GradientsAreSummedAndCheckedPerId) {
  for (const std::size_t width : kWidths) {
    Draw draw(width);
    constexpr std::size_t kTargets = 60;
    const Floats grads = draw.values(kTargets * width, true);
    std::vector<RowHandle> handles(50);
    std::vector<std::uint32_t> targets;
    std::vector<Floats> expected;
    for (RowHandle& handle : handles) {
      handle.count = draw.below(2) == 0 ? 1 : static_cast<std::uint32_t>(1 + draw.below(6));
      Floats sum(width, 0.0F);
      for (std::uint32_t i = 0; i < handle.count; ++i) {
        targets.push_back(static_cast<std::uint32_t>(draw.below(kTargets)));
        for (std::size_t k = 0; k < width; ++k) {
          const float grad = grads[targets.back() * width + k];
          sum[k] = handle.count == 1 ? grad : sum[k] + grad;
        }
      }
      expected.push_back(sum);
    }
    for (const Kernels* level : runnable_kernels()) {
      Floats sums(targets.size() * width);
      std::vector<const float*> out(handles.size());
      std::vector<std::uint8_t> is_finite(handles.size(), 2);
      const bool all_finite = level->sum_gradients({.grads = grads.data(),
                                                    .targets = targets.data(),
                                                    .occurrences = targets.size(),
                                                    .handles = handles.data(),
                                                    .distinct = handles.size(),
                                                    .width = width,
                                                    .sums = sums.data(),
                                                    .out = out.data(),
                                                    .is_finite = is_finite.data(),
                                                    .times = nullptr});
      EXPECT_EQ(all_finite, std::ranges::all_of(is_finite, [](std::uint8_t is) { return is == 1; }));
      for (std::size_t i = 0; i < handles.size(); ++i) {
        EXPECT_TRUE(are_equal({out[i], width}, expected[i])) << level->level << ", width " << width << ", id " << i;
        const bool finite = std::ranges::all_of(expected[i], [](float value) { return std::isfinite(value); });
        EXPECT_EQ(is_finite[i], finite ? 1 : 0) << level->level << ", width " << width << ", id " << i;
      }
    }
  }
}

TEST(Kernels, OneValueThatIsNotFiniteIsSeenAtEveryPlace) {
  for (const Kernels* level : runnable_kernels()) {
    for (std::size_t count = 0; count < 70; ++count) {
      Floats values(count + 1, -std::numeric_limits<float>::max());
      EXPECT_TRUE(level->is_finite(values.data() + 1, count)) << level->level << ", " << count;
      for (std::size_t at = 1; at <= count; ++at) {
        const float before = values[at];
        for (const float bad : {kInf, -kInf, kNan, -kNan}) {
          values[at] = bad;
          EXPECT_FALSE(level->is_finite(values.data() + 1, count)) << level->level << ", " << at << " of " << count;
        }
        values[at] = before;
      }
    }
  }
}

TEST(Kernels, SquaresAreSummedInEightInterleavedSums) {
  for (std::size_t count = 0; count < 100; ++count) {
    const Floats values = Draw(count).values(count + 1, false);
    double sums[8] = {};
    for (std::size_t i = 0; i < count; ++i) {
      const std::size_t sum = i < count / 8 * 8 ? i % 8 : 0;
      sums[sum] += double{values[i + 1]} * double{values[i + 1]};
    }
    const double expected = ((sums[0] + sums[1]) + (sums[2] + sums[3])) + ((sums[4] + sums[5]) + (sums[6] + sums[7]));
    for (const Kernels* level : runnable_kernels()) {
      EXPECT_EQ(level->sum_squares(values.data() + 1, count), expected) << level->level << ", " << count;
    }
  }
}

TEST(Kernels, EveryHalfIsDecodedAndEncodedAsAlone) {
  constexpr std::size_t kHalves = 65536;
  std::vector<std::byte> halves(1 + 2 * kHalves);  // an odd address
  for (std::uint32_t i = 0; i < kHalves; ++i) {
    const auto half = static_cast<std::uint16_t>(i);
    std::memcpy(halves.data() + 1 + 2 * i, &half, sizeof half);
  }
  for (const Kernels* level : runnable_kernels()) {
    Floats values(kHalves);
    level->decode_halves(halves.data() + 1, values.data(), kHalves);
    for (std::uint32_t i = 0; i < kHalves; ++i) {
      const float expected = float_from_half(static_cast<std::uint16_t>(i));
      ASSERT_TRUE(are_equal({&values[i], 1}, {&expected, 1})) << level->level << ", half " << i;
    }
    std::vector<std::byte> encoded(halves.size());
    level->encode_halves(values.data(), encoded.data() + 1, kHalves);
    for (std::uint32_t i = 0; i < kHalves; ++i) {
      std::uint16_t half = 0;
      std::memcpy(&half, encoded.data() + 1 + 2 * i, sizeof half);
      ASSERT_EQ(half, half_from_float(values[i])) << level->level << ", half " << i;
    }
  }
}

TEST(Kernels, AnyFloatIsEncodedAsAloneAtAnyLength) {
  Draw draw(3);
  for (std::size_t count = 0; count < 200; ++count) {
    Floats values(count);
    for (float& value : values) value = draw.below(2) == 0 ? draw.bits() : draw.value() * 70000.0F;
    for (const Kernels* level : runnable_kernels()) {
      std::vector<std::byte> halves(2 * count + 3, std::byte{0x5A});
      level->encode_halves(values.data(), halves.data() + 1, count);
      for (std::size_t i = 0; i < count; ++i) {
        std::uint16_t half = 0;
        std::memcpy(&half, halves.data() + 1 + 2 * i, sizeof half);
        ASSERT_EQ(half, half_from_float(values[i])) << level->level << ", " << values[i];
      }
      EXPECT_EQ(halves.front(), std::byte{0x5A});
      EXPECT_EQ(halves.back(), std::byte{0x5A});
    }
  }
}

TEST(Kernels, LevelsOfEightBitsAreThoseOfTheBaseline) {
  Draw draw(4);
  for (std::size_t count = 0; count < 80; ++count) {
    Floats values(count);
    for (float& value : values) value = draw.below(4) == 0 ? draw.special() : draw.value() * 3.0F;
    constexpr float kStep = 1.7F / 128.0F;
    std::vector<std::byte> expected(count);
    kBaselineKernels.encode_levels(values.data(), expected.data(), count, kStep);
    for (const Kernels* level : runnable_kernels()) {
      std::vector<std::byte> bytes(count);
      level->encode_levels(values.data(), bytes.data(), count, kStep);
      EXPECT_EQ(bytes, expected) << level->level;
      Floats decoded(count);
      level->decode_levels(bytes.data(), decoded.data(), count, kStep);
      Floats rounded = values;  // in place
      level->round_to_levels(rounded.data(), rounded.data(), count, kStep);
      for (std::size_t i = 0; i < count; ++i) {
        const float exact = static_cast<float>(static_cast<std::int8_t>(bytes[i])) * kStep;
        EXPECT_TRUE(are_equal({&decoded[i], 1}, {&exact, 1})) << level->level;
        EXPECT_TRUE(are_equal({&rounded[i], 1}, {&exact, 1})) << level->level;
      }
    }
  }
}

// --- rules ---

// Rows of one slice behind `kOffset` floats of another, after some steps.
Floats train(const SliceConfig& config, bool has_special, bool has_latest) {
  constexpr std::size_t kRows = 70;  // more than a block of the wrappers
  constexpr std::size_t kOffset = 3;
  const auto optimizer = make_optimizer(config);
  const std::size_t row_words = kOffset + config.dim + optimizer->state_words();
  Draw draw(config.dim * 7 + (has_special ? 1 : 0));
  Floats words = draw.values(kRows * row_words, false);
  std::vector<RowWords> rows;
  std::vector<std::int64_t> ids;
  for (std::size_t i = 0; i < kRows; ++i) {
    float* const row = words.data() + i * row_words;
    rows.push_back({.values = row, .state = row + kOffset + config.dim});
    ids.push_back(static_cast<std::int64_t>(i * 977));
    optimizer->init(rows.back().state);
  }
  for (std::int64_t step = 1; step <= 4; ++step) {
    const std::size_t width = kOffset + config.dim;
    const Floats grads = draw.values(kRows * width, has_special);
    const Floats latest = draw.values(kRows * width, false);
    std::vector<const float*> grad_rows;
    std::vector<const float*> latest_rows;
    for (std::size_t i = 0; i < kRows; ++i) {
      grad_rows.push_back(grads.data() + i * width);
      latest_rows.push_back(latest.data() + i * width);
    }
    optimizer->step({.count = kRows,
                     .end = kRows,
                     .rows = rows.data(),
                     .grads = grad_rows.data(),
                     .latest = has_latest ? latest_rows.data() : nullptr,
                     .ids = ids.data(),
                     .value_offset = kOffset,
                     .fetched_value_bytes = (kOffset + config.dim) * sizeof(float),
                     .fetched_state_bytes = optimizer->state_words() * sizeof(float)},
                    {.learning_rate = 0.1F, .step = step * 3, .seed = 5});
  }
  return words;
}

TEST(Kernels, EveryRuleLeavesTheSameBitsAtEveryLevel) {
  for (const std::string& kind : optimizer_row::kKinds) {
    for (const std::uint32_t dim : {1U, 2U, 3U, 5U, 8U, 13U, 16U, 17U, 31U, 40U}) {
      if (kind == "batch_softmax" && dim > 1) continue;
      for (const bool is_lively : {false, true}) {
        SliceConfig config =
            is_lively ? optimizer_row::lively(kind, dim) : optimizer_row::slice(dim, optimizer_row::part(kind));
        config.stochastic_rounding = is_lively && dim % 2 == 1;
        config.delay_lambda = dim % 3 == 0 ? 0.3F : 0.0F;
        for (const bool has_special : {false, true}) {
          Floats expected;
          {
            const AtLevel baseline(kBaselineKernels);
            expected = train(config, has_special, true);
          }
          for (const Kernels* level : runnable_kernels()) {
            const AtLevel at(*level);
            EXPECT_TRUE(are_equal(train(config, has_special, true), expected))
                << kind << ", dim " << dim << ", " << level->level << (is_lively ? ", lively" : "");
          }
        }
      }
    }
  }
}

// --- layouts ---

Floats run_layout(std::uint32_t dim, Pooling pooling, bool is_shared) {
  constexpr std::size_t kExamples = 150;
  const std::uint32_t first_n = pooling == Pooling::kFirst ? 3 : 0;
  const std::uint32_t width = std::max(1U, first_n) * dim + 1;
  const layout::Layouts layouts({dim}, {{0, pooling, first_n}, {0, pooling, first_n}},
                                {{0, 0, 0, dim, 1, dim}, {0, 1, 0, dim, 0, dim}}, {width});
  Draw draw(dim);
  std::vector<std::int64_t> values;
  std::vector<std::int64_t> offsets = {0};
  for (std::size_t bag = 0; bag < (is_shared ? 1 : kExamples); ++bag) {
    for (std::size_t i = draw.below(5); i > 0; --i) values.push_back(static_cast<std::int64_t>(draw.below(90)));
    offsets.push_back(static_cast<std::int64_t>(values.size()));
  }
  Pool team(1);
  const std::vector<layout::FeatureIds> ids(2, {values, offsets, is_shared});
  const layout::StepPlan plan = layouts.plan(kExamples, ids, team);
  const std::size_t unique = plan.unique(0).ids.size();
  const Floats rows = draw.values(unique * dim, true);
  Floats out(kExamples * width);
  const layout::MatrixView<const float> row_view{rows.data(), unique, dim};
  const layout::MatrixView<float> out_view{out.data(), kExamples, width};
  plan.pool({&row_view, 1}, {&out_view, 1}, team);
  const Floats grads = draw.values(out.size(), false);
  Floats back(rows.size());
  const layout::MatrixView<const float> grad_view{grads.data(), kExamples, width};
  const layout::MatrixView<float> back_view{back.data(), unique, dim};
  const std::vector<double> squares = plan.scatter({&grad_view, 1}, {&back_view, 1}, team);
  out.insert(out.end(), back.begin(), back.end());
  for (const double square : squares) {
    const auto words = std::bit_cast<std::array<float, 2>>(square);
    out.insert(out.end(), words.begin(), words.end());
  }
  return out;
}

TEST(Kernels, LayoutsCarryTheSameBitsAtEveryLevel) {
  for (const std::uint32_t dim : {1U, 2U, 3U, 4U, 7U, 8U, 12U, 16U, 17U, 31U, 32U, 47U, 64U}) {
    for (const Pooling pooling : {Pooling::kSum, Pooling::kMean, Pooling::kFirst}) {
      for (const bool is_shared : {false, true}) {
        Floats expected;
        {
          const AtLevel baseline(kBaselineKernels);
          expected = run_layout(dim, pooling, is_shared);
        }
        for (const Kernels* level : runnable_kernels()) {
          const AtLevel at(*level);
          EXPECT_TRUE(are_equal(run_layout(dim, pooling, is_shared), expected)) << level->level << ", dim " << dim;
        }
      }
    }
  }
}

// --- pairs of vectors ---

TEST(Kernels, PairsAreSummedColumnByColumnInOrderOfTheVectors) {
  Draw draw(8);
  for (const std::size_t width : kWidths) {
    for (const std::size_t count : {0U, 1U, 2U, 7U}) {
      constexpr std::size_t kExamples = 5;
      const Floats values = draw.values(kExamples * count * width, true);
      const Floats grads = draw.values(kExamples * width, true);
      const Floats others = draw.values(values.size(), true);
      Floats together(kExamples * width, 0.0F);
      Floats pairs(kExamples * width, 0.0F);
      Floats gradients(values.size());
      Floats with_others(values.size());
      for (std::size_t example = 0; example < kExamples; ++example) {
        for (std::size_t k = 0; k < width; ++k) {
          const std::size_t at = example * width + k;
          float squares = 0.0F;
          for (std::size_t i = 0; i < count; ++i) {
            const float value = values[(example * count + i) * width + k];
            together[at] += value;
            squares += value * value;
          }
          pairs[at] = 0.5F * (together[at] * together[at] - squares);
          for (std::size_t i = 0; i < count; ++i) {
            const std::size_t place = (example * count + i) * width + k;
            gradients[place] = (together[at] - values[place]) * grads[at];
            with_others[place] = gradients[place] + others[place];
          }
        }
      }
      const Vectors vectors{values.data(), kExamples, count, width};
      for (const Kernels* level : runnable_kernels()) {
        const AtLevel at(*level);
        for (const unsigned threads : {1U, 3U}) {
          Pool pool(threads);
          Floats sums(together.size(), kNan);
          Floats found(pairs.size(), kNan);
          sum_pairs(vectors, sums.data(), found.data(), pool);
          EXPECT_TRUE(are_equal(sums, together)) << level->level << ", width " << width;
          EXPECT_TRUE(are_equal(found, pairs)) << level->level << ", width " << width;
          Floats out(values.size(), kNan);
          pair_gradients(vectors, together.data(), grads.data(), nullptr, out.data(), pool);
          EXPECT_TRUE(are_equal(out, gradients)) << level->level << ", width " << width;
          pair_gradients(vectors, together.data(), grads.data(), others.data(), out.data(), pool);
          EXPECT_TRUE(are_equal(out, with_others)) << level->level << ", width " << width;
        }
      }
    }
  }
}

TEST(Kernels, PairsOfManyExamplesAreSharedOutToThreads) {
  constexpr std::size_t kExamples = 10'000;
  Floats values(kExamples * 2 * 3);
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i % 1000);
  Pool pool(4);
  Floats together(kExamples * 3);
  Floats pairs(kExamples * 3);
  sum_pairs({values.data(), kExamples, 2, 3}, together.data(), pairs.data(), pool);
  for (std::size_t i = 0; i < pairs.size(); ++i) {
    const std::size_t first = i / 3 * 6 + i % 3;
    ASSERT_EQ(pairs[i], values[first] * values[first + 3]) << i;
  }
}

}  // namespace
}  // namespace engine
