// Every case of draft 7 in Debian's json-schema-test-suite: its schema is refused, or its value is judged as
// the suite says.

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <set>
#include <string>
#include <vector>

#include "grammar/compile.h"
#include "grammar/json_source.h"
#include "tests/grammar/key_order.h"
#include "tests/grammar/small_vocabulary.h"

namespace foredraft {
namespace {

bool IsTaken(const std::shared_ptr<const Grammar>& grammar, const std::string& text) {
  Matcher matcher(grammar);
  for (const char c : text) {
    const auto taken = matcher.Advance(static_cast<uint8_t>(c));
    if (!taken.ok() || !*taken) return false;
  }
  return matcher.IsAccepting();
}

// All orders of the keys at the top: the grammar takes one of them.
bool IsTakenInSomeOrder(const std::shared_ptr<const Grammar>& grammar, const JsonValue& value) {
  if (!value.is_object() || value.keys.size() > 6) return IsTaken(grammar, DumpJson(value));
  std::vector<size_t> order(value.keys.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = i;
  do {
    std::string text = "{";
    for (size_t i = 0; i < order.size(); ++i) {
      text += (i > 0 ? ", " : "") + QuoteJson(value.keys[order[i]]) + ": " + DumpJson(value.items[order[i]]);
    }
    if (IsTaken(grammar, text + "}")) return true;
  } while (std::next_permutation(order.begin(), order.end()));
  return false;
}

// Valid values that are not offered, and why.
const std::set<std::string> kNotOffered = {
    // Numbers are spelled without ".0" and within 19 digits where the schema says integer.
    "integer: a float with zero fractional part is an integer",
    // Draft 7 ignores keywords beside $ref; they are merged here, as later drafts say.
    "ref overrides any sibling keywords: ref valid, maxItems ignored",
};

TEST(SchemaSuite, EveryCaseIsRefusedOrRight) {
  const auto vocabulary = SmallVocabulary({});
  std::vector<std::filesystem::path> paths;
  for (const auto& entry : std::filesystem::directory_iterator(FOREDRAFT_SCHEMA_SUITE)) {
    if (entry.path().extension() == ".json") paths.push_back(entry.path());
  }
  std::sort(paths.begin(), paths.end());
  int compiled = 0, refused = 0, cases = 0;
  for (const std::filesystem::path& path : paths) {
    std::ifstream file(path, std::ios::binary);
    const std::string text{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
    const auto root = ParseJsonSource(text, 100);
    ASSERT_TRUE(root.ok()) << path << root.status();
    for (const JsonValue& group : (*root)->items) {
      const std::string source = DumpJson(*group.Find("schema"));
      SCOPED_TRACE(path.filename().string() + ": " + source);
      const auto grammar =
          CompileConstraint({.kind = Constraint::kJsonSchema, .source = source}, vocabulary, {});
      if (!grammar.ok()) {
        ++refused;
        EXPECT_EQ(grammar.status().code(), absl::StatusCode::kInvalidArgument);
        // No value may be valid for a schema that is refused as empty.
        const bool is_empty =
            std::string(grammar.status().message()).find("no value satisfies") != std::string::npos;
        for (const JsonValue& test : group.Find("tests")->items) {
          EXPECT_FALSE(is_empty && test.Find("valid")->boolean) << grammar.status();
        }
        continue;
      }
      ++compiled;
      for (const JsonValue& test : group.Find("tests")->items) {
        ++cases;
        const std::string name = group.Find("description")->text + ": " + test.Find("description")->text;
        const bool is_valid = test.Find("valid")->boolean;
        const bool is_taken = IsTakenInSomeOrder(*grammar, *test.Find("data"));
        const bool is_listed = kNotOffered.contains(name);
        EXPECT_EQ(is_taken, is_valid && !is_listed) << name << ": " << DumpJson(*test.Find("data"));
      }
    }
  }
  std::printf("%d schemas compiled, %d refused, %d cases\n", compiled, refused, cases);
  EXPECT_GT(compiled, 70);
}

}  // namespace
}  // namespace foredraft
