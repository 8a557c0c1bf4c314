#include "engine/data/line_id.h"

#include <gtest/gtest.h>

#include <random>
#include <string>
#include <vector>

#include "engine/error.h"
#include "wire.h"

namespace engine::data {
namespace {

// A LineId given as hex, blanks ignored.
std::vector<std::byte> line_of(std::string_view hex) {
  std::string digits;
  for (const char c : hex) {
    if (c != ' ') digits += c;
  }
  std::vector<std::byte> line;
  for (std::size_t i = 0; i < digits.size(); i += 2) {
    line.push_back(static_cast<std::byte>(std::stoi(digits.substr(i, 2), nullptr, 16)));
  }
  return line;
}

std::string hex_of(Bytes bytes) {
  std::string out;
  for (const std::byte byte : bytes) {
    constexpr char kDigits[] = "0123456789abcdef";
    out += kDigits[static_cast<unsigned>(byte) >> 4];
    out += kDigits[static_cast<unsigned>(byte) & 15];
  }
  return out;
}

const LineField& standard(std::string_view name) { return find_field(standard_line_fields(), name); }

std::vector<std::int64_t> ints_of(Bytes line, std::string_view name) {
  std::vector<std::int64_t> values;
  line_ints(line, standard(name), values);
  return values;
}

std::int64_t int_of(Bytes line, std::string_view name) {
  std::int64_t value = -1;
  EXPECT_TRUE(line_int(line, standard(name), value));
  return value;
}

TEST(LineIdTest, reads_fields_of_every_kind) {
  // uid 7, req_time -1, actions [1, 300], sample_rate 0.5, device_type "ios", is_draw, unknown field 11
  const auto line =
      line_of("110700000000000000 18ffffffffffffffffff01 320301ac02 dd010000003f ca0203696f73 b80501 5a0161");
  EXPECT_EQ(int_of(line, "uid"), 7);
  EXPECT_EQ(int_of(line, "req_time"), -1);
  EXPECT_EQ(ints_of(line, "actions"), (std::vector<std::int64_t>{1, 300}));
  EXPECT_EQ(int_of(line, "is_draw"), 1);
  double rate = 0;
  ASSERT_TRUE(line_real(line, standard("sample_rate"), rate));
  EXPECT_EQ(rate, 0.5);
  std::string_view text;
  ASSERT_TRUE(line_text(line, standard("device_type"), text));
  EXPECT_EQ(text, "ios");
  EXPECT_TRUE(line_has(line, 11));
  EXPECT_FALSE(line_has(line, 12));
}

TEST(LineIdTest, leaves_the_value_alone_when_the_field_is_absent) {
  std::int64_t value = 42;
  EXPECT_FALSE(line_int({}, standard("uid"), value));
  EXPECT_EQ(value, 42);
  EXPECT_FALSE(line_has({}, 2));
  EXPECT_FALSE(line_has(line_of("3200"), 6));  // packed, but without values
}

TEST(LineIdTest, takes_the_last_of_several_and_all_spellings_of_repeated_fields) {
  EXPECT_EQ(int_of(line_of("1805 1806"), "req_time"), 6);
  EXPECT_EQ(ints_of(line_of("3005 32020607 3008"), "actions"), (std::vector<std::int64_t>{5, 6, 7, 8}));
  EXPECT_EQ(ints_of(line_of("b8020a ba02020b0c"), "special_strategies"), (std::vector<std::int64_t>{10, 11, 12}));
}

TEST(LineIdTest, reads_fields_that_users_declare) {
  const LineField fixed32{"a", 100, FieldKind::kFixed32, false, 0};
  const LineField doubles{"b", 101, FieldKind::kDouble, true, 0};
  const LineField texts{"c", 102, FieldKind::kText, true, 0};
  const auto line = line_of("a506ffffffff aa0608000000000000f03f a906000000000000e03f b20600 b2060161");
  std::int64_t value = 0;
  ASSERT_TRUE(line_int(line, fixed32, value));
  EXPECT_EQ(value, 0xffffffff);
  std::vector<double> reals;
  line_reals(line, doubles, reals);
  EXPECT_EQ(reals, (std::vector<double>{1.0, 0.5}));
  std::vector<std::string_view> found;
  line_texts(line, texts, found);
  EXPECT_EQ(found, (std::vector<std::string_view>{"", "a"}));
}

TEST(LineIdTest, setting_a_field_keeps_everything_else) {
  Arena arena;
  const auto line = line_of("5a0161 1805 110700000000000000 1806");
  EXPECT_EQ(hex_of(line_set_int(line, standard("req_time"), 300, arena)),
            "5a0161110700000000000000"
            "18ac02");
  EXPECT_EQ(hex_of(line_set_int(line, standard("uid"), -1, arena)), "5a01611805180611ffffffffffffffff");
  EXPECT_EQ(hex_of(line_set_real({}, standard("sample_rate"), 0.5, arena)), "dd010000003f");
  EXPECT_EQ(hex_of(line_set_text(line_of("ca0203696f73 1805"), standard("device_type"), "wp", arena)),
            "1805ca02027770");
  EXPECT_EQ(hex_of(line_clear(line, 3, arena)), "5a0161110700000000000000");
  EXPECT_TRUE(line_clear({}, 3, arena).empty());
}

TEST(LineIdTest, adding_to_a_repeated_field_spells_it_as_it_is) {
  Arena arena;
  const auto add = [&](std::string_view hex, std::string_view name, std::int64_t value) {
    return hex_of(line_add_int(line_of(hex), standard(name), value, arena));
  };
  EXPECT_EQ(add("", "actions", 1), "320101");
  EXPECT_EQ(add("320101 5a0161", "actions", 300), "320301ac025a0161");
  EXPECT_EQ(add("3001", "actions", 2), "30013002");
  EXPECT_EQ(add("", "special_strategies", 7), "b80207");
  // A tag that is longer than it needs to be stays whole.
  EXPECT_EQ(ints_of(line_add_int(line_of("b28000 0101"), standard("actions"), 2, arena), "actions"),
            (std::vector<std::int64_t>{1, 2}));
  EXPECT_THROW(add("", "device_type", 1), ConfigError);
}

TEST(LineIdTest, a_field_of_another_wire_type_than_declared_is_malformed) {
  std::int64_t value = 0;
  EXPECT_THROW(line_int(line_of("1007"), standard("uid"), value), wire::Malformed);
  std::string_view text;
  EXPECT_THROW(line_text(line_of("c80201"), standard("device_type"), text), wire::Malformed);
}

TEST(LineIdTest, names_the_fields_it_knows) {
  try {
    (void)find_field(standard_line_fields(), "nothing");
    FAIL();
  } catch (const ConfigError& error) {
    EXPECT_NE(std::string(error.what()).find("'nothing'; known fields: uid, req_time"), std::string::npos);
  }
}

TEST(LineIdTest, survives_garbage) {
  std::mt19937 random(7);
  Arena arena;
  for (int round = 0; round < 20000; ++round) {
    std::vector<std::byte> line(random() % 24);
    for (auto& byte : line) byte = static_cast<std::byte>(random());
    if (!line.empty() && round % 2 == 0) line[0] = std::byte{0x32};
    try {
      for (const auto& field : standard_line_fields()) {
        std::vector<std::int64_t> ints;
        if (field.kind == FieldKind::kInt) line_ints(line, field, ints);
      }
      (void)line_add_int(line, standard("actions"), 5, arena);
      (void)line_set_int(line, standard("uid"), 5, arena);
    } catch (const wire::Malformed&) {
    }
  }
}

}  // namespace
}  // namespace engine::data
