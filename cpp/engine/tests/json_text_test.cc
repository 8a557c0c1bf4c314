// json_text_test.cc: records out of JSON, and floats into it.
#include "engine/json_text.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

namespace engine {
namespace {

TEST(LiftRecords, LeavesTheirNumbersInTheirPlaces) {
  const auto found = lift_records(R"({"inputs": {"example": [ {"b64":"Zm9v"}, { "b64" : "" } ], "other": 1}})");
  ASSERT_TRUE(found);
  EXPECT_EQ(found->rest, R"({"inputs": {"example": [ {"b64":0}, {"b64":1} ], "other": 1}})");
  EXPECT_EQ(found->records, (std::vector<std::string_view>{"Zm9v", ""}));
}

TEST(LiftRecords, TakesNothingWhereThereIsNone) {
  for (const char* text : {"", "{}", R"({"a": "b"})", "no JSON", "\"", R"({"b64x": "Zm9v"})"}) {
    EXPECT_FALSE(lift_records(text)) << text;
  }
}

TEST(LiftRecords, TakesNothingThatCouldBeMistaken) {
  const char* texts[] = {
      R"([{"b64": "Zm9v"}, {"b64": 0}])",           // a number of the client's own
      R"([{"b64": "Zm9v", "more": 1}])",            // not the only value
      R"([{"more": 1, "b64": "Zm9v"}])",            //
      R"([{"b64": "Zm9v"}, "b64"])",                // a value
      R"([{"b64": "Zm\"9v"}])",                     // an escape in the text
      R"([{"b64": "Zm9v"}, {"\u0062\u0036": 0}])",  // or anywhere else
      R"([{"b64": "Zm9v"}, "open)",                 //
      R"({"b64)",
      R"({"b64")",
      R"({"b64":)",
      R"({"b64":")",
      R"({"b64":"Zm9v)",
      R"({"b64":"Zm9v")",
      R"("b64":"x"})",
  };
  for (const char* text : texts) EXPECT_FALSE(lift_records(text)) << text;
}

std::string written(std::vector<float> values, std::vector<std::size_t> sizes) {
  std::string out;
  append_json(values, sizes, out);
  return out;
}

TEST(AppendJson, NestsArrays) {
  EXPECT_EQ(written({0.5F}, {}), "0.5");
  EXPECT_EQ(written({}, {0}), "[]");
  EXPECT_EQ(written({}, {2, 0}), "[[],[]]");
  EXPECT_EQ(written({1, 2, 3, 4}, {2, 2}), "[[1.0,2.0],[3.0,4.0]]");
  EXPECT_EQ(written({1, 2}, {2, 1, 1}), "[[[1.0]],[[2.0]]]");
}

TEST(AppendJson, WritesWhatIsNoNumberAsJavaScriptDoes) {
  constexpr float infinity = std::numeric_limits<float>::infinity();
  EXPECT_EQ(written({std::nanf(""), infinity, -infinity}, {3}), "[NaN,Infinity,-Infinity]");
}

TEST(AppendJson, WritesFloatsThatAreReadAsThemselves) {
  std::mt19937 random(7);
  for (int i = 0; i < 20'000; ++i) {
    const auto bits = static_cast<std::uint32_t>(random());
    float value = 0;
    std::memcpy(&value, &bits, sizeof value);
    if (!std::isfinite(value)) continue;
    const std::string text = written({value}, {});
    EXPECT_EQ(std::strtof(text.c_str(), nullptr), value) << text;
    EXPECT_NE(text.find_first_of(".e"), std::string::npos) << text;
  }
}

}  // namespace
}  // namespace engine
