// cell_values.h: walks over the values of one cell, whatever its spelling. Private to the engine.
#pragma once

#include <cstdint>
#include <cstring>
#include <string_view>

#include "data/line_scan.h"
#include "engine/data/row.h"
#include "wire.h"

namespace engine::data {

constexpr bool is_integer(Arm arm) noexcept { return arm == Arm::kInt64 || arm == Arm::kFixedInt64; }
constexpr bool is_fid_v1(Arm arm) noexcept { return arm == Arm::kFidV1 || arm == Arm::kFidV1Lists; }
constexpr bool is_fid(Arm arm) noexcept { return is_fid_v1(arm) || arm == Arm::kFidV2 || arm == Arm::kFidV2Lists; }

[[nodiscard]] inline const char* name_of(Arm arm) noexcept {
  switch (arm) {
    case Arm::kNone:
      return "nothing";
    case Arm::kFidV1:
      return "v1 fids";
    case Arm::kFidV2:
      return "v2 fids";
    case Arm::kFloat:
      return "floats";
    case Arm::kDouble:
      return "doubles";
    case Arm::kInt64:
    case Arm::kFixedInt64:
      return "integers";
    case Arm::kBytes:
      return "bytes";
    default:
      return "a list of lists";
  }
}

// Calls take(value) for each packed value of a fixed width; stops and returns false when it returns false.
template <typename Value, typename Take>
bool each_packed(Bytes bytes, Take&& take) {
  if (bytes.size() % sizeof(Value) != 0) {
    throw wire::Malformed{
        "packed values of " + std::to_string(sizeof(Value)) + " bytes take " + std::to_string(bytes.size()) + " bytes",
        bytes.data()};
  }
  for (std::size_t at = 0; at < bytes.size(); at += sizeof(Value)) {
    Value value;
    std::memcpy(&value, bytes.data() + at, sizeof value);
    if (!take(value)) return false;
  }
  return true;
}

// Calls take(bytes) with each run of packed fixed-width values of a fid cell; lists of lists are flattened.
template <typename Take>
bool each_fid_run(const Cell& cell, Take&& take) {
  if (cell.arm == Arm::kFidV1 || cell.arm == Arm::kFidV2) return take(cell.bytes());
  wire::Reader lists(cell.bytes());
  while (!lists.done()) {
    const wire::Tag tag = lists.tag();
    if (tag.field != cell.field || tag.wire != wire::kBlock) {
      lists.skip(tag);
      continue;
    }
    wire::Reader list(lists.block());
    while (!list.done()) {
      const wire::Tag inner = list.tag();
      if (inner.field == 1 && inner.wire == wire::kBlock) {
        if (!take(list.block())) return false;
      } else if (inner.field == 1 && inner.wire == wire::kFixed64) {
        const std::byte* at = list.at();
        list.skip(inner);
        if (!take(Bytes{at, 8})) return false;
      } else {
        list.skip(inner);
      }
    }
  }
  return true;
}

// Calls take(id) with the bits of every id of a fid cell; stops and returns false when it returns false.
template <typename Take>
bool each_fid(const Cell& cell, Take&& take) {
  return each_fid_run(cell, [&](Bytes run) { return each_packed<std::int64_t>(run, take); });
}

// Calls take(value) for each number of a cell of integers; stops and returns false when it returns false.
template <typename Take>
bool each_int(const Cell& cell, Take&& take) {
  if (cell.arm == Arm::kFixedInt64) return each_packed<std::int64_t>(cell.bytes(), take);
  wire::Reader reader(cell.bytes());
  while (!reader.done()) {
    if (!take(static_cast<std::int64_t>(reader.varint()))) return false;
  }
  return true;
}

template <typename Take>
bool each_text(const Cell& cell, Take&& take) {
  wire::Reader reader(cell.bytes());
  while (!reader.done()) {
    const wire::Tag tag = reader.tag();
    if (tag.field != cell.field || tag.wire != wire::kBlock) {
      reader.skip(tag);
    } else if (!take(text_of(reader.block()))) {
      return false;
    }
  }
  return true;
}

}  // namespace engine::data
