#include "engine/model/rope_fields.h"

#include <tuple>

#include "absl/strings/str_format.h"
#include "config/json_text.h"

namespace foredraft {
namespace {

auto Parts(const RopeScaling& scaling) {
  return std::tie(scaling.factor, scaling.original_max_position_embeddings, scaling.beta_fast,
                  scaling.beta_slow, scaling.mscale, scaling.mscale_all_dim);
}

// transformers tests whether mscale and mscale_all_dim are given; DeepSeek's own code gives an absent mscale
// the value 1 and an absent mscale_all_dim the value 0. They agree on the rotation only where both are given
// and above 0, or where mscale_all_dim is 0 or absent and mscale is 1 or absent. Other combinations are
// refused.
void ReadYarn(JsonFields& fields, ModelConfig& config) {
  RopeScaling yarn;
  yarn.factor = fields.RequiredDouble("factor", 1, 1e6);
  yarn.original_max_position_embeddings = fields.RequiredInt("original_max_position_embeddings", 1, 1 << 30);
  yarn.beta_fast = fields.OptionalDouble("beta_fast", 32, 1e-3, 1e6);
  yarn.beta_slow = fields.OptionalDouble("beta_slow", 1, 1e-3, 1e6);
  yarn.mscale = fields.OptionalDouble("mscale", 1, 0, 100);
  yarn.mscale_all_dim = fields.OptionalDouble("mscale_all_dim", 0, 0, 100);
  const bool given = fields.Find("mscale") != nullptr;
  const bool both = given && yarn.mscale > 0 && yarn.mscale_all_dim > 0;
  if (!both && !(yarn.mscale == 1 && yarn.mscale_all_dim == 0)) {
    fields.Refuse("mscale",
                  absl::StrFormat("%s with mscale_all_dim %g",
                                  given ? absl::StrFormat("%g", yarn.mscale) : "absent", yarn.mscale_all_dim),
                  "both above 0, or both absent");
  }
  if (const nlohmann::json* factor = fields.Find("attention_factor")) {
    fields.Refuse("attention_factor", ShowJson(*factor), "absent");
  }
  if (!fields.OptionalBool("truncate", true)) fields.Refuse("truncate", "false", "true");
  config.rope_scaling = yarn;
}

// `rope` is rope_scaling (transformers 4) or rope_parameters (5), which has rope_theta inside.
void ReadRopeObject(const char* name, const nlohmann::json& rope, JsonFields& parent, ModelConfig& config) {
  if (!rope.is_object()) return parent.Refuse(name, ShowJson(rope), "an object");
  JsonFields fields(rope, parent.file(), absl::StrFormat("%s%s.", parent.path(), name));
  config.rope_theta = ReadInnerTheta(fields, parent, "rope_theta", config.rope_theta);
  fields.OptionalDouble("partial_rotary_factor", 1, 1, 1);
  const char* type_field = fields.Find("rope_type") != nullptr ? "rope_type" : "type";
  const nlohmann::json* type = fields.Find(type_field);
  if (type == nullptr) {
    fields.Refuse(type_field, "missing", "yarn, default");
  } else if (*type == "yarn") {
    ReadYarn(fields, config);
  } else if (*type != "default") {
    fields.Refuse(type_field, ShowJson(*type), "yarn, default");
  }
  parent.Keep(fields.status());
}

}  // namespace

double ReadInnerTheta(JsonFields& rope, const JsonFields& parent, const char* outer, double theta) {
  const double inner = rope.OptionalDouble("rope_theta", theta, kLeastTheta, kMostTheta);
  if (parent.Find(outer) != nullptr && inner != theta) {
    rope.Refuse("rope_theta", absl::StrFormat("%.10g", inner),
                absl::StrFormat("%.10g, as %s says beside it", theta, outer));
  }
  return inner;
}

void RequireSameScaling(const std::optional<RopeScaling>& older, const std::optional<RopeScaling>& newer,
                        JsonFields& fields) {
  const bool same = older.has_value() == newer.has_value() && (!older || Parts(*older) == Parts(*newer));
  if (same) return;
  fields.Refuse("rope_scaling", "says something else than rope_parameters",
                "the same in both, or one of them");
}

void ReadRope(JsonFields& fields, ModelConfig& config) {
  fields.OptionalDouble("partial_rotary_factor", 1, 1, 1);
  config.rope_theta = fields.OptionalDouble("rope_theta", 10000, kLeastTheta, kMostTheta);
  const nlohmann::json* scaling = fields.Find("rope_scaling");
  const nlohmann::json* parameters = fields.Find("rope_parameters");
  if (scaling != nullptr) ReadRopeObject("rope_scaling", *scaling, fields, config);
  if (parameters == nullptr) return;
  const ModelConfig older = config;
  config.rope_scaling.reset();
  ReadRopeObject("rope_parameters", *parameters, fields, config);
  if (scaling == nullptr || !fields.status().ok()) return;
  RequireSameScaling(older.rope_scaling, config.rope_scaling, fields);
  if (scaling->contains("rope_theta") && older.rope_theta != config.rope_theta) {
    fields.Refuse("rope_scaling.rope_theta", absl::StrFormat("%.10g", older.rope_theta),
                  absl::StrFormat("%.10g, as rope_parameters says", config.rope_theta));
  }
}

}  // namespace foredraft
