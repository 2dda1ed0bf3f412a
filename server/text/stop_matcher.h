#pragma once

// Finds the first stop string in streamed text. Neither the match nor the text before it depends on how the
// text is split into pieces.

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace foredraft {

// Owner: one request's output; not thread-safe.
class StopMatcher {
 public:
  struct Output {
    std::string text;     // safe to send: no stop string begins in it
    int stop_index = -1;  // the stop string that was found, in the constructor's order; -1 = none
  };

  // No stop string is empty.
  explicit StopMatcher(std::vector<std::string> stops);

  // Returns the text that may be sent. The match that ends first wins; of two that end at the same byte, the
  // longer. The stop string and the text after it are never returned.
  Output Feed(std::string_view delta);

  // Returns the text that was held back because a stop string could begin in it. Empty after a match.
  std::string Flush();

 private:
  struct Stop {
    std::string text;
    std::vector<size_t> fallback;  // [text.size()] Knuth-Morris-Pratt: the longest border of text[0..i]
    size_t matched = 0;            // bytes of `text` that the text so far ends in

    void Advance(char byte);
    bool complete() const { return matched == text.size(); }
  };

  size_t LongestStart() const;  // bytes at the end of the text that may belong to a stop

  std::vector<Stop> stops_;
  std::string pending_;  // received, not sent
  bool stopped_ = false;
};

}  // namespace foredraft
