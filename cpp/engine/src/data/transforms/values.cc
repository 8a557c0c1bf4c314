// values.cc: tests of one value against operands.
#include "engine/data/transforms/values.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <optional>
#include <utility>

#include "data/cell_values.h"
#include "data/line_scan.h"
#include "engine/error.h"

namespace engine::data {

namespace {

constexpr std::array<std::string_view, 14> kNames = {"gt", "ge",     "eq",  "lt",  "le",   "neq",        "between",
                                                     "in", "not-in", "any", "all", "diff", "startswith", "endswith"};

bool is_real(FieldKind kind) noexcept { return kind == FieldKind::kFloat || kind == FieldKind::kDouble; }

bool fits(Comparison op, FieldKind kind, bool has_many) noexcept {
  const bool is_set_op = op == Comparison::kAny || op == Comparison::kAll || op == Comparison::kDiff;
  if (has_many) return is_set_op && !is_real(kind);
  if (op == Comparison::kStartsWith || op == Comparison::kEndsWith) return kind == FieldKind::kText;
  return !is_set_op;
}

Comparison parse_op(const std::string& what, FieldKind kind, bool has_many, std::string_view name) {
  std::string fitting;
  for (std::size_t i = 0; i < kNames.size(); ++i) {
    const auto op = static_cast<Comparison>(i);
    if (!fits(op, kind, has_many)) continue;
    if (kNames[i] == name) return op;
    fitting += (fitting.empty() ? "" : ", ") + std::string(kNames[i]);
  }
  const char* many = has_many ? "a list of " : "";
  const char* kinds = kind == FieldKind::kText ? "text" : is_real(kind) ? "floats" : "integers";
  if (fitting.empty()) throw ConfigError(what + " holds " + many + kinds + "; no op compares such lists");
  throw ConfigError("op '" + std::string(name) + "' does not fit " + what + ", which holds " + many + kinds +
                    "; use one of: " + fitting);
}

}  // namespace

ValueTest::ValueTest(const std::string& what, FieldKind kind, bool has_many, std::string_view op, Operands operands)
    : kind_(kind),
      has_many_(has_many),
      is_unsigned_(kind == FieldKind::kFixed64 || kind == FieldKind::kFixed32),
      op_(parse_op(what, kind, has_many, op)),
      operands_(std::move(operands)) {
  const std::size_t fitting = kind == FieldKind::kText ? operands_.texts.size()
                              : is_real(kind)          ? operands_.reals.size()
                                                       : operands_.ints.size();
  if (fitting != operands_.size()) throw ConfigError("the operands of " + what + " are of another kind than its value");
  const bool takes_one = op_ <= Comparison::kNeq;
  if (takes_one && fitting != 1) {
    throw ConfigError("op '" + std::string(op) + "' of " + what + " takes one operand, got " + std::to_string(fitting));
  }
  if (op_ == Comparison::kBetween && fitting != 2) {
    throw ConfigError("op 'between' of " + what + " takes two operands, got " + std::to_string(fitting));
  }
  if (fitting == 0) throw ConfigError("op '" + std::string(op) + "' of " + what + " takes operands, got none");
  if (kind == FieldKind::kFloat) {
    for (double& operand : operands_.reals) operand = static_cast<double>(static_cast<float>(operand));
  }
  if (std::any_of(operands_.reals.begin(), operands_.reals.end(), [](double operand) { return std::isnan(operand); })) {
    throw ConfigError("an operand of " + what + " is NaN, which compares with nothing");
  }
  sorted_ints_ = operands_.ints;
  std::sort(sorted_ints_.begin(), sorted_ints_.end());
  sorted_ints_.erase(std::unique(sorted_ints_.begin(), sorted_ints_.end()), sorted_ints_.end());
  if (op_ == Comparison::kIn || op_ == Comparison::kNotIn) std::sort(operands_.reals.begin(), operands_.reals.end());
  for (const auto& text : operands_.texts) text_places_.emplace(text, text_places_.size());
  stamps_.assign(std::max(sorted_ints_.size(), text_places_.size()), 0);
}

namespace {

// Ops on order and equality; `operand(i)` is the i-th operand.
template <typename Value, typename Operand>
bool compares(Comparison op, const Value& value, Operand&& operand) noexcept {
  switch (op) {
    case Comparison::kGt:
      return value > operand(0);
    case Comparison::kGe:
      return value >= operand(0);
    case Comparison::kEq:
      return value == operand(0);
    case Comparison::kLt:
      return value < operand(0);
    case Comparison::kLe:
      return value <= operand(0);
    case Comparison::kNeq:
      return value != operand(0);
    case Comparison::kBetween:
      return value >= operand(0) && value < operand(1);
    default:
      return false;
  }
}

}  // namespace

bool ValueTest::holds(std::int64_t value) const noexcept {
  if (op_ == Comparison::kIn || op_ == Comparison::kNotIn) {
    return std::binary_search(sorted_ints_.begin(), sorted_ints_.end(), value) == (op_ == Comparison::kIn);
  }
  // Unsigned numbers with the top bit flipped have the order of signed ones.
  constexpr auto kTop = std::int64_t{1} << 62 << 1;
  const auto key = [this](std::int64_t bits) { return is_unsigned_ ? bits ^ kTop : bits; };
  return compares(op_, key(value), [&](std::size_t i) { return key(operands_.ints[i]); });
}

bool ValueTest::holds(double value) const noexcept {
  const auto& operands = operands_.reals;
  if (op_ == Comparison::kIn || op_ == Comparison::kNotIn) {
    return std::binary_search(operands.begin(), operands.end(), value) == (op_ == Comparison::kIn);
  }
  return compares(op_, value, [&](std::size_t i) { return operands[i]; });
}

bool ValueTest::holds(std::string_view value) const noexcept {
  const auto& operands = operands_.texts;
  switch (op_) {
    case Comparison::kIn:
      return text_places_.find(value) != text_places_.end();
    case Comparison::kNotIn:
      return text_places_.find(value) == text_places_.end();
    case Comparison::kStartsWith:
      return std::any_of(operands.begin(), operands.end(), [&](const auto& text) { return value.starts_with(text); });
    case Comparison::kEndsWith:
      return std::any_of(operands.begin(), operands.end(), [&](const auto& text) { return value.ends_with(text); });
    default:
      return compares(op_, value, [&](std::size_t i) { return std::string_view(operands[i]); });
  }
}

// find(value) is its place among the distinct operands, or nothing.
template <typename Value, typename Find>
bool ValueTest::holds_of(std::span<const Value> values, Find&& find) {
  ++stamp_;
  std::size_t distinct = 0;
  for (const Value& value : values) {
    const std::optional<std::size_t> place = find(value);
    if (!place) continue;
    if (op_ == Comparison::kAny) return true;
    if (op_ == Comparison::kDiff) return false;
    if (stamps_[*place] != stamp_) stamps_[*place] = stamp_, ++distinct;
  }
  return op_ == Comparison::kDiff || (op_ == Comparison::kAll && distinct == stamps_.size());
}

bool ValueTest::holds(std::span<const std::int64_t> values) {
  return holds_of(values, [&](std::int64_t value) -> std::optional<std::size_t> {
    const auto at = std::lower_bound(sorted_ints_.begin(), sorted_ints_.end(), value);
    if (at == sorted_ints_.end() || *at != value) return std::nullopt;
    return static_cast<std::size_t>(at - sorted_ints_.begin());
  });
}

bool ValueTest::holds(std::span<const std::string_view> values) {
  return holds_of(values, [&](std::string_view value) -> std::optional<std::size_t> {
    const auto at = text_places_.find(value);
    if (at == text_places_.end()) return std::nullopt;
    return at->second;
  });
}

namespace {

// Tests one LineId field.
class FieldTest {
 public:
  FieldTest(LineField field, std::string_view op, Operands operands)
      : field_(std::move(field)),
        test_("LineId field '" + field_.name + "'", field_.kind, field_.is_repeated, op, std::move(operands)) {}

