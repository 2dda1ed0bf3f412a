#include "tools/validate_mtp/v4_layer_reference.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"

namespace foredraft::reference {
namespace {

double Softplus(double x) { return std::max(x, 0.0) + std::log1p(std::exp(-std::abs(x))); }

}  // namespace

V4LayerReference::V4LayerReference(const Weights& weights, const ModelConfig& config, std::string module)
    : ReferenceParts(weights, config),
      module_(std::move(module)),
      shape_(V4ShapeOf(config)),
      count_(config.hc_mult),
      width_(config.hidden_size),
      frequencies_(Frequencies(config.qk_rope_head_dim, config.rope_theta, std::nullopt)) {}

HyperMix V4LayerReference::Enter(const Vector& streams) const {
  HyperMix mix = Pre(streams, "hc_attn");
  mix.x = Norm(mix.x, Name("attn_norm"));
  return mix;
}

Vector V4LayerReference::Key(const Vector& x, int position) const {
  return Stored(Rotated(Norm(Linear(Name("attn.wkv"), x), Name("attn.kv_norm")), position, 1));
}

Vector V4LayerReference::Output(const Vector& streams, const HyperMix& entered, int position,
                                const std::vector<std::span<const double>>& keys) {
  const Vector between = Post(Attention(entered.x, position, keys), streams, entered);
  const HyperMix ffn = Pre(between, "hc_ffn");
  return Post(Experts(Norm(ffn.x, Name("ffn_norm"))), between, ffn);
}

Vector V4LayerReference::Logits(const Vector& streams) const {
  const Vector m = Mix(streams, "hc_head");
  const double scale = weights_.Exact(Name("hc_head_scale")).values[0];
  const Vector& base = weights_.Exact(Name("hc_head_base")).values;
  Vector pre;
  for (int i = 0; i < count_; ++i) pre.push_back(Sigmoid(m[i] * scale + base[i]) + shape_.hc_eps);
  return Linear("head", Norm(Collapse(streams, pre), Name("norm")));
}

// m of section 2.1, before scale and base.
Vector V4LayerReference::Mix(const Vector& streams, const std::string& name) const {
  return Product(weights_.Exact(Name(name + "_fn")), RmsNorm(streams, {}, config_.rms_norm_eps));
}

Vector V4LayerReference::Collapse(const Vector& streams, const Vector& pre) const {
  Vector x(width_);
  for (int i = 0; i < count_; ++i) {
    for (int c = 0; c < width_; ++c) x[c] += pre[i] * StreamOf(streams, i, width_)[c];
  }
  return x;
}

HyperMix V4LayerReference::Pre(const Vector& streams, const std::string& name) const {
  const double eps = shape_.hc_eps;
  Vector m = Mix(streams, name);
  const Vector& scale = weights_.Exact(Name(name + "_scale")).values;
  const Vector& base = weights_.Exact(Name(name + "_base")).values;
  for (int i = 0; i < static_cast<int>(m.size()); ++i) {
    m[i] = m[i] * scale[std::min(i / count_, 2)] + base[i];
  }
  HyperMix mix;
  Vector pre;
  for (int i = 0; i < count_; ++i) {
    pre.push_back(Sigmoid(m[i]) + eps);
    mix.post.push_back(2 * Sigmoid(m[count_ + i]));
  }
  mix.x = Collapse(streams, pre);
  for (int j = 0; j < count_; ++j) {
    double sum = 0;
    for (int k = 0; k < count_; ++k) sum += std::exp(m[(2 + j) * count_ + k]);
    for (int k = 0; k < count_; ++k) mix.comb.push_back(std::exp(m[(2 + j) * count_ + k]) / sum + eps);
  }
  DivideBySums(mix.comb, /*over_rows=*/true);
  for (int i = 1; i < shape_.hc_sinkhorn_iters; ++i) {
    DivideBySums(mix.comb, /*over_rows=*/false);
    DivideBySums(mix.comb, /*over_rows=*/true);
  }
  return mix;
}

// Divides every element by the sum of its column (over_rows) or of its row, plus hc_eps.
void V4LayerReference::DivideBySums(Vector& comb, bool over_rows) const {
  const int step = over_rows ? count_ : 1, next = over_rows ? 1 : count_;
  for (int line = 0; line < count_; ++line) {
    double sum = shape_.hc_eps;
    for (int i = 0; i < count_; ++i) sum += comb[line * next + i * step];
    for (int i = 0; i < count_; ++i) comb[line * next + i * step] /= sum;
  }
}

Vector V4LayerReference::Post(const Vector& y, const Vector& streams, const HyperMix& mix) const {
  Vector out;
  for (int k = 0; k < count_; ++k) {
    for (int c = 0; c < width_; ++c) {
      double value = mix.post[k] * y[c];
      for (int j = 0; j < count_; ++j) value += mix.comb[j * count_ + k] * StreamOf(streams, j, width_)[c];
      out.push_back(value);
    }
  }
  return out;
}

// `head` with its last values rotated by `position`.
Vector V4LayerReference::Rotated(Vector head, int position, double sign) const {
  const int rope = config_.qk_rope_head_dim;
  Rotate(std::span(head).last(rope), position, frequencies_, sign);
  return head;
}

Vector V4LayerReference::Attention(const Vector& x, int position,
                                   const std::vector<std::span<const double>>& keys) const {
  const int dim = shape_.head_dim;
  const Vector latent = Norm(Linear(Name("attn.wq_a"), x), Name("attn.q_norm"));
  const Vector q = Linear(Name("attn.wq_b"), latent);
  Vector heads;
  for (int head = 0; head < config_.num_attention_heads; ++head) {
    const std::span<const double> raw = std::span(q).subspan(static_cast<size_t>(head) * dim, dim);
    const Vector query = Stored(Rotated(RmsNorm(raw, {}, config_.rms_norm_eps), position, 1));
    Vector scores;
    for (const auto& key : keys) scores.push_back(Dot(query, key) / std::sqrt(dim));
    const Vector out = Attend(scores, keys, weights_.Exact(Name("attn.attn_sink")).values[head]);
    const Vector back = Stored(Rotated(out, position, -1));
    heads.insert(heads.end(), back.begin(), back.end());
  }
  return Linear(Name("attn.wo_b"), Grouped(heads));
}

// z of section 3.3: each group of heads times its own rows of wo_a.
Vector V4LayerReference::Grouped(const Vector& heads) const {
  const Table& weight = weights_.Matrix(Name("attn.wo_a"));
  Vector z;
  for (int64_t row = 0; row < weight.rows; ++row) {
    const size_t group = row / shape_.o_lora_rank;
    z.push_back(Dot(weight.row(row), std::span(heads).subspan(group * weight.cols, weight.cols)));
  }
  return z;
}

Vector V4LayerReference::Experts(const Vector& x) {
  const Vector logits = Linear(Name("ffn.gate"), x);
  const Vector& bias = weights_.Exact(Name("ffn.gate.bias")).values;
  Vector scores, choice;
  for (size_t e = 0; e < logits.size(); ++e) {
    scores.push_back(std::sqrt(Softplus(logits[e])));
    choice.push_back(scores[e] + bias[e]);
  }
  const std::vector<int> chosen = Largest(choice, config_.num_experts_per_tok);
  choice_ = {choice, Lead(choice, config_.num_experts_per_tok)};
  double sum = 1e-20;
  for (const int e : chosen) sum += scores[e];
  Vector y = Expert(Name("ffn.shared_experts"), x);
  for (const int e : chosen) {
    const Vector out = Expert(Name(absl::StrCat("ffn.experts.", e)), x);
    const double weight = config_.routed_scaling_factor * scores[e] / sum;
    for (int c = 0; c < width_; ++c) y[c] += weight * out[c];
  }
  return y;
}

Vector V4LayerReference::Expert(const std::string& name, const Vector& x) const {
  const double limit = shape_.swiglu_limit;
  Vector hidden = Linear(name + ".w1", x);
  const Vector up = Linear(name + ".w3", x);
  for (size_t i = 0; i < hidden.size(); ++i) {
    hidden[i] = Silu(std::min(hidden[i], limit)) * std::clamp(up[i], -limit, limit);
  }
  return Linear(name + ".w2", hidden);
}

}  // namespace foredraft::reference
