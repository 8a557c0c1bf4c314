// line_id.h: reads and edits serialized LineIds in place of parsing them into objects. Undeclared fields
// stay.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/data/row.h"

namespace engine::data {

enum class FieldKind : std::uint8_t {
  kInt,      // int32, int64, uint32, uint64, bool, enum: a varint
  kFixed64,  // fixed64, sfixed64: order is that of unsigned numbers
  kFixed32,  // fixed32, sfixed32: read as unsigned
  kFloat,
  kDouble,
  kText,  // string, bytes
};

// One field of LineId. Users add their own at run time; the fields of the original are `standard_line_fields()`.
struct LineField {
  std::string name;
  std::uint32_t number = 0;
  FieldKind kind = FieldKind::kInt;
  bool is_repeated = false;
  double default_value = 0;
};

[[nodiscard]] const std::vector<LineField>& standard_line_fields();
// Throws ConfigError that lists the names known.
[[nodiscard]] const LineField& find_field(const std::vector<LineField>& fields, std::string_view name);

namespace line_number {
inline constexpr std::uint32_t kUid = 2;
inline constexpr std::uint32_t kReqTime = 3;
inline constexpr std::uint32_t kItemId = 4;
inline constexpr std::uint32_t kActions = 6;
inline constexpr std::uint32_t kChnid = 19;
inline constexpr std::uint32_t kPreActions = 23;
inline constexpr std::uint32_t kSampleRate = 27;
inline constexpr std::uint32_t kSpecialStrategies = 39;
inline constexpr std::uint32_t kDeviceType = 41;
inline constexpr std::uint32_t kIsDraw = 87;
inline constexpr std::uint32_t kRank = 145;
inline constexpr std::uint32_t kDataSourceName = 235;
}  // namespace line_number

// --- reading: the last value of a singular field counts, as protobuf has it. All throw wire::Malformed ---------------

// True when the field has a value on the wire; an empty text counts as none, as does an empty packed field.
[[nodiscard]] bool line_has(Bytes line, std::uint32_t number);
// Integer kinds. `out` is left alone and false returned when the field is absent.
bool line_int(Bytes line, const LineField& field, std::int64_t& out);
// Float and double kinds.
bool line_real(Bytes line, const LineField& field, double& out);
bool line_text(Bytes line, const LineField& field, std::string_view& out);
// Repeated fields, packed or not. Appends.
void line_ints(Bytes line, const LineField& field, std::vector<std::int64_t>& out);
void line_reals(Bytes line, const LineField& field, std::vector<double>& out);
void line_texts(Bytes line, const LineField& field, std::vector<std::string_view>& out);

// --- editing: each returns a new LineId in `arena`; unknown fields stay where they are
// --------------------------------

[[nodiscard]] Bytes line_set_int(Bytes line, const LineField& field, std::int64_t value, Arena& arena);
[[nodiscard]] Bytes line_set_real(Bytes line, const LineField& field, double value, Arena& arena);
[[nodiscard]] Bytes line_set_text(Bytes line, const LineField& field, std::string_view value, Arena& arena);
// Appends values to a repeated integer field, in one copy of the line.
[[nodiscard]] Bytes line_add_ints(Bytes line, const LineField& field, std::span<const std::int64_t> values,
                                  Arena& arena);
// Appends one value.
[[nodiscard]] Bytes line_add_int(Bytes line, const LineField& field, std::int64_t value, Arena& arena);
// Without any occurrence of the field.
[[nodiscard]] Bytes line_clear(Bytes line, std::uint32_t number, Arena& arena);

}  // namespace engine::data
