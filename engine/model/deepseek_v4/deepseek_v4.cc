#include "engine/model/deepseek_v4/deepseek_v4.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/status_macros.h"
#include "engine/model/deepseek_v4/deepseek_v4_shape.h"
#include "engine/model/mlp.h"
#include "engine/model/rope.h"

namespace foredraft {

namespace {

void AddExpertsOf(const Device& device, const V4Weights& weights, ActivationSize& size) {
  for (const V4LayerWeights& layer : weights.layers) AddExperts(device, layer.ffn, size);
  for (const V4ModuleWeights& module : weights.modules) AddExperts(device, module.layer.ffn, size);
  for (const V4LayerWeights& stage : weights.dspark.stages) AddExperts(device, stage.ffn, size);
}

}  // namespace

absl::StatusOr<std::unique_ptr<DeepseekV4>> DeepseekV4::Create(Device& device, Communicator& comm,
                                                               const ModelConfig& config, V4Weights weights,
                                                               const ForwardCapacity& capacity) {
  std::unique_ptr<DeepseekV4> model(new DeepseekV4(device, comm, config, std::move(weights)));
  CHECK_EQ(comm.size(), model->weights_.shard.layout.world_size());
  CacheRegistry registry(/*tokens_per_block=*/1);
  model->cache_rows_ = RegisterV4Rows(config, model->module_count(), DType::kBF16, registry);
  RETURN_IF_ERROR(model->Allocate(device, capacity));
  // The multiplier of cos and sin is 1.
  const int dim = config.qk_rope_head_dim;
  // The angles cover a whole block that begins at the last position.
  const int positions = capacity.positions + (model->has_stages() ? config.dspark->block_size : 0);
  ASSIGN_OR_RETURN(
      model->main_cos_sin_,
      UploadRopeTable(device, RopeFrequencies(dim, config.rope_theta, config.rope_scaling), 1, positions));
  ASSIGN_OR_RETURN(model->compress_cos_sin_,
                   UploadRopeTable(device,
                                   RopeFrequencies(dim, V4ShapeOf(config).compress_rope_theta,
                                                   V4ShapeOf(config).compress_rope_scaling),
                                   1, positions));
  return model;
}

absl::Status DeepseekV4::Allocate(Device& device, const ForwardCapacity& capacity) {
  ActivationAllocator allocate(device);
  const V4LayerWeights& layer = weights_.layers.front();
  ActivationSize size = {
      .rows = capacity.rows, .decode_rows = capacity.decode_rows, .mlp_width = layer.ffn.shared.down.k};
  AddExpertsOf(device, weights_, size);
  AllocateActivations(allocate, config_, weights_.shard, size, activations_);
  allocate(activations_.mtp_input, capacity.rows * config_.hc_mult, config_.hidden_size);
  AllocateV4(allocate, config_, capacity, layer.attn, v4_activations_);
  if (has_stages()) AllocateDSpark(allocate, config_, capacity, dspark_activations_);
  RETURN_IF_ERROR(allocate.status());
  const auto stream = device.CreateStream();
  const int32_t unmapped = 0;
  device.CopyToDevice(*stream, v4_activations_.unmapped, &unmapped, sizeof(unmapped));
  stream->Synchronize();
  return absl::OkStatus();
}

Forward DeepseekV4::ForwardOf(Stream& stream, const Batch& batch) const {
  return {.ops = ops_,
          .stream = stream,
          .comm = comm_,
          .shard = weights_.shard,
          .config = config_,
          .activations = activations_,
          .batch = batch};
}

V4LayerContext DeepseekV4::Context(const KvCache& cache, int layer) const {
  const AttentionKind kind = V4ShapeOf(config_).Kind(layer);
  return {.activations = v4_activations_,
          .kind = kind,
          .cache = LayerCacheOf(config_, cache, cache_rows_[layer]),
          .first_position = layer < config_.num_hidden_layers ? 0 : 1,
          .cos_sin = kind == AttentionKind::kWindow ? main_cos_sin_ : compress_cos_sin_};
}

void DeepseekV4::RunTarget(Stream& stream, const Batch& batch, const KvCache& cache,
                           Matrix<float> output) const {
  const Forward f = ForwardOf(stream, batch);
  const Matrix<float> embedded = activations_.hidden.first_rows(f.rows());
  f.ops.embed(stream,
              {.out = embedded, .table = weights_.embed, .ids = batch.ids, .vocab_size = config_.vocab_size});
  SeedStreams(f, embedded, output);
  for (int layer = 0; layer < config_.num_hidden_layers; ++layer) {
    if (batch.is_abandoned()) return;
    V4Layer(f, weights_.layers[layer], Context(cache, layer), output);
    if (has_stages()) TapLayer(f, dspark_activations_, layer, output);
  }
  if (!has_stages()) return;
  std::vector<V4LayerContext> stages;
  for (int stage = 0; stage < module_count(); ++stage) {
    stages.push_back(Context(cache, config_.num_hidden_layers + stage));
  }
  WriteStageKeys(f, weights_.dspark, dspark_activations_, stages);
}

// Runs one stage over rows that are blocks. The first stage takes the embedding of their ids, every later
// stage the output of the stage below, which `output` may alias.
void DeepseekV4::RunStage(const Forward& f, int stage, const KvCache& cache, Matrix<float> output) const {
  if (stage == 0) {
    const Matrix<float> embedded = activations_.hidden.first_rows(f.rows());
    f.ops.embed(
        f.stream,
        {.out = embedded, .table = weights_.embed, .ids = f.batch.ids, .vocab_size = config_.vocab_size});
    SeedStreams(f, embedded, output);
  } else if (f.batch.previous.data != output.data) {
    f.ops.copy_rows(f.stream, {.out = output, .x = f.batch.previous, .rows = f.rows()});
  }
  V4LayerContext context = Context(cache, config_.num_hidden_layers + stage);
  context.block_rows = config_.dspark->block_size;
  V4Layer(f, weights_.dspark.stages[stage], context, output);
}

void DeepseekV4::RunModule(Stream& stream, int module, const Batch& batch, const KvCache& cache,
                           Matrix<float> output) const {
  const Forward f = ForwardOf(stream, batch);
  if (has_stages()) return RunStage(f, module, cache, output);
  const V4ModuleWeights& w = weights_.modules[module];
  ProjectStreams(f, w, weights_.embed, output);
  V4Layer(f, w.layer, Context(cache, config_.num_hidden_layers + module), output);
}

void DeepseekV4::Logits(Stream& stream, int level, Matrix<const float> outputs, Matrix<float> logits,
                        const RankRows* rank_rows) const {
  HeadLogits(ForwardOf(stream, Batch{.rank_rows = rank_rows}), HeadOf(level), v4_activations_.mix, outputs,
             logits);
}

V4Head DeepseekV4::HeadOf(int level) const {
  if (level == 0) return {weights_.hc_head, weights_.norm, weights_.head};
  if (!has_stages()) {
    const V4ModuleWeights& module = weights_.modules[level - 1];
    return {module.hc_head, module.norm, weights_.head};
  }
  CHECK_EQ(level, module_count()) << "only the last stage has a head";
  return {weights_.dspark.hc_head, weights_.dspark.norm, weights_.head};
}

void DeepseekV4::MarkovBias(Stream& stream, const int32_t* ids, Matrix<float> bias) const {
  StageBias(ForwardOf(stream, Batch{}), weights_.dspark, dspark_activations_, ids, bias);
}

// HeadLogits leaves the streams, reduced to one, in `hidden`.
void DeepseekV4::Confidence(Stream& stream, int first_row, const DraftConfidenceParams& p) const {
  StageConfidence(ForwardOf(stream, Batch{}), weights_.dspark, dspark_activations_,
                  activations_.hidden.row_range(first_row, p.bucket), p);
}

}  // namespace foredraft
