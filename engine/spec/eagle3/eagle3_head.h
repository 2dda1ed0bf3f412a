#pragma once

// The forward of an Eagle3 head with MLA (docs/eagle3.md). A row at position s takes token t_s and c_{s-1}.
// c_{s-1} is the fused row f_{s-1}, made of the tapped layers' outputs at position s - 1; where the target
// has not run position s - 1 with the committed token, it is the head's own output there. Its output is g_s,
// or with norm_output RMS(g_s; norm). The whole head is on every rank, which runs the rows of its own
// sequences. Owner: the drafter. Thread: the one that submits plans.

#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/cache/cache_groups.h"
#include "engine/comm/solo_communicator.h"
#include "engine/model/activations.h"
#include "engine/model/draft_head.h"
#include "engine/model/draft_target.h"
#include "engine/model/forward.h"
#include "engine/model/mla.h"
#include "engine/model/model.h"
#include "engine/spec/drafter_kind.h"
#include "engine/spec/eagle3/eagle3_weights.h"
#include "kernels/device.h"

namespace foredraft {

// The most prompt rows that run at once: bounds the head's memory.
inline constexpr int kEagle3RowsAtOnce = 1024;

class Eagle3Head final : public DraftLevels, public LayerReader {
 public:
  // `capacity` as of the target. device and target outlive the head; from now on the target calls its Read.
  // The cache has the rows that RegisterRows registers for a target without MTP modules.
  static absl::StatusOr<std::unique_ptr<Eagle3Head>> Create(Device& device, Model& target,
                                                            Eagle3Weights weights,
                                                            const ForwardCapacity& capacity,
                                                            KvFormat kv_format);

  void Read(Stream& stream, int layer, Matrix<const float> hidden) const override;
  // Writes to `out`, [rows, D], the fused rows f of the first rows of the target's last forward, which had
  // this form.
  void Fuse(Stream& stream, GemmForm form, Matrix<float> out) const;

  void RunModule(Stream& stream, int module, const Batch& batch, const KvCache& cache,
                 Matrix<float> output) const override;
  void Logits(Stream& stream, int level, Matrix<const float> outputs, Matrix<float> logits,
              const RankRows* rank_rows) const override;

 private:
  Eagle3Head(Device& device, Model& target, Eagle3Weights weights);

  absl::Status Allocate(Device& device, const ForwardCapacity& capacity);
  Forward ForwardOf(Stream& stream, const Batch& batch) const;
  void RunRows(Stream& stream, const Batch& batch, const KvCache& cache, Matrix<float> output) const;

  const Ops& ops_;
  Model& target_;
  const bf16* const embed_tokens_;
  const std::shared_ptr<const DraftHead> head_;
  const Eagle3Weights weights_;
  mutable SoloCommunicator solo_;  // the head exchanges nothing
  const ModelShard shard_;
  CacheHandle cache_rows_;
  Matrix<float> unnormed_taps_;  // [R, T D] with norm_before_fc; or absent
  Matrix<bf16> taps_;            // [R, T D] input of fc
  Activations activations_;      // of min(R, kEagle3RowsAtOnce) rows, or those of a decode step
  MlaActivations mla_activations_;
  const float* cos_sin_ = nullptr;        // [positions, rope / 2, 2]
  const int32_t* draft_index_ = nullptr;  // [V] the head's own id of each token, or -1; null: equal ids
  Matrix<float> draft_logits_;            // [S, Vd] absent where draft_index_ is null
};

}  // namespace foredraft
