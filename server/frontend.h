#pragma once

// Everything that clients and operators reach: the gRPC listeners with their services, health and reflection,
// OpenAI's API over HTTP, the pages of metrics and probes, and behind them the output thread and the serving
// loop. Uses executors through their interface only.
//
// Life: Listen (requests get UNAVAILABLE), Serve once the model is warmed up, BeginDrain, Shutdown. Listen,
// Serve, CheckRanks, Resume and Shutdown are called by the owner's thread; the rest by any thread.

#include <grpcpp/server.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "base/periodic_thread.h"
#include "config/config.h"
#include "net/acceptor.h"
#include "net/certificates.h"
#include "net/file_stamp.h"
#include "net/guard/guard.h"
#include "scheduler/serving_loop.h"
#include "server/api/access.h"
#include "server/api/admin_hooks.h"
#include "server/api/health.h"
#include "server/api/model_card.h"
#include "server/api/request_validator.h"
#include "server/constraints/constraint_compiler.h"
#include "server/frontend_options.h"
#include "server/grpc_listener.h"
#include "server/http/http_listener.h"
#include "server/http/http_pages.h"
#include "server/output/metrics.h"
#include "server/output/output_thread.h"

namespace foredraft {

struct Wires;  // server/wires.h

// A model that is ready to serve. The executors outlive the frontend.
struct ServedModel {
  std::unique_ptr<Tokenizer> tokenizer;
  std::string chat_format;  // of a tokenizer without a template: ModelKind::chat_format
  RequestLimits limits;
  SchedulerOptions scheduler;
  ServingLoopOptions loop;
  std::vector<Executor*> executors;
  ModelCard card;
};

class Frontend {
 public:
  // Errors name the address or the TLS file.
  static absl::StatusOr<std::unique_ptr<Frontend>> Listen(const FrontendOptions& options,
                                                          const AdminHooks& hooks);
  ~Frontend();  // Shutdown

  void Serve(ServedModel model);
  // Refuses new requests and reports NOT_SERVING; requests in flight go on.
  void BeginDrain() { health_.Enter(ServingState::kDraining); }
  // False: the deadline came first.
  bool WaitForNoCalls(SteadyTime deadline) const;
  // Ends the calls that are left with UNAVAILABLE and closes the ports. Safe to call twice.
  void Shutdown();

  // Not ok once a rank was lost and nothing is served any more. Counts each loss once.
  absl::Status CheckRanks();
  // Reports the loss of a rank, which the loop itself notices only while an iteration is in flight.
  void ReportLoss(const absl::Status& error) { loop_->ReportLoss(error); }
  // After a loss: serves again on the same executors.
  void Resume();
  // After a loss: the requests that wait for Resume end with `error`. Returns once their clients have it, or
  // after half a second.
  void GiveUp(const absl::Status& error);

  // `speculation` applies from the next iteration on, `thinking` to requests that arrive from now on.
  void SetSpeculation(const Speculation& speculation, const ThinkingIds& thinking);
  void SetMaxQueueSize(int max_queue_size);
  // For requests that arrive from now on. Where the options had no constraints, there are none.
  void SetConstraints(const std::optional<ConstraintsConfig>& constraints);
  // Reads tokens and certificates again. A file with an error is logged, and what it had before stays in
  // force. Any thread.
  void ReloadFiles();
  void SetRequestTimeout(int seconds);

  Metrics& metrics() { return *metrics_; }
  std::shared_ptr<Metrics> shared_metrics() { return metrics_; }
  const Health& health() const { return health_; }
  // When the slower one of the threads that serve, scheduler and output, began its last turn; none while no
  // model is served.
  std::optional<SteadyTime> last_turn() const;
  int open_calls() const;
  // As configured; a port of 0 is replaced by the port that the kernel chose.
  std::string grpc_address() const;
  std::string metrics_address() const;
  std::string gateway_address() const;  // empty: gateways use grpc_address
  std::string admin_address() const;    // empty: no such listener
  int grpc_port() const { return grpc_ == nullptr ? 0 : grpc_->port(); }
  int gateway_port() const { return gateway_ == nullptr ? 0 : gateway_->port(); }
  int metrics_port() const { return metrics_listener_ == nullptr ? 0 : metrics_listener_->port(); }
  std::string http_address() const;  // empty: no such listener
  int http_port() const { return http_listener_ == nullptr ? 0 : http_listener_->port(); }
  // For clients in this process.
  std::shared_ptr<grpc::Channel> InProcessChannel() { return grpc_->server().InProcessChannel({}); }

 private:
  Frontend(const FrontendOptions& options, const AdminHooks& hooks);
  absl::Status LoadFiles();
  absl::Status ListenGrpc();
  absl::Status ListenAdmin();
  absl::Status ListenGateway();
  absl::Status ListenMetrics();
  absl::Status ListenHttp();
  // Of metrics_address, of http_address.
  BrowserRules PageRules() const;
  BrowserRules ApiRules() const;
  void AttachHealth();
  void StartWatchdog();
  HttpAnswer MetricsAnswer(const HttpRequest& head) const;
  HttpAnswer Live() const;
  HttpAnswer Ready() const;
  void StartConstraints(const RequestLimits& limits, bool forced);
  void ProbeOwnPort();
  void ReloadChangedFiles();
  void GiveMemoryBack();
  SchedulerLoad Load() const;
  ServerLoad ServerLoadNow() const;

  const FrontendOptions options_;
  Health health_;
  std::shared_ptr<Metrics> metrics_;
  Access everyone_;
  Access tokens_;  // everyone, too, without server.auth.tokens_file
  std::unique_ptr<Certificates> certificates_;

  // From Serve on. Declared before the wires because their calls use them.
  std::unique_ptr<Tokenizer> tokenizer_;
  std::optional<ChatFormat> chat_format_;
  std::unique_ptr<ConstraintCompiler> constraints_;
  std::unique_ptr<RequestValidator> validator_;
  std::unique_ptr<OutputThread> output_;
  std::unique_ptr<ServingLoop> loop_;
  std::atomic<ServingLoop*> serving_loop_ = nullptr;  // loop_ once started, for other threads

  const std::unique_ptr<Wires> wires_;
  ConnectionCount connections_;        // of the API and the gateway
  ConnectionCount admin_connections_;  // few, and never taken by clients of the API
  Guard guard_;                        // of the API's and the gateway's connections
  Guard admin_guard_;                  // of the admin listener's by TCP
  std::unique_ptr<GrpcListener> grpc_;
  std::unique_ptr<GrpcListener> admin_listener_;  // with admin_address
  std::unique_ptr<GrpcListener> gateway_;         // with gateway_address
  HttpPages pages_;
  ConnectionCount page_connections_;                // few, and never taken by clients of the API
  std::unique_ptr<HttpListener> metrics_listener_;  // with metrics_address
  std::unique_ptr<HttpListener> http_listener_;     // with http_address
  std::atomic<int> failed_probes_ = 0;              // in a row
  FileStamp watched_files_;                         // watchdog_'s thread, after Listen
  std::unique_ptr<PeriodicThread> watchdog_;
  bool rank_lost_ = false;  // owner's thread
};

}  // namespace foredraft
