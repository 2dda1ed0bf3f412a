#pragma once

// DSpark, DeepSeek-V4's own drafter (docs/dspark.md), as recipes: the data that the target's forward writes
// for it, and the forward of drafted blocks. Its stages are layers of the target's kind whose rows see the
// window before their block and all rows of the block.

#include <span>

#include "engine/model/deepseek_v4/v4_layer.h"

namespace foredraft {

// R rows of a forward, r = markov_rank, S = rows that tokens are chosen for.
struct DSparkActivations {
  Matrix<bf16> taps;         // [R, T D]: the mean of each tapped layer's output streams
  Matrix<float> markov;      // [S, r]
  Matrix<bf16> markov_rows;  // [S, r]
};

void AllocateDSpark(ActivationAllocator& allocate, const ModelConfig& config, const ForwardCapacity& capacity,
                    DSparkActivations& a);

// Keeps the tap of the target's layer `layer`, if the stages read it. streams: [R, N D], the layer's output.
void TapLayer(const Forward& f, const DSparkActivations& a, int layer, Matrix<const float> streams);

// Called after the target's last layer: writes every stage's keys of the forward's rows into the cache.
// stages: one context per stage.
void WriteStageKeys(const Forward& f, const DSparkWeights& w, const DSparkActivations& a,
                    std::span<const V4LayerContext> stages);

// bias: [rows, V], what the Markov head adds to the logits of the token after each of `ids`.
void StageBias(const Forward& f, const DSparkWeights& w, const DSparkActivations& a, const int32_t* ids,
               Matrix<float> bias);

// Writes the confidence in a draft of each sequence (kernels/ops/draft_block.h) to `p`. The tokens before the
// drafts are the ids of the last StageBias call. hidden: [rows, D], the rows that the drafts come from,
// before the last stage's norm.
void StageConfidence(const Forward& f, const DSparkWeights& w, const DSparkActivations& a,
                     Matrix<const float> hidden, DraftConfidenceParams p);

}  // namespace foredraft
