#pragma once

// The life of a call that carries a generation request, without the messages of its wire. A gRPC wire's call
// derives from this and from a gRPC reactor: it fills the messages and passes gRPC's reactions on. On an HTTP
// wire the listener takes gRPC's place.
//
// A call owns itself from Create to CallDone; the output thread shares ownership until it has ended the call.
// Push, End and Abandon come from the output thread (End also from the gRPC thread that refuses the request);
// CallCancelled, CallDone and MessageWritten come from gRPC's threads.

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "server/api/call_context.h"
#include "server/output/response_sink.h"

namespace foredraft {

// How a call reports its end to Admission.
struct CallHooks {
  std::function<void(uint64_t id)> cancelled;  // by the client, its deadline or a lost connection
  std::function<void()> done;                  // gRPC has finished the call
};

// What every response of a request repeats.
struct ResponseLabels {
  std::string request_id;
  uint64_t seed = 0;
  int max_draft_len = 0;  // entries of accepted_per_position
};

class GenerationCall : public ResponseSink {
 public:
  // Called before the request is opened at the output thread; the label is constant afterwards.
  void Label(uint64_t id, ResponseLabels labels) {
    labels_ = std::move(labels);
    id_.store(id);
  }
  // Valid until the call is done.
  CallContext& context() { return *context_; }
  void Refuse(const absl::Status& status) { End({}, {.finish = FinishReason::kError, .status = status}); }

  // Whether the client has left, perhaps before the request was submitted.
  bool cancelled() const { return cancelled_.load(); }
  // Called after the output thread has opened the request: reports a cancellation that came before that.
  void Submitted() {
    if (cancelled()) hooks_.cancelled(id_.load());
  }

  bool closed() const override;
  void Abandon() override;

 protected:
  GenerationCall(std::unique_ptr<CallContext> context, CallHooks hooks)
      : context_(std::move(context)), hooks_(std::move(hooks)) {}

  // Called once, by Create: the call keeps itself alive until CallDone.
  template <class Call>
  static std::shared_ptr<Call> Own(std::shared_ptr<Call> call) {
    call->self_ = call;
    return call;
  }

  // Called by OnCancel and OnDone. CallCancelled may come at any time, even before the request has an id.
  void CallCancelled();
  void CallDone();

  uint64_t id() const { return id_.load(); }
  // Null once the call is done.
  std::shared_ptr<GenerationCall> self() const {
    std::lock_guard<std::mutex> lock(mutex_);
    return self_;
  }
  const ResponseLabels& labels() const { return labels_; }

  mutable std::mutex mutex_;
  std::shared_ptr<GenerationCall> self_;  // until CallDone

 private:
  const std::unique_ptr<CallContext> context_;  // what it refers to is valid until done_
  const CallHooks hooks_;
  std::atomic<bool> cancelled_ = false;
  std::atomic<uint64_t> id_ = 0;  // 0 = not submitted, or refused before it had one
  ResponseLabels labels_;
  bool done_ = false;  // guarded by mutex_
};

// A call that streams. One write is outstanding; deltas that arrive meanwhile are coalesced into one message,
// up to `max_pending_tokens`.
class StreamCall : public GenerationCall {
 public:
  bool Push(OutputDelta delta) override;
  void End(OutputDelta delta, OutputEnd end) override;

 protected:
  StreamCall(std::unique_ptr<CallContext> context, CallHooks hooks, int max_pending_tokens)
      : GenerationCall(std::move(context), std::move(hooks)), max_pending_tokens_(max_pending_tokens) {}

  // Implemented by the wire. `end` is set for the last message, if HasLastMessage.
  virtual void WriteMessage(const OutputDelta& delta, const OutputEnd* end) = 0;
  virtual void FinishStream(const absl::Status& status) = 0;
  // Whether a stream that ends with `end` gets a last message before its status.
  virtual bool HasLastMessage(const OutputEnd& end) const = 0;

  // Called by OnWriteDone.
  void MessageWritten(bool ok);

 private:
  // Starts the next write, or the finish once everything is written. Pending deltas become a message only
  // here.
  void Advance();

  const int max_pending_tokens_;
  // Owned by the thread that set writing_.
  OutputDelta taken_;  // what the message is filled from
  SteadyTime write_begin_;

  OutputDelta pending_;              // guarded by mutex_
  bool has_pending_ = false;         // guarded by mutex_
  bool writing_ = false;             // guarded by mutex_
  bool finished_ = false;            // guarded by mutex_; FinishStream was called
  std::optional<OutputEnd> ending_;  // guarded by mutex_; constant once set
};

}  // namespace foredraft
