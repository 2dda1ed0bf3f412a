#include "engine/weights/tensor_names.h"

#include <utility>

#include "absl/strings/str_cat.h"

namespace foredraft {
namespace {

class SpecList {
 public:
  SpecList(const ModelConfig& config, std::vector<TensorSpec>& specs) : config_(config), specs_(specs) {}

  void Add(TensorKind kind, std::string name, std::vector<int64_t> shape, int expert = -1) {
    specs_.push_back({std::move(name), std::move(shape), kind, expert});
  }

  void AddMlp(const std::string& prefix, int64_t width, int expert = -1) {
    const int64_t hidden = config_.hidden_size;
    Add(TensorKind::kLinear, prefix + kGateProj, {width, hidden}, expert);
    Add(TensorKind::kLinear, prefix + kUpProj, {width, hidden}, expert);
    Add(TensorKind::kLinear, prefix + kDownProj, {hidden, width}, expert);
  }

  void AddAttention(const std::string& prefix) {
    const ModelConfig& c = config_;
    const int64_t hidden = c.hidden_size;
    const int64_t heads = c.num_attention_heads;
    if (c.q_lora_rank == 0) {
      Add(TensorKind::kLinear, prefix + kQProj, {heads * c.qk_head_dim(), hidden});
    } else {
      Add(TensorKind::kLinear, prefix + kQAProj, {c.q_lora_rank, hidden});
      if (c.attention_bias) Add(TensorKind::kVector, prefix + kQABias, {c.q_lora_rank});
      Add(TensorKind::kVector, prefix + kQALayernorm, {c.q_lora_rank});
      Add(TensorKind::kLinear, prefix + kQBProj, {heads * c.qk_head_dim(), c.q_lora_rank});
    }
    const int64_t latent = c.kv_lora_rank + c.qk_rope_head_dim;
    Add(TensorKind::kLinear, prefix + kKvAProj, {latent, hidden});
    if (c.attention_bias) Add(TensorKind::kVector, prefix + kKvABias, {latent});
    Add(TensorKind::kVector, prefix + kKvALayernorm, {c.kv_lora_rank});
    Add(TensorKind::kLinear, prefix + kKvBProj,
        {heads * (c.qk_nope_head_dim + c.v_head_dim), c.kv_lora_rank});
    Add(TensorKind::kLinear, prefix + kOProj, {hidden, heads * c.v_head_dim});
    if (c.attention_bias) Add(TensorKind::kVector, prefix + kOBias, {hidden});
  }

  void AddLayer(int layer) {
    const ModelConfig& c = config_;
    const std::string prefix = LayerPrefix(layer);
    Add(TensorKind::kVector, prefix + kInputLayernorm, {c.hidden_size});
    AddAttention(prefix);
    Add(TensorKind::kVector, prefix + kPostAttentionLayernorm, {c.hidden_size});
    if (!c.IsMoe(layer)) return AddMlp(prefix + "mlp.", c.intermediate_size);
    Add(TensorKind::kMatrix, prefix + kRouter, {c.n_routed_experts, c.hidden_size});
    Add(TensorKind::kVector, prefix + kRouterBias, {c.n_routed_experts});
    for (int expert = 0; expert < c.n_routed_experts; ++expert)
      AddMlp(ExpertPrefix(layer, expert), c.moe_intermediate_size, expert);
    if (c.n_shared_experts > 0)
      AddMlp(prefix + "mlp.shared_experts.", int64_t{c.n_shared_experts} * c.moe_intermediate_size);
  }

  void AddMtpModule(int module) {
    const int64_t hidden = config_.hidden_size;
    const int layer = config_.num_hidden_layers + module;
    const std::string prefix = LayerPrefix(layer);
    Add(TensorKind::kVector, prefix + kEnorm, {hidden});
    Add(TensorKind::kVector, prefix + kHnorm, {hidden});
    Add(TensorKind::kLinear, prefix + kEhProj, {hidden, 2 * hidden});
    Add(TensorKind::kVector, prefix + kSharedHeadNorm, {hidden});
    Add(TensorKind::kCopy, prefix + kMtpEmbedCopy, {config_.vocab_size, hidden});
    Add(TensorKind::kCopy, prefix + kMtpHeadCopy, {config_.vocab_size, hidden});
    AddLayer(layer);
  }

 private:
  const ModelConfig& config_;
  std::vector<TensorSpec>& specs_;
};

}  // namespace

std::vector<TensorSpec> ExpectedTensors(const ModelConfig& config, int mtp_module_count) {
  std::vector<TensorSpec> specs;
  SpecList list(config, specs);
  list.Add(TensorKind::kMatrix, kEmbedTokens, {config.vocab_size, config.hidden_size});
  for (int layer = 0; layer < config.num_hidden_layers; ++layer) list.AddLayer(layer);
  list.Add(TensorKind::kVector, kFinalNorm, {config.hidden_size});
  list.Add(config.tie_word_embeddings ? TensorKind::kCopy : TensorKind::kMatrix, kLmHead,
           {config.vocab_size, config.hidden_size});
  for (int module = 0; module < mtp_module_count; ++module) list.AddMtpModule(module);
  return specs;
}

bool IsIgnoredTensor(std::string_view name) { return name.ends_with("rotary_emb.inv_freq"); }

std::string LayerPrefix(int layer) { return absl::StrCat("model.layers.", layer, "."); }

std::string ExpertPrefix(int layer, int expert) {
  return absl::StrCat("model.layers.", layer, ".mlp.experts.", expert, ".");
}

std::vector<int64_t> ScaleShape(const ModelConfig& config, const std::vector<int64_t>& weight_shape) {
  return {(weight_shape[0] + config.weight_block_n - 1) / config.weight_block_n,
          (weight_shape[1] + config.weight_block_k - 1) / config.weight_block_k};
}

}  // namespace foredraft
