#ifndef FOREDRAFT_ENGINE_REMOTE_WORKER_SESSION_H_
#define FOREDRAFT_ENGINE_REMOTE_WORKER_SESSION_H_

// The worker's end of its stream: joins the leader's group, lends the ranks their rendezvous, carries plans
// to an executor and results back. It ends once, for the first of: the leader says stop (ok), abort, the
// stream breaks, the leader is silent for heartbeat_timeout (all UNAVAILABLE).
//
// Threads: gRPC's own call On*; `session` sends heartbeats, looks for silence and calls on_lost; `launcher`
// lives during Run; the owner calls the rest. What gRPC calls never waits for the engine.

#include <grpcpp/channel.h>
#include <grpcpp/client_context.h>
#include <grpcpp/security/credentials.h>
#include <grpcpp/support/client_callback.h>

#include <chrono>
#include <condition_variable>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/bounded_queue.h"
#include "engine/comm/rendezvous.h"
#include "engine/remote/identity.h"
#include "engine/remote/outbox.h"
#include "foredraft/v1/worker.grpc.pb.h"
#include "scheduler/plan.h"

namespace foredraft {

struct WorkerOptions {
  int rank = 0;
  std::string leader;  // host:port
  std::shared_ptr<grpc::ChannelCredentials> credentials;
  GroupIdentity identity;
  std::string device;
  std::chrono::milliseconds heartbeat_timeout{10'000};
  std::chrono::milliseconds join_timeout{600'000};
};

class WorkerSession : public RendezvousStore {
 public:
  // Dials until the leader answers. FAILED_PRECONDITION: it does not want this worker, and why.
  // DEADLINE_EXCEEDED past join_timeout.
  static absl::StatusOr<std::unique_ptr<WorkerSession>> Join(const WorkerOptions& options);
  ~WorkerSession() override;

  // Called once, on the session's thread, if the session ends and it was not stopped: what waits for other
  // ranks has to end.
  void SetOnLost(std::function<void(const absl::Status&)> on_lost);

  // RendezvousStore, any thread.
  absl::Status Set(const std::string& key, const std::string& value) override;
  absl::StatusOr<std::string> Get(const std::string& key,
                                  std::chrono::steady_clock::time_point deadline) override;

  void ReportLoading(int64_t done_bytes, int64_t total_bytes);
  void ReportReady(int block_count, int graph_count);
  // The rank cannot go on. Waits shortly until the leader has heard it.
  void ReportFailure(const absl::Status& status);

  // Carries out plans until the session ends. Launch runs on the launcher thread, Collect on the caller's.
  absl::Status Run(Executor& executor);

 private:
  using Stream = grpc::ClientBidiReactor<v1::WorkerMessage, v1::LeaderMessage>;

  // Gone when gRPC has called OnDone; the session waits for that.
  class Link : public Stream {
   public:
    Link(WorkerSession& session, v1::WorkerService::Stub& stub, v1::WorkerMessage join);
    void Send(v1::WorkerMessage message) { Start(outbox_.Push(std::move(message))); }
    void End() { Start(outbox_.End()); }  // after what was sent
    void Cut();

   private:
    void OnReadDone(bool ok) override;
    void OnWriteDone(bool ok) override;
    void OnDone(const grpc::Status& status) override;
    void Start(Outbox<v1::WorkerMessage>::Next next);

    WorkerSession& session_;
    grpc::ClientContext context_;
    v1::LeaderMessage incoming_;
    Outbox<v1::WorkerMessage> outbox_;
  };

  enum class Stage { kDialing, kJoined, kEnded };

  explicit WorkerSession(const WorkerOptions& options);
  absl::Status Dial();
  absl::Status DialOnce();
  void CutLink();  // waits until it is gone
  v1::WorkerMessage JoinMessage() const;
  void Watch();  // the session thread
  void LaunchPlans(Executor& executor, BoundedQueue<absl::Status>& launched);
  void Receive(v1::LeaderMessage message);
  void LinkGone(const grpc::Status& status);
  void Send(v1::WorkerMessage message);
  void EndWith(const absl::Status& status);  // holds mutex_

  const WorkerOptions options_;
  std::shared_ptr<grpc::Channel> channel_;
  std::unique_ptr<v1::WorkerService::Stub> stub_;
  BoundedQueue<v1::WorkerPlan> plans_;  // own lock

  std::mutex mutex_;
  std::condition_variable changed_;
  // Guarded by mutex_.
  Stage stage_ = Stage::kDialing;
  absl::Status end_;  // once stage_ is kEnded
  std::unique_ptr<Link> link_;
  bool link_gone_ = false;
  grpc::Status link_status_;
  std::map<std::string, std::string> store_;  // values that have come
  std::chrono::steady_clock::time_point last_heard_;
  std::function<void(const absl::Status&)> on_lost_;
  bool closing_ = false;

  std::thread thread_;
};

}  // namespace foredraft

#endif  // FOREDRAFT_ENGINE_REMOTE_WORKER_SESSION_H_
