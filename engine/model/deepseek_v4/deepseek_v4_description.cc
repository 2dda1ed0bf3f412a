#include "engine/model/deepseek_v4/deepseek_v4_description.h"

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "engine/model/deepseek_v4/deepseek_v4_shape.h"
#include "engine/model/model_kind.h"

namespace foredraft {
namespace {

using Tensors = std::vector<const TensorSpec*>;
using Shape = std::vector<int64_t>;

// Describes the tensors under one name prefix.
class Describer {
 public:
  Describer(const ModelConfig& config, std::string prefix, ModelDescription& description, int mtp_module = -1)
      : config_(config),
        v4_(V4ShapeOf(config)),
        prefix_(std::move(prefix)),
        mtp_module_(mtp_module),
        description_(description) {}

  const TensorSpec* Tensor(TensorKind kind, const std::string& name, Shape shape, bool kept_f32 = false) {
    return description_.Tensor({.kind = kind,
                                .name = prefix_ + name,
                                .shape = std::move(shape),
                                .mtp_module = mtp_module_,
                                .kept_f32 = kept_f32});
  }

  // A projection. Quantised checkpoints have it in FP8 blocks; a routed expert's may be in FP4 groups.
  const TensorSpec* Linear(const std::string& name, int64_t rows, int64_t columns,
                           TensorKind kind = TensorKind::kLinear, int expert = -1) {
    const std::string full = prefix_ + name;
    const bool own_format = expert >= 0 && config_.experts && columns % config_.experts->columns == 0;
    return description_.Tensor({.kind = kind,
                                .name = full + ".weight",
                                .shape = {rows, columns},
                                .scale = full + ".scale",
                                .expert = expert,
                                .mtp_module = mtp_module_,
                                .format = own_format ? *config_.experts : config_.projections});
  }

  WeightSpec& Weight(const std::string& name, Member member, Tensors tensors, int expert_count = 1) {
    description_.weights.push_back({name, std::move(member), std::move(tensors), expert_count});
    return description_.weights.back();
  }

  // A matrix with the tensor's name.
  WeightSpec& Matrix(const std::string& name, const TensorSpec* tensor, PackedWeight* out) {
    return Weight(name, MatrixMember{out}, {tensor});
  }

  // Values that the device has in FP32, whatever their shape.
  WeightSpec& Floats(const std::string& name, const TensorSpec* tensor, const float** out) {
    return Weight(name, VectorMember{out}, {tensor});
  }

  void Norm(const std::string& name, int64_t size, const float** out) {
    Floats(name, Tensor(TensorKind::kNorm, name + ".weight", {size}), out);
  }

  void Hyper(const std::string& name, int64_t outputs, int64_t scales, HyperWeights& hyper) {
    const int64_t inputs = int64_t{config_.hc_mult} * config_.hidden_size;
    Floats(name + "_fn", Tensor(TensorKind::kMatrix, name + "_fn", {outputs, inputs}, true), &hyper.fn);
    Floats(name + "_base", Tensor(TensorKind::kBias, name + "_base", {outputs}, true), &hyper.base);
    // A scale multiplies, so random scales are around 1.
    Floats(name + "_scale", Tensor(TensorKind::kNorm, name + "_scale", {scales}, true), &hyper.scale);
  }

  void Layer(AttentionKind kind, bool is_hash, V4LayerWeights& layer) {
    const int64_t streams = config_.hc_mult;
    Hyper("hc_attn", (2 + streams) * streams, 3, layer.hc_attn);
    Norm("attn_norm", config_.hidden_size, &layer.attn_norm);
    Hyper("hc_ffn", (2 + streams) * streams, 3, layer.hc_ffn);
    Norm("ffn_norm", config_.hidden_size, &layer.ffn_norm);
    Attention(kind, layer.attn);
    Experts(is_hash, layer.ffn);
  }

  void Module(V4ModuleWeights& module) {
    const int64_t hidden = config_.hidden_size;
    Norm("enorm", hidden, &module.enorm);
    Norm("hnorm", hidden, &module.hnorm);
    Norm("norm", hidden, &module.norm);
    Matrix("e_proj", Linear("e_proj", hidden, hidden), &module.e_proj);
    Matrix("h_proj", Linear("h_proj", hidden, hidden), &module.h_proj);
    Hyper("hc_head", config_.hc_mult, 1, module.hc_head);
    Layer(AttentionKind::kWindow, false, module.layer);
  }

