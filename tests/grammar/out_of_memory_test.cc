// A matcher that runs out of memory leaves the others of its grammar, and those to come, as they are.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/prctl.h>

#include <cstdint>
#include <memory>
#include <new>
#include <string>
#include <vector>

#include "grammar/compile.h"
#include "tests/base/failing_allocator.h"
#include "tests/grammar/small_vocabulary.h"

namespace foredraft {
namespace {

constexpr char kThread[] = "grammar-test";
constexpr char kText[] = R"({"name":"ab\u00e9cd","tags":["x","yy"],"n":12,"o":{"q":[[1],[2]]}})";
constexpr char kSchema[] = R"({"type":"object","properties":{"name":{"type":"string","maxLength":9},
  "tags":{"type":"array","items":{"enum":["x","yy","yx"]},"minItems":2,"maxItems":5},"n":{"type":"integer"},
  "o":{"type":"object"}},"required":["name","tags","n","o"]})";

std::shared_ptr<const Grammar> NewGrammar() {
  static const auto vocabulary = SmallVocabulary({});
  auto grammar = CompileConstraint({.kind = Constraint::kJsonSchema, .source = kSchema}, vocabulary, {});
  EXPECT_TRUE(grammar.ok()) << grammar.status();
  return *std::move(grammar);
}

// What a mask allows.
std::vector<int32_t> IdsOf(const TokenMask& mask) {
  std::vector<int32_t> ids;
  for (int32_t id = 0; id < mask.vocab_size; ++id) {
    if (mask.Allows(id)) ids.push_back(id);
  }
  return ids;
}

// The masks in front of each byte of kText from `begin` on, each of them taken.
std::vector<std::vector<int32_t>> Masks(Matcher& matcher, size_t begin, size_t end) {
  std::vector<std::vector<int32_t>> masks;
  for (size_t i = begin; i < end; ++i) {
    const auto rows = matcher.RowsAlong(std::vector<int32_t>{static_cast<uint8_t>(kText[i])},
                                        {.drafts = 3, .forced_drafts = 2});
    const auto mask = matcher.Mask();
    EXPECT_TRUE(rows.ok() && mask.ok());
    masks.push_back(IdsOf(**mask));
    const auto taken = matcher.Advance(static_cast<uint8_t>(kText[i]));
    EXPECT_TRUE(taken.ok() && *taken) << i;
  }
  return masks;
}

TEST(GrammarOutOfMemory, LeavesOtherMatchersAsTheyAre) {
  prctl(PR_SET_NAME, kThread);
  const size_t length = std::string(kText).size();
  const size_t half = length / 2;
  Matcher undisturbed(NewGrammar());
  const std::vector<std::vector<int32_t>> wanted = Masks(undisturbed, 0, length);
  const std::vector<std::vector<int32_t>> wanted_end(wanted.begin() + half, wanted.end());
  bool fails = true;
  int64_t cases = 0;
  for (int64_t n = 0; fails; n += 1 + n / 64) {
    const std::shared_ptr<const Grammar> grammar = NewGrammar();
    Matcher before(grammar);
    Masks(before, 0, half);
    {
      const FailingAllocations failing(kThread, n);
      try {
        Matcher unlucky(grammar);
        Masks(unlucky, 0, length);
      } catch (const std::bad_alloc&) {
      }
      fails = failing.has_failed();
    }
    ASSERT_EQ(Masks(before, half, length), wanted_end) << "allocation " << n;
    Matcher after(grammar);
    ASSERT_EQ(Masks(after, 0, length), wanted) << "allocation " << n;
    ++cases;
  }
  EXPECT_GT(cases, 100);
}

}  // namespace
}  // namespace foredraft
