#include "server/output/output_stream.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_format.h"
#include "base/check.h"
#include "base/log.h"
#include "base/log_level.h"
#include "server/output/request_log.h"

namespace foredraft {
namespace {

double Seconds(SteadyTime from, SteadyTime to) { return std::chrono::duration<double>(to - from).count(); }
double Milliseconds(SteadyTime from, SteadyTime to) { return Seconds(from, to) * 1e3; }

// Whether the last of the update's first `emitted` tokens is an accepted draft, because something cut the
// step after it.
bool EndsInDraft(const RequestUpdate& update, int emitted) {
  return emitted < static_cast<int>(update.token_ids.size()) || update.step.ends_in_draft;
}

// Marks the tokens of one update: the prefill's, if it is the first update, then those of one step.
void MarkOrigins(const RequestUpdate& update, std::vector<TokenMark>& marks) {
  if (marks.empty()) return;
  const bool drafted = EndsInDraft(update, static_cast<int>(marks.size()));
  marks.back().origin = drafted ? TokenOrigin::kDrafted : TokenOrigin::kTarget;
  if (update.first_token) marks.front().origin = TokenOrigin::kFirst;
}

absl::Status StatusOf(const RequestUpdate& update, const std::string& request_id) {
  switch (update.finish) {
    case FinishReason::kCancelled:
      return absl::CancelledError("cancelled");
    case FinishReason::kDeadline:
      return absl::DeadlineExceededError("the request's deadline has passed");
    case FinishReason::kError:
      return absl::Status(update.error.ok() ? absl::StatusCode::kInternal : update.error.code(),
                          std::string(update.error.message()) + ", request " + request_id);
    default:
      return absl::OkStatus();
  }
}

}  // namespace

const char* FinishReasonName(const OutputEnd& end) {
  return end.called_tools ? "tool_calls" : FinishReasonName(end.finish);
}

const char* FinishReasonName(FinishReason finish) {
  switch (finish) {
    case FinishReason::kStop:
      return "stop";
    case FinishReason::kLength:
      return "length";
    case FinishReason::kCancelled:
      return "cancelled";
    case FinishReason::kDeadline:
      return "deadline";
    case FinishReason::kError:
      return "error";
    case FinishReason::kNone:
      break;
  }
  return "";
}

OutputStream::OutputStream(OutputSpec spec, const Tokenizer& tokenizer, Metrics& metrics)
    : spec_(std::move(spec)),
      metrics_(metrics),
      detokenizer_(tokenizer),
      stop_matcher_(spec_.stop),
      thought_{.phase = spec_.prompt_phase},
      last_token_time_(spec_.arrival) {
  stats_.prompt_tokens = spec_.prompt_tokens;
  if (spec_.answer) splitter_.emplace(*std::move(spec_.answer), spec_.thinking, tokenizer);
}

OutputDelta OutputStream::Apply(RequestUpdate update, SteadyTime now) {
  CHECK(!end_.has_value()) << "an update after the end of request " << spec_.request_id;
  Emitted tokens = EmitTokens(update);
  const int emitted = tokens.token_count();
  if (emitted > 0) CountTokens(update, emitted, now);
  if (is_over()) {
    ended_by_text_ = update.finish == FinishReason::kNone;
    End({.finish = FinishReason::kStop, .matched_stop = matched_stop_}, now);
  } else if (update.finish != FinishReason::kNone) {
    OutputEnd end{.finish = update.finish, .status = StatusOf(update, spec_.request_id)};
    if (update.finish == FinishReason::kStop && emitted > 0 &&
        std::count(spec_.stop_token_ids.begin(), spec_.stop_token_ids.end(), update.token_ids.back()) > 0) {
      end.matched_stop_token_id = update.token_ids.back();
    }
    End(std::move(end), now);
  }
  update.token_ids.resize(emitted);
  if (!update.logprobs.empty()) update.logprobs.resize(emitted);
  return {.text = std::move(tokens.answer.text),
          .thinking = std::move(tokens.answer.thinking),
          .calls = std::move(tokens.answer.calls),
          .runs = std::move(tokens.answer.runs),
          .token_ids = std::move(update.token_ids),
          .marks = std::move(tokens.marks),
          .logprobs = std::move(update.logprobs),
          .stats = stats_};
}

void OutputStream::EndEarly(FinishReason finish, absl::Status status, SteadyTime now) {
  End({.finish = finish, .status = std::move(status)}, now);
}

OutputStream::Emitted OutputStream::EmitTokens(const RequestUpdate& update) {
  Emitted emitted;
  const int count = static_cast<int>(update.token_ids.size());
  emitted.marks.reserve(count);
  for (int i = 0; i < count && !is_over(); ++i) {
    if (i == (update.first_token ? 1 : 0)) step_phase_ = thought_.phase;
    CountPhase(update.token_ids[i]);
    emitted.marks.push_back({.origin = TokenOrigin::kDrafted});
    // The stop token that ended the sequence is counted but not shown.
    if (update.finish == FinishReason::kStop && i == count - 1) break;
    AddText(update.token_ids[i], detokenizer_.Append({&update.token_ids[i], 1}), emitted);
  }
  MarkOrigins(update, emitted.marks);
  const bool ends = update.finish != FinishReason::kNone;
  if (ends && !is_over()) {
    // At the end, send an incomplete character and text that could have begun a stop string.
    AddText(kNoToken, detokenizer_.Flush(), emitted);
    AddSafeText(stop_matcher_.Flush(), emitted);
  }
  if (splitter_ && (ends || is_over())) splitter_->End(emitted.answer);
  return emitted;
}

void OutputStream::AddText(int32_t token_id, const std::string& piece, Emitted& emitted) {
  auto bytes = static_cast<int32_t>(piece.size());
  if (splitter_ && token_id != kNoToken) bytes -= splitter_->AddToken(token_id, bytes);
  if (!emitted.marks.empty()) emitted.marks.back().text_bytes += bytes;
  AddSafeText(MayStop(emitted) ? Match(piece) : piece, emitted);
}

void OutputStream::AddSafeText(std::string_view text, Emitted& emitted) {
  if (splitter_) {
    splitter_->AddText(text, emitted.answer);
  } else {
    emitted.answer.text += text;
  }
}

std::string OutputStream::Match(std::string_view piece) {
  StopMatcher::Output output = stop_matcher_.Feed(piece);
  if (output.stop_index >= 0) {
    matched_stop_ = spec_.stop[output.stop_index];
    if (spec_.keeps_stop) output.text += *matched_stop_;
  }
  return std::move(output.text);
}

void OutputStream::CountPhase(int32_t token_id) {
  const bool spent = spec_.thought_limit >= 0 && thought_.count >= spec_.thought_limit;
  if (spent && thought_.phase == Phase::kThinking && !stats_.budget_reached) {
    stats_.budget_reached = true;
    metrics_.RecordThinkingBudgetReached();
  }
  thought_ = thought_.After(spec_.thinking, token_id);
  stats_.thinking_tokens = thought_.count;
}

void OutputStream::LogFirstToken() const {
  if (!IsLogged(LogLevel::kDebug)) return;
  LogRequest(LogLevel::kDebug, spec_.request_id,
             absl::StrFormat("first token: %d of %d prompt tokens cached, queue %.1f ms, first token %.1f ms",
                             stats_.cached_tokens, spec_.prompt_tokens, stats_.queue_ms, stats_.ttft_ms),
             {}, spec_.trace);
}

void OutputStream::CountTokens(const RequestUpdate& update, int emitted, SteadyTime now) {
  int after_first = emitted;
  if (update.first_token) {
    --after_first;
    stats_.cached_tokens = update.cached_tokens;
    stats_.queue_ms = update.queue_seconds * 1e3;
    stats_.ttft_ms = Milliseconds(spec_.arrival, now);
    spec_.queue_place.reset();
    metrics_.RecordPrompt(spec_.prompt_tokens);
    metrics_.RecordPrefix(update.queried_tokens, update.cached_tokens);
    metrics_.RecordFirstToken(Seconds(spec_.arrival, now), update.queue_seconds);
    LogFirstToken();
    last_token_time_ = now;
  }
  metrics_.CountGenerated(emitted);
  if (after_first > 0) {
    CHECK(update.has_step) << "tokens without a step for request " << spec_.request_id;
    CountStep(update.step, after_first, EndsInDraft(update, emitted));
    metrics_.CountTokenTimes(after_first, Seconds(last_token_time_, now));
  }
  stats_.completion_tokens += emitted;
  last_token_time_ = now;
}

void OutputStream::CountStep(const StepStats& step, int emitted, bool ends_in_draft) {
  StepStats counted = step;
  counted.accepted = emitted - 1;
  // Which drafts of a step were relaxed is unknown; if the step was cut short, take the upper bound.
  counted.relaxed = std::min(step.relaxed, ends_in_draft ? emitted : counted.accepted);
  CHECK_LE(counted.accepted, step.drafts_verified);
  ++stats_.steps;
  stats_.draft_tokens += counted.drafts_verified;
  stats_.accepted_tokens += counted.accepted;
  stats_.relaxed_tokens += counted.relaxed;
  stats_.drafts_outside_grammar += counted.outside_grammar;
  stats_.forced_drafts += counted.forced_drafts;
  stats_.forced |= counted.forced;
  for (int i = 0; i < counted.accepted; ++i) ++stats_.accepted_at[i];
  metrics_.CountStep(counted, step_phase_);
}

void OutputStream::End(OutputEnd end, SteadyTime now) {
  stats_.total_ms = Milliseconds(spec_.arrival, now);
  if (stats_.completion_tokens == 0) metrics_.RecordPrompt(spec_.prompt_tokens);
  CHECK(end.finish != FinishReason::kNone) << "request " << spec_.request_id << " ended without a reason";
  metrics_.RecordEnd(OutcomeOf(end), stats_);
  if (splitter_) {
    const AnswerParser& parser = splitter_->parser();
    metrics_.CountToolCalls(parser.complete_calls(), parser.incomplete_calls(), parser.has_broken_call());
    end.called_tools = end.finish == FinishReason::kStop && !end.matched_stop && !end.matched_stop_token_id &&
                       parser.complete_calls() > 0 && parser.incomplete_calls() == 0;
  }
  end_ = std::move(end);
}

}  // namespace foredraft
