#include "server/api/health.h"

#include <grpcpp/health_check_service_interface.h>

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

void Health::Attach(std::vector<grpc::Server*> servers) {
  std::lock_guard<std::mutex> lock(mutex_);
  servers_ = std::move(servers);
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
  const bool serving = state_ == ServingState::kServing;
  for (grpc::Server* server : servers_) {
    grpc::HealthCheckServiceInterface* service = server->GetHealthCheckService();
    if (service == nullptr) continue;
    for (const char* name :
         {"", "foredraft.v1.GenerationService", "foredraft.v1.AdminService", "vllm.grpc.engine.VllmEngine"}) {
      service->SetServingStatus(name, serving);
    }
  }
}

}  // namespace foredraft
