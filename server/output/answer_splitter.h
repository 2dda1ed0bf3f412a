#pragma once

// Feeds AnswerParser from the tokens of an output and from its text, which may come later than the tokens:
// some is held back because a stop string may begin in it. The tokens of markup are found by id, so a text
// that merely looks like markup stays text. Owner: one request's output; not thread-safe.

#include <cstdint>
#include <deque>
#include <string>
#include <string_view>
#include <vector>

#include "scheduler/request.h"
#include "server/text/answer_parser.h"
#include "server/text/tokenizer.h"

namespace foredraft {

class AnswerSplitter {
 public:
  // The tokenizer outlives this.
  AnswerSplitter(AnswerOptions options, const ThinkingIds& thinking, const Tokenizer& tokenizer)
      : syntax_(*options.syntax),
        thinking_(thinking),
        most_line_ends_(options.line_ends_behind_thought),
        tokenizer_(tokenizer),
        parser_(std::move(options)) {}

  // Takes the next token, which adds `text_bytes` to the text of the output. Returns how many of them are in
  // no part of the answer: they spell out a tag of thinking, or line ends that only end a thought
  // (AnswerOptions::line_ends_behind_thought).
  int32_t AddToken(int32_t id, int32_t text_bytes);
  // Text of the tokens so far, or of an incomplete character at the end.
  void AddText(std::string_view text, AnswerDelta& delta);
  // Called after the last text.
  void End(AnswerDelta& delta);

  const AnswerParser& parser() const { return parser_; }

 private:
  static constexpr int kNoMark = -1;
  // A token that is no part of the answer: markup, or with kNoMark a line end. Bytes [begin, end) of all
  // tokens' text are its own.
  struct Marker {
    int64_t begin;
    int64_t end;
    int mark;
  };
  int MarkOf(int32_t id) const;
  // Whether the token is a line end after a thought. Called for every token once, in their order.
  bool TakeLineEnd(int32_t id);
  // Feeds the markers that the text has reached.
  void PassMarkers(AnswerDelta& delta);

  const AnswerSyntax& syntax_;
  const ThinkingIds thinking_;
  const int most_line_ends_;
  const Tokenizer& tokenizer_;
  AnswerParser parser_;
  int64_t token_bytes_ = 0;  // of all tokens so far
  int64_t text_bytes_ = 0;   // of all text so far
  std::deque<Marker> markers_;
  size_t line_ends_left_ = 0;  // that may follow the thought that has just ended
};

}  // namespace foredraft
