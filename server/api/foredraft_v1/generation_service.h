#pragma once

// The gRPC service that generates. Its methods run on gRPC's callback threads and only translate: Admission
// takes the requests, and the output thread answers them through the calls (generation_call.h).

#include "foredraft/v1/generation.grpc.pb.h"
#include "server/api/admission.h"

namespace foredraft {

class GenerationService final : public v1::GenerationService::CallbackService {
 public:
  // A stream is ended once its client leaves more than `max_pending_tokens` tokens unread. Admission and
  // access outlive the service; every method needs the role api.
  GenerationService(Admission& admission, const Access& access, int max_pending_tokens)
      : admission_(admission), access_(access), max_pending_tokens_(max_pending_tokens) {}

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
  // The parts that serve, if the caller may use them.
  absl::StatusOr<const ServingParts*> PartsFor(const grpc::CallbackServerContext& context) const;
  void Submit(const v1::GenerateRequest& request, const std::shared_ptr<GenerationCall>& call);

  Admission& admission_;
  const Access& access_;
  const int max_pending_tokens_;
};

}  // namespace foredraft
