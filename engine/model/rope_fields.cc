#include "engine/model/rope_fields.h"

#include <tuple>

#include "absl/strings/str_format.h"

namespace foredraft {
namespace {

auto Parts(const RopeScaling& scaling) {
  return std::tie(scaling.factor, scaling.original_max_position_embeddings, scaling.beta_fast,
                  scaling.beta_slow, scaling.mscale, scaling.mscale_all_dim);
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

}  // namespace foredraft
