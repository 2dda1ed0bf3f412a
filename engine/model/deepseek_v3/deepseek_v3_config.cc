#include "engine/model/deepseek_v3/deepseek_v3_config.h"

#include <algorithm>
#include <optional>
#include <string>

#include "absl/strings/str_format.h"
#include "base/check.h"
#include "config/json_text.h"
#include "engine/model/deepseek_v3/deepseek_v3_families.h"
#include "engine/model/deepseek_v3/sparse_config.h"
#include "engine/model/rope_fields.h"

namespace foredraft {
namespace {

// Reads a field that may be absent if the family has a default for it.
int ReadInt(JsonFields& fields, const char* field, std::optional<int> absent, int64_t low, int64_t high) {
  return absent ? fields.OptionalInt(field, *absent, low, high) : fields.RequiredInt(field, low, high);
}

// ReadInt for a field in which null means 0.
int ReadIntOrNull(JsonFields& fields, const char* field, std::optional<int> absent, int64_t low,
                  int64_t high) {
  if (!fields.Has(field) && !absent) {
    fields.Refuse(field, "missing", absl::StrFormat("null, %d..%d", low, high));
  }
  if (fields.Find(field) == nullptr) return fields.Has(field) ? 0 : absent.value_or(0);
  return fields.RequiredInt(field, low, high);
}

void ReadSizes(JsonFields& fields, const V3Family& family, ModelConfig& config) {
  config.vocab_size = fields.RequiredInt("vocab_size", 1, 1 << 22);
  config.hidden_size = fields.RequiredInt("hidden_size", 1, kMaxWidth);
  config.num_hidden_layers = fields.RequiredInt("num_hidden_layers", 1, kMaxLayers);
  config.num_nextn_predict_layers = fields.OptionalInt("num_nextn_predict_layers", 0, 0, kMaxModules);
  config.intermediate_size = fields.RequiredInt("intermediate_size", 1, kMaxWidth);
  config.max_position_embeddings = fields.RequiredInt("max_position_embeddings", 1, 1 << 30);
  config.rms_norm_eps = fields.OptionalDouble("rms_norm_eps", family.absent.rms_norm_eps, 1e-12, 1);
  config.tie_word_embeddings = fields.OptionalBool("tie_word_embeddings", false);
  fields.AllowOnly("hidden_act", "silu");
}

void ReadAttention(JsonFields& fields, const V3Family& family, ModelConfig& config) {
  config.num_attention_heads = fields.RequiredInt("num_attention_heads", 1, 4096);
  const int kv_heads = fields.OptionalInt("num_key_value_heads", config.num_attention_heads, 1, 4096);
  if (kv_heads != config.num_attention_heads) {
    fields.Refuse("num_key_value_heads", absl::StrFormat("%d", kv_heads),
                  absl::StrFormat("num_attention_heads, %d", config.num_attention_heads));
  }
  config.q_lora_rank = ReadIntOrNull(fields, "q_lora_rank", family.absent.q_lora_rank, 1, kMaxWidth);
  config.kv_lora_rank = fields.RequiredInt("kv_lora_rank", 1, kMaxWidth);
  config.qk_nope_head_dim = fields.RequiredInt("qk_nope_head_dim", 1, kMaxWidth);
  config.qk_rope_head_dim = fields.RequiredInt("qk_rope_head_dim", 2, kMaxWidth);
  if (config.qk_rope_head_dim % 2 != 0) {
    fields.Refuse("qk_rope_head_dim", absl::StrFormat("%d", config.qk_rope_head_dim), "even numbers");
  }
  config.v_head_dim = fields.RequiredInt("v_head_dim", 1, kMaxWidth);
  const int64_t widest = std::max(config.qk_head_dim(), config.qk_nope_head_dim + config.v_head_dim);
  if (config.num_attention_heads * widest > kMaxFused) {
    fields.Refuse("num_attention_heads", absl::StrFormat("%d", config.num_attention_heads),
                  absl::StrFormat("at most %d features over all heads", kMaxFused));
  }
  config.attention_bias = fields.OptionalBool("attention_bias", false);
  config.rope_interleave = fields.OptionalBool("rope_interleave", true);
  if (!config.rope_interleave) fields.Refuse("rope_interleave", "false", "true");
  if (family.sparse_attention) ReadSparseAttention(fields, family.index_interleaved, config);
}

// Newer configurations of transformers list each layer's kind instead of counting the dense ones.
void ReadLayerTypes(JsonFields& fields, const V3Family& family, ModelConfig& config) {
  const nlohmann::json* types = fields.Find("mlp_layer_types");
  if (types == nullptr) {
    config.first_k_dense_replace = ReadInt(fields, "first_k_dense_replace",
                                           family.absent.first_k_dense_replace, 0, kMaxLayers + kMaxModules);
    return;
  }
  int dense = 0;
  while (types->is_array() && dense < static_cast<int>(types->size()) && (*types)[dense] == "dense") ++dense;
  nlohmann::json expected = nlohmann::json::array();
  for (int layer = 0; layer < config.num_hidden_layers; ++layer) {
    expected.push_back(layer < dense ? "dense" : "sparse");
  }
  if (*types != expected) {
    fields.Refuse("mlp_layer_types", ShowJson(*types),
                  absl::StrFormat("\"dense\" for the first layers and \"sparse\" for the rest, %d in all",
                                  config.num_hidden_layers));
  }
  config.first_k_dense_replace = fields.OptionalInt("first_k_dense_replace", dense, dense, dense);
}

void ReadExperts(JsonFields& fields, const V3Family& family, ModelConfig& config) {
  const AbsentFields& absent = family.absent;
  config.n_routed_experts =
      ReadIntOrNull(fields, "n_routed_experts", absent.n_routed_experts, 0, kMaxExperts);
  if (config.n_routed_experts == 0) return;
  ReadLayerTypes(fields, family, config);
  config.moe_layer_freq = fields.OptionalInt("moe_layer_freq", 1, 1, kMaxLayers);
  config.moe_intermediate_size = fields.RequiredInt("moe_intermediate_size", 1, kMaxWidth);
  config.n_shared_experts = ReadInt(fields, "n_shared_experts", absent.n_shared_experts, 0, 256);
  fields.AllowOnly("scoring_func", "sigmoid");
  fields.AllowOnly("topk_method", "noaux_tc");
  if (!absent.norm_topk_prob && fields.Find("norm_topk_prob") == nullptr) {
    fields.Refuse("norm_topk_prob", "missing", "true, false");
  }
  config.norm_topk_prob = fields.OptionalBool("norm_topk_prob", absent.norm_topk_prob.value_or(true));
  config.routed_scaling_factor =
      absent.routed_scaling_factor
          ? fields.OptionalDouble("routed_scaling_factor", *absent.routed_scaling_factor, 0, 1e6)
          : fields.RequiredDouble("routed_scaling_factor", 0, 1e6);
  config.n_group = ReadInt(fields, "n_group", absent.n_group, 1, kMaxExperts);
  const int experts = config.n_routed_experts;
  if (experts % config.n_group != 0) {
    fields.Refuse("n_group", absl::StrFormat("%d", config.n_group),
                  absl::StrFormat("divisors of n_routed_experts, %d", experts));
  }
  // A group's score is the sum of its two best experts' scores.
  if (config.n_group > 1 && experts / config.n_group < 2) {
    fields.Refuse("n_group", absl::StrFormat("%d", config.n_group),
                  absl::StrFormat("at most n_routed_experts / 2, %d", experts / 2));
  }
  config.topk_group = ReadInt(fields, "topk_group", absent.topk_group, 1, config.n_group);
  const int kept_experts = experts / config.n_group * config.topk_group;
  config.num_experts_per_tok = fields.RequiredInt("num_experts_per_tok", 1, kept_experts);
}

// A nested text model may name its architecture and model_type again: refuses names of other models.
void CheckNestedNames(JsonFields& fields) {
  const nlohmann::json* names = fields.Find("architectures");
  if (names != nullptr && *names != nlohmann::json::array({"DeepseekV3ForCausalLM"})) {
    fields.Refuse("architectures", ShowJson(*names), "DeepseekV3ForCausalLM");
  }
  const nlohmann::json* type = fields.Find("model_type");
  if (type != nullptr && *type != "deepseek_v3" && *type != "kimi_k2") {
    fields.Refuse("model_type", ShowJson(*type), "deepseek_v3, kimi_k2");
  }
}

}  // namespace

const V3Family& V3FamilyOf(const ModelConfig& config) {
  const V3Family* const family =
      std::find_if(std::begin(kV3Families), std::end(kV3Families), [&](const V3Family& row) {
        return row.name.architecture == config.architecture && row.name.model_type == config.model_type;
      });
  CHECK(family != std::end(kV3Families)) << config.model_type;
  return *family;
}

void ReadDeepseekV3(JsonFields& fields, ModelConfig& config) {
  const V3Family& family = V3FamilyOf(config);
  config.dense_mtp = family.dense_mtp;
  config.mtp_file = family.mtp_file;
  config.tensor_prefix = family.tensor_prefix;
  if (!family.name.text_field.empty()) CheckNestedNames(fields);
  ReadSizes(fields, family, config);
  ReadAttention(fields, family, config);
  ReadExperts(fields, family, config);
  ReadRope(fields, config);
}

}  // namespace foredraft