  // Nothing when the line has no value to test.
  std::optional<bool> holds(Bytes line) {
    switch (field_.kind) {
      case FieldKind::kText:
        return holds_text(line);
      case FieldKind::kFloat:
      case FieldKind::kDouble: {
        double value = field_.default_value;
        if (!line_real(line, field_, value) && field_.default_value == 0) return std::nullopt;
        return test_.holds(value);
      }
      default:
        return holds_int(line);
    }
  }

 private:
  std::optional<bool> holds_text(Bytes line) {
    if (field_.is_repeated) {
      texts_.clear();
      line_texts(line, field_, texts_);
      if (texts_.empty()) return std::nullopt;
      return test_.holds(std::span<const std::string_view>(texts_));
    }
    std::string_view value;
    if (!line_text(line, field_, value)) return std::nullopt;
    return test_.holds(value);
  }

  std::optional<bool> holds_int(Bytes line) {
    if (field_.is_repeated) {
      ints_.clear();
      line_ints(line, field_, ints_);
      if (ints_.empty()) return std::nullopt;
      return test_.holds(std::span<const std::int64_t>(ints_));
    }
    auto value = static_cast<std::int64_t>(field_.default_value);
    if (!line_int(line, field_, value) && field_.default_value == 0) return std::nullopt;
    return test_.holds(value);
  }

