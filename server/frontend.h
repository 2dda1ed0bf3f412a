#ifndef FOREDRAFT_SERVER_FRONTEND_H_
#define FOREDRAFT_SERVER_FRONTEND_H_

// All that clients and operators reach: the gRPC server with its services, health and reflection, the metrics
// page, the output thread and the serving loop behind them. It knows executors by their interface only.
//
// Life: Listen (answers UNAVAILABLE), Serve once the model is warmed up, BeginDrain, Shutdown. Threads:
// Listen, Serve and Shutdown belong to the owner's thread; the rest may be called from any thread.

#include <grpcpp/server.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "config/config.h"
#include "scheduler/serving_loop.h"
#include "server/api/admin_service.h"
#include "server/api/generation_service.h"
#include "server/api/health.h"
#include "server/api/request_validator.h"
#include "server/output/metrics.h"
#include "server/output/output_thread.h"

namespace foredraft {

struct FrontendOptions {
  ServerConfig server;  // metrics_address empty = no page
  MetricsOptions metrics;
  GenerationOptions generation;
  OutputThreadOptions output;
};

// A model that is ready to serve. The executors outlive the frontend.
struct ServedModel {
  std::unique_ptr<Tokenizer> tokenizer;
  RequestLimits limits;
  SchedulerOptions scheduler;
  ServingLoopOptions loop;
  std::vector<Executor*> executors;
  v1::GetModelResponse description;
};

// What the admin service needs of the daemon; the frontend knows the load itself.
struct FrontendHooks {
  std::function<std::string()> config_yaml;
  std::function<absl::StatusOr<ReloadReport>()> reload;
  std::function<void()> drain;
};

class Frontend {
 public:
  // Errors name the address or the TLS file.
  static absl::StatusOr<std::unique_ptr<Frontend>> Listen(const FrontendOptions& options,
                                                          FrontendHooks hooks);
  ~Frontend();  // Shutdown, at once

  void Serve(ServedModel model);
  // Not serving, no new requests; those in flight go on.
  void BeginDrain() { health_.Enter(ServingState::kDraining); }
  // False: the deadline came first.
  bool WaitForNoCalls(SteadyTime deadline) const { return generation_.WaitForNoCalls(deadline); }
  // Ends what is left with UNAVAILABLE and closes the ports. Safe to call twice.
  void Shutdown();

  // Ok, or why nothing is served any more: a rank was lost. The first failure seen counts in the metrics.
  absl::Status CheckRanks();
  // A loss that the loop need not have seen: nothing may be in flight.
  void ReportLoss(const absl::Status& error) { loop_->ReportLoss(error); }
  // After a loss: serves again, on the same executors.
  void Resume(const SchedulerOptions& scheduler);

  // The acceptance rule and K from the next iteration on; the thinking tokens for requests that come from now
  // on.
  void SetSpeculation(const Speculation& speculation, const ThinkingIds& thinking);
  void SetMaxQueueSize(int max_queue_size);
  void SetRequestTimeout(int seconds) { generation_.SetRequestTimeout(seconds); }

  Metrics& metrics() { return *metrics_; }
  const Health& health() const { return health_; }
  int open_calls() const { return generation_.open_calls(); }
  // As configured, with the port that the kernel chose where it is 0.
  std::string grpc_address() const;
  std::string metrics_address() const;
  int grpc_port() const { return grpc_port_; }
  int metrics_port() const { return metrics_port_; }
  // For clients in this process.
  std::shared_ptr<grpc::Channel> InProcessChannel() { return grpc_server_->InProcessChannel({}); }

 private:
  Frontend(const FrontendOptions& options, FrontendHooks hooks);
  absl::Status ListenGrpc();
  absl::Status ListenMetrics();
  AdminHooks MakeAdminHooks(FrontendHooks hooks);
  SchedulerLoad Load() const;

  const FrontendOptions options_;
  Health health_;
  std::shared_ptr<Metrics> metrics_;

  // From Serve on; outlive the services' calls, so they stand before them.
  std::unique_ptr<Tokenizer> tokenizer_;
  std::optional<ChatFormat> chat_format_;
  std::unique_ptr<RequestValidator> validator_;
  std::unique_ptr<OutputThread> output_;
  std::unique_ptr<ServingLoop> loop_;
  std::atomic<ServingLoop*> serving_loop_ = nullptr;  // loop_ once started, for other threads

  GenerationService generation_;
  AdminService admin_;
  std::unique_ptr<grpc::Server> grpc_server_;
  std::unique_ptr<prometheus::Exposer> exposer_;
  int grpc_port_ = 0;
  int metrics_port_ = 0;
  bool rank_lost_ = false;  // owner's thread
};

}  // namespace foredraft

#endif  // FOREDRAFT_SERVER_FRONTEND_H_
