#pragma once

// One request's output: turns tokens into text, matches stop strings and does the request's accounting. No
// threads, no gRPC. Owner and thread: OutputThread.
//
// Only tokens that the client gets are counted: tokens computed past a stop string are dropped. A step that a
// stop string cuts short counts its emitted tokens - 1 as accepted, and a step without emitted tokens is not
// counted.

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "scheduler/request.h"
#include "server/output/answer_splitter.h"
#include "server/output/metrics.h"
#include "server/output/response_sink.h"
#include "server/output/trace_context.h"
#include "server/text/detokenizer.h"
#include "server/text/stop_matcher.h"
#include "server/text/tokenizer.h"

namespace foredraft {

struct OutputSpec {
  uint64_t id = 0;         // Request::id
  std::string request_id;  // the client's
  std::string client;      // whose it is: the name of its token, or its address without the port
  std::optional<TraceContext> trace;
  int prompt_tokens = 0;
  std::vector<std::string> stop;
  bool keeps_stop = false;              // the text ends with the stop string that was found
  int ignored_fields = 0;               // of the request: how many had no effect
  int32_t min_tokens = 0;               // the first min_tokens tokens' text is no part of a stop string
  std::vector<int32_t> stop_token_ids;  // the request's own, without EOS
  Phase prompt_phase = Phase::kAnswer;
  ThinkingIds thinking;
  int32_t thought_limit = -1;           // ThinkingBudget::limit; -1: none
  std::optional<AnswerOptions> answer;  // of chat: how thinking and calls are separated from the text
  SteadyTime arrival;
  SteadyTime deadline = SteadyTime::max();
  std::shared_ptr<const void> queue_place;  // given back at the first token, or with the stream
};

class OutputStream {
 public:
  // Tokenizer and metrics outlive the stream.
  OutputStream(OutputSpec spec, const Tokenizer& tokenizer, Metrics& metrics);

  // Returns what the client gets for an update. Ends the stream on a stop string or on the update's finish.
  OutputDelta Apply(RequestUpdate update, SteadyTime now);
  // Ends a stream before its last update: `status` is the call's.
  void EndEarly(FinishReason finish, absl::Status status, SteadyTime now);

  // Set once the stream has ended; its stats are then final and its finish reason is counted.
  const std::optional<OutputEnd>& end() const { return end_; }
  // A stop string ended the stream before the engine ended the sequence, which must then be cancelled.
  bool ended_by_text() const { return ended_by_text_; }
  const RequestStats& stats() const { return stats_; }
  const OutputSpec& spec() const { return spec_; }

 private:
  struct Emitted {
    std::vector<TokenMark> marks;  // one per token
    AnswerDelta answer;            // without AnswerOptions all is text

    int token_count() const { return static_cast<int>(marks.size()); }
  };
  // The update's tokens up to the one that completes a stop string.
  Emitted EmitTokens(const RequestUpdate& update);
  // Adds a token's text, or with kNoToken what the detokenizer held back.
  void AddText(int32_t token_id, const std::string& piece, Emitted& emitted);
  // Adds text that no stop string begins in.
  void AddSafeText(std::string_view text, Emitted& emitted);
  // Returns the text that may be sent once `piece` has come; sets matched_stop_ if it completes a stop
  // string.
  std::string Match(std::string_view piece);
  // Whether the text of the token that was marked last may be part of a stop string.
  bool MayStop(const Emitted& emitted) const {
    return stats_.completion_tokens + emitted.token_count() > spec_.min_tokens;
  }
  // Whether what the output has so far ends it, whatever the engine says.
  bool is_over() const { return matched_stop_.has_value() || (splitter_ && splitter_->parser().is_over()); }
  void CountPhase(int32_t token_id);
  void LogFirstToken() const;
  void CountTokens(const RequestUpdate& update, int emitted, SteadyTime now);
  void CountStep(const StepStats& step, int emitted, bool ends_in_draft);
  void End(OutputEnd end, SteadyTime now);

  OutputSpec spec_;
  Metrics& metrics_;
  Detokenizer detokenizer_;
  StopMatcher stop_matcher_;
  std::optional<AnswerSplitter> splitter_;  // with AnswerOptions
  ThoughtState thought_;                    // after the last token
  Phase step_phase_ = Phase::kAnswer;       // of the last decode step: that of its first row
  RequestStats stats_;
  SteadyTime last_token_time_;
  bool ended_by_text_ = false;
  std::optional<std::string> matched_stop_;
  std::optional<OutputEnd> end_;
};

}  // namespace foredraft
