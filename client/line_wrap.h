#pragma once

// Breaks text on a terminal between words. A word is shown as it comes; one that reaches the edge is taken
// back and goes on in the next line, so nothing waits for a word to end. Lines end one column before the
// edge: terminals differ in where the cursor stands after the last column.

#include <cstdint>
#include <string>
#include <string_view>

namespace foredraft {

// Owner: one answer, which begins at the left edge. Not thread-safe.
class LineWrap {
 public:
  // Takes text whose escape sequences are whole and only set colours. `columns` is the terminal's present
  // width. Returns what to write.
  std::string Add(std::string_view text, int columns);

 private:
  void AddCharacter(std::string_view bytes, int width, std::string& out);
  void EndWord();

  int limit_ = 0;       // columns of a line
  int column_ = 0;      // where the cursor is, from 0
  std::string word_;    // since the last place where a line may break, with its escape sequences
  int word_width_ = 0;  // columns of word_
};

}  // namespace foredraft
