#pragma once

// The streaming calls of vllm.grpc.engine, as gRPC reactors (generation_call.h describes the life and threads
// of a call that generates).

#include <grpcpp/support/server_callback.h>

#include <functional>
#include <memory>
#include <utility>

#include "server/api/generation_call.h"
#include "server/api/grpc_context.h"
#include "server/api/vllm_engine/messages.h"
#include "server/api/vllm_engine/tokenizer_bundle.h"
#include "vllm/grpc/engine/vllm_engine.pb.h"

namespace foredraft {

// Generate. A streamed call sends its new tokens as chunks; any other call sends nothing before its end. Both
// end with one `complete` that holds all tokens, unless the request failed. A gateway counts CANCELLED and
// DEADLINE_EXCEEDED as faults of the server, so an aborted or late request ends OK with finish_reason
// "abort".
class VllmGenerateCall final : public StreamCall,
                               public grpc::ServerWriteReactor<vllm_wire::GenerateResponse> {
 public:
  // `before_end` is called once, before the client is told of the end, so that the request's id is free by
  // then.
  static std::shared_ptr<VllmGenerateCall> Create(grpc::CallbackServerContext* context, CallHooks hooks,
                                                  std::function<void()> before_end, bool stream,
                                                  int max_pending_tokens);

  // Ends the call as its client's cancellation would. Any thread may call it, even before the request is
  // submitted.
  void Abort() { CallCancelled(); }

  bool Push(OutputDelta delta) override;
  void End(OutputDelta delta, OutputEnd end) override;

  void OnWriteDone(bool ok) override;
  void OnCancel() override { CallCancelled(); }
  void OnDone() override { CallDone(); }

 private:
  VllmGenerateCall(grpc::CallbackServerContext* context, CallHooks hooks, std::function<void()> before_end,
                   bool stream, int max_pending_tokens)
      : StreamCall(std::make_unique<GrpcContext>(context), std::move(hooks), max_pending_tokens),
        stream_(stream),
        before_end_(std::move(before_end)) {}
  void WriteMessage(const OutputDelta& delta, const OutputEnd* end) override;
  void FinishStream(const absl::Status& status) override;
  bool HasLastMessage(const OutputEnd& end) const override;
  void BeforeEnd();

  const bool stream_;
  OutputDelta collected_;  // of a call that does not stream; guarded by mutex_

  // Owned by gRPC while a write is outstanding, else by the thread that starts the next one.
  std::function<void()> before_end_;  // empty once called
  OutputDelta written_;               // all tokens so far
  vllm_wire::GenerateResponse response_;
  vllm_wire::GenerateResponse complete_;  // held back until the chunk before it is written
  bool has_complete_ = false;
};

// GetTokenizer: the bundle in pieces. Owns itself until OnDone.
class TokenizerCall final : public grpc::ServerWriteReactor<::smg::grpc::common::GetTokenizerChunk> {
 public:
  explicit TokenizerCall(absl::StatusOr<std::shared_ptr<const TokenizerBundle>> bundle);

  void OnWriteDone(bool ok) override;
  void OnDone() override { delete this; }

 private:
  void WriteNext();

  std::shared_ptr<const TokenizerBundle> bundle_;
  size_t sent_ = 0;  // bytes
  ::smg::grpc::common::GetTokenizerChunk chunk_;
};

}  // namespace foredraft
