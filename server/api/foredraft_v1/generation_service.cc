#include "server/api/foredraft_v1/generation_service.h"

#include <grpcpp/support/server_callback.h>

#include <memory>
#include <utility>

#include "base/out_of_memory.h"
#include "base/status_macros.h"
#include "server/api/foredraft_v1/messages.h"
#include "server/api/generation_call.h"
#include "server/api/grpc_context.h"
#include "server/api/grpc_status.h"

namespace foredraft {
namespace {

// The calls that generate, as gRPC reactors (generation_call.h describes their life and threads).

// GenerateStream. A stream ended by its deadline gets a last chunk, too.
class V1StreamCall final : public StreamCall, public grpc::ServerWriteReactor<v1::GenerateChunk> {
 public:
  static std::shared_ptr<V1StreamCall> Create(grpc::CallbackServerContext* context, CallHooks hooks,
                                              int max_pending_tokens);

  void OnWriteDone(bool ok) override { MessageWritten(ok); }
  void OnCancel() override { CallCancelled(); }
  void OnDone() override { CallDone(); }

 private:
  using StreamCall::StreamCall;
  void WriteMessage(const OutputDelta& delta, const OutputEnd* end) override;
  void FinishStream(const absl::Status& status) override { Finish(ToGrpc(status)); }
  bool HasLastMessage(const OutputEnd& end) const override;

  v1::GenerateChunk chunk_;  // owned by gRPC while a write is outstanding
  CallJoiner calls_;         // filled only while no write is outstanding
};

// Generate: the answer in one piece. A request ended by its deadline has no answer.
class V1UnaryCall final : public GenerationCall, public grpc::ServerUnaryReactor {
 public:
  static std::shared_ptr<V1UnaryCall> Create(grpc::CallbackServerContext* context, CallHooks hooks,
                                             v1::GenerateResponse* response);

  bool Push(OutputDelta delta) override;
  void End(OutputDelta delta, OutputEnd end) override;

  void OnCancel() override { CallCancelled(); }
  void OnDone() override { CallDone(); }

 private:
  V1UnaryCall(grpc::CallbackServerContext* context, CallHooks hooks, v1::GenerateResponse* response)
      : GenerationCall(std::make_unique<GrpcContext>(context), std::move(hooks)), response_(response) {}

  v1::GenerateResponse* const response_;  // gRPC's, valid until the call is done
  OutputDelta whole_;                     // guarded by mutex_
  bool ended_ = false;                    // guarded by mutex_
};

std::shared_ptr<V1StreamCall> V1StreamCall::Create(grpc::CallbackServerContext* context, CallHooks hooks,
                                                   int max_pending_tokens) {
  return Own(std::shared_ptr<V1StreamCall>(
      new V1StreamCall(std::make_unique<GrpcContext>(context), std::move(hooks), max_pending_tokens)));
}

void V1StreamCall::WriteMessage(const OutputDelta& delta, const OutputEnd* end) {
  FillChunk(delta, labels(), calls_, &chunk_);
  if (end != nullptr) FillEnd(delta.stats, *end, labels(), calls_, &chunk_);
  StartWrite(&chunk_);
}

bool V1StreamCall::HasLastMessage(const OutputEnd& end) const {
  return end.status.ok() || end.finish == FinishReason::kDeadline;
}

std::shared_ptr<V1UnaryCall> V1UnaryCall::Create(grpc::CallbackServerContext* context, CallHooks hooks,
                                                 v1::GenerateResponse* response) {
  return Own(std::shared_ptr<V1UnaryCall>(new V1UnaryCall(context, std::move(hooks), response)));
}

bool V1UnaryCall::Push(OutputDelta delta) {
  std::lock_guard<std::mutex> lock(mutex_);
  whole_.Append(std::move(delta));
  return true;
}

void V1UnaryCall::End(OutputDelta delta, OutputEnd end) {
  std::shared_ptr<GenerationCall> alive;  // Finish may let OnDone run before it returns
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (ended_) return;
    ended_ = true;
    alive = self_;
    if (end.status.ok()) {
      whole_.Append(std::move(delta));
      FillResponse(whole_, end, labels(), response_);
    }
  }
  Finish(ToGrpc(end.status));
}

}  // namespace

