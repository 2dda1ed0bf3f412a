#ifndef FOREDRAFT_ENGINE_RANK_ENGINE_H_
#define FOREDRAFT_ENGINE_RANK_ENGINE_H_

// Carries out the plans of one rank on one device: prefill eagerly, the decode step as a graph. Submit hands
// a plan to the device and Finish waits for its outputs, so that the device has the next step before it is
// done with this one; between the two nothing waits (engine/README.md, one-wait).
//
// Thread: Submit on one at a time, Finish on one at a time, which may be another; at most two plans are
// submitted and not finished. Everything else before the first Submit.

#include <array>
#include <chrono>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "config/model_config.h"
#include "engine/comm/communicator.h"
#include "engine/engine_options.h"
#include "engine/graph_cache.h"
#include "engine/kv_cache.h"
#include "engine/model/deepseek_v3.h"
#include "engine/pending_step.h"
#include "engine/slot_state.h"
#include "engine/spec/drafter.h"
#include "engine/step_buffers.h"
#include "engine/swap_store.h"
#include "kernels/device.h"
#include "scheduler/plan.h"

namespace foredraft {

class RankEngine {
 public:
  // Allocates everything, the KV cache last, and captures all decode steps. Before, where the device or an
  // exchange between ranks asks for it, runs the largest prefill and every step once. RESOURCE_EXHAUSTED
  // where memory does not suffice. `comm` joins the ranks, all of which call this with the
  // same options; null: the rank is alone. It is of `device`.
  static absl::StatusOr<std::unique_ptr<RankEngine>> Create(const EngineOptions& options,
                                                            const ModelConfig& config,
                                                            std::unique_ptr<Device> device,
                                                            ModelWeights weights,
                                                            std::unique_ptr<Communicator> comm = nullptr);
  ~RankEngine();

  // `rank` is the index of this rank's plan.
  void Submit(const IterationPlan& plan, int rank);
  // The result of the oldest submitted plan. UNAVAILABLE when an exchange with the other ranks failed,
  // DEADLINE_EXCEEDED when the device does not get there: either way the rank is lost.
  absl::StatusOr<RankResult> Finish(std::chrono::steady_clock::time_point deadline);
  // Both, one after the other, within options().step_timeout.
  absl::StatusOr<RankResult> Run(const IterationPlan& plan, int rank);

  // Replays every captured step with no live slot, where first runs cost, and freezes the device: from then
  // on nothing is allocated or captured. Returns how many captured steps there are. All ranks together.
  absl::StatusOr<int> WarmUp();

  // The decode step as it would be recorded now; equal to the cached one, whatever ran in between.
  std::unique_ptr<Graph> CaptureStep(const StepKey& key);

  const DeepseekV3& model() const { return *model_; }
  Device& device() { return *device_; }
  Communicator& communicator() { return *comm_; }
  const SwapStore& swap_store() const { return swap_store_; }
  const SlotState& slot_state() const { return slots_; }
  const GraphCache& graphs() const { return graphs_; }
  // block_count is what there is, where 0 was asked for.
  const EngineOptions& options() const { return options_; }

 private:
  RankEngine(const EngineOptions& options, std::unique_ptr<Device> device, std::unique_ptr<Communicator> comm)
      : options_(options), device_(std::move(device)), comm_(std::move(comm)) {}

  absl::Status Allocate(const ModelConfig& config, ModelWeights weights);
  absl::Status AllocateCache(int block_count, bool poison);
  absl::Status FirstRuns();
  absl::Status FirstPrefill(int row_limit);
  absl::Status SizeCache();
  int64_t GraphBytes();
  absl::Status CaptureSteps();
  std::vector<StepKey> AllSteps() const;
  IterationPlan PrefillOf(int row_limit) const;

  void ApplyAcceptance(const Acceptance& acceptance);
  void ApplyStateChanges(const RankPlan& plan);
  void DecodeStep(const StepKey& key);
  TokenChoice ChoiceFor(std::span<const int32_t> slots) const;
  // True where a graph was replayed.
  bool SubmitDecodeStep(std::span<const int32_t> live_slots, const StepKey& key);

  EngineOptions options_;
  const std::unique_ptr<Device> device_;
  const std::unique_ptr<Communicator> comm_;
  std::unique_ptr<Stream> stream_;
  std::unique_ptr<DeepseekV3> model_;
  SlotState slots_;
  KvCache cache_;
  SwapStore swap_store_;
  StepBuffers buffers_;
  std::array<PendingStep, 2> pending_;  // used in turn
  std::unique_ptr<Drafter> drafter_;    // null where max_draft_len is 0
  GraphCache graphs_;
  std::optional<Acceptance> acceptance_;  // what the slots' rule says; nothing before the first plan
  std::vector<int32_t> places_;           // [largest bucket]: live slots, then -1

  uint64_t submitted_count_ = 0;  // of Submit's thread
  uint64_t finished_count_ = 0;   // of Finish's thread
};

}  // namespace foredraft

#endif  // FOREDRAFT_ENGINE_RANK_ENGINE_H_
