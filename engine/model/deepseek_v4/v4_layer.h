#pragma once

// The layers of DeepSeek-V4 (docs/deepseek-v4.md sections 2, 5 and 6) between embedding and logits. The
// residual of a row is N streams, [N D].

#include "engine/model/deepseek_v4/v4_attention.h"

namespace foredraft {

// Every stream = x. x: [R, D]; streams: [R, N D].
void SeedStreams(const Forward& f, Matrix<const float> x, Matrix<float> streams);

// Attention and experts, each between hyper-connections. streams: [R, N D], updated.
void V4Layer(const Forward& f, const V4LayerWeights& w, const V4LayerContext& context, Matrix<float> streams);

// What an MTP module's layer begins with: streams [R, N D] = per stream h_proj of the normed previous stream,
// plus e_proj of the normed embedding of batch.ids. batch.previous: [R, N D], the streams at each row's
// position - 1. At position 1 the embedding counts as zero.
void ProjectStreams(const Forward& f, const V4ModuleWeights& w, const bf16* embed, Matrix<float> streams);

// The weights between a level's streams and its logits: the target's or a module's own.
struct V4Head {
  HyperWeights hc_head;
  const float* norm;  // [D]
  PackedWeight head;  // [V, D]
};

// logits: [R, V] of streams [R, N D]. mix: the activations'.
void HeadLogits(const Forward& f, const V4Head& w, Matrix<float> mix, Matrix<const float> streams,
                Matrix<float> logits);

}  // namespace foredraft