absl::StatusOr<const ServingParts*> GenerationService::PartsFor(
    const grpc::CallbackServerContext& context) const {
  RETURN_IF_ERROR(access_.Check(context, Role::kApi).status());
  return admission_.Parts();
}

grpc::ServerUnaryReactor* GenerationService::Generate(grpc::CallbackServerContext* context,
                                                      const v1::GenerateRequest* request,
                                                      v1::GenerateResponse* response) {
  const std::shared_ptr<V1UnaryCall> call = V1UnaryCall::Create(context, admission_.OpenCall(), response);
  Submit(*request, call);
  return call.get();
}

grpc::ServerWriteReactor<v1::GenerateChunk>* GenerationService::GenerateStream(
    grpc::CallbackServerContext* context, const v1::GenerateRequest* request) {
  const std::shared_ptr<V1StreamCall> call =
      V1StreamCall::Create(context, admission_.OpenCall(), max_pending_tokens_);
  Submit(*request, call);
  return call.get();
}

void GenerationService::Submit(const v1::GenerateRequest& request,
                               const std::shared_ptr<GenerationCall>& call) {
  absl::StatusOr<ClientRequest> client = OrOutOfMemory([&]() -> absl::StatusOr<ClientRequest> {
    const MayLackMemory scope;
    return ReadRequest(request);
  });
  if (client.ok()) {
    admission_.Submit(access_, *std::move(client), call);
  } else {
    admission_.Refuse(request.request_id(), client.status(), call);
  }
}

grpc::ServerUnaryReactor* GenerationService::Tokenize(grpc::CallbackServerContext* context,
                                                      const v1::TokenizeRequest* request,
                                                      v1::TokenizeResponse* response) {
  const absl::StatusOr<std::string> caller = access_.Check(*context, Role::kApi);
  if (!caller.ok()) return FinishNow(context, caller.status());
  const absl::StatusOr<const ServingParts*> parts = admission_.Parts();
  if (!parts.ok()) return FinishNow(context, parts.status());
  grpc::ServerUnaryReactor* const reactor = context->DefaultReactor();
  const auto tokenize = [context, request, response, reactor, parts = *parts](const absl::Status& may) {
    const auto encode = [&]() -> absl::Status {
      RETURN_IF_ERROR(may);
      const EncodeOptions options = {.parse_special = request->parse_special(),
                                     .add_bos = !request->has_add_bos() || request->add_bos()};
      ASSIGN_OR_RETURN(const std::vector<int32_t> ids,
                       parts->validator->Tokenize(ReadInput(*request), options, ReadChoices(*request),
                                                  ReadTools(request->chat())));
      response->mutable_token_ids()->Add(ids.begin(), ids.end());
      return absl::OkStatus();
    };
    Answer(context, reactor, OrOutOfMemory(encode));
  };
  admission_.Tokenize(ClientName(GrpcContext::PeerOf(*context), *caller), request->ByteSizeLong(), tokenize);
  return reactor;
}

grpc::ServerUnaryReactor* GenerationService::Detokenize(grpc::CallbackServerContext* context,
                                                        const v1::DetokenizeRequest* request,
                                                        v1::DetokenizeResponse* response) {
  const absl::StatusOr<const ServingParts*> parts = PartsFor(*context);
  if (!parts.ok()) return FinishNow(context, parts.status());
  return FinishNow(context, OrOutOfMemory([&]() -> absl::Status {
                     const MayLackMemory scope;
                     const auto& ids = request->token_ids();
                     ASSIGN_OR_RETURN(std::string text, (*parts)->validator->Detokenize(
                                                            {ids.data(), static_cast<size_t>(ids.size())}));
                     response->set_text(std::move(text));
                     return absl::OkStatus();
                   }));
}

grpc::ServerUnaryReactor* GenerationService::GetModel(grpc::CallbackServerContext* context,
                                                      const v1::GetModelRequest*,
                                                      v1::GetModelResponse* response) {
  const absl::StatusOr<const ServingParts*> parts = PartsFor(*context);
  if (parts.ok()) FillModel((*parts)->model, *(*parts)->validator, response);
  return FinishNow(context, parts.status());
}

}  // namespace foredraft
