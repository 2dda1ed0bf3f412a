#pragma once

// Builds the executor of one rank in this process from a configuration: for the daemon (local_rank) or a
// worker process (worker_rank).

#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "config/config.h"
#include "engine/checkpoint/weight_source.h"
#include "engine/comm/communicator.h"
#include "engine/comm/rendezvous.h"
#include "engine/local_executor.h"
#include "engine/model/model_config.h"
#include "kernels/device.h"

namespace foredraft {

// How a rank reaches the other ranks of its group. All but `rank` are empty in a group of one.
struct GroupLink {
  int rank = 0;
  RendezvousStore* store = nullptr;
  // Waits until all ranks have called it with the same `point`.
  std::function<absl::Status(const std::string& point)> wait_for_all;
};

struct BuiltRank {
  std::unique_ptr<LocalExecutor> executor;
  Communicator* communicator = nullptr;  // the executor's; for Abort
  int block_count = 0;
  int graph_count = 0;
};

absl::StatusOr<std::unique_ptr<Device>> CreateRankDevice(const Config& config);

// Joins the group, loads the weights and captures the decode steps. Errors name a file, a key or the rank.
absl::StatusOr<BuiltRank> BuildRank(const Config& config, const ModelConfig& model,
                                    std::unique_ptr<Device> device, const GroupLink& link,
                                    const LoadProgress& progress);

}  // namespace foredraft
