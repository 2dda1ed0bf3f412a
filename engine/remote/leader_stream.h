#ifndef FOREDRAFT_ENGINE_REMOTE_LEADER_STREAM_H_
#define FOREDRAFT_ENGINE_REMOTE_LEADER_STREAM_H_

// One worker's stream, seen from the leader. Owns itself: gone after OnDone. Its calls never wait.

#include <grpcpp/support/server_callback.h>

#include "engine/remote/leader.h"
#include "engine/remote/outbox.h"

namespace foredraft {

class LeaderStream final : public grpc::ServerBidiReactor<v1::WorkerMessage, v1::LeaderMessage> {
 public:
  LeaderStream(Leader& leader, grpc::CallbackServerContext& context);

  // Any thread, as long as the leader counts the stream as open.
  void Send(v1::LeaderMessage message) { Start(outbox_.Push(std::move(message))); }
  void End(const absl::Status& status);  // after what was sent; the first status counts
  void Cut();                            // at once, also where the peer is out of reach

 private:
  void OnReadDone(bool ok) override;
  void OnWriteDone(bool ok) override;
  void OnCancel() override;
  void OnDone() override;
  void Start(Outbox<v1::LeaderMessage>::Next next);

  Leader& leader_;
  grpc::CallbackServerContext& context_;
  v1::WorkerMessage incoming_;
  bool joined_ = false;  // reads come one after another
  Outbox<v1::LeaderMessage> outbox_;
  std::mutex mutex_;
  grpc::Status end_status_;  // guarded by mutex_
  bool end_known_ = false;   // guarded by mutex_
};

}  // namespace foredraft

#endif  // FOREDRAFT_ENGINE_REMOTE_LEADER_STREAM_H_
