#pragma once

// The worker's end of its stream to the leader: one call of WorkerService.Work. It delivers messages and the
// stream's end to its owner, which decides what they mean.
//
// Owner: WorkerSession, which may destroy it only after `gone`. Threads: gRPC's own call On* and the
// callbacks, one message at a time. No call waits.

#include <grpcpp/client_context.h>
#include <grpcpp/support/client_callback.h>

#include <functional>
#include <string>
#include <utility>

#include "foredraft/v1/worker.grpc.pb.h"
#include "ranks/outbox.h"

namespace foredraft {

struct WorkerStreamCallbacks {
  std::function<void(v1::LeaderMessage message)> received;
  std::function<void(const grpc::Status& status)> gone;  // the last callback
};

class WorkerStream final : public grpc::ClientBidiReactor<v1::WorkerMessage, v1::LeaderMessage> {
 public:
  // Starts the call, with the group's secret unless it is empty; `join` is its first message.
  WorkerStream(v1::WorkerService::Stub& stub, const std::string& secret, v1::WorkerMessage join,
               WorkerStreamCallbacks callbacks);

  // Any thread, before `gone`.
  void Send(v1::WorkerMessage message) { Start(outbox_.Push(std::move(message))); }
  void Cut();  // at once, also if the peer is unreachable; `gone` follows

 private:
  void OnReadDone(bool ok) override;
  void OnWriteDone(bool ok) override { Start(outbox_.Written(ok)); }
  void OnDone(const grpc::Status& status) override;
  void Start(Outbox<v1::WorkerMessage>::Next next);

  const WorkerStreamCallbacks callbacks_;
  grpc::ClientContext context_;
  v1::LeaderMessage incoming_;
  Outbox<v1::WorkerMessage> outbox_;  // own lock
};

}  // namespace foredraft
