#include "engine/model/deepseek_v4/deepseek_v4_names.h"

#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"

namespace foredraft {
namespace {

struct Name {
  std::string_view saved;
  std::string_view name;
};

// Whole names, after "model." and without ".weight" or, of a projection, ".scale".
constexpr Name kTopNames[] = {{"embed_tokens", "embed"},
                              {"lm_head", "head"},
                              {"hc_head.hc_fn", "hc_head_fn"},
                              {"hc_head.hc_base", "hc_head_base"},
                              {"hc_head.hc_scale", "hc_head_scale"}};

// Names within a layer. The first row is for attn.kv_norm, which transformers' default way of saving stores
// as attn.norm.
constexpr Name kLayerNames[] = {
    {"attn.norm", "attn.kv_norm"},
    {"input_layernorm", "attn_norm"},
    {"post_attention_layernorm", "ffn_norm"},
    {"attn_hc.fn", "hc_attn_fn"},
    {"attn_hc.base", "hc_attn_base"},
    {"attn_hc.scale", "hc_attn_scale"},
    {"ffn_hc.fn", "hc_ffn_fn"},
    {"ffn_hc.base", "hc_ffn_base"},
    {"ffn_hc.scale", "hc_ffn_scale"},
    {"self_attn.q_a_proj", "attn.wq_a"},
    {"self_attn.q_a_norm", "attn.q_norm"},
    {"self_attn.q_b_proj", "attn.wq_b"},
    {"self_attn.kv_proj", "attn.wkv"},
    {"self_attn.kv_norm", "attn.kv_norm"},
    {"self_attn.o_a_proj", "attn.wo_a"},
    {"self_attn.o_b_proj", "attn.wo_b"},
    {"self_attn.sinks", "attn.attn_sink"},
    {"self_attn.compressor.kv_proj", "attn.compressor.wkv"},
    {"self_attn.compressor.gate_proj", "attn.compressor.wgate"},
    {"self_attn.compressor.position_bias", "attn.compressor.ape"},
    {"self_attn.compressor.kv_norm", "attn.compressor.norm"},
    {"self_attn.compressor.indexer.q_b_proj", "attn.indexer.wq_b"},
    {"self_attn.compressor.indexer.scorer.weights_proj", "attn.indexer.weights_proj"},
    {"self_attn.compressor.indexer.kv_proj", "attn.indexer.compressor.wkv"},
    {"self_attn.compressor.indexer.gate_proj", "attn.indexer.compressor.wgate"},
    {"self_attn.compressor.indexer.position_bias", "attn.indexer.compressor.ape"},
    {"self_attn.compressor.indexer.kv_norm", "attn.indexer.compressor.norm"},
    {"mlp.gate", "ffn.gate"},
    {"mlp.gate.e_score_correction_bias", "ffn.gate.bias"},
    {"mlp.gate.tid2eid", "ffn.gate.tid2eid"},
    {"mlp.shared_experts.gate_proj", "ffn.shared_experts.w1"},
    {"mlp.shared_experts.down_proj", "ffn.shared_experts.w2"},
    {"mlp.shared_experts.up_proj", "ffn.shared_experts.w3"}};

template <size_t size>
std::string_view Look(const Name (&names)[size], std::string_view saved) {
  const auto* found = std::find_if(names, names + size, [&](const Name& row) { return row.saved == saved; });
  return found == names + size ? saved : found->name;
}

// The part "layers.12." of a name; empty if the name is not in a layer.
std::string_view LayerPrefix(std::string_view name) {
  if (!name.starts_with("layers.")) return "";
  const size_t end = name.find('.', 7);
  return end == std::string_view::npos ? "" : name.substr(0, end + 1);
}

}  // namespace

std::string DeepseekV4Name(std::string_view stored) {
  constexpr std::string_view kModel = "model.";
  std::string_view name = stored;
  if (name.starts_with(kModel)) name.remove_prefix(kModel.size());
  const std::string_view prefix = LayerPrefix(name);
  name.remove_prefix(prefix.size());
  for (const std::string_view ending : {"", ".weight", ".scale"}) {
    if (!name.ends_with(ending)) continue;
    const std::string_view saved = name.substr(0, name.size() - ending.size());
    const std::string_view own = prefix.empty() ? Look(kTopNames, saved) : Look(kLayerNames, saved);
    if (own != saved) return std::string(prefix).append(own).append(ending);
  }
  return std::string(prefix).append(name);
}

std::vector<NamedPart> NameDeepseekV4(const TensorEntry& stored, const ModelConfig& config) {
  const std::string name = DeepseekV4Name(stored.name);
  const std::string_view prefix = LayerPrefix(name);
  const std::string_view rest = std::string_view(name).substr(prefix.size());
  const bool gate_up = rest == "mlp.experts.gate_up_proj";
  const std::vector<int64_t>& shape = stored.shape;
  const bool cut = !prefix.empty() && (gate_up || rest == "mlp.experts.down_proj") && shape.size() == 3 &&
                   shape[0] == config.n_routed_experts && shape[1] % 2 == 0;
  if (!cut) return {{.name = name, .shape = shape}};
  const int64_t expert_bytes = stored.bytes / shape[0];
  const std::vector<int64_t> half = {shape[1] / 2, shape[2]};
  std::vector<NamedPart> parts;
  for (int64_t expert = 0; expert < shape[0]; ++expert) {
    const std::string module = std::string(prefix) + absl::StrCat("ffn.experts.", expert, ".");
    const int64_t begin = expert * expert_bytes;
    if (gate_up) {
      parts.push_back({module + "w1.weight", half, begin});
      parts.push_back({module + "w3.weight", half, begin + expert_bytes / 2});
    } else {
      parts.push_back({module + "w2.weight", {shape[1], shape[2]}, begin});
    }
  }
  return parts;
}

}  // namespace foredraft
