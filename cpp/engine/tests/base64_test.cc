// base64_test.cc: bytes of base64 texts, and invalid texts.
#include "engine/base64.h"

#include <gtest/gtest.h>

#include <optional>
#include <string>

namespace engine {
namespace {

std::optional<std::string> decoded(std::string_view text) {
  const auto size = base64_size(text);
  if (!size) return std::nullopt;
  std::string out(*size, '\0');
  if (!decode_base64(text, reinterpret_cast<std::byte*>(out.data()))) return std::nullopt;
  return out;
}

TEST(Base64, ReadsTheVectorsOfTheStandard) {
  EXPECT_EQ(decoded(""), "");
  EXPECT_EQ(decoded("Zg=="), "f");
  EXPECT_EQ(decoded("Zm8="), "fo");
  EXPECT_EQ(decoded("Zm9v"), "foo");
  EXPECT_EQ(decoded("Zm9vYg=="), "foob");
  EXPECT_EQ(decoded("Zm9vYmE="), "fooba");
  EXPECT_EQ(decoded("Zm9vYmFy"), "foobar");
  EXPECT_EQ(decoded("+/+/"), "\xfb\xff\xbf");
}

TEST(Base64, RefusesWhatIsNone) {
  for (const char* text : {"Z", "Zg", "Zg=", "Zm9v\n", "Z===", "====", "Zg==Zg==", "Zm 9", "Zm9-", "=g==", "Zm=v"}) {
    EXPECT_EQ(decoded(text), std::nullopt) << text;
  }
}

}  // namespace
}  // namespace engine
