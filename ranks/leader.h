#pragma once

// The leader's end of the worker streams: it listens, passes messages on, and notices a lost rank. It wires
// three parts: membership (who has joined, health), result_queues (results not collected yet) and
// key_value_store (what ranks tell each other while the group forms). It has no part in processes, devices or
// requests.
//
// The connections that have not joined have a bound (pending_connections.h), and all connections together
// have another bound, so that strangers can neither use up the process's descriptors nor crowd out the
// workers.
//
// The leader trusts a worker step by step. A call that does not show that it knows a secret of the group is
// refused before a message of it is read, and learns nothing. Then both ends prove themselves
// (group_secret.h): the first message must be a join with the worker's proof, small and in time. From then on
// a message out of its ranges (message_check.h, plan_codec.h) loses the rank. So does a result that the
// scheduler refuses: nothing that a worker sends ends this process.
//
// A life of the group lasts from BeginGroup until the first failure, Abort or Stop. A lost rank ends it: all
// workers are told to abort, and every Launch and Collect fails, once the results that have arrived are
// collected. A worker is lost when its stream ends, when it reports a failure, when it is silent for
// heartbeat_timeout, or when it owes a result for step_timeout.
//
// Threads: gRPC's own deliver messages and never wait for the engine; `leader` sends heartbeats and looks for
// silent ranks; the scheduler calls the executors; health may be called by any; the owner calls the rest.

#include <grpcpp/server.h>
#include <grpcpp/server_builder.h>

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "foredraft/worker/v1/worker.grpc.pb.h"
#include "net/acceptor.h"
#include "ranks/group_secret.h"
#include "ranks/identity.h"
#include "ranks/key_value_store.h"
#include "ranks/membership.h"
#include "ranks/message_check.h"
#include "ranks/pending_connections.h"
#include "ranks/plan_codec.h"
#include "ranks/result_queues.h"
#include "ranks/tensor_group_executor.h"
#include "scheduler/plan.h"

namespace foredraft {

class RemoteExecutor;

// Counts events that a peer may cause as often as it likes, for a log that has at most one line per interval
// about them. Not thread-safe.
class PacedCount {
 public:
  using Clock = std::chrono::steady_clock;

  explicit PacedCount(Clock::duration interval) : interval_(interval) {}

  // Counts one event. Returns how many there were since the last line if a line is due now, else 0.
  int Add(Clock::time_point now = Clock::now()) {
    ++count_;
    if (now < next_line_) return 0;
    next_line_ = now + interval_;
    return std::exchange(count_, 0);
  }

