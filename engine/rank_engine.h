#pragma once

// Carries out the plans of one rank on one device: the prefill eagerly, the decode step as a graph. Submit
// hands a plan to the device and Finish waits for its outputs; nothing else waits (docs/invariants.md,
// one-wait). So the device has the next step before it finishes this one.
//
// Thread: one at a time calls Submit, and one at a time, perhaps another, calls Finish. At most two plans are
// submitted and not finished. Everything else is called before the first Submit.

#include <array>
#include <chrono>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/cache/swap_store.h"
#include "engine/comm/communicator.h"
#include "engine/engine_options.h"
#include "engine/graph_cache.h"
#include "engine/model/model_config.h"
#include "engine/pending_step.h"
#include "engine/rank.h"
#include "kernels/device.h"
#include "scheduler/plan.h"

namespace foredraft {

class RankEngine {
 public:
  // Allocates everything, the KV cache last, and captures all decode steps. If the device needs first runs,
  // the largest prefill and every step run once before the cache is allocated. RESOURCE_EXHAUSTED if memory
  // does not suffice. `comm`, which belongs to `device`, joins the ranks, all of which call this with the
  // same options; null: the rank is alone.
  static absl::StatusOr<std::unique_ptr<RankEngine>> Create(const EngineOptions& options,
                                                            const ModelConfig& config,
                                                            std::unique_ptr<Device> device,
                                                            LoadedWeights weights,
                                                            std::unique_ptr<Communicator> comm = nullptr);
  ~RankEngine();

  // Called once by the thread that will call Submit, before its first call.
  void PinSubmitter() { rank_.device->PinSubmitter(); }
  // plan.ranks[index] is the part of this rank's tensor group. `abandoned`: as RunPrefill's.
  void Submit(const IterationPlan& plan, int index, const std::function<bool()>* abandoned = nullptr);
  // The result of the oldest submitted plan. UNAVAILABLE when an exchange with the other ranks failed,
  // DEADLINE_EXCEEDED when the step does not end by `deadline`: either way the rank is lost.
  absl::StatusOr<RankResult> Finish(std::chrono::steady_clock::time_point deadline);
  // Submits the plan and finishes it within options().step_timeout.
  absl::StatusOr<RankResult> Run(const IterationPlan& plan, int index);

  // On devices whose first runs are slow, replays every captured step without live slots. Then freezes the
  // device: nothing is allocated or captured later. Returns the number of captured steps. All ranks call it
  // together.
  absl::StatusOr<int> WarmUp();

  // Captures the decode step again; the graph equals the cached one, whatever ran in between.
  std::unique_ptr<Graph> CaptureStep(const StepKey& key);

  const Rank& rank() const { return rank_; }
  // The rank's tensor group: its index in plans.
  int group() const { return options_.layout.group(rank_.comm->rank()); }
  const SwapStore& swap_store() const { return swap_store_; }
  const GraphCache& graphs() const { return graphs_; }
  // As given, except that a block_count of 0 is replaced by the number of blocks allocated.
  const EngineOptions& options() const { return options_; }

 private:
  explicit RankEngine(const EngineOptions& options) : options_(options) {}

  // These are in rank_start.cc.
  absl::Status FirstRuns();
  absl::Status FirstPrefill(int row_limit);
  IterationPlan PrefillOf(int row_limit) const;
  absl::Status RunEmptyStep(const StepKey& key);
  absl::Status SizeCache();
  int64_t GraphBytes();
  absl::Status CaptureSteps();
  std::vector<StepKey> CapturedSteps() const;

  void ApplyStateChanges(const RankPlan& plan);
  SamplingMode SamplingModeFor(const IterationPlan& plan, std::span<const int32_t> slots) const;
  SubmittedPlan Submitted(const IterationPlan& plan, const RankPlan& rank_plan);
  // True where a graph was replayed.
  bool SubmitDecodeStep(const StepKey& key);

  EngineOptions options_;
  Rank rank_;
  SwapStore swap_store_;
  std::array<PendingStep, 2> pending_;  // used in turn
  GraphCache graphs_;

  uint64_t submitted_count_ = 0;  // of Submit's thread
  uint64_t finished_count_ = 0;   // of Finish's thread
};

}  // namespace foredraft
