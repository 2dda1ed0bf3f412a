#include "ranks/local_rank.h"

#include <utility>

#include "base/status_macros.h"
#include "ranks/engine_setup.h"
#include "ranks/rank_builder.h"

namespace foredraft {

absl::Status LocalRank::Start(StartObserver& observer, const std::function<bool()>&) {
  ASSIGN_OR_RETURN(std::unique_ptr<Device> device, CreateRankDevice(config_));
  summary_.device = device->name();
  summary_.numerics_class = NumericsClass(config_, model_, summary_.device);
  observer.RanksKnown(summary_);
  ASSIGN_OR_RETURN(BuiltRank built, BuildRank(config_, model_, std::move(device), GroupLink{},
                                              [&observer](int64_t done, int64_t total) {
                                                observer.Loading(0, done, total);
                                                if (done == total) observer.WarmingUp();
                                              }));
  summary_.block_count = built.block_count;
  summary_.graph_count = built.graph_count;
  executor_ = std::move(built.executor);
  return absl::OkStatus();
}

}  // namespace foredraft
