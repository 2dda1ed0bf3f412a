#include "engine/model/deepseek_v4/v4_layer.h"

#include "engine/model/deepseek_v4/deepseek_v4_shape.h"
#include "engine/model/linear.h"
#include "engine/model/mlp.h"
#include "engine/model/tensor_group.h"

namespace foredraft {
namespace {

float HcEps(const Forward& f) { return static_cast<float>(V4ShapeOf(f.config).hc_eps); }

// One half of a layer, between hyper-connections.
struct Block {
  const HyperWeights& hyper;
  const float* norm;      // [D]
  Matrix<float> streams;  // [R, N D]
  Matrix<float> mix;      // the mixing weights of its output
};

// Sets `normed` to the block's input.
void Enter(const Forward& f, const Block& block, const InputRows& normed) {
  const Matrix<float> collapsed = f.activations.hidden.first_rows(f.rows());
  f.ops.hyper_pre(f.stream, {.out = collapsed,
                             .mix = block.mix,
                             .streams = block.streams,
                             .fn = block.hyper.fn,
                             .scale = block.hyper.scale,
                             .base = block.hyper.base,
                             .stream_count = f.config.hc_mult,
                             .sinkhorn_iters = V4ShapeOf(f.config).hc_sinkhorn_iters,
                             .hc_eps = HcEps(f),
                             .norm_eps = f.norm_eps()});
  RmsNorm(f, normed, {.x = collapsed, .weight = block.norm, .eps = f.norm_eps()});
}

void Leave(const Forward& f, const Block& block, Matrix<const float> output) {
  f.ops.hyper_post(
      f.stream, {.streams = block.streams, .x = output, .mix = block.mix, .stream_count = f.config.hc_mult});
}

void RouteBySoftplus(const Forward& f, const MoeWeights& w, const ScoredRows& rows) {
  const ExpertActivations& a = f.activations.experts;
  f.ops.route_softplus(f.stream,
                       {.expert_ids = a.expert_ids,
                        .expert_weights = a.expert_weights,
                        .logits = rows.logits,
                        .bias = w.bias,
                        .expert_table = w.expert_table,
                        .ids = rows.ids,
                        .index = rows.index,
                        .vocab_size = f.config.vocab_size,
                        .top_k = f.config.num_experts_per_tok,
                        .routed_scaling_factor = static_cast<float>(f.config.routed_scaling_factor)});
}

}  // namespace

void SeedStreams(const Forward& f, Matrix<const float> x, Matrix<float> streams) {
  f.ops.broadcast_streams(
      f.stream,
      {.streams = streams, .x = x, .index = f.batch.index, .stream_count = f.config.hc_mult, .add = 0});
}

void V4Layer(const Forward& f, const V4LayerWeights& w, const V4LayerContext& context,
             Matrix<float> streams) {
  const InputRows buffer = f.activations.normed.first_rows(f.rows());
  const Matrix<float> projected = f.activations.projected.first_rows(f.rows());
  const Matrix<float> mix = context.activations.mix.first_rows(f.rows());

  const Block attention = {w.hc_attn, w.attn_norm, streams, mix};
  const InputRows attended = V4AttentionInput(buffer, w.attn);
  Enter(f, attention, attended);
  V4Attention(f, w.attn, context, attended, projected);
  Leave(f, attention, projected);

  const Block experts = {w.hc_ffn, w.ffn_norm, streams, mix};
  const InputRows normed = buffer.ReadBy({w.ffn.router, w.ffn.expert_gate_up.first, w.ffn.shared.gate_up});
  const MoeRecipe recipe = {.route = RouteBySoftplus,
                            .activation = {static_cast<float>(V4ShapeOf(f.config).swiglu_limit)},
                            .residual = false};
  Enter(f, experts, normed);
  MixtureOfExperts(f, w.ffn, recipe, normed, projected);
  Leave(f, experts, projected);
}

void ProjectStreams(const Forward& f, const V4ModuleWeights& w, const bf16* embed, Matrix<float> streams) {
  const int width = f.config.hidden_size, stream_count = f.config.hc_mult;
  const Matrix<float> embedded = f.activations.hidden.first_rows(f.rows());
  const Matrix<float> projected = f.activations.projected.first_rows(f.rows());
  const InputRows normed = f.activations.normed.first_rows(f.rows()).ReadBy({w.e_proj});
  // The streams as rows one below the other: [R N, D].
  const InputRows stream_rows =
      f.activations.mtp_input.first_rows(f.rows() * stream_count).ReadBy({w.h_proj});
  const Matrix<const float> previous = Dense(f.batch.previous.data, stream_rows.rows(), width);
  RmsNorm(f, stream_rows, {.x = previous, .weight = w.hnorm, .eps = f.norm_eps()});
  Linear(f, stream_rows, {.out = Dense(streams.data, stream_rows.rows(), width), .weight = w.h_proj});
  f.ops.embed(f.stream,
              {.out = embedded, .table = embed, .ids = f.batch.ids, .vocab_size = f.config.vocab_size});
  RmsNorm(f, normed, {.x = embedded, .weight = w.enorm, .eps = f.norm_eps()});
  Linear(f, normed, {.out = projected, .weight = w.e_proj});
  f.ops.broadcast_streams(f.stream, {.streams = streams,
                                     .x = projected,
                                     .index = f.batch.index,
                                     .stream_count = stream_count,
                                     .add = 1,
                                     .skip_position = 1});
}

void HeadLogits(const Forward& f, const V4Head& w, Matrix<float> mix, Matrix<const float> streams,
                Matrix<float> logits) {
  const Matrix<float> collapsed = f.activations.hidden.first_rows(streams.rows);
  const InputRows normed = f.activations.normed.first_rows(streams.rows).ReadBy({w.head});
  f.ops.hyper_head(f.stream, {.out = collapsed,
                              .pre = Dense(mix.data, streams.rows, f.config.hc_mult),
                              .streams = streams,
                              .fn = w.hc_head.fn,
                              .scale = w.hc_head.scale,
                              .base = w.hc_head.base,
                              .stream_count = f.config.hc_mult,
                              .hc_eps = HcEps(f),
                              .norm_eps = f.norm_eps()});
  RmsNorm(f, normed, {.x = collapsed, .weight = w.norm, .eps = f.norm_eps()});
  HeadLinear(f, normed, w.head, logits);
}

}  // namespace foredraft
