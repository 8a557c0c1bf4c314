// column_encoder.cc: the first pass bounds the bytes of every column, the second copies values and notes where rows
// begin.
#include "engine/data/column_encoder.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "engine/data/cell_table.h"
#include "engine/data/row_encoder.h"
#include "engine/error.h"
#include "wire.h"

namespace engine::data {

namespace {

using wire::varint_bytes;

constexpr std::uint64_t kMostBytes = std::uint64_t{1} << 30;
constexpr std::string_view kLineIdColumn = "__LINE_ID__";

constexpr std::uint32_t kColumnOfBatch = 1;    // ExampleBatch.named_feature_list
constexpr std::uint32_t kBatchSize = 3;        // ExampleBatch.batch_size
constexpr std::uint32_t kNameOfColumn = 1;     // NamedFeatureList.name
constexpr std::uint32_t kFeatureOfColumn = 2;  // NamedFeatureList.feature
constexpr std::uint32_t kTextOfList = 1;       // BytesList.value
constexpr std::uint32_t kMostFieldNumber = (1U << 29) - 1;

template <typename T>
T load(const std::byte* data, std::uint64_t index) noexcept {
  T value;
  std::memcpy(&value, data + index * sizeof(T), sizeof(T));
  return value;
}

bool bit(Bytes bits, std::uint64_t index) noexcept {
  return (static_cast<unsigned>(bits[index >> 3]) >> (index & 7) & 1U) != 0;
}

bool is_text(ValueType type) noexcept { return type == ValueType::kText32 || type == ValueType::kText64; }
bool is_real(ValueType type) noexcept { return type == ValueType::kFloat || type == ValueType::kDouble; }

std::size_t width_of(ValueType type) noexcept {
  switch (type) {
    case ValueType::kInt8:
    case ValueType::kUint8:
      return 1;
    case ValueType::kInt16:
    case ValueType::kUint16:
      return 2;
    case ValueType::kInt32:
    case ValueType::kUint32:
    case ValueType::kFloat:
      return 4;
    case ValueType::kInt64:
    case ValueType::kUint64:
    case ValueType::kDouble:
      return 8;
    default:
      return 0;
  }
}

// --- values of one type ---

template <typename T>
struct Numbers {
  using Value = T;
  const std::byte* data;
  T operator[](std::uint64_t index) const noexcept { return load<T>(data, index); }
};

struct Bits {
  using Value = bool;
  Bytes bits;
  bool operator[](std::uint64_t index) const noexcept { return bit(bits, index); }
};

template <typename Offset>
struct Texts {
  using Value = std::string_view;
  const std::byte* offsets;
  const std::byte* characters;
  std::string_view operator[](std::uint64_t index) const noexcept {
    const auto begin = load<Offset>(offsets, index);
    const auto end = load<Offset>(offsets, index + 1);
    return {reinterpret_cast<const char*>(characters) + begin, static_cast<std::size_t>(end - begin)};
  }
};

struct Nothing {
  using Value = bool;
  bool operator[](std::uint64_t) const noexcept { return false; }
};

template <typename Call>
auto with_values(const ColumnLayout& column, Call&& call) {
  const std::byte* data = column.values.data();
  switch (column.type) {
    case ValueType::kBool:
      return call(Bits{column.values});
    case ValueType::kInt8:
      return call(Numbers<std::int8_t>{data});
    case ValueType::kInt16:
      return call(Numbers<std::int16_t>{data});
    case ValueType::kInt32:
      return call(Numbers<std::int32_t>{data});
    case ValueType::kInt64:
      return call(Numbers<std::int64_t>{data});
    case ValueType::kUint8:
      return call(Numbers<std::uint8_t>{data});
    case ValueType::kUint16:
      return call(Numbers<std::uint16_t>{data});
    case ValueType::kUint32:
      return call(Numbers<std::uint32_t>{data});
    case ValueType::kUint64:
      return call(Numbers<std::uint64_t>{data});
    case ValueType::kFloat:
      return call(Numbers<float>{data});
    case ValueType::kDouble:
      return call(Numbers<double>{data});
    case ValueType::kText32:
      return call(Texts<std::int32_t>{column.text_offsets.data(), data});
    case ValueType::kText64:
      return call(Texts<std::int64_t>{column.text_offsets.data(), data});
    case ValueType::kNothing:
      break;
  }
  return call(Nothing{});
}

// The values of a row, as indices into the values' buffers.
struct Range {
  std::uint64_t begin;
  std::uint64_t end;
};

Range values_of(const ColumnLayout& column, std::uint64_t row) noexcept {
  if (column.type == ValueType::kNothing) return {0, 0};
  if (column.list_offsets.empty()) return {column.first_value + row, column.first_value + row + 1};
  const std::uint64_t at = column.first_row + row;
  if (!column.list_valid.empty() && !bit(column.list_valid, at)) return {0, 0};
  const std::byte* offsets = column.list_offsets.data();
  if (column.wide_list) {
    return {column.first_value + static_cast<std::uint64_t>(load<std::int64_t>(offsets, at)),
            column.first_value + static_cast<std::uint64_t>(load<std::int64_t>(offsets, at + 1))};
  }
  return {column.first_value + static_cast<std::uint64_t>(load<std::int32_t>(offsets, at)),
          column.first_value + static_cast<std::uint64_t>(load<std::int32_t>(offsets, at + 1))};
}

template <typename Call>
void for_each_valid(const ColumnLayout& column, Range range, Call&& call) {
  if (column.value_valid.empty()) {
    for (std::uint64_t index = range.begin; index < range.end; ++index) call(index);
    return;
  }
  for (std::uint64_t index = range.begin; index < range.end; ++index) {
    if (bit(column.value_valid, index)) call(index);
  }
}

// --- spelling of one value: the form that a LineId field or the arm of a feature gives it ---

enum class Spelling : std::uint8_t { kVarint, kFixed32, kFixed64, kFloat, kDouble, kText };

Spelling spelling_of(const ColumnLayout& column) noexcept {
  if (column.line_field) {
    switch (column.line_field->kind) {
      case FieldKind::kInt:
        return Spelling::kVarint;
      case FieldKind::kFixed64:
        return Spelling::kFixed64;
      case FieldKind::kFixed32:
        return Spelling::kFixed32;
      case FieldKind::kFloat:
        return Spelling::kFloat;
      case FieldKind::kDouble:
        return Spelling::kDouble;
      case FieldKind::kText:
        return Spelling::kText;
    }
  }
  switch (column.kind) {
    case ColumnKind::kFidV1:
    case ColumnKind::kFidV2:
      return Spelling::kFixed64;
    case ColumnKind::kFloat:
      return Spelling::kFloat;
    case ColumnKind::kDouble:
      return Spelling::kDouble;
    case ColumnKind::kBytes:
      return Spelling::kText;
    case ColumnKind::kInt64:
      break;
  }
  return Spelling::kVarint;
}

std::uint32_t wire_type_of(Spelling spelling) noexcept {
  switch (spelling) {
    case Spelling::kVarint:
      return wire::kVarint;
    case Spelling::kFixed32:
    case Spelling::kFloat:
      return wire::kFixed32;
    case Spelling::kFixed64:
    case Spelling::kDouble:
      return wire::kFixed64;
    case Spelling::kText:
      break;
  }
  return wire::kBlock;
}

std::size_t fixed_width(Spelling spelling) noexcept {
  switch (wire_type_of(spelling)) {
    case wire::kFixed32:
      return 4;
    case wire::kFixed64:
      return 8;
    default:
      return 0;
  }
}

template <typename T>
std::uint64_t as_varint(T value) noexcept {
  return static_cast<std::uint64_t>(static_cast<std::int64_t>(value));
}

// --- sizes ---

struct Place {
  const std::string& source;
  std::uint64_t first_row;  // number of the batch's first row in the stream

