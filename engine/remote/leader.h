#ifndef FOREDRAFT_ENGINE_REMOTE_LEADER_H_
#define FOREDRAFT_ENGINE_REMOTE_LEADER_H_

// The leader's end of the worker streams: takes workers in, hands plans out, notices when one is lost. It
// knows nothing of processes, devices or requests.
//
// A group lives from BeginGroup until its first failure, Abort or Stop; executors and rendezvous store are of
// one life. A lost rank ends the group: every Launch and Collect fails, once what has come in is handed out,
// and all workers are told to abort. A worker is lost when its stream ends, when it says so, when it is
// silent for heartbeat_timeout, or when it owes a result for step_timeout.
//
// Threads: gRPC's own call On*; `leader` sends heartbeats and looks for silence; the owner's calls the rest,
// but for executors (the scheduler's) and health (any). Nothing gRPC calls waits for the engine.

#include <grpcpp/server.h>

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/remote/identity.h"
#include "foredraft/v1/worker.grpc.pb.h"
#include "scheduler/plan.h"

namespace foredraft {

class LeaderStream;
class RemoteExecutor;

struct LeaderOptions {
  int rank_count = 1;
  std::string address;  // host:port; port 0 = the kernel's choice
  std::shared_ptr<grpc::ServerCredentials> credentials;
  GroupIdentity identity;
  std::chrono::milliseconds heartbeat_timeout{10'000};
  std::chrono::milliseconds step_timeout{30'000};
};

enum class WorkerState { kAbsent, kJoined, kReady };

// What is known of one rank's worker.
struct WorkerView {
  WorkerState state = WorkerState::kAbsent;
  std::string device;
  std::string numerics_class;
  std::string host;
  int pid = 0;
  int64_t done_bytes = 0;  // of its weights
  int64_t total_bytes = 0;
  int block_count = 0;  // once ready
  int graph_count = 0;
};

class Leader {
 public:
  // UNAVAILABLE names the address.
  static absl::StatusOr<std::unique_ptr<Leader>> Listen(const LeaderOptions& options);
  ~Leader();  // Abort, then closes the port

  int port() const { return port_; }

  // A new life: workers may join from now on. The last life is over and its streams are gone.
  void BeginGroup();

  // What is known of all ranks, after a change that `seen` (0 at first) did not know of, or `timeout`.
  std::vector<WorkerView> Watch(uint64_t* seen, std::chrono::milliseconds timeout);

  // Once all are ready; the same objects in every life. Their errors name the rank at fault.
  std::vector<Executor*> executors() const;

  // Not ok: the group's life is over, and why.
  absl::Status health() const;

  // Orderly: no plan is in flight; workers end by themselves. What is open after `grace` is cut.
  void Stop(std::chrono::milliseconds grace);

  // Ends the group: workers are told to abort, and their streams cut after `grace`.
  void Abort(const absl::Status& reason, std::chrono::milliseconds grace);

 private:
  friend class LeaderStream;
  friend class RemoteExecutor;
  class Service;
  enum class Life { kNone, kOpen, kStopping, kOver };

  struct Worker {
    LeaderStream* stream = nullptr;  // null = absent
    WorkerView view;
    std::chrono::steady_clock::time_point last_heard;
    std::deque<RankResult> results;
  };

  explicit Leader(const LeaderOptions& options);
  absl::Status Listen();
  void Run();  // the leader thread

  // From streams. Join answers what to tell the worker: ok, or why it may not.
  absl::Status Join(LeaderStream* stream, const v1::WorkerJoin& join);
  void Receive(LeaderStream* stream, v1::WorkerMessage message);
  void StreamBroke(LeaderStream* stream);
  void StreamOpened();
  void StreamGone();
  void ReceiveStore(LeaderStream* stream, const v1::WorkerMessage& message);

  // From executors.
  absl::Status SendPlan(int rank, v1::WorkerPlan plan);
  absl::StatusOr<RankResult> TakeResult(int rank);

  // Hold mutex_.
  int RankOf(const LeaderStream* stream) const;  // -1 = of no rank of this life
  void Lose(int rank, const std::string& reason);
  void EndLife(const absl::Status& reason);
  void Changed();
  void CutStreams(std::unique_lock<std::mutex>& lock, std::chrono::milliseconds grace);

  const LeaderOptions options_;
  std::vector<std::unique_ptr<RemoteExecutor>> executors_;
  std::unique_ptr<Service> service_;
  std::unique_ptr<grpc::Server> server_;
  int port_ = 0;

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  // Guarded by mutex_.
  Life life_ = Life::kNone;
  absl::Status health_;
  std::string numerics_class_;  // of the first rank that joined
  std::vector<Worker> workers_;
  std::map<std::string, std::string> store_;
  std::multimap<std::string, LeaderStream*> store_waits_;  // key not set yet -> who asked
  int open_streams_ = 0;
  uint64_t change_count_ = 1;
  bool closing_ = false;

  std::thread thread_;
};

}  // namespace foredraft

#endif  // FOREDRAFT_ENGINE_REMOTE_LEADER_H_
