#include "engine/spec/eagle3/eagle3_config.h"

#include <algorithm>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "base/log.h"
#include "base/status_macros.h"
#include "config/json_text.h"
#include "engine/checkpoint/checkpoint.h"
#include "engine/model/json_fields.h"
#include "engine/model/quantization_reader.h"
#include "engine/model/rope_fields.h"
#include "engine/spec/eagle3/eagle3_description.h"
#include "engine/spec/eagle3/eagle3_tokens.h"

namespace foredraft {
namespace {

constexpr int64_t kMaxConfigBytes = int64_t{1} << 24;
constexpr char kServed[] = "Eagle3DeepseekV2ForCausalLM, Eagle3DeepseekV3ForCausalLM: a head with MLA";

// A part of an architecture's name, and the head that has it.
struct OtherHead {
  const char* part;
  const char* name;
};
constexpr OtherHead kOtherHeads[] = {
    {"peagle", "P-Eagle"},
    {"dspark", "a DSpark head"},
    {"dflash", "a DFlash head"},
    {"medusa", "Medusa"},
    {"llama", "an Eagle3 head with grouped attention"},
    {"qwen", "an Eagle3 head with grouped attention"},
};

// The trainers do not agree on upper and lower case.
bool IsMlaHead(const std::string& lower) {
  return absl::StartsWith(lower, "eagle3deepseekv2for") || absl::StartsWith(lower, "eagle3deepseekv3for");
}

void ReadArchitecture(JsonFields& fields, DraftHead& head) {
  if (const nlohmann::json* kind = fields.Find("speculators_model_type")) {
    fields.Refuse("speculators_model_type", ShowJson(*kind),
                  absl::StrCat("none: speculators' heads have grouped attention; served are ", kServed));
  }
  const nlohmann::json* names = fields.Find("architectures");
  const bool one = names != nullptr && names->is_array() && names->size() == 1 && (*names)[0].is_string();
  if (one) head.layer.architecture = (*names)[0].get<std::string>();
  const std::string lower = absl::AsciiStrToLower(head.layer.architecture);
  if (IsMlaHead(lower)) return;
  std::string allowed = kServed;
  for (const OtherHead& other : kOtherHeads) {
    if (!absl::StrContains(lower, other.part)) continue;
    absl::StrAppend(&allowed, "; this is ", other.name);
    break;
  }
  fields.Refuse("architectures", names == nullptr ? "missing" : ShowJson(*names), allowed);
}

void RefuseOtherForms(JsonFields& fields) {
  for (const char* const field : {"parallel_drafting", "peagle", "mask_hidden", "pard_token"}) {
    const nlohmann::json* value = fields.Find(field);
    if (value != nullptr && *value != false) {
      fields.Refuse(field, ShowJson(*value), "absent: heads that draft one token after the other");
    }
  }
  for (const char* const field : {"bias", "attention_bias"}) {
    if (fields.OptionalBool(field, false)) fields.Refuse(field, "true", "false");
  }
  if (!fields.OptionalBool("use_aux_hidden_state", true)) {
    fields.Refuse("use_aux_hidden_state", "false", "true: heads that read layers of the target");
  }
}

void RequireTargets(JsonFields& fields, const char* field, int value, int of_target) {
  if (value == of_target) return;
  fields.Refuse(field, absl::StrCat(value), absl::StrFormat("%d, the target's", of_target));
}

void ReadSizes(JsonFields& fields, const ModelConfig& model, DraftHead& head) {
  ModelConfig& layer = head.layer;
  layer.hidden_size = fields.RequiredInt("hidden_size", 1, kMaxWidth);
  RequireTargets(fields, "hidden_size", layer.hidden_size, model.hidden_size);
  RequireTargets(fields, "target_hidden_size",
                 fields.OptionalInt("target_hidden_size", model.hidden_size, 1, kMaxWidth),
                 model.hidden_size);
  layer.vocab_size = fields.RequiredInt("vocab_size", 1, 1 << 22);
  RequireTargets(fields, "vocab_size", layer.vocab_size, model.vocab_size);
  layer.num_hidden_layers = fields.RequiredInt("num_hidden_layers", 1, kMaxLayers);
  if (layer.num_hidden_layers != 1) {
    fields.Refuse("num_hidden_layers", absl::StrCat(layer.num_hidden_layers), "1");
  }
  head.draft_vocab_size = fields.OptionalInt("draft_vocab_size", layer.vocab_size, 1, layer.vocab_size);
  layer.intermediate_size = fields.RequiredInt("intermediate_size", 1, kMaxWidth);
  layer.rms_norm_eps = fields.OptionalDouble("rms_norm_eps", 1e-6, 1e-12, 1);
  layer.latent_norm_eps = layer.rms_norm_eps;
  fields.AllowOnly("hidden_act", "silu");
}

void ReadAttention(JsonFields& fields, ModelConfig& layer) {
  layer.num_attention_heads = fields.RequiredInt("num_attention_heads", 1, kMaxHeads);
  const int kv_heads = fields.OptionalInt("num_key_value_heads", layer.num_attention_heads, 1, kMaxHeads);
  if (kv_heads != layer.num_attention_heads) {
    fields.Refuse("num_key_value_heads", absl::StrCat(kv_heads),
                  absl::StrFormat("num_attention_heads, %d", layer.num_attention_heads));
  }
  layer.q_lora_rank = fields.RequiredInt("q_lora_rank", 1, kMaxWidth);
  layer.kv_lora_rank = fields.RequiredInt("kv_lora_rank", 1, kMaxWidth);
  layer.qk_nope_head_dim = fields.RequiredInt("qk_nope_head_dim", 1, kMaxWidth);
  layer.qk_rope_head_dim = fields.RequiredInt("qk_rope_head_dim", 2, kMaxWidth);
  if (layer.qk_rope_head_dim % 2 != 0) {
    fields.Refuse("qk_rope_head_dim", absl::StrCat(layer.qk_rope_head_dim), "even numbers");
  }
  layer.v_head_dim = fields.RequiredInt("v_head_dim", 1, kMaxWidth);
  const int64_t widest = std::max(layer.qk_head_dim(), layer.qk_nope_head_dim + layer.v_head_dim);
  if (layer.num_attention_heads * widest > kMaxFused) {
    fields.Refuse("num_attention_heads", absl::StrCat(layer.num_attention_heads),
                  absl::StrFormat("at most %d features over all heads", kMaxFused));
  }
  if (!fields.OptionalBool("rope_interleave", true)) fields.Refuse("rope_interleave", "false", "true");
  ReadRope(fields, layer);
}

void ReadForm(JsonFields& fields, DraftHead& head) {
  head.norm_before_residual = fields.OptionalBool("norm_before_residual", false);
  head.norm_before_fc = fields.OptionalBool("norm_before_fc", false);
  head.fc_norm = fields.OptionalBool("fc_norm", false) || fields.OptionalBool("use_aux_norm", false);
  if (head.fc_norm && head.norm_before_fc) fields.Refuse("norm_before_fc", "true", "false with fc_norm");
  head.norm_output = fields.OptionalBool("norm_output", false);
  head.layer.tie_word_embeddings = fields.OptionalBool("tie_word_embeddings", false);
}

// Ids as the object has them under `field`; absent without it.
std::optional<std::vector<int>> ReadLayerIds(JsonFields& fields, const char* field) {
  const nlohmann::json* list = fields.Find(field);
  if (list == nullptr) return std::nullopt;
  std::vector<int> ids;
  for (const nlohmann::json& id : *list) {
    if (!list->is_array() || !id.is_number_integer() || id.get<int64_t>() < -1 ||
        id.get<int64_t>() > kMaxLayers) {
      fields.Refuse(field, ShowJson(*list), "a list of layers");
      return ids;
    }
    ids.push_back(id.get<int>());
  }
  return ids;
}

// The list of layers has one key and two meanings: outputs of layers in one code base, inputs in another.
// Every trained head reads the output of layer 1 first: a list that begins with 1 has outputs, one that
// begins with 2 has inputs.
std::vector<int> ReadTrainedIds(JsonFields& fields, const char* field, std::vector<int> ids) {
  if (!ids.empty() && ids[0] == 1) return ids;
  if (!ids.empty() && ids[0] == 2) {
    for (int& id : ids) --id;
    return ids;
  }
  fields.Refuse(
      field, absl::StrCat("[", absl::StrJoin(ids, ", "), "]"),
      "lists that begin with 1, outputs of layers, or 2, inputs of layers; for others write the layers "
      "whose outputs are meant into speculative_config.eagle3_layers_to_capture");
  return {};
}

// The taps that every trainer uses by default.
std::vector<int> UsualTaps(int layers) { return {1, layers / 2 - 1, layers - 4}; }

void ReadTaps(JsonFields& fields, const ModelConfig& model, const std::vector<int>& layers, DraftHead& head) {
  const char* field = "eagle_aux_hidden_state_layer_ids";
  const nlohmann::json* const nested = fields.Find("eagle_config");
  if (!layers.empty()) {
    field = "speculative_config.eagle3_layers_to_capture";
    head.taps = layers;
  } else if (nested != nullptr && nested->is_object() && nested->contains(field)) {
    JsonFields inner(*nested, fields.file(), "eagle_config.");
    const auto ids = ReadLayerIds(inner, field);
    head.taps = ReadTrainedIds(inner, field, ids.value_or(std::vector<int>()));
    fields.Keep(inner.status());
  } else {
    auto inputs = ReadLayerIds(fields, field);
    if (!inputs) inputs = ReadLayerIds(fields, field = "aux_hidden_state_layer_ids");
    head.assumed_taps = !inputs.has_value();
    head.taps = inputs.value_or(UsualTaps(model.num_hidden_layers));
    if (inputs) {
      for (int& id : head.taps) --id;
    }
  }
  if (!fields.status().ok()) return;
  const bool ascending =
      std::adjacent_find(head.taps.begin(), head.taps.end(), std::greater_equal<>()) == head.taps.end();
  if (!head.taps.empty() && ascending && head.taps.front() >= 0 &&
      head.taps.back() < model.num_hidden_layers) {
    return;
  }
  fields.Refuse(field, absl::StrCat("layers [", absl::StrJoin(head.taps, ", "), "]"),
                absl::StrFormat("ascending layers 0..%d, by their outputs", model.num_hidden_layers - 1));
}

void WarnOf(const DraftHead& head, const ModelConfig& model) {
  if (head.assumed_taps) {
    Log(LogLevel::kWarning,
        "%s: does not say which layers it reads; taken as those that trainers take, outputs %s. Write others "
        "into speculative_config.eagle3_layers_to_capture",
        head.dir, absl::StrJoin(head.taps, ", "));
  }
  if (head.draft_vocab_size < model.vocab_size) {
    Log(LogLevel::kInfo, "%s: drafts %d of %d tokens; the others are never drafted", head.dir,
        head.draft_vocab_size, model.vocab_size);
  }
}

// Refuses a list of another length than the head was trained with, which the width of fc shows. `layers`: the
// configuration's list, which overrides config.json.
absl::Status CheckTapCount(const Checkpoint& checkpoint, const DraftHead& head,
                           const std::vector<int>& layers) {
  const TensorLocation fc = checkpoint.Find("fc.weight");
  const int64_t width = head.layer.hidden_size, count = static_cast<int64_t>(head.taps.size());
  if (fc.entry == nullptr || fc.entry->shape.size() != 2 || fc.entry->shape[1] == count * width ||
      fc.entry->shape[1] % width != 0) {
    return absl::OkStatus();  // the check of tensors finds other faults
  }
  return absl::InvalidArgumentError(absl::StrFormat(
      "speculative_config.eagle3_layers_to_capture: [%s]%s, allowed %d layers: tensor fc.weight of %s has "
      "[%d, %d]",
      absl::StrJoin(head.taps, ", "), layers.empty() ? ", as the head's config.json has it" : "",
      fc.entry->shape[1] / width, fc.file->path(), fc.entry->shape[0], fc.entry->shape[1]));
}

}  // namespace

absl::StatusOr<DraftHead> ParseEagle3Config(std::string_view json, const std::string& file,
                                            const ModelConfig& model, const std::vector<int>& layers) {
  ASSIGN_OR_RETURN(const nlohmann::json object, ParseJson(json, file));
  if (!object.is_object()) return absl::InvalidArgumentError(absl::StrCat(file, ": not a JSON object"));
  JsonFields fields(object, file, "");
  DraftHead head;
  ReadArchitecture(fields, head);
  RETURN_IF_ERROR(fields.status());  // another kind's fields mean something else
  head.layer.projections = ReadQuantization(fields);
  RefuseOtherForms(fields);
  ReadSizes(fields, model, head);
  ReadAttention(fields, head.layer);
  ReadForm(fields, head);
  ReadTaps(fields, model, layers, head);
  RETURN_IF_ERROR(fields.status());
  return head;
}

absl::Status ReadEagle3(const Config& config, ModelConfig& model) {
  const SpeculativeConfig& speculative = *config.speculative_config;
  const bool dummy = config.load_format == LoadFormat::kDummy;
  const std::filesystem::path path = speculative.speculative_model;
  std::error_code error;
  const bool is_file = dummy && std::filesystem::is_regular_file(path, error);
  if (!is_file && !std::filesystem::is_directory(path, error)) {
    return absl::InvalidArgumentError(
        absl::StrCat("speculative_config.speculative_model: ", path.string(),
                     ", allowed the checkpoint directory of a head", dummy ? ", or its config.json" : "",
                     std::filesystem::exists(path, error) ? "" : ": no such directory"));
  }
  const std::string file = is_file ? path.string() : (path / "config.json").string();
  ASSIGN_OR_RETURN(const std::string text, ReadFileText(file, kMaxConfigBytes));
  ASSIGN_OR_RETURN(DraftHead head,
                   ParseEagle3Config(text, file, model, speculative.eagle3_layers_to_capture));
  head.dir = path.string();
  if (dummy) {
    head.token_ids = RandomDraftTokens(head.draft_vocab_size, model.vocab_size);
  } else {
    ASSIGN_OR_RETURN(const Checkpoint checkpoint, OpenEagle3(head.dir));
    RETURN_IF_ERROR(CheckTapCount(checkpoint, head, speculative.eagle3_layers_to_capture));
    RETURN_IF_ERROR(ReadDraftTokens(checkpoint, head));
  }
  WarnOf(head, model);
  model.draft_head = std::make_shared<const DraftHead>(std::move(head));
  return absl::OkStatus();
}

}  // namespace foredraft
