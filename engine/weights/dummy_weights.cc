#include "engine/weights/dummy_weights.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "base/status_macros.h"
#include "engine/weights/tensor_names.h"
#include "kernels/random_weight.h"

namespace foredraft {
namespace {

float PerInput(int inputs) { return 1 / std::sqrt(static_cast<float>(inputs)); }

// One call of MakeDummyWeights. Every weight takes the next seed, in the order they are made.
class DummyMaker {
 public:
  DummyMaker(const ModelConfig& config, Device& device, Stream& stream, const ExpertShard& shard)
      : config_(config),
        device_(device),
        stream_(stream),
        shard_(shard),
        linear_(config.fp8_blocks ? DType::kF8E4M3 : DType::kBF16) {}

  absl::StatusOr<ModelWeights> Make(int mtp_module_count, const LoadProgress& progress) {
    const int64_t total = DummyBytes(config_, mtp_module_count);
    const int64_t steps = config_.num_hidden_layers + mtp_module_count + 1;
    int64_t step = 0;
    const auto advance = [&] {
      ++step;
      if (progress) progress(step == steps ? total : total / steps * step, total);
    };
    const int hidden = config_.hidden_size;
    ModelWeights weights;
    const uint64_t embedding_seed = ++seed_;
    ASSIGN_OR_RETURN(weights.embed_tokens, Table(embedding_seed));
    ASSIGN_OR_RETURN(weights.norm, Ones(hidden));
    // Logits that differ; of tied embeddings the head is the same matrix, of amplitude 1.
    const bool tied = config_.tie_word_embeddings;
    ASSIGN_OR_RETURN(weights.lm_head, One(DenseRandomWeight(config_.vocab_size, hidden, DType::kBF16,
                                                            tied ? 1.0f : 3 * PerInput(hidden),
                                                            tied ? embedding_seed : ++seed_)));
    advance();
    for (int layer = 0; layer < config_.num_hidden_layers; ++layer) {
      ASSIGN_OR_RETURN(LayerWeights layer_weights, Layer(layer));
      weights.layers.push_back(layer_weights);
      advance();
    }
    for (int module = 0; module < mtp_module_count; ++module) {
      ASSIGN_OR_RETURN(MtpModuleWeights module_weights, MtpModule(config_.num_hidden_layers + module));
      weights.mtp_modules.push_back(module_weights);
      advance();
    }
    stream_.Synchronize();
    return weights;
  }

 private:
  absl::StatusOr<PackedWeight> One(const RandomWeight& weight) {
    ASSIGN_OR_RETURN(const PackedWeights array, device_.MakeRandomWeights(1, weight));
    return array.first;
  }

  absl::StatusOr<PackedWeight> Linear(int n, int k, float amplitude) {
    return One(DenseRandomWeight(n, k, linear_, amplitude, ++seed_));
  }

  // What adds to the residual stream is smaller, so that the sum over the layers stays of order one.
  float ResidualAmplitude(int inputs) const {
    return PerInput(inputs) / std::sqrt(2.0f * static_cast<float>(config_.num_hidden_layers));
  }

  absl::StatusOr<const float*> Vector(int size, float value) {
    const std::vector<float> host(size, value);
    ASSIGN_OR_RETURN(float* const memory, device_.AllocateArray<float>(size));
    device_.CopyToDevice(stream_, memory, host.data(), host.size() * sizeof(float));
    return static_cast<const float*>(memory);
  }
  absl::StatusOr<const float*> Ones(int size) { return Vector(size, 1); }

