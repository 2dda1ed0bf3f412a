#pragma once

// Everything that clients and operators reach: listeners, wires, and what serves the model behind them.
//
// Life: Listen (requests get UNAVAILABLE), Serve once the model is warmed up, BeginDrain, Shutdown. Listen,
// Serve, CheckRanks, Resume and Shutdown are called by the owner's thread; the rest by any thread.

#include <memory>
#include <optional>

#include "absl/status/statusor.h"
#include "server/api/admin_hooks.h"
#include "server/api/health.h"
#include "server/frontend_options.h"
#include "server/listeners.h"
#include "server/output/metrics.h"
#include "server/serving.h"

namespace foredraft {

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
  // Ends the remaining calls with UNAVAILABLE and closes the ports. Safe to call twice.
  void Shutdown();

  // Not ok once a rank was lost and nothing is served any more. Counts each loss once.
  absl::Status CheckRanks();
  // Reports the loss of a rank, which the loop itself notices only while an iteration is in flight.
  void ReportLoss(const absl::Status& error) { serving_.ReportLoss(error); }
  // After a loss: serves again on the same executors.
  void Resume();
  // After a loss: the requests that wait for Resume end with `error`. Returns once their clients have it, or
  // after half a second.
  void GiveUp(const absl::Status& error);

  // These two call Serving's.
  void SetSpeculation(const Speculation& speculation, const ThinkingIds& thinking) {
    serving_.SetSpeculation(speculation, thinking);
  }
  void SetConstraints(const std::optional<ConstraintsConfig>& constraints) {
    serving_.SetConstraints(constraints);
  }
  void SetMaxQueueSize(int max_queue_size);
  void SetRequestTimeout(int seconds);
  // Takes effect for requests over HTTP that arrive later.
  void SetUnknownFields(UnknownFields unknown_fields);
  // Reads tokens and certificates again (Listeners).
  void ReloadFiles() { listeners_.ReloadFiles(); }

  Metrics& metrics() { return *metrics_; }
  std::shared_ptr<Metrics> shared_metrics() { return metrics_; }
  const Health& health() const { return health_; }
  Listeners& listeners() { return listeners_; }
  // When the slower of the scheduler's and the output thread began its last turn; none while no model is
  // served.
  std::optional<SteadyTime> last_turn() const;
  int open_calls() const;

 private:
  Frontend(const FrontendOptions& options, const AdminHooks& hooks);
  ServerLoad LoadNow() const;

  const FrontendOptions options_;
  Health health_;
  std::shared_ptr<Metrics> metrics_;
  Serving serving_;
  Listeners listeners_;
  const std::unique_ptr<Wires> wires_;  // a call uses what is declared before it
};

}  // namespace foredraft
