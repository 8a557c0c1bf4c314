// values.h: tests of one value against operands, and the rules made of them.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "engine/data/line_id.h"
#include "engine/data/row_op.h"

namespace engine::data {

// Values to compare with. The list that fits the kind of the value is filled.
struct Operands {
  std::vector<std::int64_t> ints;  // of unsigned kinds: the bits
  std::vector<double> reals;
  std::vector<std::string> texts;

  [[nodiscard]] std::size_t size() const noexcept { return ints.size() + reals.size() + texts.size(); }
};

enum class Comparison : std::uint8_t {
  kGt,
  kGe,
  kEq,
  kLt,
  kLe,
  kNeq,
  kBetween,  // [lower, upper)
  kIn,
  kNotIn,
  kAny,   // of several values: any is among the operands
  kAll,   // every operand is among the values
  kDiff,  // none is among the operands
  kStartsWith,
  kEndsWith,
};

// Ints are exact in 64 bits; fixed64 and fixed32 have the order of unsigned numbers, other ints of signed ones; floats
// are compared in their own precision; texts byte by byte. Exclusive.
class ValueTest {
 public:
  // `what` names the value in errors. `has_many`: the value is a list, and `op` one of any, all, diff. Throws
  // ConfigError that lists the ops which fit.
  ValueTest(const std::string& what, FieldKind kind, bool has_many, std::string_view op, Operands operands);

  [[nodiscard]] FieldKind kind() const noexcept { return kind_; }
  [[nodiscard]] bool has_many() const noexcept { return has_many_; }
  [[nodiscard]] bool holds(std::int64_t value) const noexcept;
  [[nodiscard]] bool holds(double value) const noexcept;
  [[nodiscard]] bool holds(std::string_view value) const noexcept;
  [[nodiscard]] bool holds(std::span<const std::int64_t> values);
  [[nodiscard]] bool holds(std::span<const std::string_view> values);

 private:
  template <typename Value, typename Find>
  bool holds_of(std::span<const Value> values, Find&& find);

  struct TextHash {
    using is_transparent = void;
    std::size_t operator()(std::string_view text) const noexcept { return std::hash<std::string_view>{}(text); }
  };

  FieldKind kind_;
  bool has_many_;
  bool is_unsigned_;
  Comparison op_;
  Operands operands_;
  std::vector<std::int64_t> sorted_ints_;
  std::unordered_map<std::string, std::size_t, TextHash, std::equal_to<>> text_places_;
  std::vector<std::uint64_t> stamps_;  // of distinct operands: the last list that held it
  std::uint64_t stamp_ = 0;
};

// A row whose LineId lacks the field is tested with the field's declared default, when it has one that is not 0;
// without one, `keep_empty` decides.
[[nodiscard]] RulePtr make_filter_by_value(LineField field, std::string_view op, Operands operands, bool keep_empty);

// Which cells FilterByFeatureValue looks at.
enum class FeatureKind : std::uint8_t { kInt64, kFloat, kDouble, kBytes, kFid };

// Ops on one value ask for a cell of exactly one value; any, all and diff take cells of any length. `keep_empty`
// decides about rows without the feature, with one of another kind, or with the wrong number of values.
[[nodiscard]] RulePtr make_filter_by_feature_value(const std::string& name, std::uint32_t column, FeatureKind kind,
                                                   std::string_view op, Operands operands, bool keep_empty);

// Appends `action` to LineId.actions of the rows whose field passes. Keeps every row.
[[nodiscard]] RulePtr make_add_action(LineField field, std::string_view op, Operands operands, std::int64_t action);

// The operands in a serialized FilterValues message. Throws RecordCorrupt.
[[nodiscard]] Operands read_filter_values(Bytes message);

}  // namespace engine::data
