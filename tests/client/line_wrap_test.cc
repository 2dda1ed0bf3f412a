#include "client/line_wrap.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <string>
#include <vector>

namespace foredraft {
namespace {

// What a terminal of so many columns shows, without blanks at the ends of lines. It knows what LineWrap
// writes: line ends, "move left", "erase to the end of the line" and colours, which it leaves out.
std::vector<std::string> Screen(const std::string& written, size_t columns) {
  std::vector<std::string> lines(1);
  size_t at = 0;
  for (size_t i = 0; i < written.size(); ++i) {
    std::string& line = lines.back();
    if (written[i] == '\n') {
      lines.emplace_back();
      at = 0;
    } else if (written[i] == '\x1b') {
      const size_t end = written.find_first_of("mDK", i);
      if (written[end] == 'D') at -= std::stoul(written.substr(i + 2));
      if (written[end] == 'K') line.resize(at);
      i = end;
    } else {
      if (at == columns) {  // the terminal's own break, which LineWrap is there to avoid
        lines.emplace_back("!");
        at = 1;
      }
      lines.back().resize(std::max(lines.back().size(), at + 1));
      lines.back()[at++] = written[i];
    }
  }
  for (std::string& line : lines) line.resize(line.find_last_not_of(' ') + 1);
  return lines;
}

std::vector<std::string> Wrapped(const std::string& text, int columns, size_t piece) {
  LineWrap wrap;
  std::string written;
  for (size_t at = 0; at < text.size(); at += piece) written += wrap.Add(text.substr(at, piece), columns);
  return Screen(written, static_cast<size_t>(columns));
}

using Lines = std::vector<std::string>;

TEST(LineWrap, BreaksBetweenWordsHoweverTheyCome) {
  const std::string text = "The quick brown fox jumps over the lazy dog.\n\nNext, a line.";
  for (size_t piece = 1; piece <= text.size(); ++piece) {
    EXPECT_EQ(Wrapped(text, 21, piece),
              Lines({"The quick brown fox", "jumps over the lazy", "dog.", "", "Next, a line."}))
        << piece;
    // A word that ends at the edge stays, and the blank behind it begins no line.
    EXPECT_EQ(Wrapped("12345 789 12345 78901 234", 22, piece), Lines({"12345 789 12345 78901", "234"}))
        << piece;
  }
}

TEST(LineWrap, AWordLongerThanALineBreaksAtTheEdge) {
  for (const size_t piece : {1, 7, 60}) {
    EXPECT_EQ(Wrapped("see https://example.org/a/long/path/indeed ok", 21, piece),
              Lines({"see", "https://example.org/", "a/long/path/indeed", "ok"}))
        << piece;
  }
}

TEST(LineWrap, ColoursTakeNoColumnsAndGoWithTheirWord) {
  LineWrap wrap;
  EXPECT_EQ(wrap.Add("\x1b[2mThe quick brown foxes\x1b[0m", 21),
            "\x1b[2mThe quick brown foxe\x1b[4D\x1b[K\nfoxes\x1b[0m");
}

TEST(LineWrap, WideCharactersBreakAnywhereAndMarksTakeNoColumn) {
  LineWrap wrap;
  std::string text, expected;
  for (int i = 0; i < 12; ++i) {
    text += "中";
    expected += i == 10 ? "\n中" : "中";  // 10 of 2 columns in a line of 21
  }
  EXPECT_EQ(wrap.Add(text, 22), expected);
  LineWrap marks;
  const std::string accents = "aaaaaaaaaaaaaaaaaaa e\xcc\x81";  // 20 columns and a half: no break
  EXPECT_EQ(marks.Add(accents, 22), accents);
}

// The text is all there, no line is too long, and none breaks within a word that a line can hold.
TEST(LineWrap, KeepsEveryWord) {
  std::mt19937 random(7);
  for (int trial = 0; trial < 200; ++trial) {
    const int columns = 20 + static_cast<int>(random() % 30);
    std::string text;
    for (int word = 0; word < 40; ++word) {
      text += std::string(1 + random() % (columns - 1), static_cast<char>('a' + word % 26)) + " ";
    }
    Lines words;
    for (const std::string& line : Wrapped(text, columns, 1 + random() % 9)) {
      ASSERT_LT(line.size(), static_cast<size_t>(columns));
      for (size_t at = 0; at < line.size();) {
        const size_t end = std::min(line.find(' ', at), line.size());
        words.push_back(line.substr(at, end - at));
        at = end + 1;
      }
    }
    std::string again;
    for (const std::string& word : words) again += word + " ";
    EXPECT_EQ(again, text) << "trial " << trial << ", " << columns << " columns";
  }
}

}  // namespace
}  // namespace foredraft
