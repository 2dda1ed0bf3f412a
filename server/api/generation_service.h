#ifndef FOREDRAFT_SERVER_API_GENERATION_SERVICE_H_
#define FOREDRAFT_SERVER_API_GENERATION_SERVICE_H_

// The gRPC service of README.md. Its methods run on gRPC's callback threads: they check, tokenize and submit,
// and never wait for the engine; answers come from the output thread (generation_call.h).

#include <atomic>
#include <condition_variable>
#include <memory>
#include <mutex>

#include "foredraft/v1/generation.grpc.pb.h"
#include "scheduler/serving_loop.h"
#include "server/api/generation_call.h"
#include "server/api/health.h"
#include "server/api/request_validator.h"
#include "server/output/metrics.h"
#include "server/output/output_thread.h"

namespace foredraft {

struct GenerationOptions {
  int max_pending_tokens = 1024;  // of one stream whose client does not read; past it the stream is ended
  int request_timeout_s = 600;
};

// What exists once the model is loaded. All outlive the service's calls.
struct GenerationParts {
  const Tokenizer* tokenizer = nullptr;
  const RequestValidator* validator = nullptr;
  ServingLoop* loop = nullptr;
  OutputThread* output = nullptr;
  int max_draft_len = 0;
  v1::GetModelResponse model;
};

class GenerationService final : public v1::GenerationService::CallbackService {
 public:
  // Health and metrics outlive the service.
  GenerationService(const GenerationOptions& options, const Health& health, Metrics& metrics);

  // Once, before health enters serving.
  void Open(GenerationParts parts);
  void SetRequestTimeout(int seconds) { request_timeout_s_.store(seconds); }

  // Generate and GenerateStream calls of which something is left on the wire.
  int open_calls() const;
  // False: the deadline came first.
  bool WaitForNoCalls(SteadyTime deadline) const;

  grpc::ServerUnaryReactor* Generate(grpc::CallbackServerContext* context, const v1::GenerateRequest* request,
                                     v1::GenerateResponse* response) override;
  grpc::ServerWriteReactor<v1::GenerateChunk>* GenerateStream(grpc::CallbackServerContext* context,
                                                              const v1::GenerateRequest* request) override;
  grpc::ServerUnaryReactor* Tokenize(grpc::CallbackServerContext* context, const v1::TokenizeRequest* request,
                                     v1::TokenizeResponse* response) override;
  grpc::ServerUnaryReactor* Detokenize(grpc::CallbackServerContext* context,
                                       const v1::DetokenizeRequest* request,
                                       v1::DetokenizeResponse* response) override;
  grpc::ServerUnaryReactor* GetModel(grpc::CallbackServerContext* context, const v1::GetModelRequest* request,
                                     v1::GetModelResponse* response) override;

 private:
  CallHooks Hooks();
  // Submits the request, or refuses the call with what is wrong with it.
  void Start(const grpc::CallbackServerContext& context, const v1::GenerateRequest& wire,
             std::shared_ptr<GenerationCall> call);
  absl::Status Submit(const grpc::CallbackServerContext& context, const v1::GenerateRequest& wire,
                      const std::string& request_id, const std::shared_ptr<GenerationCall>& call);
  // The parts, or UNAVAILABLE while there are none.
  absl::StatusOr<const GenerationParts*> Parts() const;

  const GenerationOptions options_;
  const Health& health_;
  Metrics& metrics_;
  std::atomic<int> request_timeout_s_;
  std::atomic<uint64_t> next_id_ = 1;
  std::unique_ptr<const GenerationParts> parts_;          // written once, by Open
  std::atomic<const GenerationParts*> opened_ = nullptr;  // parts_ once written

  mutable std::mutex calls_mutex_;
  mutable std::condition_variable calls_changed_;
  int open_calls_ = 0;  // guarded by calls_mutex_
};

}  // namespace foredraft

#endif  // FOREDRAFT_SERVER_API_GENERATION_SERVICE_H_
