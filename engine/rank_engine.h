#ifndef FOREDRAFT_ENGINE_RANK_ENGINE_H_
#define FOREDRAFT_ENGINE_RANK_ENGINE_H_

// Carries out the plans of one rank on one device, synchronously: prefill eagerly, the decode step as a
// graph. All that LocalExecutor adds is a thread. Thread: one at a time.

#include <memory>
#include <optional>

#include "absl/status/statusor.h"
#include "config/model_config.h"
#include "engine/comm/communicator.h"
#include "engine/engine_options.h"
#include "engine/graph_cache.h"
#include "engine/kv_cache.h"
#include "engine/model/deepseek_v3.h"
#include "engine/slot_state.h"
#include "engine/spec/drafter.h"
#include "engine/step_buffers.h"
#include "engine/swap_store.h"
#include "kernels/device.h"
#include "scheduler/plan.h"

namespace foredraft {

class RankEngine {
 public:
  // Allocates everything and captures all decode steps, after running each once where ranks exchange rows.
  // RESOURCE_EXHAUSTED where memory does not suffice. `comm` joins the ranks, all of which call this with the
  // same options; null: the rank is alone. It is of `device`.
  static absl::StatusOr<std::unique_ptr<RankEngine>> Create(const EngineOptions& options,
                                                            const ModelConfig& config,
                                                            std::unique_ptr<Device> device,
                                                            ModelWeights weights,
                                                            std::unique_ptr<Communicator> comm = nullptr);
  ~RankEngine();

  // `rank` is the index of this rank's plan. UNAVAILABLE when an exchange with the other ranks failed: the
  // group is then over.
  absl::StatusOr<RankResult> Run(const IterationPlan& plan, int rank);

  // Replays every captured step with no live slot, so that the first request finds code and memory warm.
  // Returns how many there are. Before the first Run; all ranks together.
  absl::StatusOr<int> WarmUp();

  // The decode step of (bucket, K) as it would be recorded now; equal to the cached one, whatever ran in
  // between.
  std::unique_ptr<Graph> CaptureStep(int bucket, int draft_len);

  const DeepseekV3& model() const { return *model_; }
  Device& device() { return *device_; }
  Communicator& communicator() { return *comm_; }
  const SwapStore& swap_store() const { return swap_store_; }
  const SlotState& slot_state() const { return slots_; }
  const GraphCache& graphs() const { return graphs_; }
  const EngineOptions& options() const { return options_; }

 private:
  RankEngine(const EngineOptions& options, std::unique_ptr<Device> device, std::unique_ptr<Communicator> comm)
      : options_(options),
        device_(std::move(device)),
        comm_(std::move(comm)),
        swap_store_(options.host_cache_bytes) {}

  absl::Status Allocate(const ModelConfig& config, ModelWeights weights);
  absl::Status CaptureSteps();

  void ApplyAcceptance(const Acceptance& acceptance);
  void ApplyStateChanges(const RankPlan& plan);
  void DecodeStep(int bucket, int draft_len);
  absl::StatusOr<bool> RunDecodeStep(const RankPlan& plan, int bucket, int draft_len);
  void ReadResults(const RankPlan& plan, const IterationPlan& iteration, RankResult& result);

  template <class T>
  void Upload(T* device, const std::vector<T>& host) {
    device_->CopyToDevice(*stream_, device, host.data(), host.size() * sizeof(T));
  }

  template <class T>
  std::vector<T> Download(const T* device, size_t count) {
    std::vector<T> host(count);
    if (count > 0) device_->CopyToHost(*stream_, host.data(), device, count * sizeof(T));
    stream_->Synchronize();
    return host;
  }

  const EngineOptions options_;
  const std::unique_ptr<Device> device_;
  const std::unique_ptr<Communicator> comm_;
  std::unique_ptr<Stream> stream_;
  std::unique_ptr<DeepseekV3> model_;
  SlotState slots_;
  KvCache cache_;
  SwapStore swap_store_;
  StepBuffers buffers_;
  std::unique_ptr<Drafter> drafter_;  // null where max_draft_len is 0
  GraphCache graphs_;
  std::optional<Acceptance> acceptance_;  // what the slots' rule says; nothing before the first plan
};

}  // namespace foredraft

#endif  // FOREDRAFT_ENGINE_RANK_ENGINE_H_
