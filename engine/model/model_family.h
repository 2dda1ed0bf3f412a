#pragma once

// The families of checkpoints, by what config.json says in `architectures` and `model_type`: the values of
// fields that a family's config.json may leave out, and what the family does differently from DeepSeek-V3.
// The families that compute as DeepSeek-V3 does are in deepseek_v3/deepseek_v3_families.h.

#include <optional>
#include <string>
#include <string_view>

namespace foredraft {

// Values of absent fields, as the family's configuration class has them. Nothing: config.json has to have the
// field, because no source says what its absence means.
struct AbsentFields {
  std::optional<int> q_lora_rank;
  std::optional<int> n_routed_experts;
  std::optional<int> first_k_dense_replace;
  std::optional<int> n_shared_experts;
  std::optional<int> n_group;
  std::optional<int> topk_group;
  std::optional<bool> norm_topk_prob;
  std::optional<double> routed_scaling_factor;
  double rms_norm_eps = 1e-6;
};

struct ModelFamily {
  std::string_view architecture;
  std::string_view model_type;
  AbsentFields absent;
  // DeepSeek sparse attention: an indexer keeps the index_topk best positions. Up to index_topk positions it
  // keeps all of them, so that the indexer has no effect: longer sequences are refused.
  bool sparse_attention = false;
  // MTP modules have a dense MLP where DeepSeek-V3's have experts.
  bool dense_mtp = false;
  // A file beside the shards that has the MTP modules and may be absent from the index; empty: none.
  std::string_view mtp_file;
  // The fields and the forward of docs/deepseek-v4.md instead of DeepSeek-V3's.
  bool deepseek_v4 = false;
};

// The family of this pair; null: there is none. An empty `model_type` (absent from config.json) gives the
// first family of the architecture.
const ModelFamily* FindModelFamily(std::string_view architecture, std::string_view model_type);

// "a, b": all architectures, or all model_types of one.
std::string KnownArchitectures();
std::string KnownModelTypes(std::string_view architecture);

}  // namespace foredraft
