#include "server/text/json_slice.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <random>
#include <string>

namespace foredraft {
namespace {

using json = nlohmann::ordered_json;

std::string RandomText(std::mt19937& random) {
  static const std::vector<std::string> pieces = {"a", "\"", "\\", "\\\"", "{", "}",      "[",  "]",
                                                  ",", ":",  "\n", " ",    "ü", "\\\\\"", "tt", "\x01"};
  std::string text;
  for (size_t i = random() % 6; i > 0; --i) text += pieces[random() % pieces.size()];
  return text;
}

json RandomValue(std::mt19937& random, int depth) {
  switch (random() % (depth > 0 ? 6 : 4)) {
    case 0:
      return RandomText(random);
    case 1:
      return static_cast<int>(random() % 1000);
    case 2:
      return random() % 2 == 0;
    case 3:
      return nullptr;
    case 4: {
      json list = json::array();
      for (size_t i = random() % 4; i > 0; --i) list.push_back(RandomValue(random, depth - 1));
      return list;
    }
    default: {
      json object = json::object();
      for (size_t i = random() % 4; i > 0; --i) object[RandomText(random)] = RandomValue(random, depth - 1);
      return object;
    }
  }
}

void ExpectSlices(const json& value, std::string_view text) {
  EXPECT_EQ(json::parse(text), value) << text;
  if (value.is_array()) {
    const std::vector<std::string_view> texts = ElementTexts(text);
    ASSERT_EQ(texts.size(), value.size()) << text;
    for (size_t i = 0; i < texts.size(); ++i) ExpectSlices(value[i], texts[i]);
  } else if (value.is_object()) {
    const auto members = MemberTexts(text);
    ASSERT_EQ(members.size(), value.size()) << text;
    size_t i = 0;
    for (const auto& [key, member] : value.items()) {
      EXPECT_EQ(members[i].first, key) << text;
      EXPECT_EQ(MemberText(text, key), members[i].second) << text;
      ExpectSlices(member, members[i++].second);
    }
    EXPECT_EQ(MemberText(text, "no such member"), "");
  }
}

TEST(JsonSlice, IsTheTextOfEachValue) {
  std::mt19937 random(7);
  for (int i = 0; i < 5000; ++i) {
    const json value = RandomValue(random, 4);
    const int indent = static_cast<int>(random() % 3) - 1;
    const bool only_ascii = random() % 2 == 0;
    ExpectSlices(value, value.dump(indent, ' ', only_ascii));
    if (HasFailure()) FAIL() << "seed 7, case " << i;
  }
}

TEST(JsonSlice, KeepsTheSpellingAndReadsNamesWithoutEscapes) {
  const std::string text = R"({"\u0061": 1.50e3 , "b\\": "\\\"}", "c": [ {"d" :[]} ,-0]})";
  EXPECT_EQ(MemberText(text, "a"), "1.50e3");
  EXPECT_EQ(MemberText(text, "b\\"), R"("\\\"}")");
  EXPECT_EQ(MemberText(text, "c"), R"([ {"d" :[]} ,-0])");
  EXPECT_EQ(MemberText("[1]", "a"), "");
  EXPECT_TRUE(ElementTexts("{}").empty());
  EXPECT_TRUE(ElementTexts(" [ ] ").empty());
}

}  // namespace
}  // namespace foredraft
