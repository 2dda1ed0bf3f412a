// The MTP module of DeepSeek-V3 and the families that share its forward (docs/deepseek-v3.md sections 3, 5
// and 9).

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <optional>

#include "absl/strings/str_cat.h"
#include "tools/validate_mtp/indexer_reference.h"
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
    if (config.rope_scaling) {
      const RopeScaling& rope = *config.rope_scaling;
      rope_factor_ = Mscale(rope.factor, rope.mscale) / Mscale(rope.factor, rope.mscale_all_dim);
      scale_ *= std::pow(Mscale(rope.factor, rope.mscale_all_dim), 2);
    }
    if (config.HasIndexer(config.num_hidden_layers)) {
      indexer_.emplace(weights, config, Name("self_attn.indexer"), frequencies_, rope_factor_);
    }
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

  // The normed latent of the queries; without one, their input.
  Vector QueryLatent(const Vector& x) const {
    if (config_.q_lora_rank == 0) return x;
    return LatentNorm(Biased(Name("self_attn.q_a_proj"), x), Name("self_attn.q_a_layernorm"));
  }
  Vector Queries(const Vector& latent) const {
    return Linear(Name(config_.q_lora_rank == 0 ? "self_attn.q_proj" : "self_attn.q_b_proj"), latent);
  }

  // What a row leaves for later ones.
  struct CachedRow {
    Vector latent;    // c, then k_pe
    Vector expanded;  // keys and values of all heads
    Vector index_key;
  };

  CachedRow Cached(const Vector& x, int position) const {
    const int rope = config_.qk_rope_head_dim, rank = config_.kv_lora_rank;
    const Vector ckv = Biased(Name("self_attn.kv_a_proj_with_mqa"), x);
    Vector latent = LatentNorm(std::span(ckv).first(rank), Name("self_attn.kv_a_layernorm"));
    latent.insert(latent.end(), ckv.begin() + rank, ckv.end());
    Rotate(std::span(latent).last(rope), position, frequencies_, 1, rope_factor_);
    latent = Stored(latent);
    const Vector c(latent.begin(), latent.begin() + rank);
    return {.latent = std::move(latent),
            .expanded = Stored(Linear(Name("self_attn.kv_b_proj"), c)),
            .index_key = indexer_ ? indexer_->Key(x, position) : Vector()};
  }

  // The positions that the row attends: all that it sees, or where these are too many row.attended, else
  // those with the highest scores.
  std::vector<int> Attended(const MtpRow& row, const Vector& x, const Vector& latent,
                            const std::map<int, CachedRow>& cached) {
    std::vector<int> all(row.position);
    std::iota(all.begin(), all.end(), 1);
    NoteScores({});
    if (!indexer_ || row.position <= config_.index_topk) return all;
    std::vector<std::span<const double>> keys;
    for (const int at : all) keys.push_back(cached.at(at).index_key);
    const Vector scores = indexer_->Scores(x, latent, row.position, keys);
    NoteScores(scores);
    if (!row.attended.empty()) return row.attended;
    std::vector<int> selected = Largest(scores, config_.index_topk);
    std::sort(selected.begin(), selected.end());
    for (int& place : selected) ++place;  // positions begin at 1
    return selected;
  }

  Vector Attention(const MtpRow& row, const Vector& x) {
    const Vector latent = QueryLatent(x), q = Queries(latent);
    std::map<int, CachedRow>& cached = cached_[row.sequence];
    cached[row.position] = Cached(x, row.position);
    std::vector<const CachedRow*> attended;
    for (const int at : Attended(row, x, latent, cached)) attended.push_back(&cached.at(at));
    Vector heads;
    for (int head = 0; head < config_.num_attention_heads; ++head) {
      const Vector query = RotatedQuery(row.position, head, q);
      const Vector out = row.decode_form && weights_.rounds() ? AttendLatents(head, query, attended)
                                                              : AttendHead(head, query, attended);
      heads.insert(heads.end(), out.begin(), out.end());
    }
    return Biased(Name("self_attn.o_proj"), heads);
  }

  Vector RotatedQuery(int position, int head, const Vector& q) const {
    const int width = config_.qk_head_dim();
    Vector query(q.begin() + head * width, q.begin() + (head + 1) * width);
    Rotate(std::span(query).last(config_.qk_rope_head_dim), position, frequencies_, 1, rope_factor_);
    return Stored(query);
  }

  Vector AttendHead(int head, const Vector& query, const std::vector<const CachedRow*>& attended) const {
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
    return Attend(scores, values);
  }

  // The same with the key and value projections moved to the query and to the result, which rounds these.
  Vector AttendLatents(int head, const Vector& query, const std::vector<const CachedRow*>& attended) const {
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
    const Vector latent = Stored(Attend(scores, values));
    for (int i = 0; i < config_.v_head_dim; ++i) out.push_back(Dot(weight.row(first + nope + i), latent));
    return out;
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
  std::optional<IndexerReference> indexer_;
  std::map<int, std::map<int, CachedRow>> cached_;  // by sequence and position
};

}  // namespace

std::unique_ptr<MtpReference> CreateV3Reference(const Weights& weights, const ModelConfig& config) {
  return std::make_unique<V3Reference>(weights, config);
}

}  // namespace foredraft::reference
