#include "engine/model/deepseek_v3/sparse_config.h"

#include <algorithm>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_format.h"
#include "config/json_text.h"

namespace foredraft {
namespace {

// A spelling of the list of layers: its field, and its words for layers with and without an indexer.
struct LayerWords {
  const char* field;
  const char* full;
  const char* shared;
};

// Which layers share a selection, from a list of words. nullopt if it is not a list of known words with one
// word per layer.
std::optional<std::vector<bool>> SharesOf(const nlohmann::json& list, const LayerWords& words, int layers) {
  if (!list.is_array() || static_cast<int>(list.size()) != layers) return std::nullopt;
  std::vector<bool> shares;
  for (const nlohmann::json& layer : list) {
    if (layer != words.full && layer != words.shared) return std::nullopt;
    shares.push_back(layer == words.shared);
  }
  return shares;
}

void ReadList(JsonFields& fields, const LayerWords& words, ModelConfig& config) {
  nlohmann::json list = *fields.Find(words.field);
  if (list.is_string()) {
    nlohmann::json letters = nlohmann::json::array();
    for (const char letter : list.get<std::string>()) letters.push_back(std::string(1, letter));
    list = letters;
  }
  const auto shares = SharesOf(list, words, config.num_hidden_layers);
  if (!shares || shares->front()) {
    fields.Refuse(words.field, ShowJson(*fields.Find(words.field)),
                  absl::StrFormat("%d of \"%s\" and \"%s\", the first \"%s\"", config.num_hidden_layers,
                                  words.full, words.shared, words.full));
    return;
  }
  config.shares_selection = *shares;
}

// Reads the list of layers. Without a list, every freq-th layer from layer offset - 1 on is full.
void ReadSharing(JsonFields& fields, ModelConfig& config) {
  constexpr LayerWords kTypes = {"indexer_types", "full", "shared"};
  constexpr LayerWords kPattern = {"index_topk_pattern", "F", "S"};
  const int freq = fields.OptionalInt("index_topk_freq", 1, 1, kMaxLayers);
  const int offset = fields.OptionalInt("index_skip_topk_offset", 2, 1, kMaxLayers);
  if (fields.Find(kTypes.field) != nullptr) return ReadList(fields, kTypes, config);
  if (fields.Find(kPattern.field) != nullptr) return ReadList(fields, kPattern, config);
  if (freq == 1) return;
  for (int layer = 0; layer < config.num_hidden_layers; ++layer) {
    config.shares_selection.push_back(std::max(layer - offset + 1, 0) % freq != 0);
  }
}

// Refuses other kinds of layers, which compute something else.
void CheckLayerTypes(JsonFields& fields) {
  const nlohmann::json* const types = fields.Find("layer_types");
  if (types == nullptr) return;
  const bool known = types->is_array() && std::all_of(types->begin(), types->end(), [](const auto& type) {
                       return type == "deepseek_sparse_attention" || type == "indexed_attention";
                     });
  if (!known) {
    fields.Refuse("layer_types", ShowJson(*types),
                  "a list of \"deepseek_sparse_attention\" or \"indexed_attention\"");
  }
}

}  // namespace

void ReadSparseAttention(JsonFields& fields, bool interleaved, ModelConfig& config) {
  config.index_topk = fields.RequiredInt("index_topk", 1, 1 << 30);
  config.index_n_heads = fields.RequiredInt("index_n_heads", 1, 4096);
  config.index_head_dim = fields.RequiredInt("index_head_dim", 1, kMaxWidth / 4096);
  if (config.q_lora_rank == 0) fields.Refuse("q_lora_rank", "null", "1 or more: the indexer takes its rows");
  if (config.index_head_dim < config.qk_rope_head_dim) {
    fields.Refuse("index_head_dim", absl::StrFormat("%d", config.index_head_dim),
                  absl::StrFormat("at least qk_rope_head_dim, %d", config.qk_rope_head_dim));
  }
  config.index_interleaved = interleaved;
  if (fields.OptionalBool("indexer_rope_interleave", interleaved) != interleaved) {
    fields.Refuse("indexer_rope_interleave", interleaved ? "false" : "true",
                  absl::StrFormat("%s, as %s has it", interleaved ? "true" : "false", config.model_type));
  }
  config.index_share_for_mtp_iteration = fields.OptionalBool("index_share_for_mtp_iteration", false);
  ReadSharing(fields, config);
  CheckLayerTypes(fields);
  config.runs_indexer = config.index_n_heads <= kMaxIndexHeads && config.index_head_dim <= kMaxIndexHeadDim;
}

}  // namespace foredraft