  // A stage is a layer of the target's kind. The first stage also has the weights that make the context, the
  // last stage the heads. Some vendors add copies of the target's embedding and head, or another gate's bias.
  void Stage(const DSparkShape& shape, bool first, bool last, DSparkWeights& dspark, V4LayerWeights& stage) {
    const int64_t hidden = config_.hidden_size, vocab = config_.vocab_size;
    Unread("embed.weight", {vocab, hidden}, "embed.weight");
    Unread("head.weight", {vocab, hidden}, "head.weight");
    Unread("ffn.gate.bias_vl", {config_.n_routed_experts}, "");
    if (first) {
      const auto tapped = static_cast<int64_t>(shape.target_layer_ids.size());
      Matrix("main_proj", Linear("main_proj", hidden, tapped * hidden), &dspark.main_proj);
      Norm("main_norm", hidden, &dspark.main_norm);
    }
    Layer(AttentionKind::kWindow, false, stage);
    if (!last) return;
    Norm("norm", hidden, &dspark.norm);
    Hyper("hc_head", config_.hc_mult, 1, dspark.hc_head);
    const std::string w1 = "markov_head.markov_w1", w2 = "markov_head.markov_w2";
    Weight(w1, TableMember{&dspark.markov_w1},
           {Tensor(TensorKind::kMatrix, w1 + ".weight", {vocab, shape.markov_rank})});
    Plain(w2, vocab, shape.markov_rank, &dspark.markov_w2);
    const std::string confidence = "confidence_head.proj";
    Floats(confidence, Tensor(TensorKind::kMatrix, confidence + ".weight", {1, hidden + shape.markov_rank}),
           &dspark.confidence);
  }

 private:
  // A tensor without use here: a copy of the target's, or a part that has no effect on drafts.
  void Unread(const std::string& name, Shape shape, const std::string& copy_of) {
    description_.Tensor({.kind = TensorKind::kUnread,
                         .name = prefix_ + name,
                         .shape = std::move(shape),
                         .mtp_module = mtp_module_,
                         .copy_of = copy_of});
  }

  void Attention(AttentionKind kind, V4AttentionWeights& attn) {
    const int64_t hidden = config_.hidden_size;
    const int64_t width = int64_t{config_.num_attention_heads} * v4_.head_dim;
    const int64_t output = int64_t{v4_.o_groups} * v4_.o_lora_rank;
    // The rank's inputs of wo_b are outputs of wo_a: of whole groups, or of a part of one group. The rank
    // computes all heads of these groups.
    const IndexRange inputs = Inputs(static_cast<int32_t>(output));
    const IndexRange groups = ModelShard::HeadsOf(inputs, v4_.o_lora_rank);
    const int heads_of_group = config_.num_attention_heads / v4_.o_groups;
    const IndexRange heads = {groups.first * heads_of_group, groups.count * heads_of_group};
    const IndexRange q_rows = {heads.first * v4_.head_dim, heads.count * v4_.head_dim};
    Matrix("attn.wq_a", Linear("attn.wq_a", config_.q_lora_rank, hidden), &attn.wq_a);
    Norm("attn.q_norm", config_.q_lora_rank, &attn.q_norm);
    Matrix("attn.wq_b", Linear("attn.wq_b", width, config_.q_lora_rank), &attn.wq_b).CutRows({q_rows});
    Matrix("attn.wkv", Linear("attn.wkv", v4_.head_dim, hidden), &attn.wkv);
    Norm("attn.kv_norm", v4_.head_dim, &attn.kv_norm);
    CHECK(groups.count == 1 || inputs.count == groups.count * v4_.o_lora_rank) << "groups that are cut";
    Weight("attn.wo_a", RowGroupsMember{&attn.wo_a, groups.count},
           {Linear("attn.wo_a", output, width / v4_.o_groups)})
        .CutRows({inputs});
    Matrix("attn.wo_b", Linear("attn.wo_b", hidden, output, TensorKind::kResidual), &attn.wo_b)
        .CutColumns(inputs, unit_);
    Floats("attn.attn_sink", Tensor(TensorKind::kBias, "attn.attn_sink", {config_.num_attention_heads}, true),
           &attn.attn_sink)
        .CutRows({heads});
    if (kind == AttentionKind::kWindow) return;
    Compressor("attn.compressor", kind, v4_.head_dim, attn.compressor);
    if (kind != AttentionKind::kCompressedSparse) return;
    const int64_t index_width = int64_t{config_.index_n_heads} * config_.index_head_dim;
    Matrix("attn.indexer.wq_b", Linear("attn.indexer.wq_b", index_width, config_.q_lora_rank),
           &attn.indexer.wq_b);
    Plain("attn.indexer.weights_proj", config_.index_n_heads, hidden, &attn.indexer.weights_proj);
    Compressor("attn.indexer.compressor", kind, config_.index_head_dim, attn.indexer.compressor);
  }

  // A matrix that stays in BF16.
  void Plain(const std::string& name, int64_t rows, int64_t columns, PackedWeight* out) {
    Matrix(name, Tensor(TensorKind::kMatrix, name + ".weight", {rows, columns}), out);
  }

  void Compressor(const std::string& name, AttentionKind kind, int64_t width, CompressorWeights& compressor) {
    // With an overlapping compressor, each token also takes part in the window after its own.
    const int64_t channels = kind == AttentionKind::kCompressedSparse ? 2 * width : width;
    Plain(name + ".wkv", channels, config_.hidden_size, &compressor.wkv);
    Plain(name + ".wgate", channels, config_.hidden_size, &compressor.wgate);
    Floats(name + ".ape", Tensor(TensorKind::kMatrix, name + ".ape", {v4_.Ratio(kind), channels}, true),
           &compressor.ape);
    Norm(name + ".norm", width, &compressor.norm);
  }

