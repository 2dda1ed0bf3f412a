#include "engine/model/deepseek_v4/deepseek_v4.h"

#include <utility>

#include "base/status_macros.h"
#include "engine/model/rope.h"

namespace foredraft {

absl::StatusOr<std::unique_ptr<DeepseekV4>> DeepseekV4::Create(Device& device, Communicator& comm,
                                                               const ModelConfig& config, V4Weights weights,
                                                               const ForwardCapacity& capacity) {
  std::unique_ptr<DeepseekV4> model(new DeepseekV4(device, comm, config, std::move(weights)));
  CacheRegistry registry(/*tokens_per_block=*/1);
  model->cache_rows_ = RegisterV4Rows(config, model->module_count(), registry);
  RETURN_IF_ERROR(model->Allocate(device, capacity));
  // cos and sin have no multiplier.
  const int dim = config.qk_rope_head_dim, positions = capacity.positions;
  ASSIGN_OR_RETURN(
      model->main_cos_sin_,
      UploadRopeTable(device, RopeFrequencies(dim, config.rope_theta, config.rope_scaling), 1, positions));
  ASSIGN_OR_RETURN(
      model->compress_cos_sin_,
      UploadRopeTable(device,
                      RopeFrequencies(dim, config.v4->compress_rope_theta, config.v4->compress_rope_scaling),
                      1, positions));
  return model;
}

absl::Status DeepseekV4::Allocate(Device& device, const ForwardCapacity& capacity) {
  ActivationAllocator allocate(device);
  AllocateActivations(allocate, config_,
                      {.rows = capacity.rows,
                       .ranks = comm_.size(),
                       .mlp_width = config_.n_shared_experts * config_.moe_intermediate_size},
                      activations_);
  allocate(activations_.mtp_input, capacity.rows * config_.hc_mult, config_.hidden_size);
  AllocateV4(allocate, config_, capacity, v4_activations_);
  return allocate.status();
}

Forward DeepseekV4::ForwardOf(Stream& stream, const Batch& batch) const {
  return {.ops = ops_,
          .stream = stream,
          .comm = comm_,
          .config = config_,
          .activations = activations_,
          .batch = batch};
}

V4LayerContext DeepseekV4::Context(const KvCache& cache, int layer) const {
  const AttentionKind kind = config_.v4->Kind(layer);
  return {.activations = v4_activations_,
          .kind = kind,
          .cache = LayerCacheOf(cache, cache_rows_[layer]),
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
    V4Layer(f, weights_.layers[layer], Context(cache, layer), output);
  }
}

void DeepseekV4::RunModule(Stream& stream, int module, const Batch& batch, const KvCache& cache,
                           Matrix<float> output) const {
  const Forward f = ForwardOf(stream, batch);
  const V4ModuleWeights& w = weights_.modules[module];
  ProjectStreams(f, w, weights_.embed, output);
  V4Layer(f, w.layer, Context(cache, config_.num_hidden_layers + module), output);
}

void DeepseekV4::Logits(Stream& stream, int level, Matrix<const float> outputs, Matrix<float> logits) const {
  const bool target = level == 0;
  const V4Head head = {.hc_head = target ? weights_.hc_head : weights_.modules[level - 1].hc_head,
                       .norm = target ? weights_.norm : weights_.modules[level - 1].norm,
                       .head = weights_.head};
  HeadLogits(ForwardOf(stream, Batch{}), head, v4_activations_.mix, outputs, logits);
}

}  // namespace foredraft
