#ifndef FOREDRAFT_TESTS_E2E_RANK_CLUSTER_H_
#define FOREDRAFT_TESTS_E2E_RANK_CLUSTER_H_

// A daemon over worker processes, with the model that ships, and what a test does to it: streams, signals to
// its workers, a network that is cut, and a look at what is left running.

#include <sys/types.h>

#include <future>
#include <memory>
#include <string>
#include <vector>

#include "foredraft/v1/admin.grpc.pb.h"
#include "foredraft/v1/generation.grpc.pb.h"
#include "tests/e2e/child_process.h"
#include "tests/e2e/tcp_proxy.h"

namespace foredraft {

// Of the clusters below; the bounds that the tests hold are made of it.
inline constexpr int kHeartbeatTimeoutS = 2;

struct ClusterOptions {
  int ranks = 2;
  int local_workers = 2;  // the others are started by the test, each behind a proxy of its own
  int absent_ranks = 0;   // the last ones, which nobody starts
  bool restart_group = false;
  std::vector<std::string> sets;
  bool wait_until_serving = true;
};

// A stream read on a thread of its own.
class ClientStream {
 public:
  ClientStream(v1::GenerationService::Stub& stub, const v1::GenerateRequest& request);
  ~ClientStream();
  bool WaitForTokens(size_t count);  // false: the stream ended before, or 60 s
  void Cancel() { context_.TryCancel(); }
  grpc::Status End();  // waits for it
  std::vector<int32_t> token_ids();

 private:
  grpc::ClientContext context_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<int32_t> token_ids_;  // guarded by mutex_
  bool ended_ = false;              // guarded by mutex_
  grpc::Status status_;             // guarded by mutex_
  std::thread thread_;
};

class RankCluster {
 public:
  explicit RankCluster(const ClusterOptions& options);
  ~RankCluster();

  ChildProcess& leader() { return *leader_; }
  v1::GenerationService::Stub& stub() { return *stub_; }
  v1::AdminService::Stub& admin() { return *admin_; }
  TcpProxy& proxy(int rank) { return *remotes_.at(rank - options_.local_workers).proxy; }
  ChildProcess& remote(int rank) { return *remotes_.at(rank - options_.local_workers).process; }

  // As a supervisor does: a new worker, a new network.
  void StartRemote(int rank);
  // A worker with settings of its own, to its end.
  RunResult RunWorker(int rank, const std::vector<std::string>& sets);
  // Of the worker of this rank that the daemon has started; -1: there is none yet within 30 s.
  pid_t WorkerPid(int rank);
  // Processes of this cluster that still run, one per line, after at most `seconds`.
  std::string LeftRunning(double seconds);
  // The sum over all label sets; -1 without one.
  double Metric(const std::string& name);
  bool WaitServing();  // as health says, within 60 s

 private:
  struct Remote {
    std::unique_ptr<TcpProxy> proxy;
    std::unique_ptr<ChildProcess> process;
  };
  std::vector<std::string> Sets() const;
  std::vector<std::string> WorkerArguments(int rank, int port, const std::vector<std::string>& sets) const;

  const ClusterOptions options_;
  const int grpc_port_;
  const int metrics_port_;
  const int leader_port_;
  std::vector<Remote> remotes_;
  std::unique_ptr<ChildProcess> leader_;
  std::shared_ptr<grpc::Channel> channel_;
  std::unique_ptr<v1::GenerationService::Stub> stub_;
  std::unique_ptr<v1::AdminService::Stub> admin_;
};

// Greedy, prompt of `prompt_len` tokens made of `seed`.
v1::GenerateRequest TokenRequest(int seed, int prompt_len, int max_tokens);

}  // namespace foredraft

#endif  // FOREDRAFT_TESTS_E2E_RANK_CLUSTER_H_
