#ifndef FOREDRAFT_SERVER_API_GENERATION_CALL_H_
#define FOREDRAFT_SERVER_API_GENERATION_CALL_H_

// The two kinds of call that a request can come by, as gRPC reactors. A call owns itself from Create to
// OnDone; the output thread shares it until it has ended it. Push, End and Abandon come from the output
// thread (End also from the gRPC thread that refuses the request); On* come from gRPC's threads.

#include <grpcpp/server_context.h>
#include <grpcpp/support/server_callback.h>

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>

#include "foredraft/v1/generation.pb.h"
#include "server/api/response_fields.h"
#include "server/output/response_sink.h"

namespace foredraft {

// What a call tells its service.
struct CallHooks {
  std::function<void(uint64_t id)> cancelled;  // by the client, its deadline or a lost connection
  std::function<void()> done;                  // nothing of the call is left on the wire
};

// A call known to the service by its request, whichever kind it is.
class GenerationCall : public ResponseSink {
 public:
  // Before the request is opened at the output thread; then constant.
  void Label(uint64_t id, ResponseLabels labels) {
    id_ = id;
    labels_ = std::move(labels);
  }
  void Refuse(const absl::Status& status) { End({}, {.finish = FinishReason::kError, .status = status}); }

 protected:
  uint64_t id_ = 0;  // 0 = refused before it had one
  ResponseLabels labels_;
};

// One outstanding write; what comes meanwhile is coalesced into one chunk, up to `max_pending_tokens`.
class StreamCall final : public GenerationCall, public grpc::ServerWriteReactor<v1::GenerateChunk> {
 public:
  static std::shared_ptr<StreamCall> Create(grpc::CallbackServerContext* context, CallHooks hooks,
                                            int max_pending_tokens);

  bool Push(OutputDelta delta) override;
  void End(OutputDelta delta, OutputEnd end) override;
  bool closed() const override;
  void Abandon() override;

  void OnWriteDone(bool ok) override;
  void OnCancel() override;
  void OnDone() override;

 private:
  StreamCall(grpc::CallbackServerContext* context, CallHooks hooks, int max_pending_tokens)
      : context_(context), hooks_(std::move(hooks)), max_pending_tokens_(max_pending_tokens) {}
  // Starts what may be started: the next write, or the finish once all is written. What is pending becomes
  // one message only here.
  void Advance();

  grpc::CallbackServerContext* const context_;  // valid until done_
  const CallHooks hooks_;
  const int max_pending_tokens_;
  std::shared_ptr<StreamCall> self_;  // until OnDone
  OutputDelta taken_;                 // what outgoing_ is filled from; owned by who set writing_
  v1::GenerateChunk outgoing_;        // owned by gRPC while writing_

  mutable std::mutex mutex_;
  OutputDelta pending_;              // guarded by mutex_
  bool has_pending_ = false;         // guarded by mutex_
  bool writing_ = false;             // guarded by mutex_
  bool finished_ = false;            // guarded by mutex_; Finish was called
  bool done_ = false;                // guarded by mutex_
  std::optional<OutputEnd> ending_;  // guarded by mutex_; once set it stays as it is
};

// The answer in one piece; a request that its deadline ends has none.
class UnaryCall final : public GenerationCall, public grpc::ServerUnaryReactor {
 public:
  static std::shared_ptr<UnaryCall> Create(grpc::CallbackServerContext* context, CallHooks hooks,
                                           v1::GenerateResponse* response);

  bool Push(OutputDelta delta) override;
  void End(OutputDelta delta, OutputEnd end) override;
  bool closed() const override;
  void Abandon() override;

  void OnCancel() override;
  void OnDone() override;

 private:
  UnaryCall(grpc::CallbackServerContext* context, CallHooks hooks, v1::GenerateResponse* response)
      : context_(context), hooks_(std::move(hooks)), response_(response) {}

  grpc::CallbackServerContext* const context_;  // valid until done_
  const CallHooks hooks_;
  v1::GenerateResponse* const response_;  // gRPC's, valid until done_
  std::shared_ptr<UnaryCall> self_;       // until OnDone

  mutable std::mutex mutex_;
  OutputDelta whole_;   // guarded by mutex_
  bool ended_ = false;  // guarded by mutex_
  bool done_ = false;   // guarded by mutex_
};

}  // namespace foredraft

#endif  // FOREDRAFT_SERVER_API_GENERATION_CALL_H_
