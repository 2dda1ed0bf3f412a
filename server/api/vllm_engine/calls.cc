#include "server/api/vllm_engine/calls.h"

#include <algorithm>
#include <utility>

#include "server/api/grpc_status.h"

namespace foredraft {
namespace {

constexpr size_t kTokenizerChunkBytes = size_t{64} << 10;

}  // namespace

std::shared_ptr<VllmGenerateCall> VllmGenerateCall::Create(grpc::CallbackServerContext* context,
                                                           CallHooks hooks, std::function<void()> before_end,
                                                           bool stream, int max_pending_tokens) {
  return Own(std::shared_ptr<VllmGenerateCall>(
      new VllmGenerateCall(context, std::move(hooks), std::move(before_end), stream, max_pending_tokens)));
}

bool VllmGenerateCall::Push(OutputDelta delta) {
  if (stream_) return StreamCall::Push(std::move(delta));
  std::lock_guard<std::mutex> lock(mutex_);
  collected_.Append(std::move(delta));
  return true;
}

void VllmGenerateCall::End(OutputDelta delta, OutputEnd end) {
  if (!stream_) {
    std::lock_guard<std::mutex> lock(mutex_);
    collected_.Append(std::move(delta));
    // A failed request sends no tokens at its end: they would be a chunk.
    delta = end.status.ok() || HasLastMessage(end) ? std::move(collected_) : OutputDelta{};
  }
  StreamCall::End(std::move(delta), std::move(end));
}

bool VllmGenerateCall::HasLastMessage(const OutputEnd& end) const {
  return end.status.ok() || end.finish == FinishReason::kDeadline ||
         (end.finish == FinishReason::kCancelled && absl::IsCancelled(end.status));
}

void VllmGenerateCall::WriteMessage(const OutputDelta& delta, const OutputEnd* end) {
  written_.Append(delta);
  response_.Clear();
  if (end != nullptr) BeforeEnd();
  if (end != nullptr) FillComplete(written_, *end, complete_.mutable_complete());
  const bool is_chunk = !delta.token_ids.empty() && (stream_ || end == nullptr);
  if (is_chunk) FillChunk(delta, response_.mutable_chunk());
  has_complete_ = is_chunk && end != nullptr;
  StartWrite(is_chunk ? &response_ : &complete_);
}

void VllmGenerateCall::OnWriteDone(bool ok) {
  if (ok && std::exchange(has_complete_, false)) {
    StartWrite(&complete_);
  } else {
    MessageWritten(ok);
  }
}

void VllmGenerateCall::BeforeEnd() {
  if (before_end_) std::exchange(before_end_, nullptr)();
}

void VllmGenerateCall::FinishStream(const absl::Status& status) {
  BeforeEnd();
  const bool is_abort = absl::IsCancelled(status) || absl::IsDeadlineExceeded(status);
  Finish(is_abort ? grpc::Status::OK : ToGrpc(status));
}

TokenizerCall::TokenizerCall(absl::StatusOr<std::shared_ptr<const TokenizerBundle>> bundle) {
  if (!bundle.ok()) {
    Finish(ToGrpc(bundle.status()));
    return;
  }
  bundle_ = *std::move(bundle);
  WriteNext();
}

void TokenizerCall::OnWriteDone(bool ok) {
  if (ok && sent_ < bundle_->zip.size()) {
    WriteNext();
  } else {
    Finish(grpc::Status::OK);
  }
}

void TokenizerCall::WriteNext() {
  const size_t size = std::min(kTokenizerChunkBytes, bundle_->zip.size() - sent_);
  chunk_.set_data(bundle_->zip.substr(sent_, size));
  sent_ += size;
  if (sent_ == bundle_->zip.size()) chunk_.set_sha256(bundle_->sha256);
  StartWrite(&chunk_);
}

}  // namespace foredraft
