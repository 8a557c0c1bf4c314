// cell_arrays.h: the values of cells as numbers and ids, counted and written into arrays. Private to the engine.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "cell_values.h"
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

// The only text of a cell of bytes, where it is short; nothing when a closer look is needed.
inline bool only_text(const Cell& cell, std::string_view& text) {
  if (cell.size < 2 || cell.size > 0x81 || cell.field > 15) return false;
  const auto tag = static_cast<std::uint32_t>(cell.data[0]);
  const auto size = static_cast<std::uint32_t>(cell.data[1]);
  if (tag != (std::uint32_t{cell.field} << 3 | wire::kBlock) || size != cell.size - 2) return false;
  text = {reinterpret_cast<const char*>(cell.data) + 2, size};
  return true;
}

// The arm of the values: of a cell of lists, the arm that each of its lists has.
inline Arm value_arm(Arm arm) {
  switch (arm) {
    case Arm::kFidV1Lists:
      return Arm::kFidV1;
    case Arm::kFidV2Lists:
      return Arm::kFidV2;
    case Arm::kFloatLists:
      return Arm::kFloat;
    case Arm::kDoubleLists:
      return Arm::kDouble;
    case Arm::kInt64Lists:
      return Arm::kInt64;
    case Arm::kBytesLists:
      return Arm::kBytes;
    default:
      return arm;
  }
}

// Calls `use` with the packed values of each list of a cell of lists, and the plain arm that they have.
template <typename Use>
void for_each_list(const Cell& cell, Use&& use) {
  const Arm inner = value_arm(cell.arm);
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
    case Arm::kFixedInt64:
      return cell.size / 8;
    case Arm::kFloat:
      return cell.size / 4;
    case Arm::kInt64:
      return varints::count(cell.bytes());
    case Arm::kBytes: {
      std::string_view text;
      if (only_text(cell, text)) return 1;
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

// Places behind the last id of an array that copying may write to.
inline constexpr std::size_t kSlack = 3;

// Copies ids; the cell holds fids or integers of 8 bytes. Up to four are copied without a branch on how many there are,
// for that cannot be predicted: the places behind them get the last one again, and the next values overwrite them.
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
    case Arm::kFixedInt64:
      for (std::size_t at = 0; at < cell.size; at += 8) use(static_cast<Value>(load<std::int64_t>(cell.data + at)));
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
