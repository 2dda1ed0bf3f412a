#pragma once

// The gRPC service that gateways use (vllm.grpc.engine.VllmEngine, docs/clients.md). Its methods run on
// gRPC's callback threads and only translate, as those of foredraft.v1 do.

#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include "server/api/admin_hooks.h"
#include "server/api/admission.h"
#include "server/api/vllm_engine/calls.h"
#include "vllm/grpc/engine/vllm_engine.grpc.pb.h"

namespace foredraft {

class VllmEngineService final : public vllm_wire::VllmEngine::CallbackService {
 public:
  struct Source {
    std::function<ServerLoad()> load;
    std::function<double()> generated_tokens;  // since the start
  };

  // Admission and access outlive the service; every method needs the role api. `max_pending_tokens` is as in
  // foredraft.v1.
  VllmEngineService(Admission& admission, const Access& access, Source source, int max_pending_tokens)
      : admission_(admission),
        access_(access),
        source_(std::move(source)),
        max_pending_tokens_(max_pending_tokens) {}

  grpc::ServerWriteReactor<vllm_wire::GenerateResponse>* Generate(
      grpc::CallbackServerContext* context, const vllm_wire::GenerateRequest* request) override;
  grpc::ServerUnaryReactor* HealthCheck(grpc::CallbackServerContext* context,
                                        const vllm_wire::HealthCheckRequest* request,
                                        vllm_wire::HealthCheckResponse* response) override;
  grpc::ServerUnaryReactor* Abort(grpc::CallbackServerContext* context,
                                  const vllm_wire::AbortRequest* request,
                                  vllm_wire::AbortResponse* response) override;
  grpc::ServerUnaryReactor* GetModelInfo(grpc::CallbackServerContext* context,
                                         const vllm_wire::GetModelInfoRequest* request,
                                         vllm_wire::GetModelInfoResponse* response) override;
  grpc::ServerUnaryReactor* GetServerInfo(grpc::CallbackServerContext* context,
                                          const vllm_wire::GetServerInfoRequest* request,
                                          vllm_wire::GetServerInfoResponse* response) override;
  grpc::ServerUnaryReactor* GetLoads(grpc::CallbackServerContext* context,
                                     const vllm_wire::GetLoadsRequest* request,
                                     vllm_wire::GetLoadsResponse* response) override;
  grpc::ServerWriteReactor<::smg::grpc::common::GetTokenizerChunk>* GetTokenizer(
      grpc::CallbackServerContext* context, const ::smg::grpc::common::GetTokenizerRequest* request) override;

 private:
  using Clock = std::chrono::steady_clock;
  // The name of the caller's token (empty where none is asked for) and the caller's request id: callers
  // choose ids independently, and none may end another caller's call.
  using CallKey = std::pair<std::string, std::string>;

  // False: a live call has the key. An empty id is always accepted and never registered.
  bool Register(const CallKey& key, const std::shared_ptr<VllmGenerateCall>& call);
  void Unregister(const CallKey& key);
  // Tokens per second since the throughput was last computed, at least a second ago.
  double Throughput();
  // The parts that serve, if the caller may use them.
  absl::StatusOr<const ServingParts*> PartsFor(const grpc::CallbackServerContext& context) const;
  absl::StatusOr<std::shared_ptr<const TokenizerBundle>> Bundle(const grpc::CallbackServerContext& context);

  Admission& admission_;
  const Access& access_;
  const Source source_;
  const int max_pending_tokens_;
  const Clock::time_point start_ = Clock::now();

  std::mutex mutex_;
  // Guarded by mutex_.
  std::map<CallKey, std::weak_ptr<VllmGenerateCall>> live_calls_;
  std::shared_ptr<const TokenizerBundle> bundle_;  // from the first GetTokenizer on
  Clock::time_point throughput_time_ = start_;
  double throughput_tokens_ = 0;
  double throughput_ = 0;
};

}  // namespace foredraft
