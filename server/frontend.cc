#include "server/frontend.h"

#include <utility>

#include "base/out_of_memory.h"
#include "base/status_macros.h"
#include "server/wires.h"

namespace foredraft {
namespace {

constexpr std::chrono::milliseconds kLastWrites(500);

}  // namespace

absl::StatusOr<std::unique_ptr<Frontend>> Frontend::Listen(const FrontendOptions& options,
                                                           const AdminHooks& hooks) {
  KeepMemoryReserve();
  std::unique_ptr<Frontend> frontend(new Frontend(options, hooks));
  RETURN_IF_ERROR(frontend->listeners_.Open(*frontend->wires_));
  return frontend;
}

Frontend::Frontend(const FrontendOptions& options, const AdminHooks& hooks)
    : options_(options),
      metrics_(std::make_shared<Metrics>(options.metrics)),
      serving_(options_, *metrics_),
      listeners_(options_, health_, *metrics_, [this] { return last_turn(); }),
      wires_(std::make_unique<Wires>(options, hooks,
                                     WireContext{.everyone = listeners_.everyone(),
                                                 .tokens = listeners_.tokens(),
                                                 .health = health_,
                                                 .metrics = *metrics_,
                                                 .load = [this] { return LoadNow(); }})) {}

Frontend::~Frontend() { Shutdown(); }

void Frontend::Serve(ServedModel model) {
  wires_->admission.Open(serving_.Start(std::move(model)));
  health_.Enter(ServingState::kServing);
}

bool Frontend::WaitForNoCalls(SteadyTime deadline) const {
  return wires_->admission.WaitForNoCalls(deadline);
}

void Frontend::SetRequestTimeout(int seconds) { wires_->admission.SetRequestTimeout(seconds); }

void Frontend::SetMaxQueueSize(int max_queue_size) {
  wires_->admission.SetMaxQueueSize(max_queue_size);
  serving_.SetMaxQueueSize(max_queue_size);
}

void Frontend::SetUnknownFields(UnknownFields unknown_fields) {
  wires_->http.SetRefusesUnknown(unknown_fields == UnknownFields::kRefuse);
}

int Frontend::open_calls() const { return wires_->admission.open_calls(); }

ServerLoad Frontend::LoadNow() const {
  return {.scheduler = serving_.load(), .open_calls = open_calls(), .state = health_.state()};
}

std::optional<SteadyTime> Frontend::last_turn() const {
  const ServingState state = health_.state();
  if (state == ServingState::kLoading || state == ServingState::kFailed) return std::nullopt;
  return serving_.last_turn();
}

absl::Status Frontend::CheckRanks() {
  const Serving::Loss loss = serving_.CheckRanks();
  if (loss.first) {
    health_.Enter(ServingState::kFailed);
    metrics_->RecordRankFailure();
  }
  return loss.status;
}

void Frontend::Resume() {
  serving_.Resume();
  metrics_->RecordGroupRestart();
  health_.Enter(ServingState::kServing);
}

void Frontend::GiveUp(const absl::Status& error) {
  serving_.GiveUp(error);
  WaitForNoCalls(std::chrono::steady_clock::now() + kLastWrites);
}

void Frontend::Shutdown() {
  if (!listeners_.is_open()) return;
  listeners_.StopWatch();
  BeginDrain();
  wires_->admission.EndTokenizing();
  serving_.EndAll(absl::UnavailableError("draining: the daemon stopped before the request ended"));
  WaitForNoCalls(std::chrono::steady_clock::now() + kLastWrites);
  listeners_.Shutdown();
  serving_.Stop();
  listeners_.Close();
}

}  // namespace foredraft
