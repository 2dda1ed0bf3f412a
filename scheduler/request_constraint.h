#pragma once

#include <cstdint>
#include <memory>
#include <vector>

namespace foredraft {

class Grammar;

// What the output of a request must be (docs/structured-output.md). The server compiles it; the scheduler
// makes masks of it. A value; the grammar is shared by all requests with the same constraint.
struct RequestConstraint {
  std::shared_ptr<const Grammar> grammar;  // null: no constraint, and the other fields mean nothing
  // Tokens that end this request, in addition to those of the grammar's vocabulary: for example the request's
  // special stop ids.
  std::vector<int32_t> end_ids;
  // The output is free until one of these tokens, which the grammar takes first. Empty: the grammar holds
  // from the first token of the answer on.
  std::vector<int32_t> trigger_ids;  // at most kMaxTriggerIds
  // The grammar holds from the first token on, whatever phase the prompt ends in.
  bool from_first_token = false;
  // How many of the request's stop_ids, counted from the first, end a turn as EOS does. None of these is
  // chosen in a thought that the grammar follows at once. The rest of stop_ids are the client's own.
  int32_t turn_end_count = 0;
  // Tokens that consist of line ends. Up to kMostLineEnds line ends may come between a thought and the
  // grammar, which then begins with none. Empty: the grammar follows the thought at once.
  std::vector<int32_t> line_end_ids;
};

inline constexpr int kMostLineEnds = 2;

}  // namespace foredraft
