#pragma once

// A model on a device, run forward by forward from the host, with a cache of its own for a few sequences:
// `foredraft validate-mtp` compares it with mtp_reference.h. It calls the recipes that serve (engine/model)
// eagerly, and reads their results. Cache rows that no forward has written are NaN.
//
// W is the width of a level's output: D, or N D (the streams) for DeepSeek-V4. An Eagle3 head in a checkpoint
// of its own runs in place of an MTP module. One thread.

#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/cache/kv_cache.h"
#include "engine/checkpoint/loaded_weights.h"
#include "engine/comm/solo_communicator.h"
#include "engine/model/batch.h"
#include "engine/model/deepseek_v3/deepseek_v3.h"
#include "engine/model/deepseek_v4/deepseek_v4.h"
#include "engine/model/draft_target.h"
#include "engine/model/model_config.h"
#include "engine/spec/eagle3/eagle3_head.h"
#include "kernels/device.h"

namespace foredraft {

// The rows of one forward, [R] each.
struct DeviceRows {
  std::vector<int32_t> ids;
  std::vector<int32_t> slots;  // -1: idle
  std::vector<int32_t> positions;
  std::vector<float>
      previous;          // [R, W]: output of the level below at each row's position - 1; empty for the target
  bool prefill = false;  // run in the prefill form: a slot's rows are adjacent, in ascending order
  std::vector<int32_t> list_rows;  // for a recycled module: Batch::list_rows; empty: none

  int count() const { return static_cast<int>(ids.size()); }
};

// The best token of every row of logits [R, V]; ties: the lowest id.
std::vector<int32_t> BestTokens(const std::vector<float>& logits, int vocab_size);

// The rows of a DSpark block after `token`, which is at `position`.
DeviceRows BlockRowsOf(const DSparkShape& shape, int slot, int token, int position);

class MtpDevice final : private LayerReader {
 public:
  struct Size {
    int slots = 0;
    int positions = 0;  // per slot
    int rows = 0;       // of a forward
  };
  // The parts of a chain that can be run alone. kFused: the target, then the rows that a head fuses from its
  // layers.
  enum class Part { kTarget, kFused, kForward, kSeed, kProjection, kLayer };

  // `weights` have one MTP module, DSpark's stages or a head. `device` outlives this object.
  static absl::StatusOr<std::unique_ptr<MtpDevice>> Create(Device& device, const ModelConfig& config,
                                                           LoadedWeights weights, const Size& size);

  // A part's outputs for the rows, [R, W]. kLayer takes `streams` [R, W]; kSeed copies the first stream of
  // rows.previous. Idle rows are undefined.
  std::vector<float> Run(Part part, const DeviceRows& rows, const std::vector<float>& streams = {});
  // The logits, [R, V], of outputs [R, W]. level: 0 for the target, 1 for the module or head, the number of
  // stages for the last stage.
  std::vector<float> Logits(int level, const std::vector<float>& outputs);

  // DSpark (docs/dspark.md). A stage's output [R, W] for blocks. blocks.previous: the streams that the stage
  // takes; empty for the first stage.
  std::vector<float> Stage(int stage, const DeviceRows& blocks);
  // What the last target forward wrote for the stages, for R rows: the taps [R, T D], main_x [R, D], and a
  // stage's keys [R, d] as they are in the cache (NaN where a row has none). `rows` are the rows of that
  // forward.
  std::vector<float> Taps(int rows);
  std::vector<float> MainX(int rows);
  std::vector<float> StageKeys(int stage, const DeviceRows& rows);
  // [T][R, W]: the output of each tapped layer. Runs the target's layers again, one by one, over the rows of
  // its last forward, which writes the same values to the cache again. Overwrites taps and main_x.
  std::vector<std::vector<float>> TappedStreams(const DeviceRows& rows);
  // [R, V]: what the drafter's Markov head adds to the logits of the token after each id.
  std::vector<float> MarkovBias(const std::vector<int32_t>& ids);

  // With a head (docs/eagle3.md): [T][R, D], the residual stream after each layer that it reads, in the last
  // target forward.
  const std::vector<std::vector<float>>& read_layers() const { return read_layers_; }

  // Sparse attention (docs/deepseek-v3.md section 9): [R][index_topk], the positions that the rows of the
  // module's last forward attend, followed by -1. Meaningless for rows that see at most index_topk positions,
  // which attend all of them.
  std::vector<std::vector<int32_t>> SelectedPositions(const DeviceRows& rows);

  // The part whose outputs the module or head takes.
  Part below_module() const { return head_ == nullptr ? Part::kTarget : Part::kFused; }
  // The last row of outputs [R, W].
  std::vector<float> LastRow(const std::vector<float>& outputs) const {
    return {outputs.end() - width(), outputs.end()};
  }
  // Fills every row of the cache with NaN.
  void PoisonCache() { cache_.Poison(device_, *stream_); }

  // Whether kSeed, kProjection and kLayer exist: only for DeepSeek-V4.
  bool has_parts() const { return v4_ != nullptr; }
  // Whether rows may see more positions than the model's indexer keeps.
  bool selects() const { return v3_ != nullptr && v3_->indexer_activations().selected != nullptr; }
  int width() const { return OutputWidth(config_); }
  const KvCache& cache() const { return cache_; }
  const ModelConfig& config() const { return config_; }
  Device& device() { return device_; }
  Stream& stream() { return *stream_; }

 private:
  MtpDevice(Device& device, const ModelConfig& config, const Size& size)
      : device_(device), config_(config), size_(size), comm_(device.ops()), stream_(device.CreateStream()) {}

  void Read(Stream& stream, int layer, Matrix<const float> hidden) const override;
  absl::Status Allocate(LoadedWeights weights);
  absl::Status AllocateHead(const LoadedWeights& weights);
  absl::Status AllocateCache();
  // The object that runs the levels above the target.
  const DraftLevels& drafter() const {
    if (head_ != nullptr) return *head_;
    return *model_;
  }
  Batch BatchOf(const DeviceRows& rows, const std::vector<PrefillSpan>& spans) const;
  void Submit(Part part, int module, const Batch& batch, Matrix<float> output);
  std::vector<float> RunModule(Part part, int module, const DeviceRows& rows,
                               const std::vector<float>& streams);
  std::vector<float> Get(Matrix<const bf16> rows);
  std::vector<float> GetFloats(Matrix<const float> rows) const;
  void PutRows(const DeviceRows& rows);
  template <class T>
  void Put(T* to, const std::vector<T>& from);

  Device& device_;
  const ModelConfig config_;
  const Size size_;
  SoloCommunicator comm_;
  const std::unique_ptr<Stream> stream_;
  V4ModuleWeights module_;              // for V4 with MTP modules
  std::vector<V4LayerWeights> layers_;  // for V4 with stages: the target's layers
  const bf16* embed_ = nullptr;         // for V4: [V, D]
  std::unique_ptr<Model> model_;
  DeepseekV3* v3_ = nullptr;          // model_ where it is a DeepseekV3, else null
  DeepseekV4* v4_ = nullptr;          // model_ where it is a DeepseekV4, else null
  std::unique_ptr<Eagle3Head> head_;  // null without one
  mutable std::vector<std::vector<float>> read_layers_;
  KvCache cache_;
  int32_t* ids_ = nullptr;  // [rows], as are the next three
  int32_t* slots_ = nullptr;
  int32_t* positions_ = nullptr;
  int32_t* list_rows_ = nullptr;
  Matrix<float> previous_;  // [rows, W]
  Matrix<float> output_;    // [rows, W]
  Matrix<float> logits_;    // [rows, V]
};

}  // namespace foredraft
