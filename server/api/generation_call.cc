#include "server/api/generation_call.h"

#include <utility>

#include "base/out_of_memory.h"
#include "base/trace.h"

namespace foredraft {

void GenerationCall::CallCancelled() {
  const MustHaveMemory scope;
  cancelled_.store(true);  // set first: Submitted reports it if the id comes later
  if (const uint64_t id = id_.load(); id != 0) hooks_.cancelled(id);
}

void GenerationCall::CallDone() {
  const MustHaveMemory scope;
  std::shared_ptr<GenerationCall> self;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    done_ = true;
    self = std::move(self_);
  }
  hooks_.done();
}

bool GenerationCall::closed() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return done_;
}

void GenerationCall::Abandon() {
  std::lock_guard<std::mutex> lock(mutex_);  // delays CallDone, and with it the end of the context
  if (!done_) context_->Cancel();
}

bool StreamCall::Push(OutputDelta delta) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (ending_.has_value()) return true;
    if (pending_.token_ids.size() + delta.token_ids.size() > static_cast<size_t>(max_pending_tokens_)) {
      return false;
    }
    pending_.Append(std::move(delta));
    has_pending_ = true;
    if (writing_) return true;  // MessageWritten starts the next write
  }
  Advance();
  return true;
}

void StreamCall::End(OutputDelta delta, OutputEnd end) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (ending_.has_value()) return;  // a drain may end a call that is being refused: the first end counts
    if (HasLastMessage(end) || (end.finish == FinishReason::kError && !delta.token_ids.empty())) {
      pending_.Append(std::move(delta));
      has_pending_ = true;
    } else if (end.finish == FinishReason::kCancelled) {
      has_pending_ = false;  // the client no longer reads
    }
    ending_ = std::move(end);
  }
  Advance();
}

void StreamCall::Advance() {
  const MustHaveMemory scope;
  std::shared_ptr<GenerationCall> alive;  // FinishStream may let CallDone run before it returns
  bool is_last = false;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (writing_ || finished_) return;
    if (has_pending_) {
      std::swap(taken_, pending_);
      pending_.Clear();
      has_pending_ = false;
      writing_ = true;
      is_last = ending_.has_value() && HasLastMessage(*ending_);
    } else if (ending_.has_value()) {
      alive = self_;
      finished_ = true;
    } else {
      return;
    }
  }
  if (alive != nullptr) {
    FinishStream(ending_->status);
  } else {
    if (TraceIsOn()) write_begin_ = std::chrono::steady_clock::now();
    WriteMessage(taken_, is_last ? &*ending_ : nullptr);
  }
}

void StreamCall::MessageWritten(bool ok) {
  const MustHaveMemory scope;
  if (TraceIsOn() && write_begin_ != SteadyTime()) {
    RecordTrace({.name = "write",
                 .begin = write_begin_,
                 .end = std::chrono::steady_clock::now(),
                 .category = "write",
                 .id = id(),
                 .args = {{{"tokens", static_cast<int64_t>(taken_.token_ids.size())}}}});
  }
  {
    std::lock_guard<std::mutex> lock(mutex_);
    writing_ = false;
    if (!ok) has_pending_ = false;  // the connection is gone; OnCancel tells the output thread
  }
  Advance();
}

}  // namespace foredraft
