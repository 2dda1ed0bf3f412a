#include "server/api/admission.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/check.h"
#include "base/error_reason.h"
#include "base/fnv.h"
#include "base/log.h"
#include "base/log_level.h"
#include "base/out_of_memory.h"
#include "base/status_macros.h"
#include "server/api/constraint_check.h"
#include "server/api/request_id.h"
#include "server/output/request_log.h"

namespace foredraft {
namespace {

using std::chrono::steady_clock;
using std::chrono::system_clock;

// The earliest of the server's, the request's and the call's deadlines. The call's is taken a little early,
// so that a stream's last message arrives before the client's own clock ends the call.
SteadyTime DeadlineOf(SteadyTime arrival, const CallContext& context, std::optional<double> timeout_s,
                      int request_timeout_s) {
  std::chrono::duration<double> left(request_timeout_s);
  if (timeout_s.has_value()) left = std::min(left, std::chrono::duration<double>(*timeout_s));
  if (const auto deadline = context.deadline(); deadline.has_value()) {
    const std::chrono::duration<double> rpc = *deadline - system_clock::now();
    const std::chrono::duration<double> passed = steady_clock::now() - arrival;
    left = std::min(left, passed + rpc - std::min(std::chrono::duration<double>(0.1), rpc / 10));
  }
  return arrival + std::chrono::duration_cast<steady_clock::duration>(left);
}

// A text of this size is tokenized in less than a millisecond.
constexpr size_t kShortInputBytes = 4096;
constexpr size_t kMessageBytes = 64;  // that a chat message counts in addition to its content

ClientRequest Take(const std::function<ClientRequest()>& take) {
  const MayLackMemory scope;
  return take();
}

// Describes the request without its prompt: logs are kept where prompts may not be.
std::string TextOf(const Request& request) {
  const SamplingParams& sampling = request.sampling;
  return absl::StrFormat(
      "prompt %d, up to %d tokens, temperature %g, top_p %g, top_k %d, seed %d, up to %d drafts, priority "
      "%d%s",
      request.prompt_ids.size(), request.max_tokens, sampling.temperature, sampling.top_p, sampling.top_k,
      sampling.seed, request.draft_cap, request.priority,
      request.constraint.grammar == nullptr ? "" : ", constrained");
}

// Sets what the answer says besides its tokens.
void Label(CallContext& context, const std::string& id, const std::optional<TraceContext>& trace) {
  context.SetRequestId(id);
  if (trace.has_value()) context.SetTraceParent(trace->Header());
}

}  // namespace

size_t TextBytes(const PromptInput& input) {
  size_t bytes = 0;
  if (const auto* text = std::get_if<std::string>(&input)) bytes = text->size();
  if (const auto* messages = std::get_if<ChatMessages>(&input)) {
    for (const ChatMessage& message : *messages) bytes += kMessageBytes + TextBytes(message);
  }
  return bytes;
}

absl::StatusOr<QueueShare::Place> QueueShare::Take(const std::string& client, int max) {
  std::lock_guard<std::mutex> lock(counts_->mutex);
  int& taken = counts_->taken[client];
  if (taken >= max) {
    return WithReason(
        absl::ResourceExhaustedError(absl::StrFormat(
            "%d requests of this client wait, which is its share of the queue (server.max_queue_share)",
            taken)),
        kReasonQueueFull);
  }
  ++taken;
  return Place(nullptr, [counts = counts_, client](const void*) {
    std::lock_guard<std::mutex> done_lock(counts->mutex);
    const auto it = counts->taken.find(client);
    if (--it->second == 0) counts->taken.erase(it);
  });
}

uint64_t NumberedNames::NumberOf(const std::string& name) {
  if (name.empty()) return 0;
  std::lock_guard<std::mutex> lock(mutex_);
  return numbers_.emplace(name, numbers_.size() + 1).first->second;
}

std::string ClientName(const std::string& peer, const std::string& caller) {
  return caller.empty() ? ClientOf(peer) : caller;
}

std::string ClientOf(const std::string& peer) {
  const size_t colon = peer.rfind(':');
  const bool has_port = peer.starts_with("ipv4:") || peer.starts_with("ipv6:");
  return has_port && colon != std::string::npos && colon > 5 ? peer.substr(0, colon) : peer;
}

void Admission::Open(ServingParts parts) {
  CHECK(parts_ == nullptr) << "the model is served already";
  pool_.Start({.thread_name = "tokenize",
               .threads = tokenizer_threads_,
               .nice = 5,
               .waiting = " long inputs wait to be tokenized, max_queue_size is "});
  parts_ = std::make_unique<const ServingParts>(std::move(parts));
  opened_.store(parts_.get());
}

absl::StatusOr<const ServingParts*> Admission::Parts() const {
  const ServingParts* parts = opened_.load();
  if (parts == nullptr) return absl::UnavailableError("loading: the model is not ready yet");
  return parts;
}

CallHooks Admission::OpenCall() {
  std::lock_guard<std::mutex> lock(calls_mutex_);
  ++open_calls_;
  return {.cancelled = [this](uint64_t id) { opened_.load()->output->ClientCancelled(id); },
          .done =
              [this] {
                std::lock_guard<std::mutex> done_lock(calls_mutex_);
                if (--open_calls_ == 0) calls_changed_.notify_all();
              }};
}

int Admission::open_calls() const {
  std::lock_guard<std::mutex> lock(calls_mutex_);
  return open_calls_;
}

bool Admission::WaitForNoCalls(SteadyTime deadline) const {
  std::unique_lock<std::mutex> lock(calls_mutex_);
  return calls_changed_.wait_until(lock, deadline, [this] { return open_calls_ == 0; });
}

void Admission::Submit(const Access& access, ClientRequest request, std::shared_ptr<GenerationCall> call) {
  const MustHaveMemory scope;
  const auto shared = std::make_shared<ClientRequest>(std::move(request));
  Submit(access,
         WaitingRequest{.request_id = shared->request_id,
                        .is_constrained = IsConstrained(*shared),
                        .text_bytes = TextBytes(shared->input) + TextBytes(shared->tools),
                        .take = [shared] { return std::move(*shared); }},
         std::move(call));
}

void Admission::Submit(const Access& access, WaitingRequest request, std::shared_ptr<GenerationCall> call) {
  const MustHaveMemory scope;
  if (request.request_id.empty()) request.request_id = MakeRequestId();
  const std::string request_id = request.request_id;
  // Compiling a constraint takes long, whatever the size of the request.
  const size_t bytes = request.is_constrained ? kShortInputBytes + 1 : request.text_bytes;
  absl::StatusOr<Arrived> arrived =
      OrOutOfMemory([&] { return Arrive(call->context(), access, std::move(request)); });
  if (!arrived.ok()) return Refuse(request_id, arrived.status(), call);
  const auto shared = std::make_shared<Arrived>(*std::move(arrived));  // a Job can be copied
  const std::string client = ClientName(call->context().peer(), shared->caller);
  Tokenize(client, bytes, [this, shared, call = std::move(call)](const absl::Status& may) {
    const absl::Status accepted = may.ok() ? Accept(*shared, call) : may;
    if (!accepted.ok()) Refuse(shared->request_id, accepted, call);
  });
}

absl::StatusOr<Admission::Arrived> Admission::Arrive(const CallContext& context, const Access& access,
                                                     WaitingRequest request) {
  ASSIGN_OR_RETURN(std::string caller, access.Check(context, Role::kApi));
  RETURN_IF_ERROR(health_.Admits());
  ASSIGN_OR_RETURN(QueueShare::Place place, TakeShare(ClientName(context.peer(), caller)));
  return Arrived{.take = std::move(request.take),
                 .request_id = std::move(request.request_id),
                 .time = steady_clock::now(),
                 .caller = std::move(caller),
                 .choices = request.choices,
                 .place = std::move(place)};
}

absl::Status Admission::Accept(Arrived& arrived, const std::shared_ptr<GenerationCall>& call) {
  const MustHaveMemory scope;
  // The client may have left while the call waited to be tokenized.
  if (call->cancelled()) return absl::CancelledError("cancelled by the client");
  std::optional<double> timeout_s;
  NotedWire wire = NotedWire::kOther;
  FieldNotes notes;
  absl::StatusOr<CheckedRequest> checked = OrOutOfMemory([&] {
    ClientRequest client = Take(std::exchange(arrived.take, nullptr));
    client.request_id = arrived.request_id;
    timeout_s = client.timeout_s;
    wire = client.wire;
    notes = std::move(client.notes);
    return opened_.load()->validator->Check(std::move(client), &notes);  // not null: the server serves
  });
  if (!notes.empty()) {
    RecordNotes(wire, notes);
    call->context().SetIgnored(notes);
  }
  RETURN_IF_ERROR(checked.status());
  SubmitChecked(*std::move(checked), std::move(arrived), timeout_s, call);
  return absl::OkStatus();
}

void Admission::Tokenize(const std::string& client, size_t input_bytes, const TurnPool::Job& tokenize) {
  if (input_bytes <= kShortInputBytes) {
    tokenize(absl::OkStatus());
    return;
  }
  const absl::Status added = pool_.Add(client, TurnPool::Size::kLong, max_queue_size_.load(), tokenize);
  if (!added.ok()) tokenize(added);
}

void Admission::RecordNotes(NotedWire wire, const FieldNotes& notes) {
  metrics_.CountNotes(wire, notes);
  ignored_names_.Log(wire, notes);
}

void Admission::Refuse(const std::string& request_id, const absl::Status& status,
                       const std::shared_ptr<GenerationCall>& call) {
  const MustHaveMemory scope;
  CountRefusal(status);
  if (absl::IsCancelled(status)) {  // its client has left
    call->End({}, {.finish = FinishReason::kCancelled, .status = status});
    return;
  }
  const std::string id = PrintableId(request_id.empty() ? MakeRequestId() : request_id);
  const std::optional<TraceContext> trace = ReadTraceParent(call->context().traceparent());
  LogRefusal(id, call->context().peer(), status, trace);
  Label(call->context(), id, trace);
  call->Refuse(status);
}

absl::StatusOr<QueueShare::Place> Admission::TakeShare(const std::string& client) {
  if (max_queue_share_ >= 1) return QueueShare::Place();
  const int share = std::max(static_cast<int>(max_queue_share_ * max_queue_size_.load()), 1);
  return queue_share_.Take(client, share);
}

// From here on the request is known to the output thread and must be ended there.
void Admission::SubmitChecked(CheckedRequest checked, Arrived arrived, std::optional<double> timeout_s,
                              const std::shared_ptr<GenerationCall>& call) {
  CallContext& context = call->context();
  const ServingParts& parts = *opened_.load();
  const std::string& request_id = arrived.request_id;
  Request& request = checked.request;
  OutputSpec& spec = checked.spec;
  request.id = spec.id = next_id_.fetch_add(1);
  request.client = Fnv1a(spec.client = ClientName(context.peer(), arrived.caller));
  request.caller = arrived.caller;
  const uint64_t callers_scope = reuse_by_token_ ? reuse_scopes_.NumberOf(arrived.caller) : 0;
  // The validator has set reuse_scope to the hash of the request's own salt, or 0.
  request.reuse_scope =
      request.reuse_scope == 0 ? callers_scope : Fnv1a(absl::StrCat(callers_scope), request.reuse_scope);
  request.arrival = spec.arrival = arrived.time;
  request.deadline = spec.deadline = DeadlineOf(arrived.time, context, timeout_s, request_timeout_s_.load());
  spec.request_id = request_id;
  spec.trace = ReadTraceParent(context.traceparent());
  spec.queue_place = std::move(arrived.place);
  Label(context, PrintableId(request_id), spec.trace);
  call->Label(
      request.id,
      {.request_id = request_id, .seed = request.sampling.seed, .max_draft_len = parts.model.max_draft_len});
  const uint64_t id = request.id;
  const int max_tokens = request.max_tokens;
  const std::optional<TraceContext> trace = spec.trace;
  parts.output->Open(std::make_unique<OutputStream>(std::move(spec), *parts.tokenizer, metrics_), call);
  call->Submitted();
  std::string accepted;
  if (IsLogged(LogLevel::kDebug)) {
    accepted = absl::StrCat("accepted, peer ", context.peer(), ": ", TextOf(request));
  }
  const absl::Status submitted = parts.loop->Submit(std::move(request));
  if (submitted.ok()) {
    metrics_.RecordMaxTokens(max_tokens);
    if (arrived.choices > 0) metrics_.RecordChoices(arrived.choices);
    if (!accepted.empty()) LogRequest(LogLevel::kDebug, request_id, accepted, {}, trace);
  } else {
    LogRefusal(PrintableId(request_id), context.peer(), submitted, trace);
    parts.output->Refused(id, submitted);
  }
}

}  // namespace foredraft