  [[nodiscard]] std::string of(const ColumnLayout& column, std::uint64_t row) const {
    return source + ": column '" + column.name + "', row " + std::to_string(first_row + row);
  }
};

template <typename Values>
void check_number(const ColumnLayout& column, Values values, Spelling spelling, std::uint64_t index, const Place& place,
                  std::uint64_t row) {
  using T = typename Values::Value;
  if constexpr (std::is_same_v<T, std::uint64_t>) {
    // A LineId field may be an unsigned one, which keeps all 64 bits.
    if (spelling == Spelling::kVarint && !column.line_field && values[index] >> 63 != 0) {
      throw SchemaMismatch(
          place.of(column, row) + ": " + std::to_string(values[index]) +
          " does not fit a signed 64-bit number; declare ids as fid_v1 or fid_v2, which keep all bits");
    }
  }
  if constexpr (std::is_integral_v<T> && sizeof(T) == 8) {
    if (spelling == Spelling::kFixed32) {
      const auto value = values[index];
      const auto narrow = static_cast<std::uint32_t>(value);
      if (static_cast<T>(narrow) != value && static_cast<T>(static_cast<std::int32_t>(narrow)) != value) {
        throw SchemaMismatch(place.of(column, row) + ": " + std::to_string(value) + " does not fit the 32 bits of '" +
                             column.line_field->name + "'");
      }
    }
  }
}

// Bytes that the values of one row take without any tag in front of them, except that each text has its own.
template <typename Values>
std::uint64_t payload_bytes(const ColumnLayout& column, Values values, Spelling spelling, std::size_t text_tag_bytes,
                            std::uint64_t row, std::uint64_t number, const Place& place) {
  using T = typename Values::Value;
  const Range range = values_of(column, row);
  std::uint64_t size = 0;
  if constexpr (std::is_same_v<T, std::string_view>) {
    for_each_valid(column, range, [&](std::uint64_t index) {
      const auto length = values[index].size();
      size += text_tag_bytes + varint_bytes(length) + length;
    });
  } else if (spelling == Spelling::kVarint) {
    if constexpr (std::is_integral_v<T>) {
      for_each_valid(column, range, [&](std::uint64_t index) {
        check_number(column, values, spelling, index, place, number);
        size += varint_bytes(as_varint(values[index]));
      });
    }
  } else {
    const std::size_t width = fixed_width(spelling);
    if (column.value_valid.empty() && spelling != Spelling::kFixed32) return (range.end - range.begin) * width;
    for_each_valid(column, range, [&](std::uint64_t index) {
      check_number(column, values, spelling, index, place, number);
      size += width;
    });
  }
  return size;
}

// Bytes of a length-delimited field with that content.
std::uint64_t block_bytes(std::uint64_t tag_bytes, std::uint64_t content) noexcept {
  return tag_bytes + varint_bytes(content) + content;
}

std::size_t tag_bytes_of(const LineField& field) noexcept { return varint_bytes(std::uint64_t{field.number} << 3); }

// Bytes of one field of a LineId; nothing for a row without values.
std::uint64_t line_field_bytes(const LineField& field, Spelling spelling, std::uint64_t payload) noexcept {
  if (payload == 0 || spelling == Spelling::kText) return payload;
  return field.is_repeated ? block_bytes(tag_bytes_of(field), payload) : tag_bytes_of(field) + payload;
}

// --- writing ---

template <typename Values>
void write_values(wire::Writer& out, const ColumnLayout& column, Values values, Spelling spelling,
                  std::uint64_t text_tag, std::uint64_t row) {
  using T = typename Values::Value;
  const Range range = values_of(column, row);
  if constexpr (std::is_same_v<T, std::string_view>) {
    for_each_valid(column, range, [&](std::uint64_t index) {
      const auto text = values[index];
      out.varint(text_tag);
      out.varint(text.size());
      out.bytes(text.data(), text.size());
    });
  } else {
    switch (spelling) {
      case Spelling::kVarint:
        if constexpr (std::is_integral_v<T>) {
          for_each_valid(column, range, [&](std::uint64_t index) { out.varint(as_varint(values[index])); });
        }
        return;
      case Spelling::kFixed32:
        for_each_valid(column, range,
                       [&](std::uint64_t index) { out.fixed(static_cast<std::uint32_t>(as_varint(values[index]))); });
        return;
      case Spelling::kFixed64:
        if constexpr (sizeof(T) == 8) {
          if (column.value_valid.empty()) {
            out.bytes(column.values.data() + range.begin * 8, (range.end - range.begin) * 8);
            return;
          }
        }
        for_each_valid(column, range, [&](std::uint64_t index) { out.fixed(as_varint(values[index])); });
        return;
      case Spelling::kFloat:
        for_each_valid(column, range, [&](std::uint64_t index) { out.fixed(static_cast<float>(values[index])); });
        return;
      case Spelling::kDouble:
        for_each_valid(column, range, [&](std::uint64_t index) { out.fixed(static_cast<double>(values[index])); });
        return;
      case Spelling::kText:
        return;
    }
  }
}

// Results of the first pass over a column of the LineId.
struct LinePlan {
  const ColumnLayout* column;
  Spelling spelling;
  std::vector<std::uint32_t> payloads;  // bytes of each row's values
};

[[noreturn]] void refuse_size(const Place& place, std::uint64_t rows) {
  throw ConfigError(place.source + ": " + std::to_string(rows) + " rows from row " + std::to_string(place.first_row) +
                    " on take a GiB or more; a record has less than 1 GiB; lower batch_rows");
}

// --- features ---

// Rows [begin, begin + count) of the columns.
struct RowRange {
  std::uint64_t begin;
  std::uint64_t count;
};

// The values of all rows, those of null rows included.
Range values_of(const ColumnLayout& column, RowRange rows) noexcept {
  if (column.type == ValueType::kNothing || rows.count == 0) return {0, 0};
  const std::uint64_t first = column.first_row + rows.begin;
  if (column.list_offsets.empty()) {
    return {column.first_value + rows.begin, column.first_value + rows.begin + rows.count};
  }
  const std::byte* offsets = column.list_offsets.data();
  const auto at = [&](std::uint64_t row) {
    return column.first_value + static_cast<std::uint64_t>(column.wide_list ? load<std::int64_t>(offsets, row)
                                                                            : load<std::int32_t>(offsets, row));
  };
  return {at(first), at(first + rows.count)};
}

Arm arm_of(ColumnKind kind) noexcept {
  switch (kind) {
    case ColumnKind::kFidV1:
      return Arm::kFidV1;
    case ColumnKind::kFidV2:
      return Arm::kFidV2;
    case ColumnKind::kFloat:
      return Arm::kFloat;
    case ColumnKind::kDouble:
      return Arm::kDouble;
    case ColumnKind::kInt64:
      return Arm::kFixedInt64;
    case ColumnKind::kBytes:
      break;
  }
  return Arm::kBytes;
}

// Bytes of the tag and the length in front of a text, at most.
constexpr std::uint64_t kMostTextHead = 1 + 5;

// Bytes that the values of a feature take, at most.
std::uint64_t most_bytes(const ColumnLayout& column, RowRange rows) noexcept {
  const Range all = values_of(column, rows);
  const std::uint64_t count = all.end - all.begin;
  if (count == 0) return 0;
  if (!is_text(column.type)) return count * (column.kind == ColumnKind::kFloat ? sizeof(float) : sizeof(std::int64_t));
  const std::byte* offsets = column.text_offsets.data();
  const bool is_wide = column.type == ValueType::kText64;
  const auto characters =
      is_wide ? load<std::int64_t>(offsets, all.end) - load<std::int64_t>(offsets, all.begin)
              : std::int64_t{load<std::int32_t>(offsets, all.end)} - load<std::int32_t>(offsets, all.begin);
  return static_cast<std::uint64_t>(characters) + count * kMostTextHead;
}

// Where the values and the starts of a column go.
struct Target {
  std::byte* values;
  std::uint32_t* starts;
};

template <typename Offset>
void shift_offsets(const ColumnLayout& column, RowRange rows, std::uint32_t width, std::uint32_t* starts) noexcept {
  const std::byte* offsets = column.list_offsets.data();
  const std::uint64_t first = column.first_row + rows.begin;
  const auto base = load<Offset>(offsets, first);
  for (std::uint64_t row = 0; row <= rows.count; ++row) {
    starts[row] = static_cast<std::uint32_t>(load<Offset>(offsets, first + row) - base) * width;
  }
}

// Copies numbers where neither rows nor values are null: in one piece.
template <typename Out, typename Values>
void copy_all_numbers(const ColumnLayout& column, Values values, RowRange rows, Target target) noexcept {
  using T = typename Values::Value;
  const Range all = values_of(column, rows);
  if constexpr (std::is_same_v<T, Out> || (std::is_integral_v<T> && std::is_integral_v<Out> && sizeof(T) == 8)) {
    if (all.end != all.begin)
      std::memcpy(target.values, values.data + all.begin * sizeof(T), (all.end - all.begin) * sizeof(T));
  } else {
    for (std::uint64_t index = all.begin; index < all.end; ++index) {
      const auto value = static_cast<Out>(values[index]);
      std::memcpy(target.values + (index - all.begin) * sizeof value, &value, sizeof value);
    }
  }
  if (column.list_offsets.empty()) {
    for (std::uint64_t row = 0; row <= rows.count; ++row) {
      target.starts[row] = static_cast<std::uint32_t>(row * sizeof(Out));
    }
  } else if (column.wide_list) {
    shift_offsets<std::int64_t>(column, rows, sizeof(Out), target.starts);
  } else {
    shift_offsets<std::int32_t>(column, rows, sizeof(Out), target.starts);
  }
}

template <typename Out, typename Values>
void copy_numbers(const ColumnLayout& column, Values values, RowRange rows, Target target, const Place& place) {
  // A number of 64 bits without a sign is checked one by one.
  constexpr bool kMayNotFit = std::is_same_v<typename Values::Value, std::uint64_t>;
  const bool checks = kMayNotFit && column.kind == ColumnKind::kInt64;
  if (column.value_valid.empty() && column.list_valid.empty() && column.type != ValueType::kNothing && !checks) {
    return copy_all_numbers<Out>(column, values, rows, target);
  }
  std::byte* out = target.values;
  target.starts[0] = 0;
  for (std::uint64_t row = 0; row < rows.count; ++row) {
    for_each_valid(column, values_of(column, rows.begin + row), [&](std::uint64_t index) {
      if (checks) check_number(column, values, Spelling::kVarint, index, place, row);
      const auto value = static_cast<Out>(values[index]);
      std::memcpy(out, &value, sizeof value);
      out += sizeof value;
    });
    target.starts[row + 1] = static_cast<std::uint32_t>(out - target.values);
  }
}

// A row's texts are a message: each has a tag and its length in front.
template <typename Values>
void copy_texts(const ColumnLayout& column, Values values, RowRange rows, Target target) {
  wire::Writer out(target.values);
  target.starts[0] = 0;
  for (std::uint64_t row = 0; row < rows.count; ++row) {
    for_each_valid(column, values_of(column, rows.begin + row), [&](std::uint64_t index) {
      const std::string_view text = values[index];
      out.tag(kTextOfList, wire::kBlock);
      out.varint(text.size());
      out.bytes(text.data(), text.size());
    });
    target.starts[row + 1] = static_cast<std::uint32_t>(out.at() - target.values);
  }
}

void copy_feature(const ColumnLayout& column, RowRange rows, Target target, const Place& place) {
  with_values(column, [&](auto values) {
    using T = typename decltype(values)::Value;
    if constexpr (std::is_same_v<T, std::string_view>) {
      copy_texts(column, values, rows, target);
    } else if (column.kind == ColumnKind::kFloat) {
      copy_numbers<float>(column, values, rows, target, place);
    } else if (column.kind == ColumnKind::kDouble) {
      copy_numbers<double>(column, values, rows, target, place);
    } else if constexpr (std::is_integral_v<T>) {
      copy_numbers<std::int64_t>(column, values, rows, target, place);
    }
  });
}

// --- LineIds ---

LinePlan measure_line_field(const ColumnLayout& column, RowRange rows, const Place& place) {
  LinePlan plan{&column, spelling_of(column), std::vector<std::uint32_t>(rows.count)};
  const std::size_t tag_bytes = tag_bytes_of(*column.line_field);
  with_values(column, [&](auto values) {
    for (std::uint64_t row = 0; row < rows.count; ++row) {
      const std::uint64_t payload =
          payload_bytes(column, values, plan.spelling, tag_bytes, rows.begin + row, row, place);
      if (payload >= kMostBytes) refuse_size(place, rows.count);
      plan.payloads[row] = static_cast<std::uint32_t>(payload);
    }
  });
  return plan;
}

void write_line_field(wire::Writer& out, const LinePlan& plan, std::uint64_t row, std::uint64_t payload) {
  if (payload == 0) return;
  const LineField& field = *plan.column->line_field;
  const std::uint64_t key = std::uint64_t{field.number} << 3;
  if (plan.spelling != Spelling::kText) {
    out.varint(key | (field.is_repeated ? wire::kBlock : wire_type_of(plan.spelling)));
    if (field.is_repeated) out.varint(payload);
  }
  with_values(*plan.column,
              [&](auto values) { write_values(out, *plan.column, values, plan.spelling, key | wire::kBlock, row); });
}

std::uint64_t line_bytes(std::span<const LinePlan> lines, std::uint64_t row) noexcept {
  std::uint64_t size = 0;
  for (const LinePlan& plan : lines) {
    size += line_field_bytes(*plan.column->line_field, plan.spelling, plan.payloads[row]);
  }
  return size;
}

// A LineId is the one text of its row; a row without fields has none.
std::uint64_t most_line_bytes(std::span<const LinePlan> lines, std::uint64_t rows) noexcept {
  std::uint64_t size = 0;
  for (std::uint64_t row = 0; row < rows; ++row) size += kMostTextHead + line_bytes(lines, row);
  return size;
}

void write_line_ids(std::span<const LinePlan> lines, RowRange rows, Target target) {
  wire::Writer out(target.values);
  target.starts[0] = 0;
  for (std::uint64_t row = 0; row < rows.count; ++row) {
    if (const std::uint64_t line = line_bytes(lines, row); line != 0) {
      out.tag(kTextOfList, wire::kBlock);
      out.varint(line);
      for (const LinePlan& plan : lines) write_line_field(out, plan, rows.begin + row, plan.payloads[row]);
    }
    target.starts[row + 1] = static_cast<std::uint32_t>(out.at() - target.values);
  }
}

// --- checks ---

[[noreturn]] void refuse_layout(const ColumnLayout& column, const std::string& reason) {
  throw ConfigError("column '" + column.name + "': " + reason);
}

void need_bytes(const ColumnLayout& column, const char* what, Bytes buffer, std::uint64_t count, std::size_t width) {
  if (count > std::numeric_limits<std::uint64_t>::max() / 16 || buffer.size() < count * width) {
    refuse_layout(column, std::string(what) + " take " + std::to_string(buffer.size()) + " bytes, " +
                              std::to_string(count) + " of " + std::to_string(width) + " bytes are needed");
  }
}

void need_bits(const ColumnLayout& column, const char* what, Bytes bits, std::uint64_t count) {
  if (bits.size() < count / 8 + (count % 8 != 0 ? 1 : 0)) {
    refuse_layout(column, std::string(what) + " has " + std::to_string(bits.size()) + " bytes, " +
                              std::to_string(count) + " bits are needed");
  }
}

// Offsets `first` to `first + count` never fall and end at `most` or before.
template <typename Offset>
void need_order(const ColumnLayout& column, const char* what, Bytes offsets, std::uint64_t first, std::uint64_t count,
                std::uint64_t most) {
  need_bytes(column, what, offsets, first + count + 1, sizeof(Offset));
  Offset last = 0;
  for (std::uint64_t index = first; index <= first + count; ++index) {
    const auto offset = load<Offset>(offsets.data(), index);
    if (offset < last || static_cast<std::uint64_t>(offset) > most) {
      refuse_layout(column, std::string(what) + ": number " + std::to_string(index) + " is " + std::to_string(offset) +
                                " after " + std::to_string(last) + ", and the most is " + std::to_string(most));
    }
    last = offset;
  }
}

void check_values(const ColumnLayout& column) {
  const std::uint64_t count = column.first_value + column.value_count;
  switch (column.type) {
    case ValueType::kNothing:
      return;
    case ValueType::kBool:
      need_bits(column, "values", column.values, count);
      break;
    case ValueType::kText32:
      need_order<std::int32_t>(column, "text offsets", column.text_offsets, column.first_value, column.value_count,
                               column.values.size());
      break;
    case ValueType::kText64:
      need_order<std::int64_t>(column, "text offsets", column.text_offsets, column.first_value, column.value_count,
                               column.values.size());
      break;
    default:
      need_bytes(column, "values", column.values, count, width_of(column.type));
  }
  if (!column.value_valid.empty()) need_bits(column, "validity of values", column.value_valid, count);
}

void check_lists(const ColumnLayout& column) {
  if (column.type == ValueType::kNothing) return;
  if (column.list_offsets.empty()) {
    if (column.value_count < column.rows) {
      refuse_layout(column, "there are " + std::to_string(column.value_count) + " values for " +
                                std::to_string(column.rows) + " rows");
    }
    return;
  }
  if (column.wide_list) {
    need_order<std::int64_t>(column, "list offsets", column.list_offsets, column.first_row, column.rows,
                             column.value_count);
  } else {
    need_order<std::int32_t>(column, "list offsets", column.list_offsets, column.first_row, column.rows,
                             column.value_count);
  }
  if (!column.list_valid.empty())
    need_bits(column, "validity of rows", column.list_valid, column.first_row + column.rows);
}

bool fits(Spelling spelling, ValueType type) noexcept {
  switch (spelling) {
    case Spelling::kVarint:
    case Spelling::kFixed32:
    case Spelling::kFixed64:
      return !is_text(type) && !is_real(type);
    case Spelling::kFloat:
    case Spelling::kDouble:
      return !is_text(type);
    case Spelling::kText:
      break;
  }
  return is_text(type);
}

void check_types(const ColumnLayout& column) {
  if (column.type == ValueType::kNothing) return;
  if (!fits(spelling_of(column), column.type)) {
    const std::string wanted = column.line_field ? "the LineId field '" + column.line_field->name + "'"
                                                 : std::string("a column of ") + name_of(column.kind);
    throw SchemaMismatch("column '" + column.name + "' holds " + name_of(column.type) + ", which cannot fill " +
                         wanted);
  }
  if (!column.line_field) return;
  const LineField& field = *column.line_field;
  if (field.number == 0 || field.number > kMostFieldNumber) {
    refuse_layout(column, "the LineId field '" + field.name + "' has the number " + std::to_string(field.number) +
                              ", which no field can have");
  }
  if (!field.is_repeated && !column.list_offsets.empty()) {
    throw SchemaMismatch("column '" + column.name + "' holds lists, and the LineId field '" + field.name +
                         "' has one value");
  }
}

}  // namespace

const char* name_of(ColumnKind kind) noexcept {
  switch (kind) {
    case ColumnKind::kFidV1:
      return "fid_v1";
    case ColumnKind::kFidV2:
      return "fid_v2";
    case ColumnKind::kFloat:
      return "float";
    case ColumnKind::kDouble:
      return "double";
    case ColumnKind::kInt64:
      return "int";
    case ColumnKind::kBytes:
      break;
  }
  return "bytes";
}

const char* name_of(ValueType type) noexcept {
  constexpr const char* kNames[] = {"nothing", "bool",   "int8",   "int16", "int32",  "int64",  "uint8",
                                    "uint16",  "uint32", "uint64", "float", "double", "text32", "text64"};
  return kNames[static_cast<std::size_t>(type)];
}

Column::Column(ColumnLayout layout) : layout_(std::move(layout)) {
  constexpr std::uint64_t kMost = std::uint64_t{1} << 56;
  for (const std::uint64_t count : {layout_.rows, layout_.first_row, layout_.first_value, layout_.value_count}) {
    if (count > kMost) refuse_layout(layout_, std::to_string(count) + " rows or values are not possible");
  }
  check_types(layout_);
  check_values(layout_);
  check_lists(layout_);
}

Records encode_columns(std::span<const Column* const> columns, std::uint64_t begin, std::uint64_t end,
                       std::string source, std::uint64_t offset) {
  const std::uint64_t rows = end - begin;
  const Place place{source, offset};
  if (begin > end || rows > std::numeric_limits<std::int32_t>::max()) {
    throw ConfigError("rows " + std::to_string(begin) + " to " + std::to_string(end) + " are no range of a batch");
  }
  for (const Column* column : columns) {
    if (column->layout().rows < end) {
      refuse_layout(column->layout(), "there are " + std::to_string(column->layout().rows) + " rows, row " +
                                          std::to_string(end) + " was asked for");
    }
  }
  const RowRange range{begin, rows};
  std::vector<const ColumnLayout*> features;
  std::vector<LinePlan> lines;
  for (const Column* column : columns) {
    const ColumnLayout& layout = column->layout();
    if (layout.line_field) {
      lines.push_back(measure_line_field(layout, range, place));
    } else {
      features.push_back(&layout);
    }
  }
  // Values and starts of a column follow each other, each from a multiple of 8 on.
  const auto aligned = [](std::uint64_t bytes) { return (bytes + 7) / 8 * 8; };
  const std::uint64_t starts_bytes = aligned((rows + 1) * sizeof(std::uint32_t));
  std::uint64_t total = 0;
  const auto claim = [&](std::uint64_t bytes) {
    if (bytes >= kMostBytes) refuse_size(place, rows);
    total += aligned(bytes) + starts_bytes;
    if (total >= kMostBytes) refuse_size(place, rows);
    return aligned(bytes);
  };
  std::vector<std::uint64_t> rooms;
  for (const ColumnLayout* column : features) rooms.push_back(claim(most_bytes(*column, range)));
  if (!lines.empty()) rooms.push_back(claim(most_line_bytes(lines, rows)));

  auto buffer = Buffer::take(std::max<std::uint64_t>(total, 1));
  auto table = std::make_shared<CellTable>();
  table->rows = static_cast<std::uint32_t>(rows);
  std::byte* at = buffer->data();
  const auto add = [&](std::string name, Arm arm) {
    const Target target{at, reinterpret_cast<std::uint32_t*>(at + rooms[table->columns.size()])};
    at += rooms[table->columns.size()] + starts_bytes;
    table->columns.push_back({std::move(name), arm, target.values, target.starts});
    return target;
  };
  for (const ColumnLayout* column : features)
    copy_feature(*column, range, add(column->name, arm_of(column->kind)), place);
  if (!lines.empty()) write_line_ids(lines, range, add(std::string(kLineIdColumn), Arm::kBytes));

  Records records;
  records.source = std::move(source);
  records.entries.push_back({0, static_cast<std::uint32_t>(total), 0, offset});
  records.buffer = std::move(buffer);
  records.table = std::move(table);
  return records;
}

Records to_messages(const Records& records) {
  if (records.table == nullptr) return records;
  std::string batch;
  for (const CellColumn& column : records.table->columns) {
    std::string list;
    wire::put_block(list, kNameOfColumn, column.name);
    for (std::uint32_t row = 0; row < records.table->rows; ++row) {
      wire::put_block(list, kFeatureOfColumn, encode_feature(column.cell(row)));
    }
    wire::put_block(batch, kColumnOfBatch, list);
  }
  wire::put_tag(batch, kBatchSize, wire::kVarint);
  wire::put_varint(batch, records.table->rows);

  Records messages;
  messages.source = records.source;
  messages.entries = records.entries;
  messages.entries[0].begin = 0;
  messages.entries[0].size = static_cast<std::uint32_t>(batch.size());
  auto buffer = Buffer::take(batch.size());
  std::memcpy(buffer->data(), batch.data(), batch.size());
  messages.buffer = std::move(buffer);
  return messages;
}

}  // namespace engine::data