  LineField field_;
  ValueTest test_;
  std::vector<std::int64_t> ints_;
  std::vector<std::string_view> texts_;
};

class FilterByValue : public RowRule {
 public:
  FilterByValue(LineField field, std::string_view op, Operands operands, bool keep_empty)
      : test_(std::move(field), op, std::move(operands)), keep_empty_(keep_empty) {}

  bool apply(RowView row) override { return test_.holds(row.info().line).value_or(keep_empty_); }

 private:
  FieldTest test_;
  bool keep_empty_;
};

class AddAction : public RowRule {
 public:
  AddAction(LineField field, std::string_view op, Operands operands, std::int64_t action)
      : test_(std::move(field), op, std::move(operands)), action_(action) {}

  bool apply(RowView row) override {
    static const LineField& actions = find_field(standard_line_fields(), "actions");
    RowInfo& info = row.info();
    if (test_.holds(info.line).value_or(false)) {
      info.line = line_add_int(info.line, actions, action_, row.block.arena());
    }
    return true;
  }

 private:
  FieldTest test_;
  std::int64_t action_;
};

FieldKind kind_of(FeatureKind kind) noexcept {
  switch (kind) {
    case FeatureKind::kFloat:
      return FieldKind::kFloat;
    case FeatureKind::kDouble:
      return FieldKind::kDouble;
    case FeatureKind::kBytes:
      return FieldKind::kText;
    case FeatureKind::kFid:
      return FieldKind::kFixed64;
    default:
      return FieldKind::kInt;
  }
}

bool is_set_op(std::string_view op) noexcept { return op == "any" || op == "all" || op == "diff"; }

class FilterByFeatureValue : public RowRule {
 public:
  FilterByFeatureValue(const std::string& name, std::uint32_t column, FeatureKind kind, std::string_view op,
                       Operands operands, bool keep_empty)
      : test_("feature '" + name + "'", kind_of(kind), is_set_op(op), op, std::move(operands)),
        column_(column),
        kind_(kind),
        keep_empty_(keep_empty) {}

  bool apply(RowView row) override { return holds(row.cell(column_)).value_or(keep_empty_); }

