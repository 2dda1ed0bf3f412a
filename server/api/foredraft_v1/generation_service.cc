#include "server/api/foredraft_v1/generation_service.h"

#include <utility>

#include "base/status_macros.h"
#include "server/api/foredraft_v1/calls.h"
#include "server/api/foredraft_v1/messages.h"
#include "server/api/grpc_status.h"

namespace foredraft {

absl::StatusOr<const ServingParts*> GenerationService::PartsFor(
    const grpc::CallbackServerContext& context) const {
  RETURN_IF_ERROR(access_.Check(context, Role::kApi).status());
  return admission_.Parts();
}

grpc::ServerUnaryReactor* GenerationService::Generate(grpc::CallbackServerContext* context,
                                                      const v1::GenerateRequest* request,
                                                      v1::GenerateResponse* response) {
  const std::shared_ptr<V1UnaryCall> call = V1UnaryCall::Create(context, admission_.OpenCall(), response);
  admission_.Submit(*context, access_, ReadRequest(*request), call);
  return call.get();
}

grpc::ServerWriteReactor<v1::GenerateChunk>* GenerationService::GenerateStream(
    grpc::CallbackServerContext* context, const v1::GenerateRequest* request) {
  const std::shared_ptr<V1StreamCall> call =
      V1StreamCall::Create(context, admission_.OpenCall(), max_pending_tokens_);
  admission_.Submit(*context, access_, ReadRequest(*request), call);
  return call.get();
}

grpc::ServerUnaryReactor* GenerationService::Tokenize(grpc::CallbackServerContext* context,
                                                      const v1::TokenizeRequest* request,
                                                      v1::TokenizeResponse* response) {
  const absl::StatusOr<const ServingParts*> parts = PartsFor(*context);
  if (!parts.ok()) return FinishNow(context, parts.status());
  const bool add_bos = !request->has_add_bos() || request->add_bos();
  const std::optional<bool> thinking =
      request->has_thinking() ? std::optional<bool>(request->thinking()) : std::nullopt;
  const absl::StatusOr<std::vector<int32_t>> ids = (*parts)->validator->Tokenize(
      ReadInput(*request), {.parse_special = request->parse_special(), .add_bos = add_bos}, thinking);
  if (ids.ok()) response->mutable_token_ids()->Add(ids->begin(), ids->end());
  return FinishNow(context, ids.status());
}

grpc::ServerUnaryReactor* GenerationService::Detokenize(grpc::CallbackServerContext* context,
                                                        const v1::DetokenizeRequest* request,
                                                        v1::DetokenizeResponse* response) {
  const absl::StatusOr<const ServingParts*> parts = PartsFor(*context);
  if (!parts.ok()) return FinishNow(context, parts.status());
  const auto& ids = request->token_ids();
  absl::StatusOr<std::string> text =
      (*parts)->validator->Detokenize({ids.data(), static_cast<size_t>(ids.size())});
  if (text.ok()) response->set_text(*std::move(text));
  return FinishNow(context, text.status());
}

grpc::ServerUnaryReactor* GenerationService::GetModel(grpc::CallbackServerContext* context,
                                                      const v1::GetModelRequest*,
                                                      v1::GetModelResponse* response) {
  const absl::StatusOr<const ServingParts*> parts = PartsFor(*context);
  if (parts.ok()) FillModel((*parts)->model, (*parts)->validator->thinking(), response);
  return FinishNow(context, parts.status());
}

}  // namespace foredraft
