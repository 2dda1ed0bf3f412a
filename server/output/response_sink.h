#pragma once

// The interface between the output thread and a client's call, without gRPC: plain structs and ResponseSink.

#include <array>
#include <cstdint>
#include <iterator>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "kernels/slot_arrays.h"
#include "scheduler/request.h"
#include "server/text/answer_parser.h"

namespace foredraft {

// A request's accounting so far. completion_tokens = 1 + steps + accepted_tokens once there is a token.
struct RequestStats {
  int prompt_tokens = 0;
  int completion_tokens = 0;
  int cached_tokens = 0;
  int thinking_tokens = 0;
  bool budget_reached = false;  // a thought was ended because its budget was spent
  int steps = 0;
  int draft_tokens = 0;
  int accepted_tokens = 0;
  int relaxed_tokens = 0;                          // emitted drafts that the strict rule rejects
  int drafts_outside_grammar = 0;                  // steps with a draft that the constraint refuses
  int forced_drafts = 0;                           // of draft_tokens: text that the constraint forces
  std::array<int, kMaxDraftLen> accepted_at = {};  // accepted drafts by their position in the step
  bool forced = false;                             // forced acceptance was on in some step
  double queue_ms = 0;
  double ttft_ms = 0;
  double total_ms = 0;

  double acceptance_length() const {
    return steps == 0 ? 1.0 : 1.0 + static_cast<double>(accepted_tokens) / steps;
  }
  // Steps by the number of drafts they accepted, 0 to `max_draft_len`. Their sum is `steps`.
  std::vector<int> AcceptedHistogram(int max_draft_len) const {
    std::vector<int> histogram(static_cast<size_t>(max_draft_len) + 1);
    int at_least = steps;
    for (int i = 0; i < max_draft_len; ++i) {
      histogram[i] = at_least - accepted_at[i];
      at_least = accepted_at[i];
    }
    histogram[max_draft_len] = at_least;
    return histogram;
  }
  double tokens_per_second() const {
    return total_ms > ttft_ms && completion_tokens > 1 ? (completion_tokens - 1) / (total_ms - ttft_ms) * 1e3
                                                       : 0;
  }
};

// Where a token comes from. The target chose every one of them (docs/speculation.md section 2); a draft only
// proposed some of them earlier. A request with tokens has one kFirst, and each of its `steps` one kTarget
// after its kDrafted ones. A step that a stop, the limit or the end of a thought cut after an accepted draft
// has no kTarget: its last token is kDrafted, and still not in accepted_tokens, which never count the last
// token of a step.
enum class TokenOrigin : uint8_t {
  kFirst,    // the prefill
  kTarget,   // the token of a decode step for which the target needed no draft, its last one
  kDrafted,  // an accepted draft
};

// Where a token of the output comes from, and its share of the text.
struct TokenMark {
  TokenOrigin origin = TokenOrigin::kTarget;
  // Bytes of the output's text, 0 where the token completes no character. The bytes of all tokens, in order,
  // are the text, including what is held back because a stop string may begin in it, and a stop string that
  // was found. In a chat answer these bytes are thinking, text and what spells out calls; the tags of
  // thinking count 0, and so do the line ends between a thought and a constrained answer.
  int32_t text_bytes = 0;
};

struct OutputDelta {
  std::string text;              // whole characters; of a chat answer without thinking and calls
  std::string thinking;          // of a chat answer, without its tags
  std::vector<CallDelta> calls;  // of a chat answer, ascending by index
  std::vector<AnswerRun> runs;   // of a chat answer: the order of the three
  std::vector<int32_t> token_ids;
  std::vector<TokenMark> marks;        // one per token
  std::vector<TokenLogprob> logprobs;  // one per token, if requested
  RequestStats stats;                  // cumulative, this delta included

  // Appends the delta that follows this one.
  void Append(OutputDelta next) {
    text.append(next.text);
    thinking.append(next.thinking);
    AppendCalls(calls, std::move(next.calls));
    for (const AnswerRun& run : next.runs) AppendRun(runs, run);
    token_ids.insert(token_ids.end(), next.token_ids.begin(), next.token_ids.end());
    marks.insert(marks.end(), next.marks.begin(), next.marks.end());
    logprobs.insert(logprobs.end(), std::make_move_iterator(next.logprobs.begin()),
                    std::make_move_iterator(next.logprobs.end()));
    stats = next.stats;
  }
  // Clears everything but the stats; keeps the capacity.
  void Clear() {
    text.clear();
    thinking.clear();
    calls.clear();
    runs.clear();
    token_ids.clear();
    marks.clear();
    logprobs.clear();
  }
};

struct OutputEnd {
  FinishReason finish = FinishReason::kNone;
  std::optional<std::string> matched_stop;
  std::optional<int32_t> matched_stop_token_id;
  bool called_tools = false;  // the answer ended by itself and has calls, all of them complete
  absl::Status status;        // of the call; ok for stop and length
};

// The response side of one call. Push and End are called by one thread at a time and never block.
class ResponseSink {
 public:
  virtual ~ResponseSink() = default;
  // False: the client reads too slowly, and the delta was not taken. Throws std::bad_alloc where there is no
  // memory for it; then nothing but End may follow.
  virtual bool Push(OutputDelta delta) = 0;
  // Called once, as the last call. `delta` has the tokens left to deliver, if any, and the final stats.
  virtual void End(OutputDelta delta, OutputEnd end) = 0;
  // True once nothing more will be sent.
  virtual bool closed() const = 0;
  // Cancels a call whose client does not read; no effect once closed.
  virtual void Abandon() = 0;
};

// "stop", "length", "cancelled", "deadline", "error"; "" for kNone.
const char* FinishReasonName(FinishReason finish);
// The reason as clients get it: its name, or "tool_calls".
const char* FinishReasonName(const OutputEnd& end);

}  // namespace foredraft