  // The embedding, unpacked.
  absl::StatusOr<const bf16*> Table(uint64_t seed) {
    constexpr int64_t kPieceElements = int64_t{1} << 22;
    const RandomWeight weight =
        DenseRandomWeight(config_.vocab_size, config_.hidden_size, DType::kBF16, 1.0f, seed);
    const int64_t count = int64_t{weight.n} * weight.k;
    ASSIGN_OR_RETURN(bf16* const table, device_.AllocateArray<bf16>(count));
    std::vector<bf16> piece(std::min(count, kPieceElements));
    for (int64_t first = 0; first < count; first += kPieceElements) {
      const int64_t length = std::min(kPieceElements, count - first);
      for (int64_t i = 0; i < length; ++i) piece[i] = RandomBf16(weight, first + i);
      device_.CopyToDevice(stream_, table + first, piece.data(), length * sizeof(bf16));
    }
    return static_cast<const bf16*>(table);
  }

  // kv_b whole, and W_UK (transposed) and W_UV of every head as views of the same numbers.
  absl::Status KvB(MlaWeights& mla) {
    const int nope = config_.qk_nope_head_dim;
    const int value = config_.v_head_dim;
    const int latent = config_.kv_lora_rank;
    const int heads = config_.num_attention_heads;
    const RandomWeight kv_b =
        DenseRandomWeight(heads * (nope + value), latent, DType::kBF16, PerInput(latent), ++seed_);
    RandomWeight w_uk = kv_b;
    w_uk.n = latent;
    w_uk.k = nope;
    w_uk.item_stride = int64_t{nope + value} * latent;
    w_uk.row_stride = 1;
    w_uk.column_stride = latent;
    RandomWeight w_uv = kv_b;
    w_uv.n = value;
    w_uv.offset = int64_t{nope} * latent;
    w_uv.item_stride = w_uk.item_stride;
    ASSIGN_OR_RETURN(mla.kv_b, One(kv_b));
    ASSIGN_OR_RETURN(mla.w_uk, device_.MakeRandomWeights(heads, w_uk));
    ASSIGN_OR_RETURN(mla.w_uv, device_.MakeRandomWeights(heads, w_uv));
    return absl::OkStatus();
  }

  absl::StatusOr<MlaWeights> Attention() {
    MlaWeights mla;
    const int hidden = config_.hidden_size;
    const int q_width = config_.num_attention_heads * config_.qk_head_dim();
    const int q_lora = config_.q_lora_rank;
    const int qkv_a_width = (q_lora > 0 ? q_lora : q_width) + config_.kv_lora_rank + config_.qk_rope_head_dim;
    const int value_width = config_.num_attention_heads * config_.v_head_dim;
    ASSIGN_OR_RETURN(mla.qkv_a, Linear(qkv_a_width, hidden, PerInput(hidden)));
    if (q_lora > 0) {
      ASSIGN_OR_RETURN(mla.q_a_layernorm, Ones(q_lora));
      ASSIGN_OR_RETURN(mla.q_b, Linear(q_width, q_lora, PerInput(q_lora)));
    }
    if (config_.attention_bias) {
      ASSIGN_OR_RETURN(mla.qkv_a_bias, Vector(qkv_a_width, 0));
      ASSIGN_OR_RETURN(mla.o_proj_bias, Vector(hidden, 0));
    }
    ASSIGN_OR_RETURN(mla.kv_a_layernorm, Ones(config_.kv_lora_rank));
    RETURN_IF_ERROR(KvB(mla));
    ASSIGN_OR_RETURN(mla.o_proj, Linear(hidden, value_width, ResidualAmplitude(value_width)));
    return mla;
  }

  absl::StatusOr<DenseMlpWeights> Mlp(int width) {
    DenseMlpWeights mlp;
    const int hidden = config_.hidden_size;
    ASSIGN_OR_RETURN(mlp.gate_up, Linear(2 * width, hidden, PerInput(hidden)));
    ASSIGN_OR_RETURN(mlp.down, Linear(hidden, width, ResidualAmplitude(width)));
    return mlp;
  }

