// The limits of what is read from a JSON file, at the last value that is allowed and the first that is not.

#include "config/json_text.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>

namespace foredraft {
namespace {

using testing::HasSubstr;

std::string Refusal(const std::string& text) {
  return std::string(ParseJson(text, "f.json").status().message());
}

std::string Nested(int depth) { return std::string(depth, '[') + std::string(depth, ']'); }

TEST(ParseJson, NestsAsDeepAsItsLimit) {
  EXPECT_TRUE(ParseJson(Nested(kMaxJsonDepth), "f.json").ok());
  EXPECT_THAT(Refusal(Nested(kMaxJsonDepth + 1)), HasSubstr("f.json: nested deeper than 64"));
  EXPECT_THAT(Refusal(std::string(1'000'000, '[')), HasSubstr("f.json: nested deeper than 64"));
  std::string objects;
  for (int i = 0; i < kMaxJsonDepth; ++i) objects += "{\"a\":";
  EXPECT_TRUE(ParseJson(objects + "1" + std::string(kMaxJsonDepth, '}'), "f.json").ok());
  EXPECT_THAT(Refusal("{\"a\":" + objects + "1" + std::string(kMaxJsonDepth + 1, '}')),
              HasSubstr("f.json: nested deeper than 64"));
}

TEST(ParseJson, AKeyIsGivenOnceInAnObject) {
  EXPECT_THAT(Refusal(R"({"a": 1, "b": {"a": 2}, "a": 3})"), HasSubstr(R"(f.json: key "a" given twice)"));
  EXPECT_THAT(Refusal(R"([{"b": {"a": 1, "a": 1}}])"), HasSubstr(R"(f.json: key "a" given twice)"));
  EXPECT_TRUE(ParseJson(R"([{"a": 1}, {"a": {"a": 1}}])", "f.json").ok());
}

// It goes into statuses and answers, which hold UTF-8, and into trailers, which are bounded.
TEST(ParseJson, RefusalsShowBytesThatAreNotText) {
  EXPECT_THAT(Refusal("{\"max_to\x8e\": 1}"), HasSubstr("ill-formed UTF-8 byte; last read: '\"max_to\\x8e'"));
  EXPECT_THAT(Refusal("{\"a\": \"" + std::string(100'000, 'x') + "\x01\"}"), testing::EndsWith("xxx..."));
  EXPECT_LT(Refusal("{\"a\": \"" + std::string(100'000, 'x') + "\x01\"}").size(), 400u);
}

TEST(ParseJson, AZeroByteIsNotTheEnd) {
  using std::string_literals::operator""s;
  EXPECT_EQ(Refusal("{}\0"s), "f.json: not JSON: byte 2 is 0");
  EXPECT_EQ(Refusal("{}\0\"a"s), "f.json: not JSON: byte 2 is 0");
  EXPECT_FALSE(IsJson("{}\0"s));
  EXPECT_FALSE(IsJson("0\0-"s));
  EXPECT_TRUE(IsJson("{}"));
  EXPECT_FALSE(IsJson("{"));
}

TEST(IsJson, NestsAsDeepAsItsLimit) {
  EXPECT_TRUE(IsJson(Nested(kMaxJsonDepth)));
  EXPECT_FALSE(IsJson(Nested(kMaxJsonDepth + 1)));
  EXPECT_FALSE(IsJson(Nested(1'000'000)));
  EXPECT_TRUE(IsJson(
      R"({"a": "[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[\"[["})"));
}

TEST(ShowJson, IsShortAndUtf8) {
  std::string long_text;
  for (int i = 0; i < 40; ++i) long_text += "\xe4\xb8\xad";
  EXPECT_EQ(ShowJson(long_text), "\"" + long_text.substr(0, 75) + "...");
  EXPECT_EQ(ShowJson("a\x8e"), "\"a\xef\xbf\xbd\"");
}

TEST(ReadFileText, ReadsAsManyBytesAsItsLimit) {
  const std::string path = testing::TempDir() + "/json_text_" + std::to_string(getpid());
  for (const int size : {0, 10, 70'000}) {
    std::ofstream(path, std::ios::trunc) << std::string(size, 'x');
    const absl::StatusOr<std::string> text = ReadFileText(path, size);
    ASSERT_TRUE(text.ok()) << text.status();
    EXPECT_EQ(text->size(), static_cast<size_t>(size));
    if (size == 0) continue;
    EXPECT_EQ(ReadFileText(path, size - 1).status().message(),
              path + ": larger than " + std::to_string(size - 1) + " bytes");
  }
  std::filesystem::remove(path);
  ASSERT_EQ(mkfifo(path.c_str(), 0600), 0);
  EXPECT_EQ(ReadFileText(path, 10).status().message(), path + ": not a regular file");
  std::filesystem::remove(path);
  EXPECT_TRUE(absl::IsNotFound(ReadFileText(path, 10).status()));
}

}  // namespace
}  // namespace foredraft
