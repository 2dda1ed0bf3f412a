#include "engine/model/deepseek_v3/deepseek_v3_description.h"

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/model/layer_description.h"
#include "engine/model/model_kind.h"

namespace foredraft {
namespace {

using Tensors = std::vector<const TensorSpec*>;
using Shape = std::vector<int64_t>;

class Describer : public LayerDescriber {
 public:
  using LayerDescriber::LayerDescriber;

  // indexer: the layer has an indexer of its own.
  void Layer(bool is_moe, bool indexer, V3LayerWeights& layer) {
    layer.is_moe = is_moe;
    Norm("input_layernorm", config_.hidden_size, &layer.input_layernorm);
    Attention(layer.self_attn, config_.hidden_size);
    if (indexer) {
      Indexer(layer.indexer);
    } else if (config_.index_topk > 0) {
      UnreadIndexer();
    }
    Norm("post_attention_layernorm", config_.hidden_size, &layer.post_attention_layernorm);
    if (is_moe) {
      Experts(layer.moe);
    } else {
      Mlp("mlp", MlpTensors("mlp.", config_.intermediate_size), layer.mlp);
    }
  }

  void Module(bool is_moe, V3ModuleWeights& module) {
    const int64_t hidden = config_.hidden_size;
    Norm("enorm", config_.hidden_size, &module.enorm);
    Norm("hnorm", config_.hidden_size, &module.hnorm);
    Weight("eh_proj", MatrixMember{&module.eh_proj},
           {Linear(TensorKind::kMatrix, "eh_proj", {hidden, 2 * hidden})});
    Norm("shared_head.norm", config_.hidden_size, &module.shared_head_norm);
    Tensor(TensorKind::kUnread, "embed_tokens.weight", {config_.vocab_size, hidden});
    Tensor(TensorKind::kUnread, "shared_head.head.weight", {config_.vocab_size, hidden});
    Layer(is_moe, config_.HasIndexer(config_.num_hidden_layers), module.layer);
  }

 private:
  // wk and weights_proj read the same rows and are fused. If wk alone is in FP8, both become BF16. Vendors'
  // 4-bit formats leave the indexer in BF16.
  void Indexer(SparseIndexerWeights& indexer) {
    const ModelConfig& c = config_;
    const std::string name = "self_attn.indexer.";
    const TensorKind kind = Is4Bit(c.projections) ? TensorKind::kMatrix : TensorKind::kLinear;
    Weight("indexer.wq_b", MatrixMember{&indexer.wq_b},
           {Linear(kind, name + "wq_b", {c.index_n_heads * c.index_head_dim, c.q_lora_rank})});
    const TensorSpec* const wk = Linear(kind, name + "wk", {c.index_head_dim, c.hidden_size});
    const TensorSpec* const weights =
        Tensor(TensorKind::kMatrix, name + "weights_proj.weight", {c.index_n_heads, c.hidden_size});
    Weight("indexer.wk_weights", MatrixMember{&indexer.wk_weights}, {wk, weights});
    Weight("indexer.k_norm", VectorMember{&indexer.k_norm},
           {Tensor(TensorKind::kNorm, name + "k_norm.weight", {c.index_head_dim})});
    Weight("indexer.k_norm_bias", VectorMember{&indexer.k_norm_bias},
           {Tensor(TensorKind::kBias, name + "k_norm.bias", {c.index_head_dim})});
  }

  // Layers that share a selection need no indexer; some packagers' files have one.
  void UnreadIndexer() {
    const ModelConfig& c = config_;
    const std::string name = "self_attn.indexer.";
    Linear(TensorKind::kUnread, name + "wq_b", {c.index_n_heads * c.index_head_dim, c.q_lora_rank});
    Linear(TensorKind::kUnread, name + "wk", {c.index_head_dim, c.hidden_size});
    Linear(TensorKind::kUnread, name + "weights_proj", {c.index_n_heads, c.hidden_size});
    Tensor(TensorKind::kUnread, name + "k_norm.weight", {c.index_head_dim});
    Tensor(TensorKind::kUnread, name + "k_norm.bias", {c.index_head_dim});
  }

