#include "server/output/output_thread.h"

#include <pthread.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/error_reason.h"
#include "base/out_of_memory.h"
#include "base/status_macros.h"
#include "base/trace.h"
#include "server/output/request_log.h"

namespace foredraft {
namespace {

// Records a request in the trace, from its arrival to its end.
void TraceRequest(const OutputStream& stream) {
  const RequestStats& stats = stream.stats();
  RecordTrace({.name = "request",
               .begin = stream.spec().arrival,
               .end = std::chrono::steady_clock::now(),
               .category = "request",
               .id = stream.spec().id,
               .args = {{{"prompt_tokens", stats.prompt_tokens},
                         {"completion_tokens", stats.completion_tokens},
                         {"accepted_tokens", stats.accepted_tokens}}}});
}

void LogEnd(const OutputStream& stream) {
  const RequestStats& stats = stream.stats();
  const OutputEnd& end = *stream.end();
  const int ignored = stream.spec().ignored_fields;
  const char* const outcome = end.called_tools ? FinishReasonName(end) : NameOf(OutcomeOf(end));
  LogRequest(
      LogLevel::kInfo, stream.spec().request_id,
      absl::StrFormat(
          "%s: prompt %d (cached %d), completion %d, steps %d, accepted %d of %d drafts, queue %.1f ms, "
          "first token %.1f ms, total %.1f ms%s%s%s",
          outcome, stats.prompt_tokens, stats.cached_tokens, stats.completion_tokens, stats.steps,
          stats.accepted_tokens, stats.draft_tokens, stats.queue_ms, stats.ttft_ms, stats.total_ms,
          stats.budget_reached ? ", thinking budget reached" : "", stats.forced ? ", forced acceptance" : "",
          ignored == 0 ? "" : absl::StrCat(", ignored ", ignored, ignored == 1 ? " field" : " fields")),
      {{"outcome", outcome},
       {"client", stream.spec().client},
       {"prompt_tokens", stats.prompt_tokens},
       {"cached_tokens", stats.cached_tokens},
       {"completion_tokens", stats.completion_tokens},
       {"thinking_tokens", stats.thinking_tokens},
       {"budget_reached", stats.budget_reached},
       {"steps", stats.steps},
       {"draft_tokens", stats.draft_tokens},
       {"accepted_tokens", stats.accepted_tokens},
       {"relaxed_tokens", stats.relaxed_tokens},
       {"forced_acceptance", stats.forced},
       {"ignored", ignored},
       {"queue_ms", stats.queue_ms},
       {"ttft_ms", stats.ttft_ms},
       {"total_ms", stats.total_ms}},
      stream.spec().trace);
}

}  // namespace

OutputThread::OutputThread(const OutputThreadOptions& options, Metrics& metrics,
                           CancelSequence cancel_sequence)
    : options_(options),
      metrics_(metrics),
      cancel_sequence_(std::move(cancel_sequence)),
      events_(options.queue_capacity),
      thread_([this] { Run(); }) {
  pthread_setname_np(thread_.native_handle(), "output");
}

OutputThread::~OutputThread() { Stop(); }

void OutputThread::Open(std::unique_ptr<OutputStream> stream, std::shared_ptr<ResponseSink> sink) {
  open_count_.fetch_add(1);
  Push(Opened{std::move(stream), std::move(sink)});
}

void OutputThread::Refused(uint64_t id, absl::Status status) { Push(RefusedId{id, std::move(status)}); }

void OutputThread::ClientCancelled(uint64_t id) { Push(CancelledId{id}); }

void OutputThread::Deliver(std::vector<RequestUpdate> updates) { Push(std::move(updates)); }

void OutputThread::EndAll(absl::Status status) { Push(std::move(status)); }

void OutputThread::Push(Event event) {
  // Requests in flight are bounded and the thread never waits for a client, so a full queue means a bug.
  if (!events_.TryPush(std::move(event))) {
    CHECK(events_.closed()) << "output-keeps-up: " << options_.queue_capacity << " events wait";
  }
}

void OutputThread::Stop() {
  events_.Close();
  if (thread_.joinable()) thread_.join();
}

void OutputThread::Run() {
  constexpr auto kTick = std::chrono::milliseconds(500);
  const MustHaveMemory scope;
  SteadyTime next_sweep = std::chrono::steady_clock::now() + kTick;
  while (true) {
    last_turn_.store(std::chrono::steady_clock::now());
    std::optional<Event> event = events_.Pop(kTick);
    if (event.has_value()) {
      std::visit([this](auto&& content) { On(std::forward<decltype(content)>(content)); }, std::move(*event));
    } else if (events_.closed()) {
      break;
    }
    const SteadyTime now = std::chrono::steady_clock::now();
    if (now >= next_sweep) {
      AbandonStalled(now);
      next_sweep = now + kTick;
    }
  }
  On(absl::UnavailableError("the daemon has stopped"));
}

void OutputThread::On(Opened opened) {
  const uint64_t id = opened.stream->spec().id;
  const bool inserted = streams_.emplace(id, std::move(opened)).second;
  CHECK(inserted) << "request id " << id << " is in use";
}

void OutputThread::On(RefusedId refused) {
  const auto found = streams_.find(refused.id);
  if (found == streams_.end()) return;  // its client cancelled first
  const Opened opened = std::move(found->second);
  streams_.erase(found);
  metrics_.RecordRefused(OutcomeOfRefusal(refused.status));
  opened.sink->End({}, {.finish = FinishReason::kError, .status = std::move(refused.status)});
  open_count_.fetch_sub(1);
}

void OutputThread::On(CancelledId cancelled) {
  const auto found = streams_.find(cancelled.id);
  if (found == streams_.end()) return;  // it has ended meanwhile
  // gRPC reports the RPC's own deadline as a cancellation.
  if (std::chrono::steady_clock::now() >= found->second.stream->spec().deadline) {
    EndEarly(cancelled.id, FinishReason::kDeadline,
             absl::DeadlineExceededError("the request's deadline has passed"));
  } else {
    EndEarly(cancelled.id, FinishReason::kCancelled, absl::CancelledError("cancelled by the client"));
  }
}

void OutputThread::On(std::vector<RequestUpdate> updates) {
  TraceScope trace(TraceTrack::kOutput, "updates");
  trace.Add("requests", static_cast<int64_t>(updates.size()));
  const SteadyTime now = std::chrono::steady_clock::now();
  outputs_.clear();
  ApplyAll(std::move(updates), now);
  metrics_.PublishCounts();  // before a client sees the tokens they count
  TraceScope send(TraceTrack::kOutput, "send");
  for (StreamOutput& output : outputs_) Send(std::move(output));
}

// Fills outputs_.
void OutputThread::ApplyAll(std::vector<RequestUpdate> updates, SteadyTime now) {
  TraceScope trace(TraceTrack::kOutput, "detokenize");
  for (RequestUpdate& update : updates) {
    const uint64_t id = update.request_id;
    const auto found = streams_.find(id);
    // Tokens computed after the stream's end are not counted.
    if (found == streams_.end() || found->second.stream->end().has_value()) continue;
    OutputStream& stream = *found->second.stream;
    OutputDelta delta = stream.Apply(std::move(update), now);
    outputs_.push_back({id, std::move(delta), stream.end().has_value()});
  }
}

void OutputThread::On(const absl::Status& end_all) {
  std::vector<uint64_t> ids;
  for (const auto& [id, opened] : streams_) ids.push_back(id);
  for (uint64_t id : ids) EndEarly(id, FinishReason::kCancelled, end_all);
}

void OutputThread::Send(StreamOutput output) {
  const auto found = streams_.find(output.id);
  if (found == streams_.end()) return;  // ended by an update before this one: its reader was too slow
  if (output.is_last) {
    if (found->second.stream->ended_by_text()) cancel_sequence_(output.id, FinishReason::kCancelled);
    Close(output.id, std::move(output.delta));
  } else if (!output.delta.token_ids.empty()) {
    const absl::Status pushed = OrOutOfMemory([&]() -> absl::Status {
      const MayLackMemory may_lack;
      if (found->second.sink->Push(std::move(output.delta))) return absl::OkStatus();
      return WithReason(absl::ResourceExhaustedError("reader too slow: too many tokens wait to be read"),
                        kReasonReaderTooSlow);
    });
    if (!pushed.ok()) EndEarly(output.id, FinishReason::kCancelled, pushed);
  }
}

void OutputThread::EndEarly(uint64_t id, FinishReason finish, absl::Status status) {
  cancel_sequence_(id, finish);
  OutputStream& stream = *streams_.at(id).stream;
  // A slow reader is found only after all updates are applied: one of them may have ended the stream already.
  if (!stream.end().has_value()) {
    stream.EndEarly(finish, std::move(status), std::chrono::steady_clock::now());
  }
  Close(id, OutputDelta{.stats = stream.stats()});
}

void OutputThread::Close(uint64_t id, OutputDelta last) {
  Opened opened = std::move(streams_.at(id));
  streams_.erase(id);
  if (TraceIsOn()) TraceRequest(*opened.stream);
  LogEnd(*opened.stream);
  opened.sink->End(std::move(last), *opened.stream->end());
  if (!opened.sink->closed()) {
    closing_.push_back({opened.sink, std::chrono::steady_clock::now() + options_.write_timeout});
  }
  open_count_.fetch_sub(1);
}

void OutputThread::AbandonStalled(SteadyTime now) {
  std::erase_if(closing_, [now](const Closing& closing) {
    const std::shared_ptr<ResponseSink> sink = closing.sink.lock();
    if (sink == nullptr || sink->closed()) return true;
    if (now < closing.deadline) return false;
    sink->Abandon();
    return true;
  });
}

}  // namespace foredraft
