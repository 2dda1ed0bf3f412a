#include "server/api/foredraft_v1/calls.h"

#include <utility>

#include "server/api/foredraft_v1/messages.h"
#include "server/api/grpc_status.h"

namespace foredraft {

std::shared_ptr<V1StreamCall> V1StreamCall::Create(grpc::CallbackServerContext* context, CallHooks hooks,
                                                   int max_pending_tokens) {
  return Own(std::shared_ptr<V1StreamCall>(new V1StreamCall(context, std::move(hooks), max_pending_tokens)));
}

void V1StreamCall::WriteMessage(const OutputDelta& delta, const OutputEnd* end) {
  FillChunk(delta, labels(), &chunk_);
  if (end != nullptr) FillEnd(delta.stats, *end, labels(), &chunk_);
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

}  // namespace foredraft
