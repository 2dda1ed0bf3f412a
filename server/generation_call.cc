#include "server/generation_call.h"

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
    if (pending_.token_ids_size() + static_cast<int>(delta.token_ids.size()) > max_pending_tokens_)
      return false;
    AppendDelta(delta, labels_, &pending_);
    has_pending_ = true;
  }
  Advance();
  return true;
}

void StreamCall::End(OutputDelta delta, OutputEnd end) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (ending_.has_value()) return;  // refused and ended by a drain at once: the first wins
    if (HasLastChunk(end)) {
      AppendDelta(delta, labels_, &pending_);
      FillEnd(delta.tally, end, labels_, &pending_);
      has_pending_ = true;
    } else if (end.finish == FinishReason::kError && !delta.token_ids.empty()) {
      AppendDelta(delta, labels_, &pending_);
      has_pending_ = true;
    } else if (end.finish == FinishReason::kCancelled) {
      has_pending_ = false;  // nobody reads it
    }
    ending_ = std::move(end.status);
  }
  Advance();
}

void StreamCall::Advance() {
  std::shared_ptr<StreamCall> alive;  // Finish may let OnDone run before it returns
  std::optional<absl::Status> status;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (writing_ || finished_) return;
    if (has_pending_) {
      outgoing_ = std::exchange(pending_, {});
      has_pending_ = false;
      writing_ = true;
    } else if (ending_.has_value()) {
      alive = self_;
      finished_ = true;
      status = ending_;
    } else {
      return;
    }
  }
  if (status.has_value()) {
    Finish(ToGrpc(*status));
  } else {
    StartWrite(&outgoing_);
  }
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
  AppendDelta(delta, labels_, &whole_);
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
      AppendDelta(delta, labels_, &whole_);
      FillEnd(delta.tally, end, labels_, &whole_);
      FillResponse(whole_, response_);
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
