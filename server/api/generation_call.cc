#include "server/api/generation_call.h"

#include <utility>

namespace foredraft {
namespace {

bool HasLastChunk(const OutputEnd& end) { return end.status.ok() || end.finish == FinishReason::kDeadline; }

}  // namespace

std::shared_ptr<StreamCall> StreamCall::Create(grpc::CallbackServerContext* context, CallHooks hooks,
                                               int max_pending_tokens) {
  std::shared_ptr<StreamCall> call(new StreamCall(context, std::move(hooks), max_pending_tokens));
  call->self_ = call;
  return call;
}

bool StreamCall::Push(OutputDelta delta) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (ending_.has_value()) return true;
    if (pending_.token_ids.size() + delta.token_ids.size() > static_cast<size_t>(max_pending_tokens_)) {
      return false;
    }
    pending_.Join(std::move(delta));
    has_pending_ = true;
    if (writing_) return true;  // OnWriteDone goes on with it
  }
  Advance();
  return true;
}

void StreamCall::End(OutputDelta delta, OutputEnd end) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (ending_.has_value()) return;  // refused and ended by a drain at once: the first wins
    if (HasLastChunk(end) || (end.finish == FinishReason::kError && !delta.token_ids.empty())) {
      pending_.Join(std::move(delta));
      has_pending_ = true;
    } else if (end.finish == FinishReason::kCancelled) {
      has_pending_ = false;  // nobody reads it
    }
    ending_ = std::move(end);
  }
  Advance();
}

void StreamCall::Advance() {
  std::shared_ptr<StreamCall> alive;  // Finish may let OnDone run before it returns
  bool is_last = false;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (writing_ || finished_) return;
    if (has_pending_) {
      std::swap(taken_, pending_);
      pending_.Clear();
      has_pending_ = false;
      writing_ = true;
      is_last = ending_.has_value() && HasLastChunk(*ending_);
    } else if (ending_.has_value()) {
      alive = self_;
      finished_ = true;
    } else {
      return;
    }
  }
  if (alive != nullptr) {
    Finish(ToGrpc(ending_->status));
    return;
  }
  FillChunk(taken_, labels_, &outgoing_);
  if (is_last) FillEnd(taken_.tally, *ending_, labels_, &outgoing_);
  StartWrite(&outgoing_);
}

void StreamCall::OnWriteDone(bool ok) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    writing_ = false;
    if (!ok) has_pending_ = false;  // the connection is gone; OnCancel tells the output thread
  }
  Advance();
}

void StreamCall::OnCancel() {
  if (id_ != 0) hooks_.cancelled(id_);
}

void StreamCall::OnDone() {
  std::shared_ptr<StreamCall> self;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    done_ = true;
    self = std::move(self_);
  }
  hooks_.done();
}

bool StreamCall::closed() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return done_;
}

void StreamCall::Abandon() {
  std::lock_guard<std::mutex> lock(mutex_);  // keeps OnDone, and with it the context's end, waiting
  if (!done_) context_->TryCancel();
}

std::shared_ptr<UnaryCall> UnaryCall::Create(grpc::CallbackServerContext* context, CallHooks hooks,
                                             v1::GenerateResponse* response) {
  std::shared_ptr<UnaryCall> call(new UnaryCall(context, std::move(hooks), response));
  call->self_ = call;
  return call;
}

bool UnaryCall::Push(OutputDelta delta) {
  std::lock_guard<std::mutex> lock(mutex_);
  whole_.Join(std::move(delta));
  return true;
}

void UnaryCall::End(OutputDelta delta, OutputEnd end) {
  std::shared_ptr<UnaryCall> alive;  // Finish may let OnDone run before it returns
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (ended_) return;
    ended_ = true;
    alive = self_;
    if (end.status.ok()) {
      whole_.Join(std::move(delta));
      v1::GenerateChunk chunk;
      FillChunk(whole_, labels_, &chunk);
      FillEnd(whole_.tally, end, labels_, &chunk);
      FillResponse(chunk, response_);
    }
  }
  Finish(ToGrpc(end.status));
}

void UnaryCall::OnCancel() {
  if (id_ != 0) hooks_.cancelled(id_);
}

void UnaryCall::OnDone() {
  std::shared_ptr<UnaryCall> self;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    done_ = true;
    self = std::move(self_);
  }
  hooks_.done();
}

bool UnaryCall::closed() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return done_;
}

void UnaryCall::Abandon() {
  std::lock_guard<std::mutex> lock(mutex_);
  if (!done_) context_->TryCancel();
}

}  // namespace foredraft
