#include "engine/model/deepseek_v3/deepseek_v3_description.h"

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/model/model_kind.h"

namespace foredraft {
namespace {

using Tensors = std::vector<const TensorSpec*>;
using Shape = std::vector<int64_t>;

// Describes the tensors under one name prefix.
class Describer {
 public:
  Describer(const ModelConfig& config, std::string prefix, ModelDescription& description, int mtp_module = -1)
      : config_(config), prefix_(std::move(prefix)), mtp_module_(mtp_module), description_(description) {}

  const TensorSpec* Tensor(TensorKind kind, const std::string& name, Shape shape) {
    return description_.Tensor(
        {.kind = kind, .name = prefix_ + name, .shape = std::move(shape), .mtp_module = mtp_module_});
  }

  // The matrix of a projection, which may be in FP8 blocks.
  const TensorSpec* Linear(TensorKind kind, const std::string& name, Shape shape, int expert = -1) {
    return description_.Tensor({.kind = kind,
                                .name = prefix_ + name + ".weight",
                                .shape = std::move(shape),
                                .scale = prefix_ + name + ".weight_scale_inv",
                                .expert = expert,
                                .mtp_module = mtp_module_,
                                .format = config_.projections});
  }

  WeightSpec& Weight(const std::string& name, Member member, Tensors tensors, int expert_count = 1) {
    description_.weights.push_back({name, member, std::move(tensors), expert_count});
    return description_.weights.back();
  }

  void Norm(const std::string& name, int size, const float** out) {
    Weight(name, VectorMember{out}, {Tensor(TensorKind::kNorm, name + ".weight", {size})});
  }

