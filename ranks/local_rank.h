#pragma once

// A group of one rank, in this process. Owner and thread: as RankGroup says.

#include "config/config.h"
#include "engine/local_executor.h"
#include "engine/model/model_config.h"
#include "ranks/rank_group.h"

namespace foredraft {

class LocalRank : public RankGroup {
 public:
  LocalRank(const Config& config, const ModelConfig& model) : config_(config), model_(model) {}

  absl::Status Start(StartObserver& observer, const std::function<bool()>& cancelled) override;
  const RankGroupSummary& summary() const override { return summary_; }
  std::vector<Executor*> executors() const override { return {executor_.get()}; }
  absl::Status health() const override { return absl::OkStatus(); }  // Collect reports its failure
  void Stop() override {}
  void Abort(const absl::Status&) override {}

 private:
  const Config config_;
  const ModelConfig model_;
  RankGroupSummary summary_;
  std::unique_ptr<LocalExecutor> executor_;
};

}  // namespace foredraft
