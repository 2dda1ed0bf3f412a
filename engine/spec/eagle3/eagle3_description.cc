#include "engine/spec/eagle3/eagle3_description.h"

#include <cstring>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/status_macros.h"
#include "engine/model/layer_description.h"
#include "engine/spec/eagle3/eagle3_weights.h"

namespace foredraft {
namespace {

constexpr char kLayer[] = "layers.0.";

// A beginning of names as files spell it, and as the description does.
struct OtherBeginning {
  const char* stored;
  const char* described;
};
constexpr OtherBeginning kBeginnings[] = {{"midlayer.", kLayer},
                                          {"aux_norm_low.", "fc_norm.0."},
                                          {"aux_norm_mid.", "fc_norm.1."},
                                          {"aux_norm_high.", "fc_norm.2."}};

std::string DescribedName(const std::string& stored) {
  const std::string name = stored.starts_with("model.") ? stored.substr(6) : stored;
  for (const OtherBeginning& other : kBeginnings) {
    if (name.starts_with(other.stored)) return other.described + name.substr(std::strlen(other.stored));
  }
  return name;
}

}  // namespace

ModelDescription DescribeEagle3(const DraftHead& head) {
  const ModelConfig& layer = head.layer;
  const int64_t width = layer.hidden_size;
  const auto taps = static_cast<int64_t>(head.taps.size());
  ModelDescription description{
      .name = absl::StrFormat("%s with %d layers of the target", layer.architecture, taps),
      .projections = layer.projections,
      .layer_count = 1};
  auto& weights = description.model->Emplace<Eagle3Weights>();
  LayerDescriber top(layer, "", description);
  LayerDescriber decoder(layer, kLayer, description);

  if (head.norm_before_fc) top.Norm("input_norm", static_cast<int>(taps * width), &weights.input_norm);
  if (head.fc_norm) weights.fc_norms.resize(taps);
  for (size_t tap = 0; tap < weights.fc_norms.size(); ++tap) {
    top.Norm(absl::StrCat("fc_norm.", tap), layer.hidden_size, &weights.fc_norms[tap]);
  }
  top.Weight("fc", MatrixMember{&weights.fc}, {top.Linear(TensorKind::kMatrix, "fc", {width, taps * width})});
  decoder.Norm("input_layernorm", layer.hidden_size, &weights.input_layernorm);
  decoder.Norm("hidden_norm", layer.hidden_size, &weights.hidden_norm);
  decoder.Attention(weights.self_attn, 2 * layer.hidden_size);
  decoder.Norm("post_attention_layernorm", layer.hidden_size, &weights.post_attention_layernorm);
  decoder.Mlp("mlp", decoder.MlpTensors("mlp.", layer.intermediate_size), weights.mlp);
  top.Norm("norm", layer.hidden_size, &weights.norm);
  if (head.own_lm_head) {
    top.Weight("lm_head", MatrixMember{&weights.lm_head},
               {top.Tensor(TensorKind::kHead, "lm_head.weight", {head.draft_vocab_size, width})});
  }
  // The embedding is the target's, d2t is read with the configuration, and t2d is for training.
  top.Tensor(TensorKind::kUnread, "embed_tokens.weight", {layer.vocab_size, width});
  description.unread_beginnings = {"d2t"};
  description.unread_ending = "t2d";
  return description;
}

absl::StatusOr<Checkpoint> OpenEagle3(const std::string& dir) {
  ASSIGN_OR_RETURN(Checkpoint checkpoint, Checkpoint::Open(dir));
  RETURN_IF_ERROR(checkpoint.Rename([](const TensorEntry& stored) {
    return std::vector<NamedPart>{{.name = DescribedName(stored.name), .shape = stored.shape}};
  }));
  return checkpoint;
}

}  // namespace foredraft