 private:
  const Clock::duration interval_;
  Clock::time_point next_line_;
  int count_ = 0;
};

struct LeaderOptions {
  int rank_count = 1;
  int attention_tp = 1;  // adjacent ranks that are a tensor group: plans are for groups
  std::string address;   // host:port; port 0 = the kernel's choice
  std::shared_ptr<grpc::ServerCredentials> credentials;
  // A call must prove that it knows one of these. With trust_certificates, a call without a secret is
  // accepted too: the credentials have checked its certificate.
  std::vector<std::string> secrets;
  bool trust_certificates = false;
  int max_pending_connections = 64;  // that have not joined; see MaxPendingConnections
  std::function<void()> refused;     // a connection was closed because there were too many; any thread
  std::function<void()> disagreed;   // a result differs from that of its group's first rank; any thread
  // The checks of results read its vocab_size, slot_count, max_seq_len and max_draft_len.
  PlanLimits limits;
  int32_t block_count = 0;  // of the KV cache, scratch block included; 0: the ranks' memory decides
  GroupIdentity identity;
  int token_count = 0;                  // ModelConfig::token_count, which workers take from their welcome
  std::vector<int32_t> missing_tokens;  // ModelConfig::missing_tokens, likewise
  std::chrono::milliseconds join_timeout{10'000};
  std::chrono::milliseconds heartbeat_timeout{10'000};
  std::chrono::milliseconds step_timeout{30'000};
};

// All ranks at one moment.
struct GroupView {
  uint64_t version = 0;  // grows with every change
  std::vector<WorkerView> workers;
};

// `configured`, or a sixteenth of the limit of descriptors if that is less.
int MaxPendingConnections(int configured);
// The most descriptors that a leader with this limit has for connections at once.
int LeaderDescriptors(int max_pending_connections, int rank_count);

class Leader {
 public:
  // UNAVAILABLE names the address.
  static absl::StatusOr<std::unique_ptr<Leader>> Listen(const LeaderOptions& options);
  ~Leader();  // Abort, then closes the port

  int port() const { return acceptor_->port(); }

  // Sets the secrets of later calls; streams that are open stay.
  void SetSecrets(std::vector<std::string> secrets);

  // A new life: workers may join from now on. The last life is over and its streams are gone.
  void BeginGroup();

  // Returns after a change past `seen_version` (0 at first), or after `timeout`.
  GroupView Watch(uint64_t seen_version, std::chrono::milliseconds timeout);

  // Usable once all ranks are ready; the same objects in every life. Their errors name the rank at fault.
  std::vector<Executor*> executors() const;

  // Not ok once the group's life is over; the status says why.
  absl::Status health() const;

  // Ends the life in order, with no plan in flight: the workers end by themselves. Cuts the streams that are
  // still open after `grace`.
  void Stop(std::chrono::milliseconds grace);

  // Ends the life at once: the workers are told to abort. Cuts the streams that are still open after `grace`.
  void Abort(const absl::Status& reason, std::chrono::milliseconds grace);

 private:
  friend class LeaderStream;
  friend class RemoteExecutor;
  class Service;

  explicit Leader(const LeaderOptions& options);
  absl::Status Listen();
  void Run();  // the leader thread

  void TakeConnection(int listener_fd, int fd);  // acceptor_'s thread
  void RefusedConnection();                      // acceptor_'s thread
  // Returns nothing if the call does not prove a secret of the group, and an opening without a secret if its
  // certificate is enough.
  std::optional<Opening> OpeningOfCall(const grpc::CallbackServerContext& context) const;
  void LogStranger(const std::string& peer);

  // Called by streams. A status from Join that is not ok ends the stream.
  absl::Status Join(LeaderStream* stream, const std::string& peer, const worker::v1::WorkerMessage& message);
  void Receive(LeaderStream* stream, const worker::v1::WorkerMessage& message);
  void StreamBroke(LeaderStream* stream);
  void StreamOpened(LeaderStream* stream);
  void StreamGone();

  // Called by executors.
  absl::Status SendPlan(int rank, const IterationPlan& plan);
  absl::StatusOr<RankResult> TakeResult(int rank);
  void RefuseResult(int rank, const absl::Status& why);

  // Callers hold mutex_.
  void SendTo(int rank, worker::v1::LeaderMessage message);  // does nothing if the rank is absent
  void SendToAll(const worker::v1::LeaderMessage& message);
  absl::Status ApplyMessage(int rank, const worker::v1::WorkerMessage& message);
  absl::Status ApplyResult(int rank, const std::string& bytes);
  absl::Status ApplyReady(int rank, const worker::v1::WorkerReady& ready);
  void ShareValue(const worker::v1::StoreSet& set);
  void EndLateJoins();
  void Lose(int rank, const std::string& reason);
  void LoseLiar(int rank, const absl::Status& lie);
  void EndLife(const absl::Status& reason);
  void CutStreams(std::unique_lock<std::mutex>& lock, std::chrono::milliseconds grace);
  void Changed();

  const LeaderOptions options_;
  std::vector<std::unique_ptr<RemoteExecutor>> executors_;    // by rank
  std::vector<std::unique_ptr<TensorGroupExecutor>> groups_;  // where they have several ranks
  std::unique_ptr<Service> service_;
  std::unique_ptr<grpc::experimental::ExternalConnectionAcceptor> intake_;
  std::unique_ptr<grpc::Server> server_;
  ConnectionCount connections_;  // own lock
  PendingConnections pending_;   // own lock
  PacedCount refusals_;          // acceptor_'s thread
  std::unique_ptr<Acceptor> acceptor_;
  ResultQueues results_;  // own lock, taken after mutex_

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  // Guarded by mutex_.
  Membership members_;
  KeyValueStore store_;
  std::vector<std::deque<ExpectedResult>> expected_;  // [ranks]: of plans that were sent, the oldest first
  // Streams that have not joined. After its deadline a stream is told so, and then cut.
  struct Joining {
    std::chrono::steady_clock::time_point deadline;
    bool told = false;
  };
  std::map<LeaderStream*, Joining> joining_;
  int open_streams_ = 0;  // of all lives
  std::vector<std::string> secrets_;
  PacedCount strangers_;  // calls without a secret
  uint64_t version_ = 1;
  bool closing_ = false;

  std::thread thread_;
};

}  // namespace foredraft
