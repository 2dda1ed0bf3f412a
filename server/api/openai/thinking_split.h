#pragma once

// Splits the text of an answer into its thinking and the rest, where the tokens that begin and end thinking
// stand. The markers themselves are in neither part; a text that merely looks like one stays. Owner: one
// choice; not thread-safe.

#include <cstdint>
#include <deque>
#include <string>

#include "scheduler/plan.h"
#include "server/output/response_sink.h"
#include "server/text/tokenizer.h"

namespace foredraft {

class ThinkingSplit {
 public:
  struct Parts {
    std::string thinking;
    std::string answer;
  };

  // The tokenizer outlives this.
  ThinkingSplit(Phase prompt_phase, const ThinkingIds& ids, const Tokenizer& tokenizer)
      : ids_(ids), tokenizer_(tokenizer), phase_(prompt_phase) {}

  Parts Feed(const OutputDelta& delta);

 private:
  // A marker in the text of all tokens, and what follows it.
  struct Marker {
    int64_t begin;
    int64_t end;
    Phase phase;
  };
  void FindMarkers(const OutputDelta& delta);

  const ThinkingIds ids_;
  const Tokenizer& tokenizer_;
  Phase phase_;              // of the text at text_bytes_
  int64_t token_bytes_ = 0;  // of all tokens so far
  int64_t text_bytes_ = 0;   // of all text so far, which may be behind: some is held back
  std::deque<Marker> markers_;
};

}  // namespace foredraft
