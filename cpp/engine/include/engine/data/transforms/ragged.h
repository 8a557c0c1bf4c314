// ragged.h: functions on ragged ids: values, and offsets that are one more than rows.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "engine/fid.h"

namespace engine::data {

// The id, in `slot`, of the combination of two: high half xor low half of the 128-bit product of all their bits.
[[nodiscard]] inline std::int64_t cross_fid(std::int64_t a, std::int64_t b, std::uint32_t slot, int version) noexcept {
  __extension__ using Wide = unsigned __int128;
  const Wide product = static_cast<Wide>(static_cast<std::uint64_t>(a)) * static_cast<std::uint64_t>(b);
  const auto signature = static_cast<std::uint64_t>(product >> 64) ^ static_cast<std::uint64_t>(product);
  return version == 1 ? make_fid_v1(slot, signature) : make_fid_v2(slot, signature);
}

struct RaggedView {
  std::span<const std::int64_t> values;
  std::span<const std::int64_t> offsets;
};

struct RaggedArray {
  std::vector<std::int64_t> values;
  std::vector<std::int64_t> offsets;
};

// Throws ConfigError when offsets do not start at 0, shrink, or do not end at the number of values. Concurrent, as are
// all here.
void check_ragged(const RaggedView& ragged, const char* name);
// Per row, each of `a` (outer) with each of `b` (inner). Throws ConfigError when the rows differ in number.
[[nodiscard]] RaggedArray combine(const RaggedView& a, const RaggedView& b, std::uint32_t slot, int version);
// 1 for the rows that have `id`, 0 for the others.
[[nodiscard]] std::vector<float> mask_of(const RaggedView& ragged, std::int64_t id);
// Row i of the result is row i of every part, one after the other.
[[nodiscard]] RaggedArray join_rows(std::span<const RaggedView> parts);

struct UniqueIds {
  std::vector<std::int64_t> ids;    // in the order in which they were first seen
  std::vector<std::int64_t> index;  // of every value, its place among them
};

// Any id may be there.
[[nodiscard]] UniqueIds unique_ids(std::span<const std::int64_t> values);

}  // namespace engine::data
