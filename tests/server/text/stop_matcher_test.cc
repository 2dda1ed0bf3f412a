#include "server/text/stop_matcher.h"

#include <gtest/gtest.h>

#include <random>

namespace foredraft {
namespace {

struct StopCase {
  const char* name;
  std::vector<std::string> stops;
  std::string text;
  std::string sent;
  int stop_index;
};

const StopCase kStopCases[] = {
    {"NoStops", {}, "abc", "abc", -1},
    {"NotFound", {"xy"}, "axbyx", "axbyx", -1},
    {"InTheMiddle", {"bc"}, "abcd", "a", 0},
    {"AtTheStart", {"a"}, "abc", "", 0},
    {"AtTheEnd", {"bc"}, "abc", "a", 0},
    {"FirstOfSeveral", {"dd", "bb"}, "abbccdd", "a", 1},
    {"CompleteFirst", {"abcd", "bc"}, "xabcd", "xa", 1},
    {"LongerAtTheSameByte", {"c", "bc"}, "abc", "a", 1},
    {"OverlapsItself", {"aab"}, "aaaab", "aa", 0},
    {"FailsLate", {"ababac"}, "abababac!", "ab", 0},
    {"OneIsPartOfAnother", {"<stop>", "<s>"}, "a<sto<s>b", "a<sto", 1},
    {"ManyBytesPerLetter", {"。終"}, "はい。終わり", "はい", 0},
    {"Twice", {"x", "x"}, "ax", "a", 0},
    {"StopsAtTheFirst", {"\n\n"}, "a\nb\n\nc\n\n", "a\nb", 0},
};

TEST(StopMatcher, FindsTheSameWhereverTheTextIsCut) {
  for (const StopCase& test_case : kStopCases) {
    for (size_t first = 0; first <= test_case.text.size(); ++first) {
      for (size_t second = first; second <= test_case.text.size(); ++second) {
        StopMatcher matcher(test_case.stops);
        std::string sent;
        int stop_index = -1;
        for (const auto& [from, to] : {std::pair(size_t{0}, first), std::pair(first, second),
                                       std::pair(second, test_case.text.size())}) {
          const StopMatcher::Output output = matcher.Feed(test_case.text.substr(from, to - from));
          sent += output.text;
          if (output.stop_index >= 0) stop_index = output.stop_index;
        }
        sent += matcher.Flush();
        EXPECT_EQ(sent, test_case.sent) << test_case.name << " cut at " << first << " and " << second;
        EXPECT_EQ(stop_index, test_case.stop_index)
            << test_case.name << " cut at " << first << " and " << second;
      }
    }
  }
}

TEST(StopMatcher, HoldsBackWhatMayBecomeAStopAndNoMore) {
  StopMatcher matcher({"<end>", "dx"});
  EXPECT_EQ(matcher.Feed("abc<en").text, "abc");
  EXPECT_EQ(matcher.Feed("d").text, "");
  EXPECT_EQ(matcher.Feed("?").text, "<end?");
  EXPECT_EQ(matcher.Feed("<end").text, "");
  const StopMatcher::Output output = matcher.Feed("x>");  // "dx" is complete, "<end>" is not
  EXPECT_EQ(output.text, "<en");
  EXPECT_EQ(output.stop_index, 1);
  EXPECT_EQ(matcher.Feed("more").text, "");
  EXPECT_EQ(matcher.Flush(), "");
}

// The stop that ends first in the whole text; if several end there, the longest.
StopMatcher::Output FindSlowly(const std::vector<std::string>& stops, const std::string& text) {
  for (size_t end = 1; end <= text.size(); ++end) {
    StopMatcher::Output best;
    size_t longest = 0;
    for (size_t s = 0; s < stops.size(); ++s) {
      const size_t size = stops[s].size();
      if (size <= end && size > longest && text.compare(end - size, size, stops[s]) == 0) {
        longest = size;
        best = {text.substr(0, end - size), static_cast<int>(s)};
      }
    }
    if (longest > 0) return best;
  }
  return {text, -1};
}

TEST(StopMatcher, AgreesWithASearchOfTheWholeText) {
  constexpr uint32_t kSeed = 7;
  std::mt19937 random(kSeed);
  const auto letters = [&](int most) {
    std::string text;
    for (int i = 1 + random() % most; i > 0; --i) text += "ab"[random() % 2];
    return text;
  };
  for (int round = 0; round < 20000; ++round) {
    std::vector<std::string> stops;
    for (int i = random() % 4; i > 0; --i) stops.push_back(letters(6));
    const std::string text = letters(24);
    const StopMatcher::Output expected = FindSlowly(stops, text);
    StopMatcher matcher(stops);
    StopMatcher::Output all;
    for (size_t at = 0; at < text.size();) {
      const size_t count = 1 + random() % 5;
      const StopMatcher::Output output = matcher.Feed(std::string_view(text).substr(at, count));
      all.text += output.text;
      if (output.stop_index >= 0) all.stop_index = output.stop_index;
      at += count;
    }
    all.text += matcher.Flush();
    ASSERT_EQ(all.text, expected.text) << "seed " << kSeed << ", round " << round << ", text " << text;
    ASSERT_EQ(all.stop_index, expected.stop_index)
        << "seed " << kSeed << ", round " << round << ", text " << text;
  }
}

}  // namespace
}  // namespace foredraft
