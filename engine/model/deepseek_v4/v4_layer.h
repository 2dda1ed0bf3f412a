#pragma once

// The layers of DeepSeek-V4 (docs/deepseek-v4.md sections 2, 5 and 6) between embedding and logits. The
// residual of a row is N streams, [N D].

#include "engine/model/deepseek_v4/v4_attention.h"

namespace foredraft {

// Copies x, [R, D], to every stream of `streams`, [R, N D].
void SeedStreams(const Forward& f, Matrix<const float> x, Matrix<float> streams);

// Attention and experts, each between hyper-connections. streams: [R, N D], updated.
void V4Layer(const Forward& f, const V4LayerWeights& w, const V4LayerContext& context, Matrix<float> streams);

// Makes the input of an MTP module's layer: per stream of `streams`, [R, N D], h_proj of the normed previous
// stream plus e_proj of the normed embedding of batch.ids. batch.previous: [R, N D], the streams at each
// row's position - 1. At position 1 the embedding counts as zero.
void ProjectStreams(const Forward& f, const V4ModuleWeights& w, const bf16* embed, Matrix<float> streams);

// The weights between a level's streams and its logits: the target's or a module's own.
struct V4Head {
  HyperWeights hc_head;
  const float* norm;  // [D]
  PackedWeight head;  // [V, D]
};

// Makes logits, [R, V], from streams, [R, N D]. mix: V4Activations::mix.
void HeadLogits(const Forward& f, const V4Head& w, Matrix<float> mix, Matrix<const float> streams,
                Matrix<float> logits);

}  // namespace foredraft