  // One projection of the layer's experts that are here.
  absl::StatusOr<PackedWeights> Experts(int n, int k, float amplitude) {
    RandomWeight weight = DenseRandomWeight(n, k, linear_, amplitude, ++seed_);
    weight.offset = shard_.first_expert(config_.n_routed_experts) * weight.item_stride;
    return device_.MakeRandomWeights(shard_.expert_count_here(config_.n_routed_experts), weight);
  }

  absl::StatusOr<MoeWeights> Moe() {
    MoeWeights moe;
    const int hidden = config_.hidden_size;
    const int width = config_.moe_intermediate_size;
    const int experts = config_.n_routed_experts;
    ASSIGN_OR_RETURN(moe.router,
                     One(DenseRandomWeight(experts, hidden, DType::kBF16, PerInput(hidden), ++seed_)));
    ASSIGN_OR_RETURN(moe.e_score_correction_bias, Vector(experts, 0));
    ASSIGN_OR_RETURN(moe.expert_gate_up, Experts(2 * width, hidden, PerInput(hidden)));
    ASSIGN_OR_RETURN(moe.expert_down, Experts(hidden, width, ResidualAmplitude(width)));
    if (config_.n_shared_experts > 0) {
      ASSIGN_OR_RETURN(moe.shared, Mlp(config_.n_shared_experts * width));
    }
    return moe;
  }

  absl::StatusOr<LayerWeights> Layer(int layer) {
    LayerWeights weights;
    ASSIGN_OR_RETURN(weights.input_layernorm, Ones(config_.hidden_size));
    ASSIGN_OR_RETURN(weights.self_attn, Attention());
    ASSIGN_OR_RETURN(weights.post_attention_layernorm, Ones(config_.hidden_size));
    weights.is_moe = config_.IsMoe(layer);
    if (weights.is_moe) {
      ASSIGN_OR_RETURN(weights.moe, Moe());
    } else {
      ASSIGN_OR_RETURN(weights.mlp, Mlp(config_.intermediate_size));
    }
    return weights;
  }

  absl::StatusOr<MtpModuleWeights> MtpModule(int layer) {
    MtpModuleWeights weights;
    const int hidden = config_.hidden_size;
    ASSIGN_OR_RETURN(weights.enorm, Ones(hidden));
    ASSIGN_OR_RETURN(weights.hnorm, Ones(hidden));
    ASSIGN_OR_RETURN(weights.eh_proj,
                     One(DenseRandomWeight(hidden, 2 * hidden, DType::kBF16, PerInput(2 * hidden), ++seed_)));
    ASSIGN_OR_RETURN(weights.shared_head_norm, Ones(hidden));
    ASSIGN_OR_RETURN(weights.layer, Layer(layer));
    return weights;
  }

  const ModelConfig& config_;
  Device& device_;
  Stream& stream_;
  const ExpertShard shard_;
  const DType linear_;
  uint64_t seed_ = 0;
};

}  // namespace

absl::StatusOr<ModelWeights> MakeDummyWeights(const ModelConfig& config, int mtp_module_count, Device& device,
                                              Stream& stream, const LoadProgress& progress,
                                              const ExpertShard& shard) {
  return DummyMaker(config, device, stream, shard).Make(mtp_module_count, progress);
}

int64_t DummyBytes(const ModelConfig& config, int mtp_module_count) {
  int64_t bytes = 0;
  for (const TensorSpec& spec : ExpectedTensors(config, mtp_module_count)) {
    if (spec.kind == TensorKind::kCopy) continue;
    int64_t count = 1;
    for (const int64_t size : spec.shape) count *= size;
    const bool f8 = config.fp8_blocks && spec.kind == TensorKind::kLinear && !spec.name.ends_with(kEhProj);
    bytes += count * static_cast<int64_t>(f8 ? sizeof(uint8_t) : sizeof(bf16));
    if (!f8) continue;
    const std::vector<int64_t> scales = ScaleShape(config, spec.shape);
    bytes += scales[0] * scales[1] * static_cast<int64_t>(sizeof(float));
  }
  return bytes;
}

}  // namespace foredraft
