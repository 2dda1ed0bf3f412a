#include "tools/validate_mtp/eagle3_reference.h"

#include "absl/strings/str_cat.h"

namespace foredraft::reference {
namespace {

void Add(Vector& sum, const Vector& x) {
  for (size_t i = 0; i < sum.size(); ++i) sum[i] += x[i];
}

}  // namespace

Vector Eagle3Reference::Fuse(const std::vector<Vector>& taps) const {
  Vector all;
  for (size_t tap = 0; tap < taps.size(); ++tap) {
    const Vector own = head_.fc_norm ? Norm(taps[tap], absl::StrCat("fc_norm.", tap)) : taps[tap];
    all.insert(all.end(), own.begin(), own.end());
  }
  return Linear("fc", head_.norm_before_fc ? Norm(all, "input_norm") : all);
}

Vector Eagle3Reference::Forward(const HeadRow& row) {
  const std::string layer = kLayer;
  const Vector hidden = Norm(row.previous, layer + "hidden_norm");
  Vector x = Norm(target_.Matrix("model.embed_tokens").row(row.token), layer + "input_layernorm");
  x.insert(x.end(), hidden.begin(), hidden.end());
  Vector y = head_.norm_before_residual ? hidden : row.previous;

  std::map<int, MlaReference::CachedRow>& cached = cached_[row.sequence];
  cached[row.position] = mla_.Cached(x, row.position);
  std::vector<const MlaReference::CachedRow*> attended;
  for (int position = 1; position <= row.position; ++position) attended.push_back(&cached.at(position));
  Add(y, mla_.Attend(row.position, mla_.QueryLatent(x), attended, row.decode_form));

  const Vector m = Norm(y, layer + "post_attention_layernorm");
  Vector inner = Linear(layer + "mlp.gate_proj", m);
  const Vector up = Linear(layer + "mlp.up_proj", m);
  for (size_t i = 0; i < inner.size(); ++i) inner[i] = Silu(inner[i]) * up[i];
  Add(y, Linear(layer + "mlp.down_proj", inner));
  return head_.norm_output ? Norm(y, "norm") : y;
}

Vector Eagle3Reference::Logits(const Vector& output) const {
  const Vector normed = head_.norm_output ? output : Norm(output, "norm");
  return head_.own_lm_head ? Linear("lm_head", normed) : Product(target_.Matrix("lm_head"), Stored(normed));
}

}  // namespace foredraft::reference