  void Experts(MoeWeights& moe) {
    const ModelConfig& c = config_;
    Weight("router", MatrixMember{&moe.router},
           {Tensor(TensorKind::kMatrix, "mlp.gate.weight", {c.n_routed_experts, c.hidden_size})});
    Weight("e_score_correction_bias", VectorMember{&moe.bias},
           {Tensor(TensorKind::kBias, "mlp.gate.e_score_correction_bias", {c.n_routed_experts})});
    Tensors gate_up, down, all_gate_up, all_down;
    for (int expert = 0; expert < c.n_routed_experts; ++expert) {
      const MlpParts parts =
          MlpTensors(absl::StrCat("mlp.experts.", expert, "."), c.moe_intermediate_size, expert);
      all_gate_up.insert(all_gate_up.end(), {parts.gate, parts.up});
      all_down.push_back(parts.down);
      if (!description_.shard.experts().Holds(expert, c.n_routed_experts)) continue;
      gate_up.insert(gate_up.end(), {parts.gate, parts.up});
      down.push_back(parts.down);
    }
    const int expert_count = static_cast<int>(down.size());
    WeightSpec& gate_ups = Weight(
        "experts.gate_up", ExpertsMember{&moe.expert_gate_up, &moe.gate_up_inputs, std::move(all_gate_up)},
        std::move(gate_up), expert_count);
    const IndexRange columns = description_.shard.ExpertColumns(c.moe_intermediate_size);
    if (expert_count > 0) gate_ups.CutRows({columns, columns});
    WeightSpec& downs =
        Weight("experts.down", ExpertsMember{&moe.expert_down, &moe.down_inputs, std::move(all_down)},
               std::move(down), expert_count);
    if (expert_count > 0) downs.CutRows({description_.shard.ExpertColumns(c.hidden_size)});
    if (c.n_shared_experts == 0) return;
    Mlp("shared", MlpTensors("mlp.shared_experts.", c.n_shared_experts * c.moe_intermediate_size),
        moe.shared);
  }
};

}  // namespace

ModelDescription DescribeDeepSeekV3(const ModelConfig& config, int mtp_module_count,
                                    const ModelShard& shard) {
  ModelDescription description = BeginDescription(config, shard);
  description.unread_ending = "rotary_emb.inv_freq";
  auto& model = description.model->Emplace<V3Weights>();
  model.shard = shard;
  model.layers.resize(config.num_hidden_layers);
  model.mtp_modules.resize(mtp_module_count);
  const Shape table = {config.vocab_size, config.hidden_size};
  const std::string& prefix = config.tensor_prefix;
  if (!prefix.empty()) {
    description.unread_beginnings = {"vision_tower.", "mm_projector.", "multi_modal_projector."};
  }
  const auto under_layer = [&](int layer, int mtp_module = -1) {
    return Describer(config, absl::StrCat(prefix, "model.layers.", layer, "."), description, mtp_module);
  };

  Describer top(config, prefix, description);
  const TensorSpec* embedding = top.Tensor(TensorKind::kEmbedding, "model.embed_tokens.weight", table);
  top.Weight("embed_tokens", TableMember{&model.embed_tokens}, {embedding});
  for (int i = 0; i < config.num_hidden_layers; ++i) {
    under_layer(i).Layer(config.IsMoe(i), config.HasIndexer(i), model.layers[i]);
  }
  top.Norm("model.norm", config.hidden_size, &model.norm);
  const bool tied = config.tie_word_embeddings;
  const TensorSpec* head = description.Tensor({.kind = tied ? TensorKind::kUnread : TensorKind::kHead,
                                               .name = prefix + "lm_head.weight",
                                               .shape = table,
                                               .copy_of = tied ? embedding->name : ""});
  for (int i = 0; i < mtp_module_count; ++i) {
    const int layer = config.num_hidden_layers + i;
    under_layer(layer, i).Module(config.IsMoe(layer), model.mtp_modules[i]);
  }
  const IndexRange vocabulary = shard.Vocabulary(config.vocab_size);
  top.Weight("lm_head", MatrixMember{&model.lm_head}, {tied ? embedding : head}).CutRows({vocabulary});
  return description;
}

std::vector<NamedPart> NameDeepSeekV3(const TensorEntry& stored, const ModelConfig& config) {
  const std::string& prefix = config.tensor_prefix;
  std::string name = stored.name;
  if (!prefix.empty() && name.starts_with(prefix)) {
    const std::string_view rest = std::string_view(name).substr(prefix.size());
    if (!rest.starts_with("model.") && !rest.starts_with("lm_head.")) name.insert(prefix.size(), "model.");
  }
  return {{.name = std::move(name), .shape = stored.shape}};
}

void DescribeDecoderLayer(const ModelConfig& config, const std::string& prefix, bool is_moe,
                          V3LayerWeights& layer, ModelDescription& description) {
  Describer(config, prefix, description).Layer(is_moe, config.HasIndexer(0), layer);
}

}  // namespace foredraft
