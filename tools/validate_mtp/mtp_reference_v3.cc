// The MTP module of DeepSeek-V3 and the families that share its forward (docs/deepseek-v3.md sections 3 and
// 5).

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "tools/validate_mtp/mtp_reference.h"

namespace foredraft::reference {
namespace {

double Mscale(double factor, double m) { return factor <= 1 ? 1 : 0.1 * m * std::log(factor) + 1; }

class V3Reference : public MtpReference {
 public:
  V3Reference(const Weights& weights, const ModelConfig& config)
      : MtpReference(weights, config),
        prefix_(absl::StrCat("model.layers.", config.num_hidden_layers, ".")),
        frequencies_(Frequencies(config.qk_rope_head_dim, config.rope_theta, config.rope_scaling)),
        scale_(1 / std::sqrt(config.qk_head_dim())) {
    if (!config.rope_scaling) return;
    const RopeScaling& rope = *config.rope_scaling;
    rope_factor_ = Mscale(rope.factor, rope.mscale) / Mscale(rope.factor, rope.mscale_all_dim);
    scale_ *= std::pow(Mscale(rope.factor, rope.mscale_all_dim), 2);
  }

  Vector Project(const MtpRow& row) const override {
    const std::span<const double> embedded = weights_.Matrix("model.embed_tokens").row(row.token);
    Vector both = Norm(embedded, Name("enorm"));
    const Vector u = Norm(row.previous, Name("hnorm"));
    both.insert(both.end(), u.begin(), u.end());
    return Linear(Name("eh_proj"), both);
  }

  Vector Layer(const MtpRow& row, const Vector& projected) override {
    Vector x = projected;
    Add(x, Attention(row, Norm(x, Name("input_layernorm"))));
    const Vector normed = Norm(x, Name("post_attention_layernorm"));
    const bool moe = config_.IsMoe(config_.num_hidden_layers);
    Add(x, moe ? Experts(normed) : Mlp(Name("mlp"), normed));
    return x;
  }

  Vector Output(const Vector& layer_output) const override {
    return Norm(layer_output, Name("shared_head.norm"));
  }

  Vector Logits(const Vector& output) const override {
    return Linear(config_.tie_word_embeddings ? "model.embed_tokens" : "lm_head", output);
  }

 private:
  std::string Name(const std::string& name) const { return prefix_ + name; }
  static void Add(Vector& sum, const Vector& x) {
    for (size_t i = 0; i < sum.size(); ++i) sum[i] += x[i];
  }

  // With the bias where the checkpoint has one.
  Vector Biased(const std::string& module, const Vector& x) const {
    Vector out = Linear(module, x);
    if (weights_.Has(module + ".bias")) Add(out, weights_.Exact(module + ".bias").values);
    return out;
  }
  Vector LatentNorm(std::span<const double> x, const std::string& module) const {
    return RmsNorm(x, weights_.Norm(module), ModelConfig::kLatentNormEps);
  }

  Vector Queries(const Vector& x) const {
    if (config_.q_lora_rank == 0) return Linear(Name("self_attn.q_proj"), x);
    const Vector latent = Biased(Name("self_attn.q_a_proj"), x);
    return Linear(Name("self_attn.q_b_proj"), LatentNorm(latent, Name("self_attn.q_a_layernorm")));
  }

  // Keys and values of all heads of a cached row: its latent c, then k_pe.
  Vector Expanded(const Vector& row) const {
    const Vector latent(row.begin(), row.begin() + config_.kv_lora_rank);
    return Stored(Linear(Name("self_attn.kv_b_proj"), latent));
  }

  Vector Attention(const MtpRow& row, const Vector& x) {
    const int rope = config_.qk_rope_head_dim, rank = config_.kv_lora_rank;
    const Vector q = Queries(x);
    const Vector ckv = Biased(Name("self_attn.kv_a_proj_with_mqa"), x);
    Vector cached = LatentNorm(std::span(ckv).first(rank), Name("self_attn.kv_a_layernorm"));
    cached.insert(cached.end(), ckv.begin() + rank, ckv.end());
    Rotate(std::span(cached).last(rope), row.position, frequencies_, 1, rope_factor_);
    std::map<int, Vector>& keys = keys_[row.sequence];
    keys[row.position] = Stored(cached);
    std::vector<Vector> expanded;
    std::vector<std::span<const double>> rotated;
    for (int at = 1; at <= row.position; ++at) {
      expanded.push_back(Expanded(keys.at(at)));
      rotated.push_back(std::span<const double>(keys.at(at)).last(rope));
    }
    Vector heads;
    for (int head = 0; head < config_.num_attention_heads; ++head) {
      const Vector out = AttendHead(row.position, head, q, expanded, rotated);
      heads.insert(heads.end(), out.begin(), out.end());
    }
    return Biased(Name("self_attn.o_proj"), heads);
  }

