#pragma once

// A worker's membership in its leader's group: it joins, gives the rank a rendezvous with the other ranks,
// passes plans to the rank's executor and results back. It ends once, at the first of these: the leader says
// stop (ok); the leader says abort, the stream breaks, or the leader is silent for heartbeat_timeout (all
// UNAVAILABLE); the executor fails (its error).
//
// Threads: gRPC's own deliver messages and never wait for the engine; `session` sends heartbeats, looks for a
// silent leader and calls on_lost; `launcher` runs during Run (plan_runner.h); the owner calls the rest.

#include <grpcpp/channel.h>
#include <grpcpp/security/credentials.h>

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
#include "foredraft/worker/v1/worker.grpc.pb.h"
#include "ranks/identity.h"
#include "scheduler/field_visitor.h"
#include "scheduler/plan.h"

namespace foredraft {

class WorkerStream;

struct WorkerOptions {
  int rank = 0;
  std::string leader;  // host:port
  std::shared_ptr<grpc::ChannelCredentials> credentials;
  std::string secret;  // of the group; empty: the certificates are enough
  GroupIdentity identity;
  std::string device;
  std::string gpu;  // Device::hardware_id
  std::chrono::milliseconds heartbeat_timeout{10'000};
  std::chrono::milliseconds join_timeout{600'000};
};

class WorkerSession : public RendezvousStore {
 public:
  // Dials until the leader accepts this worker. FAILED_PRECONDITION: the leader refuses it, or one end does
  // not prove that it knows the group's secret (group_secret.h); the text says why. DEADLINE_EXCEEDED past
  // join_timeout.
  static absl::StatusOr<std::unique_ptr<WorkerSession>> Join(const WorkerOptions& options);
  ~WorkerSession() override;

  // ModelConfig::token_count and missing_tokens, as the leader has them.
  int token_count();
  std::vector<int32_t> missing_tokens();

  // Sets the callback for a session that ends in any way but stop. The last one set is called, on the
  // session's thread, or at once if the session has ended already. It must end all waits for other ranks.
  void SetOnLost(std::function<void(const absl::Status&)> on_lost);

  // RendezvousStore, any thread.
  absl::Status Set(const std::string& key, const std::string& value) override;
  absl::StatusOr<std::string> Get(const std::string& key,
                                  std::chrono::steady_clock::time_point deadline) override;

  void ReportLoading(int64_t done_bytes, int64_t total_bytes);
  void ReportReady(int block_count, int graph_count);
  // The rank cannot go on. Waits up to 1 s for the leader's answer, the end of the group.
  void ReportFailure(const absl::Status& status);

  // Carries out plans within `limits` until the session ends; returns why it ended. index: of the rank's
  // tensor group in plans.
  absl::Status Run(Executor& executor, int index, const PlanLimits& limits);

 private:
  // From kProven on, the leader has proved itself.
  enum class Stage { kDialing, kProven, kJoined, kEnded };

  explicit WorkerSession(const WorkerOptions& options);
  absl::Status Dial();
  absl::Status DialOnce();
  worker::v1::WorkerMessage JoinMessage() const;
  void AnswerChallenge(const worker::v1::WorkerChallenge& challenge,
                       WorkerStream& stream);  // the caller holds mutex_
  void CutStream();                            // waits until gRPC is done with it
  void Watch();                                // the session thread
  void Send(worker::v1::WorkerMessage message);
  void SendResult(absl::StatusOr<RankResult> result);
  void Receive(worker::v1::LeaderMessage message, WorkerStream& stream);
  void StreamGone(const grpc::Status& status);
  void EndWith(const absl::Status& status);  // the caller holds mutex_

  const WorkerOptions options_;
  std::shared_ptr<grpc::Channel> channel_;
  std::unique_ptr<worker::v1::WorkerService::Stub> stub_;
  BoundedQueue<std::string> plans_;  // own lock

  std::mutex mutex_;
  std::condition_variable changed_;
  // Guarded by mutex_.
  Stage stage_ = Stage::kDialing;
  absl::Status end_;       // once stage_ is kEnded
  std::string nonce_;      // that this worker drew for the stream
  bool impostor_ = false;  // the peer did not prove itself
  int token_count_ = 0;    // from the welcome, as missing_tokens_
  std::vector<int32_t> missing_tokens_;
  std::unique_ptr<WorkerStream> stream_;
  bool stream_gone_ = false;
  grpc::Status stream_status_;                // once stream_gone_
  std::map<std::string, std::string> store_;  // the values that the leader has sent
  std::chrono::steady_clock::time_point last_heard_;
  std::function<void(const absl::Status&)> on_lost_;
  bool closing_ = false;

  std::thread thread_;
};

}  // namespace foredraft
