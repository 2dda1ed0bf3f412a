#pragma once

// The leader's end of the stream of one worker. gRPC creates it through Leader's service; it deletes itself
// in OnDone. It delivers messages to the leader, which decides what they mean.
//
// Threads: gRPC's own call On*, one at a time for reads and one at a time for writes. No call waits.

#include <grpcpp/support/server_callback.h>

#include "ranks/leader.h"
#include "ranks/outbox.h"

namespace foredraft {

class LeaderStream final
    : public grpc::ServerBidiReactor<worker::v1::WorkerMessage, worker::v1::LeaderMessage> {
 public:
  // Sends the challenge that answers `opening`.
  LeaderStream(Leader& leader, grpc::CallbackServerContext& context, const Opening& opening);

  // The proof that `join` must have; empty where the worker's certificate is enough.
  const std::string& expected_proof() const { return expected_proof_; }

  // Called by any thread, while the leader counts the stream as open (StreamOpened to StreamGone).
  void Send(worker::v1::LeaderMessage message) { Start(outbox_.Push(std::move(message))); }
  void End(const absl::Status& status);  // after the messages sent so far; the first status is the stream's
  void Cut();                            // at once, also if the peer is unreachable

 private:
  void OnReadDone(bool ok) override;
  void OnWriteDone(bool ok) override;
  void OnCancel() override;
  void OnDone() override;
  void Start(Outbox<worker::v1::LeaderMessage>::Next next);

  Leader& leader_;
  grpc::CallbackServerContext& context_;
  std::string expected_proof_;
  worker::v1::WorkerMessage incoming_;
  bool joined_ = false;                       // only reads use it
  Outbox<worker::v1::LeaderMessage> outbox_;  // own lock

  std::mutex mutex_;
  grpc::Status end_status_;  // guarded by mutex_
  bool end_known_ = false;   // guarded by mutex_
};

}  // namespace foredraft
