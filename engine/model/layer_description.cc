#include "engine/model/layer_description.h"

namespace foredraft {

const TensorSpec* LayerDescriber::Tensor(TensorKind kind, const std::string& name, Shape shape) {
  return description_.Tensor(
      {.kind = kind, .name = prefix_ + name, .shape = std::move(shape), .mtp_module = mtp_module_});
}

const TensorSpec* LayerDescriber::Linear(TensorKind kind, const std::string& name, Shape shape, int expert) {
  return description_.Tensor({.kind = kind,
                              .name = prefix_ + name + ".weight",
                              .shape = std::move(shape),
                              .scale = prefix_ + name + ".weight_scale_inv",
                              .expert = expert,
                              .mtp_module = mtp_module_,
                              .format = config_.projections});
}

WeightSpec& LayerDescriber::Weight(const std::string& name, Member member, Tensors tensors,
                                   int expert_count) {
  description_.weights.push_back({name, std::move(member), std::move(tensors), expert_count});
  return description_.weights.back();
}

void LayerDescriber::Norm(const std::string& name, int size, const float** out) {
  Weight(name, VectorMember{out}, {Tensor(TensorKind::kNorm, name + ".weight", {size})});
}

void LayerDescriber::Attention(MlaWeights& mla, int input_width) {
  const ModelConfig& c = config_;
  const bool lora = c.q_lora_rank > 0;
  const int heads = c.num_attention_heads;
  const int head_dim = c.qk_head_dim(), kv_dim = c.qk_nope_head_dim + c.v_head_dim;
  const int latent = c.kv_lora_rank + c.qk_rope_head_dim;
  // The rank's inputs of o_proj decide its heads: it computes every head of which they have a column.
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
    qkv_a = {linear("self_attn.q_a_proj", c.q_lora_rank, input_width)};
    if (c.attention_bias) qkv_a_bias = {bias("self_attn.q_a_proj.bias", c.q_lora_rank)};
    Norm("self_attn.q_a_layernorm", c.q_lora_rank, &mla.q_a_layernorm);
    q_b = linear("self_attn.q_b_proj", heads * head_dim, c.q_lora_rank);
  } else {
    qkv_a = {linear("self_attn.q_proj", heads * head_dim, input_width)};
  }
  qkv_a.push_back(linear("self_attn.kv_a_proj_with_mqa", latent, input_width));
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

LayerDescriber::MlpParts LayerDescriber::MlpTensors(const std::string& name, int width, int expert) {
  const int hidden = config_.hidden_size;
  return {Linear(TensorKind::kLinear, name + "gate_proj", {width, hidden}, expert),
          Linear(TensorKind::kLinear, name + "up_proj", {width, hidden}, expert),
          Linear(TensorKind::kResidual, name + "down_proj", {hidden, width}, expert)};
}

void LayerDescriber::Mlp(const std::string& name, const MlpParts& parts, DenseMlpWeights& mlp) {
  const IndexRange inner = Inputs(static_cast<int32_t>(parts.down->shape.back()));
  Weight(name + ".gate_up", MatrixMember{&mlp.gate_up}, {parts.gate, parts.up}).CutRows({inner, inner});
  Weight(name + ".down", MatrixMember{&mlp.down}, {parts.down}).CutColumns(inner, unit_);
}

}  // namespace foredraft
