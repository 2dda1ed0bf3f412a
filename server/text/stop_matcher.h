#ifndef FOREDRAFT_SERVER_TEXT_STOP_MATCHER_H_
#define FOREDRAFT_SERVER_TEXT_STOP_MATCHER_H_

// Finds the first stop string in text that comes in pieces. Where the pieces are cut changes neither the
// match nor the text before it.

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

  // `stops`: none of them empty.
  explicit StopMatcher(std::vector<std::string> stops);

  // The match that is complete first wins; of two complete with the same byte, the longer. Text before it is
  // sent, the stop and what follows it never. After a match, everything fed is dropped.
  Output Feed(std::string_view delta);

  // What was kept back because a stop could have begun in it. Empty after a match.
  std::string Flush();

 private:
  struct Stop {
    std::string text;
    std::vector<size_t> fallback;  // [text.size()] Knuth-Morris-Pratt: the longest border of text[0..i]
    size_t matched = 0;            // how much of `text` the text so far ends in

    void Advance(char byte);
    bool complete() const { return matched == text.size(); }
  };

  size_t LongestStart() const;  // bytes at the end of the text that may belong to a stop

  std::vector<Stop> stops_;
  std::string pending_;  // received, not sent
  bool stopped_ = false;
};

}  // namespace foredraft

#endif  // FOREDRAFT_SERVER_TEXT_STOP_MATCHER_H_
