#pragma once

// A daemon with worker processes, running abacus, and the means to disturb it: streams, signals to its
// workers, a network that can be cut, and the list of processes that still run.

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

// parallel.heartbeat_timeout_s of every cluster; the tests derive their bounds from it.
inline constexpr int kHeartbeatTimeoutS = 2;

struct ClusterOptions {
  int ranks = 2;
  int local_workers = 2;        // the test starts the others, each behind a proxy of its own
  int absent_ranks = 0;         // the last ranks, which are not started
  bool share_requests = false;  // the ranks are one tensor group
  bool restart_group = false;
  std::vector<std::string> sets;
  bool wait_until_serving = true;
};

// A stream of tokens, read on a thread of its own.
class ClientStream {
 public:
  ClientStream(v1::GenerationService::Stub& stub, const v1::GenerateRequest& request);
  ~ClientStream();
  bool WaitForTokens(size_t count);  // false if the stream ends before, or after 60 s
  void Cancel() { context_.TryCancel(); }
  grpc::Status End();  // waits for the end
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

  int leader_port() const { return leader_port_; }
  const std::string& token_file() const { return token_file_; }

  // Starts a new worker behind a new proxy, as a supervisor would.
  void StartRemote(int rank);
  // Runs a worker with additional settings until it ends.
  RunResult RunWorker(int rank, const std::vector<std::string>& sets);
  // The worker of this rank that the daemon started; -1 if there is none within 60 s.
  pid_t WorkerPid(int rank);
  // Waits up to `seconds` until no process of this cluster runs; returns those that still do, one per line.
  std::string LeftRunning(double seconds);
  // The sum over all label sets; -1 if the metric is absent.
  double Metric(const std::string& name);
  bool WaitServing();  // waits up to 60 s

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
  const std::string token_file_;  // of the workers that the test starts
  std::vector<Remote> remotes_;
  std::unique_ptr<ChildProcess> leader_;
  std::shared_ptr<grpc::Channel> channel_;
  std::unique_ptr<v1::GenerationService::Stub> stub_;
  std::unique_ptr<v1::AdminService::Stub> admin_;
};

// A greedy request without EOS; `seed` decides its prompt of `prompt_len` tokens.
v1::GenerateRequest TokenRequest(int seed, int prompt_len, int max_tokens);

}  // namespace foredraft
