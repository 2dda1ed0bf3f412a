#include "server/api/vllm_engine/vllm_engine_service.h"

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/out_of_memory.h"
#include "base/status_macros.h"
#include "server/api/grpc_context.h"
#include "server/api/grpc_status.h"
#include "server/api/request_id.h"
#include "server/api/request_validator.h"
#include "server/output/request_log.h"

namespace foredraft {

grpc::ServerWriteReactor<vllm_wire::GenerateResponse>* VllmEngineService::Generate(
    grpc::CallbackServerContext* context, const vllm_wire::GenerateRequest* request) {
  CallHooks hooks = admission_.OpenCall();
  const absl::StatusOr<std::string> caller = access_.Check(*context, Role::kApi);
  const CallKey key(caller.value_or(""), request->request_id());
  const std::shared_ptr<bool> registered = std::make_shared<bool>(false);  // written before the call can end
  const std::shared_ptr<VllmGenerateCall> call = VllmGenerateCall::Create(
      context, std::move(hooks),
      [this, registered, key] {
        if (*registered) Unregister(key);
      },
      request->stream(), max_pending_tokens_);
  absl::StatusOr<ClientRequest> client = OrOutOfMemory([&] {
    const MayLackMemory scope;
    return ReadRequest(*request);
  });
  *registered = caller.ok() && Register(key, call);
  if (!caller.ok()) {
    client = caller.status();
  } else if (!*registered) {
    client =
        absl::AlreadyExistsError(absl::StrCat("request_id: ", request->request_id(), ": a live call has it"));
  }
  if (client.ok()) {
    admission_.Submit(access_, *std::move(client), call);
  } else {
    admission_.Refuse(request->request_id(), client.status(), call);
  }
  return call.get();
}

bool VllmEngineService::Register(const CallKey& key, const std::shared_ptr<VllmGenerateCall>& call) {
  if (key.second.empty()) return true;
  std::lock_guard<std::mutex> lock(mutex_);
  return live_calls_.emplace(key, call).second;
}

void VllmEngineService::Unregister(const CallKey& key) {
  std::lock_guard<std::mutex> lock(mutex_);
  live_calls_.erase(key);
}

grpc::ServerUnaryReactor* VllmEngineService::Abort(grpc::CallbackServerContext* context,
                                                   const vllm_wire::AbortRequest* request,
                                                   vllm_wire::AbortResponse*) {
  const absl::StatusOr<std::string> caller = access_.Check(*context, Role::kApi);
  if (!caller.ok()) return FinishNow(context, caller.status());
  std::vector<std::shared_ptr<VllmGenerateCall>> calls;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    for (const std::string& id : request->request_ids()) {
      const auto found = live_calls_.find(CallKey(*caller, id));
      if (found != live_calls_.end()) calls.push_back(found->second.lock());
    }
  }
  for (const std::shared_ptr<VllmGenerateCall>& call : calls) {
    if (call != nullptr) call->Abort();
  }
  return FinishNow(context, absl::OkStatus());
}

grpc::ServerUnaryReactor* VllmEngineService::HealthCheck(grpc::CallbackServerContext* context,
                                                         const vllm_wire::HealthCheckRequest*,
                                                         vllm_wire::HealthCheckResponse* response) {
  // A gateway that hears "unhealthy" while the model loads registers the worker without its model, for good.
  if (const auto parts = PartsFor(*context); !parts.ok()) return FinishNow(context, parts.status());
  const ServingState state = source_.load().state;
  response->set_healthy(state == ServingState::kServing);
  response->set_message(ServingStateName(state));
  return FinishNow(context, absl::OkStatus());
}

grpc::ServerUnaryReactor* VllmEngineService::GetModelInfo(grpc::CallbackServerContext* context,
                                                          const vllm_wire::GetModelInfoRequest*,
                                                          vllm_wire::GetModelInfoResponse* response) {
  const absl::StatusOr<const ServingParts*> parts = PartsFor(*context);
  if (parts.ok()) FillModelInfo((*parts)->model, response);
  return FinishNow(context, parts.status());
}

