#ifndef FOREDRAFT_SERVER_GROUP_RANK_BUILDER_H_
#define FOREDRAFT_SERVER_GROUP_RANK_BUILDER_H_

// From a configuration to the executor of one rank in this process: the daemon's own, or a worker's.

#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "config/config.h"
#include "config/model_config.h"
#include "engine/comm/communicator.h"
#include "engine/comm/rendezvous.h"
#include "engine/local_executor.h"
#include "engine/weights/weight_loader.h"
#include "kernels/device.h"

namespace foredraft {

// A rank's place in its group.
struct RankPlace {
  int rank = 0;
  RendezvousStore* store = nullptr;  // null where there is one rank
  // Waits until all ranks have come to the point of this name; empty where there is one.
  std::function<absl::Status(const std::string& point)> wait_for_all;
  // Of the group, as soon as there is one: for Abort.
  std::function<void(Communicator& communicator)> joined;
};

struct BuiltRank {
  std::unique_ptr<LocalExecutor> executor;
  int block_count = 0;
  int graph_count = 0;
};

absl::StatusOr<std::unique_ptr<Device>> CreateRankDevice(const Config& config);

// Joins the group, loads, captures. Errors name file, key or rank.
absl::StatusOr<BuiltRank> BuildRank(const Config& config, const ModelConfig& model,
                                    std::unique_ptr<Device> device, const RankPlace& place,
                                    const LoadProgress& progress);

}  // namespace foredraft

#endif  // FOREDRAFT_SERVER_GROUP_RANK_BUILDER_H_