  // indexer: the layer has one of its own.
  void Layer(bool is_moe, bool indexer, V3LayerWeights& layer) {
    layer.is_moe = is_moe;
    Norm("input_layernorm", config_.hidden_size, &layer.input_layernorm);
    Attention(layer.self_attn);
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
  void Attention(MlaWeights& mla) {
    const ModelConfig& c = config_;
    const bool lora = c.q_lora_rank > 0;
    const int heads = c.num_attention_heads;
    const int head_dim = c.qk_head_dim(), kv_dim = c.qk_nope_head_dim + c.v_head_dim;
    const int latent = c.kv_lora_rank + c.qk_rope_head_dim;
    // The rank's inputs of o_proj decide its heads. It computes a head that they have any column of.
    const IndexRange inputs = Inputs(heads * c.v_head_dim);
    const IndexRange own = ModelShard::HeadsOf(inputs, c.v_head_dim);
    const IndexRange q_rows = {own.first * head_dim, own.count * head_dim};
    const IndexRange kv_rows = {own.first * kv_dim, own.count * kv_dim};
    mla.o_first_column = inputs.first - own.first * c.v_head_dim;
    const auto linear = [&](const std::string& name, int n, int k) {
      return Linear(TensorKind::kLinear, name, {n, k});
    };
    const auto bias = [&](const std::string& name, int size) {
      return Tensor(TensorKind::kBias, name, {size});
    };
    Tensors qkv_a, qkv_a_bias;
    const TensorSpec* q_b = nullptr;
    if (lora) {
      qkv_a = {linear("self_attn.q_a_proj", c.q_lora_rank, c.hidden_size)};
      if (c.attention_bias) qkv_a_bias = {bias("self_attn.q_a_proj.bias", c.q_lora_rank)};
      Norm("self_attn.q_a_layernorm", c.q_lora_rank, &mla.q_a_layernorm);
      q_b = linear("self_attn.q_b_proj", heads * head_dim, c.q_lora_rank);
    } else {
      qkv_a = {linear("self_attn.q_proj", heads * head_dim, c.hidden_size)};
    }
    qkv_a.push_back(linear("self_attn.kv_a_proj_with_mqa", latent, c.hidden_size));
    if (c.attention_bias) qkv_a_bias.push_back(bias("self_attn.kv_a_proj_with_mqa.bias", latent));
    Norm("self_attn.kv_a_layernorm", c.kv_lora_rank, &mla.kv_a_layernorm);

    WeightSpec& fused = Weight("qkv_a", MatrixMember{&mla.qkv_a}, std::move(qkv_a));
    if (!lora) fused.CutRows({q_rows, {0, latent}});
    if (lora) Weight("q_b", MatrixMember{&mla.q_b}, {q_b}).CutRows({q_rows});
    Weight("kv_b", KvBMember{&mla.kv_b, &mla.w_uk, &mla.w_uv, own.count, c.qk_nope_head_dim, c.v_head_dim},
           {linear("self_attn.kv_b_proj", heads * kv_dim, c.kv_lora_rank)})
        .CutRows({kv_rows});
    Weight("o_proj", MatrixMember{&mla.o_proj},
           {Linear(TensorKind::kResidual, "self_attn.o_proj", {c.hidden_size, heads * c.v_head_dim})})
        .CutColumns(inputs, unit_);
    if (!c.attention_bias) return;
    // q_proj has no bias even if attention_bias is true: the fused bias has zeros before kv_a's.
    Weight("qkv_a_bias", VectorMember{&mla.qkv_a_bias, lora ? 0 : q_rows.count}, std::move(qkv_a_bias));
    Weight("o_proj_bias", VectorMember{&mla.o_proj_bias}, {bias("self_attn.o_proj.bias", c.hidden_size)});
  }

  // wk and weights_proj read the same rows. Where wk alone is in FP8, both become BF16 as they are fused.
  // Vendors' 4-bit formats leave the indexer in BF16.
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

  struct MlpParts {
    const TensorSpec* gate;
    const TensorSpec* up;
    const TensorSpec* down;
  };

  MlpParts MlpTensors(const std::string& name, int width, int expert = -1) {
    const int hidden = config_.hidden_size;
    return {Linear(TensorKind::kLinear, name + "gate_proj", {width, hidden}, expert),
            Linear(TensorKind::kLinear, name + "up_proj", {width, hidden}, expert),
            Linear(TensorKind::kResidual, name + "down_proj", {hidden, width}, expert)};
  }

  void Mlp(const std::string& name, const MlpParts& parts, DenseMlpWeights& mlp) {
    const IndexRange inner = Inputs(static_cast<int32_t>(parts.down->shape.back()));
    Weight(name + ".gate_up", MatrixMember{&mlp.gate_up}, {parts.gate, parts.up}).CutRows({inner, inner});
    Weight(name + ".down", MatrixMember{&mlp.down}, {parts.down}).CutColumns(inner, unit_);
  }

  IndexRange Inputs(int32_t k) const { return description_.shard.Inputs(k, unit_); }

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

  const ModelConfig& config_;
  const std::string prefix_;
  const int mtp_module_;
  const int32_t unit_ = SegmentUnit(config_.projections);
  ModelDescription& description_;
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
  const auto under_layer = [&](int layer, int mtp_module = -1) {
    return Describer(config, absl::StrCat("model.layers.", layer, "."), description, mtp_module);
  };

  Describer top(config, "", description);
  const TensorSpec* embedding = top.Tensor(TensorKind::kEmbedding, "model.embed_tokens.weight", table);
  top.Weight("embed_tokens", TableMember{&model.embed_tokens}, {embedding});
  for (int i = 0; i < config.num_hidden_layers; ++i) {
    under_layer(i).Layer(config.IsMoe(i), config.HasIndexer(i), model.layers[i]);
  }
  top.Norm("model.norm", config.hidden_size, &model.norm);
  const bool tied = config.tie_word_embeddings;
  const TensorSpec* head = description.Tensor({.kind = tied ? TensorKind::kUnread : TensorKind::kHead,
                                               .name = "lm_head.weight",
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

void DescribeDecoderLayer(const ModelConfig& config, const std::string& prefix, bool is_moe,
                          V3LayerWeights& layer, ModelDescription& description) {
  Describer(config, prefix, description).Layer(is_moe, config.HasIndexer(0), layer);
}

}  // namespace foredraft
