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
