// The MTP module of DeepSeek-V3 and the families that share its forward (docs/deepseek-v3.md sections 3, 5
// and 9).

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <optional>

#include "absl/strings/str_cat.h"
#include "tools/validate_mtp/indexer_reference.h"
#include "tools/validate_mtp/mla_reference.h"
#include "tools/validate_mtp/mtp_reference.h"

namespace foredraft::reference {
namespace {

class V3Reference : public MtpReference {
 public:
  V3Reference(const Weights& weights, const ModelConfig& config)
      : MtpReference(weights, config),
        prefix_(absl::StrCat("model.layers.", config.num_hidden_layers, ".")),
        mla_(weights, config, prefix_) {
    if (config.HasIndexer(config.num_hidden_layers)) {
      indexer_.emplace(weights, config, Name("self_attn.indexer"), mla_.frequencies(), mla_.rope_factor());
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

  // The values of a row that later rows read.
  struct CachedRow {
    MlaReference::CachedRow mla;
    Vector index_key;
  };

  // The positions that the row attends: all that it sees or, if these are too many, row.attended; if that is
  // empty, those with the highest scores.
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
    const Vector latent = mla_.QueryLatent(x);
    std::map<int, CachedRow>& cached = cached_[row.sequence];
    cached[row.position] = {.mla = mla_.Cached(x, row.position),
                            .index_key = indexer_ ? indexer_->Key(x, row.position) : Vector()};
    std::vector<const MlaReference::CachedRow*> attended;
    for (const int at : Attended(row, x, latent, cached)) attended.push_back(&cached.at(at).mla);
    return mla_.Attend(row.position, latent, attended, row.decode_form);
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
    // A group's score is the sum of two experts' scores.
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
  const MlaReference mla_;
  std::optional<IndexerReference> indexer_;
  std::map<int, std::map<int, CachedRow>> cached_;  // by sequence and position
};

}  // namespace

std::unique_ptr<MtpReference> CreateV3Reference(const Weights& weights, const ModelConfig& config) {
  return std::make_unique<V3Reference>(weights, config);
}

}  // namespace foredraft::reference
