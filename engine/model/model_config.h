#pragma once

// The model's shape from a checkpoint's config.json (Hugging Face's field names, unchanged).

#include <algorithm>
#include <any>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/model/dspark_shape.h"
#include "engine/model/rope.h"
#include "kernels/weight_format.h"

namespace foredraft {

struct DraftHead;
struct ModelKind;

struct ModelConfig {
  std::string architecture;         // "DeepseekV3ForCausalLM"; with model_type it names the kind
  std::string model_type;           // "deepseek_v3"
  const ModelKind* kind = nullptr;  // engine/model/model_kind.h; not null where config.json was read
  int vocab_size = 0;
  // Tokens 0 .. token_count - 1 except missing_tokens may be chosen: the ids that the tokenizer has, if it is
  // read. 0: the whole vocabulary. Neither is a field of config.json.
  int token_count = 0;
  std::vector<int32_t> missing_tokens;  // below token_count, ascending
  int choices() const { return token_count > 0 ? token_count : vocab_size; }
  int hidden_size = 0;
  int hc_mult = 1;  // streams of the residual, each of hidden_size; DeepSeek-V4 has several
  int num_hidden_layers = 0;
  // MTP modules, at layers num_hidden_layers..; or the stages of `drafter`.
  int num_nextn_predict_layers = 0;
  std::string drafter;  // name of the checkpoint's own drafter if that is not MTP modules; else empty
  int mtp_module_count() const { return drafter.empty() ? num_nextn_predict_layers : 0; }
  bool recycles_module = false;  // one MTP module makes every draft: no module was trained for later ones
  bool dense_mtp = false;        // MTP modules have a dense MLP
  std::string mtp_file;          // a file of the checkpoint that its index may leave out; empty: none
  std::string tensor_prefix;     // of the text model's tensors in a multimodal checkpoint; empty: none
  int first_k_dense_replace = 0;
  int moe_layer_freq = 1;
  int intermediate_size = 0;
  int moe_intermediate_size = 0;
  int n_routed_experts = 0;
  int num_experts_per_tok = 0;
  int n_shared_experts = 0;
  int n_group = 1;
  int topk_group = 1;
  bool norm_topk_prob = true;
  double routed_scaling_factor = 1;
  int num_attention_heads = 0;
  int q_lora_rank = 0;  // 0 = null: one q_proj
  int kv_lora_rank = 0;
  int qk_nope_head_dim = 0;
  int qk_rope_head_dim = 0;
  int v_head_dim = 0;
  // Sparse attention (0: none). For at most index_topk positions it equals full attention. Unless
  // runs_indexer, full attention runs instead, longer sequences are refused, and the indexer's tensors are
  // checked but not loaded.
  int index_topk = 0;
  bool runs_indexer = false;
  int index_n_heads = 0;
  int index_head_dim = 0;
  bool index_interleaved = false;  // whether the indexer's RoPE pairs are (2i, 2i + 1)
  // A recycled MTP module attends what its first forward of the step selected (Batch::list_rows).
  bool index_share_for_mtp_iteration = false;
  // [num_hidden_layers]: layers that attend the selection of the nearest layer below that has an indexer;
  // empty: none. MTP modules have their own.
  std::vector<bool> shares_selection;
  double rms_norm_eps = 1e-6;
  // The epsilon of q_a_layernorm and kv_a_layernorm, not a field of config.json: transformers builds these
  // two with its class default, whatever rms_norm_eps is.
  double latent_norm_eps = 1e-6;
  double rope_theta = 10000;
  std::optional<RopeScaling> rope_scaling;  // type "yarn"; the only other accepted value is none
  bool rope_interleave = true;
  int max_position_embeddings = 0;
  bool attention_bias = false;
  bool tie_word_embeddings = false;
  int bos_token_id = -1;  // -1 = none
  std::vector<int> eos_token_ids;
  // How projections are stored where they are quantised: quantization_config. kBf16Format: none are.
  WeightFormat projections;
  std::optional<WeightFormat> experts;  // routed experts, where they have a format of their own
  // Inputs of routed experts in NVFP4 are rounded to NVFP4, too (moe.inputs). Not a field of config.json.
  bool nvfp4_inputs = false;
  std::any own;                       // the kind's own shape, of a type in its folder
  std::optional<DSparkShape> dspark;  // the stages of `drafter`, if it is DSpark
  // The draft head, from a checkpoint of its own; null: none. Not one of the model's own fields.
  std::shared_ptr<const DraftHead> draft_head;

  int qk_head_dim() const { return qk_nope_head_dim + qk_rope_head_dim; }
  // Layer `index` has experts; MTP modules (index >= num_hidden_layers) follow the same rule unless
  // dense_mtp.
  bool IsMoe(int index) const {
    if (dense_mtp && index >= num_hidden_layers) return false;
    return n_routed_experts > 0 && index >= first_k_dense_replace && index % moe_layer_freq == 0;
  }
  bool HasIndexer(int index) const {
    if (index_topk == 0 || !runs_indexer) return false;
    return index >= static_cast<int>(shares_selection.size()) || !shares_selection[index];
  }
  // Positions of the longest sequence that the model defines.
  int longest_sequence() const {
    return index_topk > 0 && !runs_indexer ? std::min(index_topk, max_position_embeddings)
                                           : max_position_embeddings;
  }
};

// The number of values per position that one level hands to the next: all residual streams.
inline int OutputWidth(const ModelConfig& config) { return config.hc_mult * config.hidden_size; }

}  // namespace foredraft
