// cell_arrays.h: the values of cells as numbers and ids, counted and written into arrays. Private to the engine.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "cell_values.h"
#include "engine/city_hash.h"
#include "engine/data/row.h"
#include "engine/fid.h"
#include "varints.h"
#include "wire.h"

namespace engine::data {

template <typename Value>
Value load(const std::byte* at) {
  Value value;
  std::memcpy(&value, at, sizeof value);
  return value;
}

// Calls `use` with each block of field `field`.
template <typename Use>
void for_each_block(Bytes message, std::uint32_t field, Use&& use) {
  wire::Reader reader(message);
  while (!reader.done()) {
    const wire::Tag tag = reader.tag();
    if (tag.field == field && tag.wire == wire::kBlock) {
      use(reader.block());
    } else {
      reader.skip(tag);
    }
  }
}

// Calls `use` with the packed values of each list of a cell of lists, and the plain arm that they have.
template <typename Use>
void for_each_list(const Cell& cell, Use&& use) {
  Arm inner = Arm::kNone;
  switch (cell.arm) {
    case Arm::kFidV1Lists:
      inner = Arm::kFidV1;
      break;
    case Arm::kFidV2Lists:
      inner = Arm::kFidV2;
      break;
    case Arm::kFloatLists:
      inner = Arm::kFloat;
      break;
    case Arm::kDoubleLists:
      inner = Arm::kDouble;
      break;
    case Arm::kInt64Lists:
      inner = Arm::kInt64;
      break;
    default:
      inner = Arm::kBytes;
  }
  for_each_block(cell.bytes(), cell.field, [&](Bytes list) {
    if (inner == Arm::kBytes) {
      use(Cell{list.data(), static_cast<std::uint32_t>(list.size()), inner, 1});
    } else {
      for_each_block(list, 1, [&](Bytes values) {
        use(Cell{values.data(), static_cast<std::uint32_t>(values.size()), inner, 0});
      });
    }
  });
}

inline bool is_lists(Arm arm) { return arm >= Arm::kFidV1Lists; }

inline std::size_t count_values(const Cell& cell) {
  switch (cell.arm) {
    case Arm::kNone:
      return 0;
    case Arm::kFidV1:
    case Arm::kFidV2:
    case Arm::kDouble:
      return cell.size / 8;
    case Arm::kFloat:
      return cell.size / 4;
    case Arm::kInt64:
      return varints::count(cell.bytes());
    case Arm::kBytes: {
      std::size_t count = 0;
      for_each_block(cell.bytes(), cell.field, [&count](Bytes) { ++count; });
      return count;
    }
    default: {
      std::size_t count = 0;
      for_each_list(cell, [&count](const Cell& list) { count += count_values(list); });
      return count;
    }
  }
}

// The power of two that a number lies in; the sign is lost, as in the original.
inline std::uint64_t log2_bucket(double value) {
  const double bucket = std::trunc(std::log2(std::fabs(value) + 1.0));
  return std::isfinite(bucket) ? static_cast<std::uint64_t>(bucket) : 0;
}

// Ids of plain values.
inline std::int64_t* write_made_ids(const Cell& cell, std::uint32_t slot, std::int64_t* out) {
  switch (cell.arm) {
    case Arm::kInt64:
      varints::for_each(cell.bytes(), [&](std::uint64_t value) { *out++ = make_fid_v2(slot, value); });
      return out;
    case Arm::kFloat:
      for (std::size_t at = 0; at < cell.size; at += 4) {
        *out++ = make_fid_v2(slot, log2_bucket(static_cast<double>(load<float>(cell.data + at))));
      }
      return out;
    case Arm::kDouble:
      for (std::size_t at = 0; at < cell.size; at += 8) {
        *out++ = make_fid_v2(slot, log2_bucket(load<double>(cell.data + at)));
      }
      return out;
    case Arm::kBytes:
      for_each_block(cell.bytes(), cell.field,
                     [&](Bytes text) { *out++ = make_fid_v2(slot, city_hash64(text.data(), text.size())); });
      return out;
    default:
      return out;
  }
}

// Places behind the last id of an array that copying may write to.
inline constexpr std::size_t kSlack = 3;

// Copies ids; the cell holds fids. Up to four are copied without a branch on how many there are, for that cannot be
// predicted: the places behind them get the last one again, and the next values overwrite them.
template <bool kConverts>
std::int64_t* write_fids(const Cell& cell, std::int64_t* out) {
  const auto get = [&cell](std::size_t index) {
    const auto fid = load<std::int64_t>(cell.data + index * 8);
    return kConverts ? fid_v1_to_v2(fid) : fid;
  };
  const std::size_t count = cell.size / 8;
  if (count - 1 <= kSlack) [[likely]] {
    for (std::size_t index = 0; index <= kSlack; ++index) out[index] = get(std::min(index, count - 1));
  } else {
    for (std::size_t index = 0; index < count; ++index) out[index] = get(index);
  }
  return out + count;
}

inline std::int64_t* write_ids(const Cell& cell, std::int32_t slot, bool converts, std::int64_t* out) {
  switch (cell.arm) {
    case Arm::kNone:
      return out;
    case Arm::kFidV1:
    case Arm::kFidV2:
      return converts && cell.arm == Arm::kFidV1 ? write_fids<true>(cell, out) : write_fids<false>(cell, out);
    default:
      if (is_lists(cell.arm)) {
        for_each_list(cell, [&](const Cell& list) { out = write_ids(list, slot, converts, out); });
        return out;
      }
      return write_made_ids(cell, static_cast<std::uint32_t>(slot), out);
  }
}

inline bool needs_slot(Arm arm) {
  return arm != Arm::kNone && arm != Arm::kFidV1 && arm != Arm::kFidV2 && arm != Arm::kFidV1Lists &&
         arm != Arm::kFidV2Lists;
}

// Numbers of a cell as float or int64; false when the cell holds none of that kind.
template <typename Value, typename Use>
bool for_each_number(const Cell& cell, Use&& use) {
  constexpr bool kTakesReals = std::is_floating_point_v<Value>;
  switch (cell.arm) {
    case Arm::kNone:
      return true;
    case Arm::kFloat:
      if (!kTakesReals) return false;
      for (std::size_t at = 0; at < cell.size; at += 4) use(static_cast<Value>(load<float>(cell.data + at)));
      return true;
    case Arm::kDouble:
      if (!kTakesReals) return false;
      for (std::size_t at = 0; at < cell.size; at += 8) use(static_cast<Value>(load<double>(cell.data + at)));
      return true;
    case Arm::kInt64:
      varints::for_each(cell.bytes(),
                        [&](std::uint64_t value) { use(static_cast<Value>(static_cast<std::int64_t>(value))); });
      return true;
    case Arm::kFloatLists:
    case Arm::kDoubleLists:
    case Arm::kInt64Lists: {
      bool is_kind = true;
      for_each_list(cell, [&](const Cell& list) { is_kind = for_each_number<Value>(list, use) && is_kind; });
      return is_kind;
    }
    default:
      return false;
  }
}

}  // namespace engine::data
