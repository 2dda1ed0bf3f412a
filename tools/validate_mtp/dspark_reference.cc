#include "tools/validate_mtp/dspark_reference.h"

#include "absl/strings/str_cat.h"

namespace foredraft::reference {

DSparkReference::DSparkReference(const Weights& weights, const ModelConfig& config)
    : ReferenceParts(weights, config) {
  for (int stage = 0; stage < config.dspark->stage_count; ++stage) {
    stages_.emplace_back(weights, config, absl::StrCat("mtp.", stage));
  }
}

Vector DSparkReference::Tap(const Vector& streams) const {
  Vector mean(config_.hidden_size);
  for (int i = 0; i < config_.hc_mult; ++i) {
    const std::span<const double> stream = StreamOf(streams, i, config_.hidden_size);
    for (size_t c = 0; c < mean.size(); ++c) mean[c] += stream[c] / config_.hc_mult;
  }
  return Stored(mean);
}

Vector DSparkReference::MainX(const Vector& taps) const {
  return Stored(Norm(Linear("mtp.0.main_proj", taps), "mtp.0.main_norm"));
}

Vector DSparkReference::ContextKey(int stage, const Vector& main_x, int position) const {
  return stages_[stage].Key(main_x, position);
}

BlockStreams DSparkReference::Seed(int token) const {
  const DSparkShape& shape = *config_.dspark;
  BlockStreams rows;
  for (int i = 0; i < shape.block_size; ++i) {
    const std::span<const double> embedded =
        weights_.Matrix("embed").row(i == 0 ? token : shape.noise_token_id);
    Vector& streams = rows.emplace_back();
    for (int copy = 0; copy < config_.hc_mult; ++copy) {
      streams.insert(streams.end(), embedded.begin(), embedded.end());
    }
  }
  return rows;
}

BlockStreams DSparkReference::Stage(int stage, const BlockStreams& streams, int position,
                                    const std::vector<Vector>& context) {
  V4LayerReference& layer = stages_[stage];
  std::vector<HyperMix> entered;
  std::vector<Vector> keys = context;
  for (size_t row = 0; row < streams.size(); ++row) {
    entered.push_back(layer.Enter(streams[row]));
    keys.push_back(layer.Key(entered.back().x, position + static_cast<int>(row)));
  }
  const std::vector<std::span<const double>> attended(keys.begin(), keys.end());
  BlockStreams outputs;
  choices_.clear();
  for (size_t row = 0; row < streams.size(); ++row) {
    outputs.push_back(layer.Output(streams[row], entered[row], position + static_cast<int>(row), attended));
    choices_.push_back(layer.choice());
  }
  return outputs;
}

Vector DSparkReference::Logits(const Vector& streams) const { return stages_.back().Logits(streams); }

Vector DSparkReference::Bias(int token) const {
  const std::string head = absl::StrCat("mtp.", stage_count() - 1, ".markov_head.");
  const std::span<const double> row = weights_.Matrix(head + "markov_w1").row(token);
  return Linear(head + "markov_w2", Vector(row.begin(), row.end()));
}

}  // namespace foredraft::reference
