#pragma once

// DeepSeek-V4's MTP module (docs/deepseek-v4.md section 6) in the functions of the MTP contract
// (docs/mtp-contract.md section 4). Positions are those of the row's token: one higher than the contract's.

#include "engine/model/deepseek_v4/v4_layer.h"

namespace foredraft {

// Every stream = x. x: [R, D]; streams: [R, N D]. No source defines mtp_seed_hc_stack; this is its meaning
// here, and the target's streams begin with it.
void MtpSeedHcStack(const V4Forward& f, Matrix<const float> x, Matrix<float> streams);

// streams [R, N D] = per stream h_proj of the normed previous stream, plus e_proj of the normed embedding of
// batch.ids. batch.previous: [R, N D], the streams at each row's position - 1. At position 1 the embedding
// counts as zero.
void MtpProjection(const V4Forward& f, const V4ModuleWeights& w, const bf16* embed, Matrix<float> streams);

// The module's layer: window attention from position 1 on, experts by score. streams: [R, N D], updated.
void MtpDecoderLayerTail(const V4Forward& f, const V4ModuleWeights& w, const V4LayerCache& cache,
                         Matrix<float> streams);

// Both: streams [R, N D] are what the next recycled forward takes as `previous`.
void MtpForwardTail(const V4Forward& f, const V4ModuleWeights& w, const bf16* embed,
                    const V4LayerCache& cache, Matrix<float> streams);

// The weights between a level's streams and its logits: the target's or a module's own.
struct V4Head {
  HyperWeights hc_head;
  const float* norm;  // [D]
  PackedWeight head;  // [V, D]
};

// logits [R, V] of streams [R, N D].
void MtpComputeLogitsTail(const V4Forward& f, const V4Head& w, Matrix<const float> streams,
                          Matrix<float> logits);

}  // namespace foredraft