grpc::ServerUnaryReactor* VllmEngineService::GetServerInfo(grpc::CallbackServerContext* context,
                                                           const vllm_wire::GetServerInfoRequest*,
                                                           vllm_wire::GetServerInfoResponse* response) {
  const absl::StatusOr<const ServingParts*> parts = PartsFor(*context);
  if (!parts.ok()) return FinishNow(context, parts.status());
  response->set_active_requests(source_.load().open_calls);
  response->set_uptime_seconds(std::chrono::duration<double>(Clock::now() - start_).count());
  response->set_server_type("foredraft");
  response->set_data_parallel_size(1);
  response->set_block_size((*parts)->model.tokens_per_block);
  response->set_max_num_seqs((*parts)->model.max_batch_size);
  const RequestValidator& validator = *(*parts)->validator;
  if (validator.has_constraints() && validator.thinking().end >= 0) {
    response->set_constrained_decoding_start("after_reasoning");
  }
  return FinishNow(context, absl::OkStatus());
}

grpc::ServerUnaryReactor* VllmEngineService::GetLoads(grpc::CallbackServerContext* context,
                                                      const vllm_wire::GetLoadsRequest*,
                                                      vllm_wire::GetLoadsResponse* response) {
  const absl::StatusOr<const ServingParts*> parts = PartsFor(*context);
  if (!parts.ok()) return FinishNow(context, parts.status());
  response->set_timestamp(absl::FormatTime("%Y-%m-%dT%H:%M:%E3SZ", absl::Now(), absl::UTCTimeZone()));
  FillLoads(source_.load(), (*parts)->model, response);
  response->mutable_loads(0)->set_gen_throughput(Throughput());
  return FinishNow(context, absl::OkStatus());
}

double VllmEngineService::Throughput() {
  constexpr auto kShortest = std::chrono::seconds(1);
  std::lock_guard<std::mutex> lock(mutex_);
  const Clock::time_point now = Clock::now();
  if (now - throughput_time_ >= kShortest) {
    const double tokens = source_.generated_tokens();
    throughput_ =
        (tokens - throughput_tokens_) / std::chrono::duration<double>(now - throughput_time_).count();
    throughput_time_ = now;
    throughput_tokens_ = tokens;
  }
  return throughput_;
}

grpc::ServerWriteReactor<::smg::grpc::common::GetTokenizerChunk>* VllmEngineService::GetTokenizer(
    grpc::CallbackServerContext* context, const ::smg::grpc::common::GetTokenizerRequest*) {
  const std::string id = MakeRequestId();
  context->AddTrailingMetadata(kRequestIdMetadata, id);
  absl::StatusOr<std::shared_ptr<const TokenizerBundle>> bundle =
      OrOutOfMemory([&] { return Bundle(*context); });
  if (!bundle.ok()) LogRefusal(id, GrpcContext::PeerOf(*context), bundle.status());
  return new TokenizerCall(std::move(bundle));
}

absl::StatusOr<const ServingParts*> VllmEngineService::PartsFor(
    const grpc::CallbackServerContext& context) const {
  RETURN_IF_ERROR(access_.Check(context, Role::kApi).status());
  return admission_.Parts();
}

absl::StatusOr<std::shared_ptr<const TokenizerBundle>> VllmEngineService::Bundle(
    const grpc::CallbackServerContext& context) {
  ASSIGN_OR_RETURN(const ServingParts* parts, PartsFor(context));
  std::lock_guard<std::mutex> lock(mutex_);
  if (bundle_ == nullptr) {
    ASSIGN_OR_RETURN(TokenizerBundle bundle, MakeTokenizerBundle(parts->model.model_path));
    bundle_ = std::make_shared<const TokenizerBundle>(std::move(bundle));
  }
  return bundle_;
}

}  // namespace foredraft
