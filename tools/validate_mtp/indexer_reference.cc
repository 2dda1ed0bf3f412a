#include "tools/validate_mtp/indexer_reference.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

namespace foredraft::reference {
namespace {

constexpr double kKeyNormEps = 1e-6;  // does not depend on rms_norm_eps

// (x - mean) / sqrt(variance + eps), times `weight`, plus `bias`.
Vector LayerNorm(const Vector& x, const Vector& weight, const Vector& bias) {
  const double count = static_cast<double>(x.size());
  double mean = 0, variance = 0;
  for (const double value : x) mean += value / count;
  for (const double value : x) variance += (value - mean) * (value - mean) / count;
  Vector out;
  for (size_t i = 0; i < x.size(); ++i) {
    out.push_back((x[i] - mean) / std::sqrt(variance + kKeyNormEps) * weight[i] + bias[i]);
  }
  return out;
}

// Reorders n values to 0, n / 2, 1, n / 2 + 1, ..., so that the values of each pair (i, i + n / 2) are
// adjacent. `back` undoes it.
void PairHalves(std::span<double> x, bool back) {
  const Vector from(x.begin(), x.end());
  const size_t half = x.size() / 2;
  for (size_t i = 0; i < half; ++i) {
    for (const size_t part : {size_t{0}, size_t{1}}) {
      const size_t apart = i + part * half, paired = 2 * i + part;
      back ? x[apart] = from[paired] : x[paired] = from[apart];
    }
  }
}

}  // namespace

IndexerReference::IndexerReference(const Weights& weights, const ModelConfig& config, std::string module,
                                   Vector frequencies, double rope_factor)
    : ReferenceParts(weights, config),
      module_(std::move(module)),
      frequencies_(std::move(frequencies)),
      rope_factor_(rope_factor) {}

Vector IndexerReference::Rotated(std::span<const double> head, int position) const {
  Vector rotated(head.begin(), head.end());
  const std::span<double> leading = std::span(rotated).first(config_.qk_rope_head_dim);
  if (!config_.index_interleaved) PairHalves(leading, /*back=*/false);
  Rotate(leading, position, frequencies_, 1, rope_factor_);
  if (!config_.index_interleaved) PairHalves(leading, /*back=*/true);
  return Stored(rotated);
}

Vector IndexerReference::Key(const Vector& x, int position) const {
  return Rotated(LayerNorm(Linear(Name("wk"), x), weights_.Exact(Name("k_norm.weight")).values,
                           weights_.Exact(Name("k_norm.bias")).values),
                 position);
}

Vector IndexerReference::Scores(const Vector& x, const Vector& latent, int position,
                                const std::vector<std::span<const double>>& keys) const {
  const size_t width = config_.index_head_dim;
  const double scale = 1 / std::sqrt(static_cast<double>(width) * config_.index_n_heads);
  const Vector q = Linear(Name("wq_b"), latent), head_weights = Linear(Name("weights_proj"), x);
  Vector scores(keys.size());
  for (int head = 0; head < config_.index_n_heads; ++head) {
    const Vector query = Rotated(std::span(q).subspan(head * width, width), position);
    for (size_t i = 0; i < keys.size(); ++i) {
      scores[i] += scale * head_weights[head] * std::max(0.0, Dot(query, keys[i]));
    }
  }
  return scores;
}

double SelectionGap(const Vector& scores, const std::vector<int>& chosen, int count) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  std::vector<bool> is_chosen(scores.size() + 1);
  int last = 0;
  double worst = kInfinity, best = -kInfinity;
  for (const int position : chosen) {
    if (position <= last || position > static_cast<int>(scores.size())) return kInfinity;
    is_chosen[last = position] = true;
    worst = std::min(worst, scores[position - 1]);
  }
  for (size_t i = 0; i < scores.size(); ++i) {
    if (!is_chosen[i + 1]) best = std::max(best, scores[i]);
  }
  return static_cast<int>(chosen.size()) == count ? std::max(0.0, best - worst) : kInfinity;
}

}  // namespace foredraft::reference
