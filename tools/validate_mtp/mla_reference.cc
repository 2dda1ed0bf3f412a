#include "tools/validate_mtp/mla_reference.h"

#include <cmath>
#include <utility>

namespace foredraft::reference {
namespace {

double Mscale(double factor, double m) { return factor <= 1 ? 1 : 0.1 * m * std::log(factor) + 1; }

}  // namespace

MlaReference::MlaReference(const Weights& weights, const ModelConfig& config, std::string prefix)
    : ReferenceParts(weights, config),
      prefix_(std::move(prefix)),
      frequencies_(Frequencies(config.qk_rope_head_dim, config.rope_theta, config.rope_scaling)),
      scale_(1 / std::sqrt(config.qk_head_dim())) {
  if (!config.rope_scaling) return;
  const RopeScaling& rope = *config.rope_scaling;
  rope_factor_ = Mscale(rope.factor, rope.mscale) / Mscale(rope.factor, rope.mscale_all_dim);
  scale_ *= std::pow(Mscale(rope.factor, rope.mscale_all_dim), 2);
}

// Linear, plus the bias if the checkpoint has one.
Vector MlaReference::Biased(const std::string& module, const Vector& x) const {
  Vector out = Linear(module, x);
  if (!weights_.Has(module + ".bias")) return out;
  const Vector& bias = weights_.Exact(module + ".bias").values;
  for (size_t i = 0; i < out.size(); ++i) out[i] += bias[i];
  return out;
}

Vector MlaReference::LatentNorm(std::span<const double> x, const std::string& module) const {
  return RmsNorm(x, weights_.Norm(module), config_.latent_norm_eps);
}

Vector MlaReference::QueryLatent(const Vector& x) const {
  if (config_.q_lora_rank == 0) return x;
  return LatentNorm(Biased(Name("self_attn.q_a_proj"), x), Name("self_attn.q_a_layernorm"));
}

MlaReference::CachedRow MlaReference::Cached(const Vector& x, int position) const {
  const int rope = config_.qk_rope_head_dim, rank = config_.kv_lora_rank;
  const Vector ckv = Biased(Name("self_attn.kv_a_proj_with_mqa"), x);
  Vector latent = LatentNorm(std::span(ckv).first(rank), Name("self_attn.kv_a_layernorm"));
  latent.insert(latent.end(), ckv.begin() + rank, ckv.end());
  Rotate(std::span(latent).last(rope), position, frequencies_, 1, rope_factor_);
  latent = Stored(latent);
  const Vector c(latent.begin(), latent.begin() + rank);
  return {.latent = std::move(latent), .expanded = Stored(Linear(Name("self_attn.kv_b_proj"), c))};
}

Vector MlaReference::Attend(int position, const Vector& query_latent,
                            const std::vector<const CachedRow*>& attended, bool decode_form) const {
  const Vector q =
      Linear(Name(config_.q_lora_rank == 0 ? "self_attn.q_proj" : "self_attn.q_b_proj"), query_latent);
  Vector heads;
  for (int head = 0; head < config_.num_attention_heads; ++head) {
    const Vector query = RotatedQuery(position, head, q);
    const Vector out = decode_form && weights_.rounds() ? AttendLatents(head, query, attended)
                                                        : AttendHead(head, query, attended);
    heads.insert(heads.end(), out.begin(), out.end());
  }
  return Biased(Name("self_attn.o_proj"), heads);
}

Vector MlaReference::RotatedQuery(int position, int head, const Vector& q) const {
  const int width = config_.qk_head_dim();
  Vector query(q.begin() + head * width, q.begin() + (head + 1) * width);
  Rotate(std::span(query).last(config_.qk_rope_head_dim), position, frequencies_, 1, rope_factor_);
  return Stored(query);
}

Vector MlaReference::AttendHead(int head, const Vector& query,
                                const std::vector<const CachedRow*>& attended) const {
  const int nope = config_.qk_nope_head_dim, rope = config_.qk_rope_head_dim;
  const int width = nope + config_.v_head_dim;
  Vector scores;
  std::vector<std::span<const double>> values;
  for (const CachedRow* const row : attended) {
    const std::span<const double> kv =
        std::span(row->expanded).subspan(static_cast<size_t>(head) * width, width);
    scores.push_back(scale_ * (Dot(std::span(query).first(nope), kv.first(nope)) +
                               Dot(std::span(query).last(rope), std::span(row->latent).last(rope))));
    values.push_back(kv.subspan(nope));
  }
  return reference::Attend(scores, values);
}

// Attention with the key projection applied to the query and the value projection to the result; query and
// result are then rounded.
Vector MlaReference::AttendLatents(int head, const Vector& query,
                                   const std::vector<const CachedRow*>& attended) const {
  const int nope = config_.qk_nope_head_dim, rank = config_.kv_lora_rank;
  const Table& weight = weights_.Matrix(Name("self_attn.kv_b_proj"));
  const int64_t first = int64_t{head} * (nope + config_.v_head_dim);
  Vector absorbed(rank);
  for (int i = 0; i < nope; ++i) {
    for (int c = 0; c < rank; ++c) absorbed[c] += query[i] * weight.row(first + i)[c];
  }
  absorbed = Stored(absorbed);
  absorbed.insert(absorbed.end(), query.begin() + nope, query.end());
  Vector scores, out;
  std::vector<std::span<const double>> values;
  for (const CachedRow* const row : attended) {
    scores.push_back(scale_ * Dot(absorbed, row->latent));
    values.push_back(std::span(row->latent).first(rank));
  }
  const Vector latent = Stored(reference::Attend(scores, values));
  for (int i = 0; i < config_.v_head_dim; ++i) out.push_back(Dot(weight.row(first + nope + i), latent));
  return out;
}

}  // namespace foredraft::reference
