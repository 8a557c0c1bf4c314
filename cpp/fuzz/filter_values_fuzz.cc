// filter_values_fuzz.cc: operand files, and the tests of values made of them.
#include <array>
#include <string_view>
#include <vector>

#include "engine/data/transforms/values.h"
#include "target.h"

namespace {

using namespace engine::data;

constexpr std::array<std::string_view, 16> kOps{"gt",         "ge",       "eq",     "lt",  "le",  "neq",
                                                "between",    "in",       "not-in", "any", "all", "diff",
                                                "startswith", "endswith", "",       "no"};
constexpr std::array<FieldKind, 6> kKinds{FieldKind::kInt,   FieldKind::kFixed64, FieldKind::kFixed32,
                                          FieldKind::kFloat, FieldKind::kDouble,  FieldKind::kText};

// Input: operation, kind of the value, a value, message.
void run(fuzz::Bytes bytes) {
  fuzz::Input input(bytes);
  const std::string_view op = kOps[input.byte() % kOps.size()];
  const std::uint8_t choice = input.byte();
  const auto value = static_cast<std::int64_t>(input.word());
  const Bytes message = input.rest();
  Operands operands;
  if (!fuzz::accepts([&] { operands = read_filter_values(message); })) return;
  fuzz::expect(operands.size() <= message.size(), "there are more operands than bytes");

  const FieldKind kind = kKinds[choice % kKinds.size()];
  const bool has_many = choice >= 128;
  fuzz::accepts([&] {
    ValueTest test("value", kind, has_many, op, operands);
    const std::vector<std::int64_t> ints{value, value + (value < 0 ? 1 : -1), 0};
    const std::vector<std::string_view> texts{"a", "", op};
    bool holds = false;
    if (kind == FieldKind::kText) {
      holds = has_many ? test.holds(texts) : test.holds(texts[0]);
    } else if (kind == FieldKind::kFloat || kind == FieldKind::kDouble) {
      if (!has_many) holds = test.holds(static_cast<double>(value) / 3);
    } else {
      holds = has_many ? test.holds(ints) : test.holds(value);
    }
    // A second call gives the same answer.
    if (kind == FieldKind::kText && has_many) fuzz::expect(test.holds(texts) == holds, "a test changed its mind");
    if (kind == FieldKind::kInt && has_many) fuzz::expect(test.holds(ints) == holds, "a test changed its mind");
  });
}

const fuzz::Target target("filter_values", run, fuzz::Layout::kMessage, 10);

}  // namespace