  struct MlpParts {
    const TensorSpec* gate;
    const TensorSpec* down;
    const TensorSpec* up;
  };

  MlpParts MlpTensors(const std::string& name, int64_t width, int expert = -1) {
    const int64_t hidden = config_.hidden_size;
    return {Linear(name + ".w1", width, hidden, TensorKind::kLinear, expert),
            Linear(name + ".w2", hidden, width, TensorKind::kResidual, expert),
            Linear(name + ".w3", width, hidden, TensorKind::kLinear, expert)};
  }

  void Experts(bool is_hash, MoeWeights& ffn) {
    const ModelConfig& c = config_;
    Plain("ffn.gate", c.n_routed_experts, c.hidden_size, &ffn.router);
    if (is_hash) {
      Weight("ffn.gate.tid2eid", IdsMember{&ffn.expert_table},
             {Tensor(TensorKind::kIds, "ffn.gate.tid2eid", {c.vocab_size, c.num_experts_per_tok})});
    } else {
      Floats("ffn.gate.bias", Tensor(TensorKind::kBias, "ffn.gate.bias", {c.n_routed_experts}, true),
             &ffn.bias);
    }
    Tensors gate_up, down, all_gate_up, all_down;
    for (int expert = 0; expert < c.n_routed_experts; ++expert) {
      const MlpParts parts =
          MlpTensors(absl::StrCat("ffn.experts.", expert), c.moe_intermediate_size, expert);
      all_gate_up.insert(all_gate_up.end(), {parts.gate, parts.up});
      all_down.push_back(parts.down);
      if (!description_.shard.experts().Holds(expert, c.n_routed_experts)) continue;
      gate_up.insert(gate_up.end(), {parts.gate, parts.up});
      down.push_back(parts.down);
    }
    const int expert_count = static_cast<int>(down.size());
    WeightSpec& gate_ups = Weight(
        "experts.gate_up", ExpertsMember{&ffn.expert_gate_up, &ffn.gate_up_inputs, std::move(all_gate_up)},
        std::move(gate_up), expert_count);
    const IndexRange columns = description_.shard.ExpertColumns(c.moe_intermediate_size);
    if (expert_count > 0) gate_ups.CutRows({columns, columns});
    WeightSpec& downs =
        Weight("experts.down", ExpertsMember{&ffn.expert_down, &ffn.down_inputs, std::move(all_down)},
               std::move(down), expert_count);
    if (expert_count > 0) downs.CutRows({description_.shard.ExpertColumns(c.hidden_size)});
    const MlpParts shared =
        MlpTensors("ffn.shared_experts", int64_t{c.n_shared_experts} * c.moe_intermediate_size);
    const IndexRange inner = Inputs(c.n_shared_experts * c.moe_intermediate_size);
    Weight("shared.gate_up", MatrixMember{&ffn.shared.gate_up}, {shared.gate, shared.up})
        .CutRows({inner, inner});
    Weight("shared.down", MatrixMember{&ffn.shared.down}, {shared.down}).CutColumns(inner, unit_);
  }

  IndexRange Inputs(int32_t k) const { return description_.shard.Inputs(k, unit_); }

  const ModelConfig& config_;
  const DeepseekV4Shape& v4_;
  const std::string prefix_;
  const int mtp_module_;
  const int32_t unit_ = SegmentUnit(config_.projections);
  ModelDescription& description_;
};

}  // namespace

ModelDescription DescribeDeepSeekV4(const ModelConfig& config, int mtp_module_count,
                                    const ModelShard& shard) {
  ModelDescription description = BeginDescription(config, shard);
  auto& model = description.model->Emplace<V4Weights>();
  model.shard = shard;
  model.layers.resize(config.num_hidden_layers);
  const Shape table = {config.vocab_size, config.hidden_size};
  Describer top(config, "", description);
  top.Weight("embed", TableMember{&model.embed}, {top.Tensor(TensorKind::kEmbedding, "embed.weight", table)});
  const IndexRange vocabulary = shard.Vocabulary(config.vocab_size);
  top.Matrix("head", top.Tensor(TensorKind::kHead, "head.weight", table), &model.head).CutRows({vocabulary});
  top.Norm("norm", config.hidden_size, &model.norm);
  top.Hyper("hc_head", config.hc_mult, 1, model.hc_head);
  if (config.dspark && mtp_module_count == 0) description.unread_beginnings = {"mtp."};
  for (int i = 0; i < config.num_hidden_layers; ++i) {
    Describer(config, absl::StrCat("layers.", i, "."), description)
        .Layer(V4ShapeOf(config).Kind(i), V4ShapeOf(config).IsHash(i), model.layers[i]);
  }
  (config.dspark ? model.dspark.stages.resize(mtp_module_count) : model.modules.resize(mtp_module_count));
  for (int i = 0; i < mtp_module_count; ++i) {
    Describer module(config, absl::StrCat("mtp.", i, "."), description, i);
    if (config.dspark) {
      module.Stage(*config.dspark, i == 0, i == mtp_module_count - 1, model.dspark, model.dspark.stages[i]);
    } else {
      module.Module(model.modules[i]);
    }
  }
  return description;
}

}  // namespace foredraft