 private:
  std::optional<bool> holds(const Cell& cell) {
    switch (kind_) {
      case FeatureKind::kInt64:
        if (!is_integer(cell.arm)) return std::nullopt;
        ints_.clear();
        each_int(cell, [&](std::int64_t value) { return ints_.push_back(value), true; });
        return holds_ints();
      case FeatureKind::kFid:
        if (!is_fid(cell.arm)) return std::nullopt;
        ints_.clear();
        each_fid(cell, [&](std::int64_t id) { return ints_.push_back(id), true; });
        return holds_ints();
      case FeatureKind::kFloat:
        return cell.arm == Arm::kFloat ? holds_real<float>(cell) : std::nullopt;
      case FeatureKind::kDouble:
        return cell.arm == Arm::kDouble ? holds_real<double>(cell) : std::nullopt;
      default:
        if (cell.arm != Arm::kBytes) return std::nullopt;
        texts_.clear();
        each_text(cell, [&](std::string_view text) { return texts_.push_back(text), true; });
        if (texts_.empty()) return std::nullopt;
        if (test_.has_many()) return test_.holds(std::span<const std::string_view>(texts_));
        return texts_.size() == 1 ? std::optional(test_.holds(texts_[0])) : std::nullopt;
    }
  }

  std::optional<bool> holds_ints() {
    if (ints_.empty()) return std::nullopt;
    if (test_.has_many()) return test_.holds(std::span<const std::int64_t>(ints_));
    return ints_.size() == 1 ? std::optional(test_.holds(ints_[0])) : std::nullopt;
  }

  template <typename Value>
  std::optional<bool> holds_real(const Cell& cell) {
    if (cell.size != sizeof(Value)) return std::nullopt;
    Value value;
    std::memcpy(&value, cell.data, sizeof value);
    return test_.holds(static_cast<double>(value));
  }

  ValueTest test_;
  std::uint32_t column_;
  FeatureKind kind_;
  bool keep_empty_;
  std::vector<std::int64_t> ints_;
  std::vector<std::string_view> texts_;
};

// One arm of FilterValues: a list message whose values are field 1.
void read_arm(const wire::Tag& arm, Bytes list, Operands& operands) {
  scan_line(list, [&](const wire::Tag& tag, wire::Reader& reader) {
    if (tag.field != 1) return false;
    if (arm.field == 1) {
      take_reals(FieldKind::kFloat, tag, reader, [&](double value) { operands.reals.push_back(value); });
    } else if (arm.field == 2) {
      take_ints(FieldKind::kInt, tag, reader, [&](std::int64_t value) { operands.ints.push_back(value); });
    } else {
      if (tag.wire != wire::kBlock) throw wire::Malformed{"a bytes_list holds something else than bytes", reader.at()};
      operands.texts.emplace_back(text_of(reader.block()));
    }
    return true;
  });
}

}  // namespace

RulePtr make_filter_by_value(LineField field, std::string_view op, Operands operands, bool keep_empty) {
  return std::make_shared<FilterByValue>(std::move(field), op, std::move(operands), keep_empty);
}

RulePtr make_filter_by_feature_value(const std::string& name, std::uint32_t column, FeatureKind kind,
                                     std::string_view op, Operands operands, bool keep_empty) {
  return std::make_shared<FilterByFeatureValue>(name, column, kind, op, std::move(operands), keep_empty);
}

RulePtr make_add_action(LineField field, std::string_view op, Operands operands, std::int64_t action) {
  return std::make_shared<AddAction>(std::move(field), op, std::move(operands), action);
}

Operands read_filter_values(Bytes message) {
  Operands operands;
  std::uint32_t arm = 0;
  try {
    wire::Reader reader(message);
    while (!reader.done()) {
      const wire::Tag tag = reader.tag();
      if (tag.field < 1 || tag.field > 3 || tag.wire != wire::kBlock) {
        throw wire::Malformed{"field " + std::to_string(tag.field) + " does not belong to FilterValues", reader.at()};
      }
      if (tag.field != arm) operands = {};  // a oneof: the last arm counts
      arm = tag.field;
      read_arm(tag, reader.block(), operands);
    }
  } catch (const wire::Malformed& fault) {
    const auto at = fault.at == nullptr ? 0 : fault.at - message.data();
    throw RecordCorrupt("byte " + std::to_string(at) + ": not a FilterValues message: " + fault.reason);
  }
  return operands;
}

}  // namespace engine::data
