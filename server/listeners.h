#pragma once

// What others connect to: the gRPC listeners with health and reflection, OpenAI's API over HTTP, the pages of
// metrics and probes. With the listeners come the tokens and certificates that they ask for, what limits
// strangers, and the thread that watches all of it.
//
// Life: Open, StopWatch, Shutdown, Close, all on the owner's thread; the rest is called by any thread.

#include <grpcpp/server.h>

#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "base/periodic_thread.h"
#include "net/acceptor.h"
#include "net/certificates.h"
#include "net/file_stamp.h"
#include "net/guard/guard.h"
#include "scheduler/request.h"
#include "server/api/access.h"
#include "server/api/health.h"
#include "server/frontend_options.h"
#include "server/grpc_listener.h"
#include "server/http/http_listener.h"
#include "server/http/http_pages.h"
#include "server/output/metrics.h"

namespace foredraft {

struct Wires;  // server/wires.h

class Listeners {
 public:
  // When the slower of the scheduler's and the output thread began its last turn; none while no model is
  // served.
  using LastTurn = std::function<std::optional<SteadyTime>()>;

  // Options, health and metrics outlive the listeners.
  Listeners(const FrontendOptions& options, Health& health, Metrics& metrics, LastTurn last_turn);

  // Reads tokens and certificates, opens every configured address for the wires, which outlive Close, and
  // starts the watch. Errors name the address or the file.
  absl::Status Open(Wires& wires);
  // Ends the watch, which would mistake a shutdown for a hanging listener.
  void StopWatch() { watchdog_.reset(); }
  // Ends the connections.
  void Shutdown();
  // Frees the ports. Called once nothing writes to a call any more.
  void Close();

  // Reads tokens and certificates again. A file with an error is logged, and what it had before stays in
  // force.
  void ReloadFiles();

  const Access& everyone() const { return everyone_; }
  const Access& tokens() const { return tokens_; }  // lets everyone in, too, without server.auth.tokens_file

  bool is_open() const { return grpc_ != nullptr; }
  // The addresses as configured; a port of 0 is replaced by the port that the kernel chose. Empty: no such
  // listener.
  std::string grpc_address() const;
  std::string metrics_address() const;
  std::string gateway_address() const;
  std::string admin_address() const;
  std::string http_address() const;
  int grpc_port() const { return grpc_ == nullptr ? 0 : grpc_->port(); }
  int gateway_port() const { return gateway_ == nullptr ? 0 : gateway_->port(); }
  int metrics_port() const { return metrics_listener_ == nullptr ? 0 : metrics_listener_->port(); }
  int http_port() const { return http_listener_ == nullptr ? 0 : http_listener_->port(); }
  // A channel for clients in this process.
  std::shared_ptr<grpc::Channel> InProcessChannel() { return grpc_->server().InProcessChannel({}); }

 private:
  absl::Status LoadFiles();
  absl::Status OpenGrpc(Wires& wires);
  absl::Status OpenAdmin(Wires& wires);
  absl::Status OpenGateway(Wires& wires);
  absl::Status OpenMetrics();
  absl::Status OpenHttp(Wires& wires);
  std::vector<GrpcListener*> OpenGrpcListeners() const;
  // The rules of metrics_address and of http_address for requests that a browser sends.
  BrowserRules PageRules() const;
  BrowserRules ApiRules() const;
  void AttachHealth();
  void StartWatch();
  HttpAnswer MetricsAnswer(const HttpRequest& head) const;
  HttpAnswer Live() const;
  HttpAnswer Ready() const;
  void ProbeOwnPort();
  void ReloadChangedFiles();
  void ReloadCertificates();
  void GiveMemoryBack();

  const FrontendOptions& options_;
  Health& health_;
  Metrics& metrics_;
  const LastTurn last_turn_;
  Access everyone_;
  Access tokens_;
  std::unique_ptr<Certificates> certificates_;
  ConnectionCount connections_;        // of the API and the gateway
  ConnectionCount admin_connections_;  // few, and never taken by clients of the API
  Guard guard_;                        // of the API's and the gateway's connections
  Guard admin_guard_;                  // of the admin listener's TCP connections
  std::unique_ptr<GrpcListener> grpc_;
  std::unique_ptr<GrpcListener> admin_listener_;  // with admin_address
  std::unique_ptr<GrpcListener> gateway_;         // with gateway_address
  HttpPages pages_;
  ConnectionCount page_connections_;                // few, and never taken by clients of the API
  std::unique_ptr<HttpListener> metrics_listener_;  // with metrics_address
  std::unique_ptr<HttpListener> http_listener_;     // with http_address
  std::atomic<int> failed_probes_ = 0;              // in a row
  FileStamp watched_files_;                         // watchdog_'s thread, after Open
  std::unique_ptr<PeriodicThread> watchdog_;
};

}  // namespace foredraft
