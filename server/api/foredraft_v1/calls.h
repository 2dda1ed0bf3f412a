#pragma once

// The calls of foredraft.v1 that generate, as gRPC reactors (generation_call.h has their life and threads).

#include <grpcpp/support/server_callback.h>

#include <memory>

#include "foredraft/v1/generation.pb.h"
#include "server/api/generation_call.h"

namespace foredraft {

// GenerateStream. A stream that its deadline ends gets a last chunk too.
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
  void FinishStream(const grpc::Status& status) override { Finish(status); }
  bool HasLastMessage(const OutputEnd& end) const override;

  v1::GenerateChunk chunk_;  // owned by gRPC while a write is outstanding
};

// Generate: the answer in one piece. A request that its deadline ends has no answer.
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
      : GenerationCall(context, std::move(hooks)), response_(response) {}

  v1::GenerateResponse* const response_;  // gRPC's, valid until the call is done
  OutputDelta whole_;                     // guarded by mutex_
  bool ended_ = false;                    // guarded by mutex_
};

}  // namespace foredraft
