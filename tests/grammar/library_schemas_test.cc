// Schemas as libraries write them (library_schemas/): each is taken and judges its values right, or is
// refused for the reason that its file names. The test prints the refused ones by reason.

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "grammar/json_source.h"
#include "tests/grammar/key_order.h"
#include "tests/grammar/schema_texts.h"

namespace foredraft {
namespace {

constexpr size_t kSchemas = 80;
constexpr size_t kLeastTaken = 70;

std::string ReadFile(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

void ExpectValues(const std::shared_ptr<const Grammar>& grammar, const JsonValue& values, bool is_valid) {
  EXPECT_GE(values.items.size(), 2u);
  for (const JsonValue& value : values.items) {
    EXPECT_EQ(Try(grammar, DumpJson(value)) == "accepted", is_valid) << DumpJson(value);
  }
}

TEST(LibrarySchemas, AreTakenOrRefusedForTheirReason) {
  std::vector<std::filesystem::path> paths;
  for (const auto& entry : std::filesystem::directory_iterator(FOREDRAFT_LIBRARY_SCHEMAS)) {
    if (entry.path().extension() == ".json") paths.push_back(entry.path());
  }
  std::sort(paths.begin(), paths.end());
  size_t count = 0, taken = 0;
  std::map<std::string, std::vector<std::string>> refused;  // by reason
  for (const std::filesystem::path& path : paths) {
    const auto root = ParseJsonSource(ReadFile(path), 100);
    ASSERT_TRUE(root.ok()) << path << root.status();
    for (const JsonValue& item : (*root)->items) {
      const std::string name = path.stem().string() + ", " + item.Find("name")->text;
      SCOPED_TRACE(name);
      ++count;
      const auto grammar = CompileSchema(DumpJson(*item.Find("schema")));
      if (const JsonValue* reason = item.Find("refused"); reason != nullptr) {
        ASSERT_FALSE(grammar.ok()) << "is taken now: remove its reason";
        EXPECT_NE(grammar.status().message().find(reason->text), std::string::npos) << grammar.status();
        refused[reason->text].push_back(name);
        continue;
      }
      EXPECT_TRUE(grammar.ok()) << grammar.status();
      if (!grammar.ok()) continue;
      ++taken;
      ExpectValues(*grammar, *item.Find("valid"), true);
      ExpectValues(*grammar, *item.Find("invalid"), false);
    }
  }
  std::printf("%zu of %zu schemas are taken\n", taken, count);
  for (const auto& [reason, names] : refused) {
    for (const std::string& name : names) std::printf("%s: %s\n", reason.c_str(), name.c_str());
  }
  EXPECT_EQ(count, kSchemas);
  EXPECT_GE(taken, kLeastTaken);
}

}  // namespace
}  // namespace foredraft
