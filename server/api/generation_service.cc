#include "server/api/generation_service.h"

#include <algorithm>
#include <random>
#include <utility>

#include "absl/strings/str_format.h"
#include "base/check.h"
#include "base/status_macros.h"
#include "server/output/request_log.h"

namespace foredraft {
namespace {

using std::chrono::steady_clock;
using std::chrono::system_clock;

std::string MakeRequestId() {
  thread_local std::mt19937_64 generator{std::random_device{}()};
  return absl::StrFormat("r-%016x", generator());
}

// The earliest of the server's, the request's and the RPC's deadlines. The RPC's is taken a little early, so
// that a stream's last chunk arrives before the client's own clock ends the call.
SteadyTime DeadlineOf(SteadyTime arrival, const grpc::CallbackServerContext& context, double timeout_s,
                      int request_timeout_s) {
  std::chrono::duration<double> left(request_timeout_s);
  if (timeout_s > 0) left = std::min(left, std::chrono::duration<double>(timeout_s));
  if (context.deadline() != system_clock::time_point::max()) {
    const std::chrono::duration<double> rpc = context.deadline() - system_clock::now();
    left = std::min(left, rpc - std::min(std::chrono::duration<double>(0.1), rpc / 10));
  }
  return arrival + std::chrono::duration_cast<steady_clock::duration>(left);
}

grpc::ServerUnaryReactor* FinishNow(grpc::CallbackServerContext* context, const absl::Status& status) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  reactor->Finish(ToGrpc(status));
  return reactor;
}

}  // namespace

GenerationService::GenerationService(const GenerationOptions& options, const Health& health, Metrics& metrics)
    : options_(options), health_(health), metrics_(metrics), request_timeout_s_(options.request_timeout_s) {}

void GenerationService::Open(GenerationParts parts) {
  CHECK(parts_ == nullptr) << "the service is open already";
  parts_ = std::make_unique<const GenerationParts>(std::move(parts));
  opened_.store(parts_.get());
}

absl::StatusOr<const GenerationParts*> GenerationService::Parts() const {
  const GenerationParts* parts = opened_.load();
  if (parts == nullptr) return absl::UnavailableError("loading: the model is not ready yet");
  return parts;
}

CallHooks GenerationService::Hooks() {
  std::lock_guard<std::mutex> lock(calls_mutex_);
  ++open_calls_;
  return {.cancelled = [this](uint64_t id) { opened_.load()->output->ClientCancelled(id); },
          .done =
              [this] {
                std::lock_guard<std::mutex> done_lock(calls_mutex_);
                if (--open_calls_ == 0) calls_changed_.notify_all();
              }};
}

int GenerationService::open_calls() const {
  std::lock_guard<std::mutex> lock(calls_mutex_);
  return open_calls_;
}

bool GenerationService::WaitForNoCalls(SteadyTime deadline) const {
  std::unique_lock<std::mutex> lock(calls_mutex_);
  return calls_changed_.wait_until(lock, deadline, [this] { return open_calls_ == 0; });
}

grpc::ServerUnaryReactor* GenerationService::Generate(grpc::CallbackServerContext* context,
                                                      const v1::GenerateRequest* request,
                                                      v1::GenerateResponse* response) {
  const std::shared_ptr<UnaryCall> call = UnaryCall::Create(context, Hooks(), response);
  Start(*context, *request, call);
  return call.get();
}

grpc::ServerWriteReactor<v1::GenerateChunk>* GenerationService::GenerateStream(
    grpc::CallbackServerContext* context, const v1::GenerateRequest* request) {
  const std::shared_ptr<StreamCall> call = StreamCall::Create(context, Hooks(), options_.max_pending_tokens);
  Start(*context, *request, call);
  return call.get();
}

void GenerationService::Start(const grpc::CallbackServerContext& context, const v1::GenerateRequest& wire,
                              std::shared_ptr<GenerationCall> call) {
  const std::string request_id = wire.request_id().empty() ? MakeRequestId() : wire.request_id();
  const absl::Status status = Submit(context, wire, request_id, call);
  if (status.ok()) return;
  metrics_.RecordRejected();
  LogRequest(LogLevel::kDebug, std::string_view(request_id).substr(0, kMaxRequestIdBytes), status.ToString());
  call->Refuse(status);
}

absl::Status GenerationService::Submit(const grpc::CallbackServerContext& context,
                                       const v1::GenerateRequest& wire, const std::string& request_id,
                                       const std::shared_ptr<GenerationCall>& call) {
  const SteadyTime arrival = steady_clock::now();
  RETURN_IF_ERROR(health_.Admits());
  const GenerationParts& parts = *opened_.load();  // serving: they exist
  absl::StatusOr<CheckedRequest> checked = parts.validator->Check(wire);
  if (!checked.ok()) return checked.status();
  Request& request = checked->request;
  OutputSpec& spec = checked->spec;
  request.id = spec.id = next_id_.fetch_add(1);
  request.arrival = spec.arrival = arrival;
  request.deadline = spec.deadline =
      DeadlineOf(arrival, context, checked->timeout_s, request_timeout_s_.load());
  spec.request_id = request_id;
  call->Label(
      request.id,
      {.request_id = request_id, .seed = request.sampling.seed, .max_draft_len = parts.max_draft_len});
  const uint64_t id = request.id;
  parts.output->Open(std::make_unique<OutputStream>(std::move(spec), *parts.tokenizer, metrics_), call);
  const absl::Status submitted = parts.loop->Submit(std::move(request));
  if (!submitted.ok()) parts.output->Refused(id, submitted);
  return absl::OkStatus();
}

grpc::ServerUnaryReactor* GenerationService::Tokenize(grpc::CallbackServerContext* context,
                                                      const v1::TokenizeRequest* request,
                                                      v1::TokenizeResponse* response) {
  const absl::StatusOr<const GenerationParts*> parts = Parts();
  if (!parts.ok()) return FinishNow(context, parts.status());
  const absl::StatusOr<std::vector<int32_t>> ids = (*parts)->validator->CheckTokenize(*request);
  if (ids.ok()) response->mutable_token_ids()->Add(ids->begin(), ids->end());
  return FinishNow(context, ids.status());
}

grpc::ServerUnaryReactor* GenerationService::Detokenize(grpc::CallbackServerContext* context,
                                                        const v1::DetokenizeRequest* request,
                                                        v1::DetokenizeResponse* response) {
  const absl::StatusOr<const GenerationParts*> parts = Parts();
  if (!parts.ok()) return FinishNow(context, parts.status());
  absl::StatusOr<std::string> text = (*parts)->validator->CheckDetokenize(*request);
  if (text.ok()) response->set_text(*std::move(text));
  return FinishNow(context, text.status());
}

grpc::ServerUnaryReactor* GenerationService::GetModel(grpc::CallbackServerContext* context,
                                                      const v1::GetModelRequest*,
                                                      v1::GetModelResponse* response) {
  const absl::StatusOr<const GenerationParts*> parts = Parts();
  if (parts.ok()) {
    *response = (*parts)->model;
    const ThinkingIds thinking = (*parts)->validator->thinking();
    response->set_begin_thinking_token_id(thinking.begin);
    response->set_end_thinking_token_id(thinking.end);
  }
  return FinishNow(context, parts.status());
}

}  // namespace foredraft
