// ragged.cc: functions on ragged ids.
#include "engine/data/transforms/ragged.h"

#include <algorithm>
#include <bit>
#include <string>

#include "engine/error.h"

namespace engine::data {

namespace {

constexpr std::int64_t kMostValues = std::int64_t{1} << 31;

void check_same_rows(const RaggedView& a, const RaggedView& b) {
  if (a.offsets.size() != b.offsets.size()) {
    throw ConfigError("ragged arrays have " + std::to_string(a.offsets.size() - 1) + " and " +
                      std::to_string(b.offsets.size() - 1) + " rows; give them the same number");
  }
}

}  // namespace

void check_ragged(const RaggedView& ragged, const char* name) {
  const auto& offsets = ragged.offsets;
  const auto fail = [&](const std::string& reason) { throw ConfigError(std::string(name) + ": offsets " + reason); };
  if (offsets.empty() || offsets.front() != 0) fail("must start with 0");
  for (std::size_t row = 1; row < offsets.size(); ++row) {
    if (offsets[row] < offsets[row - 1]) fail("shrink at row " + std::to_string(row - 1));
  }
  if (offsets.back() != static_cast<std::int64_t>(ragged.values.size())) {
    fail("end at " + std::to_string(offsets.back()) + ", there are " + std::to_string(ragged.values.size()) +
         " values");
  }
}

RaggedArray combine(const RaggedView& a, const RaggedView& b, std::uint32_t slot, int version) {
  check_same_rows(a, b);
  const std::size_t rows = a.offsets.size() - 1;
  RaggedArray out;
  out.offsets.resize(rows + 1);
  for (std::size_t row = 0; row < rows; ++row) {
    const std::int64_t size_a = a.offsets[row + 1] - a.offsets[row];
    const std::int64_t size_b = b.offsets[row + 1] - b.offsets[row];
    if (size_b > 0 && size_a > (kMostValues - out.offsets[row]) / size_b) {
      throw ConfigError("row " + std::to_string(row) + " has " + std::to_string(size_a) + " x " +
                        std::to_string(size_b) + " combinations, too many");
    }
    out.offsets[row + 1] = out.offsets[row] + size_a * size_b;
  }
  out.values.resize(static_cast<std::size_t>(out.offsets.back()));
  auto at = out.values.begin();
  for (std::size_t row = 0; row < rows; ++row) {
    for (std::int64_t i = a.offsets[row]; i < a.offsets[row + 1]; ++i) {
      for (std::int64_t j = b.offsets[row]; j < b.offsets[row + 1]; ++j) {
        *at++ = cross_fid(a.values[static_cast<std::size_t>(i)], b.values[static_cast<std::size_t>(j)], slot, version);
      }
    }
  }
  return out;
}

std::vector<float> mask_of(const RaggedView& ragged, std::int64_t id) {
  std::vector<float> mask(ragged.offsets.size() - 1);
  for (std::size_t row = 0; row < mask.size(); ++row) {
    const auto begin = ragged.values.begin() + ragged.offsets[row];
    const auto end = ragged.values.begin() + ragged.offsets[row + 1];
    mask[row] = std::find(begin, end, id) == end ? 0.0F : 1.0F;
  }
  return mask;
}

RaggedArray join_rows(std::span<const RaggedView> parts) {
  RaggedArray out;
  if (parts.empty()) throw ConfigError("there is nothing to join; give at least one ragged array");
  std::size_t total = 0;
  for (const RaggedView& part : parts) {
    check_same_rows(parts[0], part);
    total += part.values.size();
  }
  out.values.reserve(total);
  out.offsets.reserve(parts[0].offsets.size());
  out.offsets.push_back(0);
  for (std::size_t row = 0; row + 1 < parts[0].offsets.size(); ++row) {
    for (const RaggedView& part : parts) {
      out.values.insert(out.values.end(), part.values.begin() + part.offsets[row],
                        part.values.begin() + part.offsets[row + 1]);
    }
    out.offsets.push_back(static_cast<std::int64_t>(out.values.size()));
  }
  return out;
}

UniqueIds unique_ids(std::span<const std::int64_t> values) {
  UniqueIds unique;
  unique.index.reserve(values.size());
  // Open addressing, at most half full; a place holds the number of an id plus one; 0 means free.
  const std::size_t places = std::bit_ceil(std::max<std::size_t>(16, values.size() * 2));
  const int shift = 64 - std::countr_zero(places);
  std::vector<std::uint32_t> table(places, 0);
  if (values.size() >= 0xffffffff) throw ConfigError("unique: more than 2^32 - 2 values");
  for (const std::int64_t value : values) {
    std::size_t place = (static_cast<std::uint64_t>(value) * 0x9e3779b97f4a7c15ULL) >> shift;
    while (table[place] != 0 && unique.ids[table[place] - 1] != value) place = (place + 1) & (places - 1);
    if (table[place] == 0) {
      unique.ids.push_back(value);
      table[place] = static_cast<std::uint32_t>(unique.ids.size());
    }
    unique.index.push_back(table[place] - 1);
  }
  return unique;
}

}  // namespace engine::data
