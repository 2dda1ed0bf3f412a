// Multiples and counts of a JSON Schema, tried one by one.

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <string>

#include "absl/strings/str_cat.h"
#include "tests/grammar/schema_texts.h"

namespace foredraft {
namespace {

TEST(JsonSchema, TakesTheMultiplesOfADecimal) {
  // In units of 0.001.
  for (const int multiple : {1, 2, 50, 250, 300, 500, 700, 1'000, 128, 12'000, 20'000, 36'000, 120'000}) {
    const std::string text = absl::StrCat(multiple / 1000, ".", absl::Dec(multiple % 1000, absl::kZeroPad3));
    SCOPED_TRACE(text);
    const auto grammar = *CompileSchema(R"({"type":"number","minimum":-50,"multipleOf":)" + text + "}");
    for (int value = -60'000; value <= 500'000; value += value % 7 == 0 ? 1 : 250 - value % 250) {
      std::string number = absl::StrCat(value < 0 ? "-" : "", std::abs(value) / 1000);
      std::string fraction = absl::StrCat(absl::Dec(std::abs(value) % 1000, absl::kZeroPad3));
      while (fraction.ends_with("0")) fraction.pop_back();
      if (!fraction.empty()) number += "." + fraction;
      ASSERT_EQ(Try(grammar, number) == "accepted", value >= -50'000 && value % multiple == 0) << number;
    }
  }
}

std::string ManyProperties(int count, const std::string& others) {
  std::string properties;
  for (int i = 0; i < count; ++i) properties += absl::StrCat(i > 0 ? "," : "", "\"p", i, "\":{}");
  return absl::StrCat(R"({"type":"object","properties":{)", properties, "},", others, "}");
}

TEST(JsonSchema, CountsDeclaredProperties) {
  // a is required; x is another property.
  EXPECT_EQ(CompileSchema(ManyProperties(300, R"("maxProperties":9)")).status().message(),
            "json_schema: #/maxProperties: 9 beside 300 properties, allowed 6 beside so many");
  EXPECT_TRUE(CompileSchema(ManyProperties(300, R"("maxProperties":6)")).ok());
  for (const bool has_others : {false, true}) {
    for (int min = 0; min <= 4; ++min) {
      for (int max = 0; max <= 5; ++max) {
        const std::string schema = absl::StrCat(
            R"({"type":"object","properties":{"a":{},"b":{},"c":{}},"required":["a"],"minProperties":)", min,
            R"(,"maxProperties":)", max, R"(,"additionalProperties":)", has_others ? "true}" : "false}");
        SCOPED_TRACE(schema);
        const auto grammar = CompileSchema(schema);
        const bool may_be = max >= std::max(min, 1) && (has_others || min <= 3);
        if (has_others && min > 1 && max > 0) {
          EXPECT_FALSE(grammar.ok());
          continue;
        }
        ASSERT_EQ(grammar.ok(), may_be) << grammar.status();
        for (int set = 0; set < 32 && may_be; ++set) {
          std::string text;
          int count = 0;
          for (int key = 0; key < 5; ++key) {  // x and y are others
            if ((set >> key & 1) == 0) continue;
            text += absl::StrCat(count++ > 0 ? ", " : "", "\"", std::string(1, "abcxy"[key]), "\": 1");
          }
          const bool is_valid = (set & 1) && count >= min && count <= max && (has_others || set < 8);
          EXPECT_EQ(Try(*grammar, "{" + text + "}") == "accepted", is_valid) << text;
        }
      }
    }
  }
}

}  // namespace
}  // namespace foredraft