  Vector AttendHead(int position, int head, const Vector& q, const std::vector<Vector>& expanded,
                    const std::vector<std::span<const double>>& rotated) const {
    const int nope = config_.qk_nope_head_dim, rope = config_.qk_rope_head_dim;
    Vector query(q.begin() + head * (nope + rope), q.begin() + (head + 1) * (nope + rope));
    Rotate(std::span(query).last(rope), position, frequencies_, 1, rope_factor_);
    query = Stored(query);
    Vector scores;
    std::vector<std::span<const double>> values;
    for (size_t j = 0; j < expanded.size(); ++j) {
      const std::span<const double> kv =
          std::span(expanded[j])
              .subspan(static_cast<size_t>(head) * (nope + config_.v_head_dim), nope + config_.v_head_dim);
      scores.push_back(scale_ * (Dot(std::span(query).first(nope), kv.first(nope)) +
                                 Dot(std::span(query).last(rope), rotated[j])));
      values.push_back(kv.subspan(nope));
    }
    return Attend(scores, values);
  }

  // The choice scores of all experts; experts outside the best groups cannot be chosen.
  Vector KeepBestGroups(const Vector& choice, double& lead) const {
    const int groups = config_.n_group, size = static_cast<int>(choice.size()) / groups;
    Vector group_scores;
    for (int g = 0; g < groups; ++g) {
      const std::span<const double> group = std::span(choice).subspan(static_cast<size_t>(g) * size, size);
      double score = 0;
      for (const int e : Largest(group, std::min(2, size))) score += group[e];
      group_scores.push_back(score);
    }
    // A group's score is the sum of two.
    lead = Lead(group_scores, config_.topk_group) / 2;
    Vector kept(choice.size(), -std::numeric_limits<double>::infinity());
    for (const int g : Largest(group_scores, config_.topk_group)) {
      std::copy_n(choice.begin() + g * size, size, kept.begin() + g * size);
    }
    return kept;
  }

  Vector Experts(const Vector& x) {
    const Vector logits = Linear(Name("mlp.gate"), x);
    const Vector& bias = weights_.Exact(Name("mlp.gate.e_score_correction_bias")).values;
    Vector scores, choice;
    for (size_t e = 0; e < logits.size(); ++e) {
      scores.push_back(Sigmoid(logits[e]));
      choice.push_back(scores[e] + bias[e]);
    }
    double lead = 0;
    const Vector kept = KeepBestGroups(choice, lead);
    const std::vector<int> chosen = Largest(kept, config_.num_experts_per_tok);
    NoteChoice({choice, std::min(lead, Lead(kept, config_.num_experts_per_tok))});
    double sum = 1e-20;
    for (const int e : chosen) sum += scores[e];
    if (!config_.norm_topk_prob) sum = 1;
    Vector y(x.size());
    if (config_.n_shared_experts > 0) y = Mlp(Name("mlp.shared_experts"), x);
    for (const int e : chosen) {
      const Vector out = Mlp(Name(absl::StrCat("mlp.experts.", e)), x);
      const double weight = config_.routed_scaling_factor * scores[e] / sum;
      for (size_t c = 0; c < y.size(); ++c) y[c] += weight * out[c];
    }
    return y;
  }

  Vector Mlp(const std::string& name, const Vector& x) const {
    Vector hidden = Linear(name + ".gate_proj", x);
    const Vector up = Linear(name + ".up_proj", x);
    for (size_t i = 0; i < hidden.size(); ++i) hidden[i] = Silu(hidden[i]) * up[i];
    return Linear(name + ".down_proj", hidden);
  }

  const std::string prefix_;
  const Vector frequencies_;
  double scale_;
  double rope_factor_ = 1;
};

}  // namespace

std::unique_ptr<MtpReference> CreateV3Reference(const Weights& weights, const ModelConfig& config) {
  return std::make_unique<V3Reference>(weights, config);
}

}  // namespace foredraft::reference
