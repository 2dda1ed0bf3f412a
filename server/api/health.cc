#include "server/api/health.h"

#include <utility>

namespace foredraft {
namespace {

bool MayFollow(ServingState from, ServingState to) {
  switch (to) {
    case ServingState::kServing:
      return from == ServingState::kLoading || from == ServingState::kFailed;
    case ServingState::kFailed:
      return from == ServingState::kServing;
    case ServingState::kDraining:
      return true;
    case ServingState::kLoading:
      return false;
  }
  return false;
}

}  // namespace

const char* ServingStateName(ServingState state) {
  switch (state) {
    case ServingState::kLoading:
      return "loading";
    case ServingState::kServing:
      return "serving";
    case ServingState::kDraining:
      return "draining";
    case ServingState::kFailed:
      return "failed";
  }
  return "";
}

void Health::Attach(std::vector<HealthService*> services) {
  std::lock_guard<std::mutex> lock(mutex_);
  services_ = std::move(services);
  Report();
}

void Health::Enter(ServingState state) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (!MayFollow(state_, state)) return;
  state_ = state;
  Report();
}

ServingState Health::state() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return state_;
}

absl::Status Health::Admits() const {
  switch (state()) {
    case ServingState::kServing:
      return absl::OkStatus();
    case ServingState::kLoading:
      return absl::UnavailableError("loading: the model is not ready yet");
    case ServingState::kDraining:
      return absl::UnavailableError("draining: the daemon accepts no new requests");
    case ServingState::kFailed:
      return absl::UnavailableError("rank lost: the ranks are down");
  }
  return absl::OkStatus();
}

void Health::Report() {
  for (HealthService* service : services_) service->SetServing(state_ == ServingState::kServing);
}

}  // namespace foredraft
