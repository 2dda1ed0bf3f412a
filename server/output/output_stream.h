#ifndef FOREDRAFT_SERVER_OUTPUT_OUTPUT_STREAM_H_
#define FOREDRAFT_SERVER_OUTPUT_OUTPUT_STREAM_H_

// One request's output: tokens become text, stop strings end it, the books are kept. No threads, no gRPC.
// Owner and thread: OutputThread.
//
// The books follow what the client is given: what was computed past a stop string is dropped and counts
// nowhere. A step cut short counts its emitted tokens - 1 as accepted; a step of which nothing was emitted is
// no step.

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "scheduler/request.h"
#include "server/output/metrics.h"
#include "server/output/response_sink.h"
#include "server/text/detokenizer.h"
#include "server/text/stop_matcher.h"
#include "server/text/tokenizer.h"

namespace foredraft {

struct OutputSpec {
  uint64_t id = 0;         // Request::id
  std::string request_id;  // the client's
  int prompt_tokens = 0;
  std::vector<std::string> stop;
  std::vector<int32_t> stop_token_ids;  // the request's own, EOS not among them
  Phase prompt_phase = Phase::kAnswer;
  ThinkingIds thinking;
  SteadyTime arrival;
  SteadyTime deadline = SteadyTime::max();
};

class OutputStream {
 public:
  // Tokenizer and metrics outlive the stream.
  OutputStream(OutputSpec spec, const Tokenizer& tokenizer, Metrics& metrics);

  // What the client gets for an update. Ends the stream on a stop string or on the update's finish.
  OutputDelta Apply(RequestUpdate update, SteadyTime now);
  // Ends a stream that no update ended: `end.status` says why.
  void EndEarly(FinishReason finish, absl::Status status, SteadyTime now);

  // Set once the stream has ended; its books are then closed and its outcome counted.
  const std::optional<OutputEnd>& end() const { return end_; }
  // The stop string came before the engine's own end: the sequence must be cancelled.
  bool ended_by_text() const { return ended_by_text_; }
  const Tally& tally() const { return tally_; }
  const OutputSpec& spec() const { return spec_; }

 private:
  // Tokens up to the one that completes a stop string; appends their text.
  int EmitTokens(const RequestUpdate& update, std::string* text);
  // Appends what of `piece` may be sent; true: a stop string is complete.
  bool Match(std::string_view piece, std::string* text);
  void CountPhase(int32_t token_id);
  void CountTokens(const RequestUpdate& update, int emitted, SteadyTime now);
  void CountStep(const StepStats& step, int emitted);
  void End(OutputEnd end, SteadyTime now);

  const OutputSpec spec_;
  Metrics& metrics_;
  Detokenizer detokenizer_;
  StopMatcher stop_matcher_;
  Phase phase_;                        // after the last token
  Phase step_phase_ = Phase::kAnswer;  // of the last decode step: that of its first row
  Tally tally_;
  SteadyTime last_token_time_;
  bool ended_by_text_ = false;
  std::optional<std::string> matched_stop_;
  std::optional<OutputEnd> end_;
};

}  // namespace foredraft

#endif  // FOREDRAFT_SERVER_OUTPUT_OUTPUT_STREAM_H_
