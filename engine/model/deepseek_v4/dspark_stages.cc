#include "engine/model/deepseek_v4/dspark_stages.h"

#include <algorithm>

#include "engine/model/linear.h"

namespace foredraft {

void AllocateDSpark(ActivationAllocator& allocate, const ModelConfig& config, const ForwardCapacity& capacity,
                    DSparkActivations& a) {
  const DSparkShape& shape = *config.dspark;
  const auto tapped = static_cast<int>(shape.target_layer_ids.size());
  allocate(a.taps, capacity.rows, tapped * config.hidden_size);
  allocate(a.markov, capacity.decode_rows, shape.markov_rank);
  allocate(a.markov_rows, capacity.decode_rows, shape.markov_rank);
}

void TapLayer(const Forward& f, const DSparkActivations& a, int layer, Matrix<const float> streams) {
  const std::vector<int>& tapped = f.config.dspark->target_layer_ids;
  const auto found = std::find(tapped.begin(), tapped.end(), layer);
  if (found == tapped.end()) return;
  const int width = f.config.hidden_size;
  const auto first = static_cast<int32_t>(found - tapped.begin()) * width;
  f.ops.mean_streams(f.stream, {.out = a.taps.first_rows(f.rows()).columns(first, width),
                                .streams = streams,
                                .stream_count = f.config.hc_mult});
}

void WriteStageKeys(const Forward& f, const DSparkWeights& w, const DSparkActivations& a,
                    std::span<const V4LayerContext> stages) {
  const Matrix<float> projected = f.activations.projected.first_rows(f.rows());
  const InputRows normed = f.activations.normed.first_rows(f.rows()).ReadBy({w.stages[0].attn.wkv});
  Linear(f, {.as_bf16 = a.taps.first_rows(f.rows())}, {.out = projected, .weight = w.main_proj});
  RmsNorm(f, normed, {.x = projected, .weight = w.main_norm, .eps = f.norm_eps()});
  for (size_t i = 0; i < stages.size(); ++i) V4Keys(f, w.stages[i].attn, stages[i], normed);
}

void StageBias(const Forward& f, const DSparkWeights& w, const DSparkActivations& a, const int32_t* ids,
               Matrix<float> bias) {
  const Matrix<float> rows = a.markov.first_rows(bias.rows);
  const Matrix<bf16> rounded = a.markov_rows.first_rows(bias.rows);
  f.ops.embed(f.stream, {.out = rows, .table = w.markov_w1, .ids = ids, .vocab_size = f.config.vocab_size});
  f.ops.to_bf16_rows(f.stream, {.out = rounded, .x = rows});  // exact: the table is in BF16
  Linear(f, {.as_bf16 = rounded}, {.out = bias, .weight = w.markov_w2});
}

void StageConfidence(const Forward& f, const DSparkWeights& w, const DSparkActivations& a,
                     Matrix<const float> hidden, DraftConfidenceParams p) {
  p.hidden = hidden;
  p.token_rows = a.markov.first_rows(hidden.rows);
  p.weight = w.confidence;
  f.ops.draft_confidence(f.stream, p);
}

}  // namespace foredraft
