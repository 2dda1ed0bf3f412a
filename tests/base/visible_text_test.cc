#include "base/visible_text.h"

#include <gtest/gtest.h>

#include <string>

namespace foredraft {
namespace {

TEST(VisibleText, EscapesWhatATerminalActsOn) {
  struct Case {
    const char* name;
    std::string text, visible;
  };
  for (const Case& test : {
           Case{"plain", "abc ~ \\x", "abc ~ \\x"},
           Case{"other scripts", "\xc3\xa9\xe4\xb8\xad\xf0\x9f\x98\x80",
                "\xc3\xa9\xe4\xb8\xad\xf0\x9f\x98\x80"},
           Case{"C0", std::string("a\0b\n\r\x1b[2J", 9), "a\\x00b\\x0a\\x0d\\x1b[2J"},
           Case{"DEL", "\x7f", "\\x7f"},
           Case{"C1: CSI, OSC, NEL", "\xc2\x9b\x32J\xc2\x9d\xc2\x85", "\\u009b2J\\u009d\\u0085"},
           Case{"no-break space, after C1", "\xc2\xa0", "\xc2\xa0"},
           Case{"separators", "\xe2\x80\xa8\xe2\x80\xa9", "\\u2028\\u2029"},
           Case{"direction", "\xe2\x80\xaa\xe2\x80\xae\xe2\x81\xa6\xe2\x81\xa9",
                "\\u202a\\u202e\\u2066\\u2069"},
           Case{"their neighbours", "\xe2\x80\xa7\xe2\x80\xaf\xe2\x81\xa5\xe2\x81\xaa",
                "\xe2\x80\xa7\xe2\x80\xaf\xe2\x81\xa5\xe2\x81\xaa"},
           Case{"C1 as a byte", "\x9b\x32J", "\\x9b2J"},
           Case{"overlong", "\xc0\x9b\xe0\x82\x9b", "\\xc0\\x9b\\xe0\\x82\\x9b"},
           Case{"surrogate", "\xed\xa0\x80", "\\xed\\xa0\\x80"},
           Case{"above Unicode", "\xf4\x90\x80\x80", "\\xf4\\x90\\x80\\x80"},
           Case{"cut", "a\xe2\x80", "a\\xe2\\x80"},
       }) {
    EXPECT_EQ(VisibleText(test.text), test.visible) << test.name;
  }
}

TEST(ShortText, EndsBetweenCharacters) {
  EXPECT_EQ(ShortText("", 3), "");
  EXPECT_EQ(ShortText("abcdef", 6), "abcdef");
  EXPECT_EQ(ShortText("abcdefg", 6), "abc...");
  EXPECT_EQ(ShortText("ab\xc3\xa9"
                      "ef",
                      6),
            "ab\xc3\xa9"
            "ef");
  EXPECT_EQ(ShortText("ab\xc3\xa9"
                      "efg",
                      6),
            "ab...");
  EXPECT_EQ(ShortText("a\xf0\x9f\x98\x80"
                      "efg",
                      7),
            "a...");
  EXPECT_EQ(ShortText("a\xf0\x9f\x98\x80"
                      "efg",
                      8),
            "a\xf0\x9f\x98\x80"
            "efg");
  EXPECT_EQ(ShortText("\x80\x80\x80\x80\x80", 4), "...");  // no characters
}

TEST(VisibleText, KeepsWhatItIsToldTo) { EXPECT_EQ(VisibleText("a\n\tb\r\x1b", "\n\t"), "a\n\tb\\x0d\\x1b"); }

}  // namespace
}  // namespace foredraft
