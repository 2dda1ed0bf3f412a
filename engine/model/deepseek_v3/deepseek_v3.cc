#include "engine/model/deepseek_v3/deepseek_v3.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/status_macros.h"
#include "engine/model/mlp.h"
#include "engine/model/rope.h"
#include "engine/model/tensor_group.h"

namespace foredraft {

std::vector<V3LayerRows> RegisterV3Rows(const ModelConfig& config, int module_count, KvFormat kv_format,
                                        CacheRegistry& registry) {
  std::vector<V3LayerRows> layers(config.num_hidden_layers + module_count);
  for (int i = 0; i < static_cast<int>(layers.size()); ++i) {
    layers[i].latents = RegisterLatents(config, kv_format, registry);
    if (config.HasIndexer(i)) layers[i].index_keys = RegisterIndexKeys(config, registry);
  }
  return layers;
}

namespace {

// The inputs of the rank's part of the widest dense MLP or shared expert.
int MlpWidth(const V3Weights& weights) {
  int width = 0;
  const auto take = [&](const V3LayerWeights& layer) {
    width = std::max(width, layer.is_moe ? layer.moe.shared.down.k : layer.mlp.down.k);
  };
  for (const V3LayerWeights& layer : weights.layers) take(layer);
  for (const V3ModuleWeights& module : weights.mtp_modules) take(module.layer);
  return width;
}

void AddExpertsOf(const Device& device, const V3Weights& weights, ActivationSize& size) {
  const auto take = [&](const V3LayerWeights& layer) {
    if (layer.is_moe) AddExperts(device, layer.moe, size);
  };
  for (const V3LayerWeights& layer : weights.layers) take(layer);
  for (const V3ModuleWeights& module : weights.mtp_modules) take(module.layer);
}

}  // namespace

absl::StatusOr<std::unique_ptr<DeepseekV3>> DeepseekV3::Create(Device& device, Communicator& comm,
                                                               const ModelConfig& config, V3Weights weights,
                                                               const ForwardCapacity& capacity) {
  std::unique_ptr<DeepseekV3> model(new DeepseekV3(device, comm, config, std::move(weights)));
  CHECK_EQ(comm.size(), model->weights_.shard.layout.world_size());
  CacheRegistry registry(/*tokens_per_block=*/1);
  model->cache_rows_ = RegisterV3Rows(config, model->module_count(), DType::kBF16, registry);
  RETURN_IF_ERROR(model->Allocate(device, capacity));
  ASSIGN_OR_RETURN(model->cos_sin_, UploadRopeTable(device,
                                                    RopeFrequencies(config.qk_rope_head_dim,
                                                                    config.rope_theta, config.rope_scaling),
                                                    RopeMscale(config.rope_scaling), capacity.positions));
  return model;
}

absl::Status DeepseekV3::Allocate(Device& device, const ForwardCapacity& capacity) {
  const MlaWeights& attention = weights_.layers.front().self_attn;
  const int heads = attention.w_uk.count;
  const int state_width = SoftmaxStateWidth(config_, capacity, heads);
  ActivationAllocator allocate(device);
  ActivationSize size = {.rows = capacity.rows,
                         .decode_rows = capacity.decode_rows,
                         .mlp_width = MlpWidth(weights_),
                         .scratch_width = state_width};
  AddExpertsOf(device, weights_, size);
  AllocateActivations(allocate, config_, weights_.shard, size, activations_);
  allocate(activations_.mtp_input.as_bf16, capacity.rows, 2 * config_.hidden_size);
  selects_ = SelectsPositions(config_, capacity);
  const MlaSize mla_size = {.heads = heads, .selects = selects_, .quantized = ReadsF8(attention.o_proj)};
  AllocateMla(allocate, config_, capacity, mla_size, mla_activations_);
  if (selects_) AllocateIndexer(allocate, config_, capacity, indexer_activations_);
  if (state_width > 0) {
    mla_activations_.softmax_state = Dense(activations_.gate_up.data, capacity.rows, state_width);
  }
  return allocate.status();
}

Forward DeepseekV3::ForwardOf(Stream& stream, const Batch& batch) const {
  return {.ops = ops_,
          .stream = stream,
          .comm = comm_,
          .shard = weights_.shard,
          .config = config_,
          .activations = activations_,
          .batch = batch};
}

V3LayerContext DeepseekV3::Context(const KvCache& cache, int layer, int level) const {
  const V3LayerRows& rows = cache_rows_[layer];
  V3LayerContext context = {.attention = {.activations = mla_activations_,
                                          .cache = LatentsOf(config_, cache, rows.latents),
                                          .first_position = level,
                                          .cos_sin = cos_sin_,
                                          .selected = {},
                                          .q_a_reader = {}},
                            .indexer = {},
                            .index = layer,
                            .reader_below = nullptr};
  if (!selects_) return context;
  context.attention.selected = {indexer_activations_.selected, config_.index_topk};
  context.indexer = {.activations = &indexer_activations_, .keys = IndexKeysOf(cache, rows.index_keys)};
  return context;
}

void DeepseekV3::RunTarget(Stream& stream, const Batch& batch, const KvCache& cache,
                           Matrix<float> output) const {
  const Forward f = ForwardOf(stream, batch);
  const Matrix<float> hidden = activations_.hidden.first_rows(f.rows());
  f.ops.embed(
      stream,
      {.out = hidden, .table = weights_.embed_tokens, .ids = batch.ids, .vocab_size = config_.vocab_size});
  LeftToAdd left;
  for (int layer = 0; layer < config_.num_hidden_layers; ++layer) {
    if (batch.is_abandoned()) return;
    V3LayerContext context = Context(cache, layer, 0);
    if (layer > 0) context.reader_below = reader_;
    left = V3Layer(f, weights_.layers[layer], context, left);
  }
  RmsNormOfHidden(f, left, {.out = output, .weight = weights_.norm, .eps = f.norm_eps()});
  if (reader_ != nullptr) reader_->Read(stream, config_.num_hidden_layers - 1, hidden);
}

void DeepseekV3::RunModule(Stream& stream, int module, const Batch& batch, const KvCache& cache,
                           Matrix<float> output) const {
  const Forward f = ForwardOf(stream, batch);
  V3LayerContext context = Context(cache, config_.num_hidden_layers + module, module + 1);
  if (selects_ && config_.index_share_for_mtp_iteration && batch.list_rows != nullptr) {
    TakeSelected(f, indexer_activations_);
    context.attention.selected.lists = indexer_activations_.recycled;
    context.indexer = {};
  }
  V3MtpLayer(f, weights_.mtp_modules[module], weights_.embed_tokens, context, output);
}

void DeepseekV3::Logits(Stream& stream, int /*level*/, Matrix<const float> outputs, Matrix<float> logits,
                        const RankRows* rank_rows) const {
  const Matrix<bf16> head_input = activations_.normed.as_bf16.first_rows(outputs.rows);
  ops_.to_bf16_rows(stream, {.out = head_input, .x = outputs});
  HeadLinear(ForwardOf(stream, Batch{.rank_rows = rank_rows}), {.as_bf16 = head_input}, weights_.lm_head,
             logits);
}

}  // namespace foredraft
