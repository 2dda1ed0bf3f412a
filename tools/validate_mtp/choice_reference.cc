#include "tools/validate_mtp/choice_reference.h"

#include <algorithm>
#include <cmath>
#include <functional>

#include "kernels/philox.h"

namespace foredraft::reference {
namespace {

// Rounding steps of sampling in FP32: bias, two penalties, temperature, difference to the largest logit,
// noise, and adding the noise. Each loses at most half a unit in the last place, 2^-24 of the largest value
// among them.
constexpr double kFloatSteps = 7;

Vector Adjusted(const SamplingParams& sampling, const ChoiceHistory& history, Vector logits) {
  for (const TokenBias& bias : sampling.logit_bias) logits[bias.token_id] += bias.bias;
  std::vector<int> counts(logits.size());
  std::vector<bool> seen(logits.size());
  for (const int32_t token : history.prompt) seen[token] = true;
  for (const int32_t token : history.output) ++counts[token];
  for (size_t v = 0; v < logits.size(); ++v) {
    double& logit = logits[v];
    if (seen[v] || counts[v] > 0) {
      logit *= logit > 0 ? 1.0 / sampling.repetition_penalty : sampling.repetition_penalty;
    }
    logit -= counts[v] * double{sampling.frequency_penalty};
    if (counts[v] > 0) logit -= sampling.presence_penalty;
  }
  return logits;
}

double NoiseOf(uint64_t seed, int position, int token) {
  const uint32_t bits =
      Philox4x32({static_cast<uint32_t>(token / 4), static_cast<uint32_t>(position), 0, 0}, seed)[token % 4];
  return -std::log(-std::log((bits + 0.5) * 0x1p-32));
}

// How many of the most probable tokens the filters by rank certainly keep, and how many they may keep.
struct KeptRanks {
  size_t certain = 0;
  size_t possible = 0;
};

// masses: probabilities before normalisation, descending.
KeptRanks KeptOf(const SamplingParams& sampling, const Vector& masses, double error) {
  const size_t limit =
      sampling.top_k > 0 ? std::min(masses.size(), static_cast<size_t>(sampling.top_k)) : masses.size();
  if (sampling.top_p >= 1) return {limit, limit};
  double rest = 0, before = 0;
  for (size_t i = 0; i < limit; ++i) rest += masses[i];
  KeptRanks kept;
  for (size_t i = 0; i < limit; ++i) {
    const auto share = [&](double factor) { return before / (before + rest * factor); };
    if (share(std::exp(-2 * error)) < sampling.top_p) kept.certain = i + 1;
    if (share(std::exp(2 * error)) < sampling.top_p) kept.possible = i + 1;
    before += masses[i];
    rest -= masses[i];
  }
  return kept;
}

struct Candidate {
  int32_t token;
  double score;
  bool certain;  // certainly kept by the filters
};

// logits: already divided by the temperature.
std::vector<Candidate> CandidatesOf(const SamplingParams& sampling, int position, const Vector& logits,
                                    double error) {
  std::vector<int32_t> order;
  for (size_t v = 0; v < logits.size(); ++v) {
    if (!std::isinf(logits[v])) order.push_back(static_cast<int32_t>(v));
  }
  std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) { return logits[a] > logits[b]; });
  Vector sorted, masses;
  for (const int32_t v : order) {
    sorted.push_back(logits[v]);
    masses.push_back(std::exp(logits[v] - sorted[0]));
  }
  const KeptRanks kept = KeptOf(sampling, masses, error);
  const auto ahead_of = [&](double logit) {
    return std::lower_bound(sorted.begin(), sorted.end(), logit, std::greater<>()) - sorted.begin();
  };
  std::vector<Candidate> candidates;
  for (size_t rank = 0; rank < order.size(); ++rank) {
    const double logit = sorted[rank], lead = logit - sorted[0];
    // The lowest and highest rank that the token may have: ties are ordered by id, as `order` is.
    const size_t first = error > 0 ? ahead_of(logit + 2 * error) : rank;
    const size_t last = error > 0 ? ahead_of(std::nextafter(logit - 2 * error, -INFINITY)) - 1 : rank;
    const double least = sampling.min_p > 0 ? std::log(double{sampling.min_p}) : -INFINITY;
    if (first >= kept.possible || (rank > 0 && lead + 2 * error < least)) continue;
    const bool certain = last < kept.certain && (last == 0 || lead - 2 * error >= least);
    candidates.push_back({order[rank], lead + NoiseOf(sampling.seed, position, order[rank]), certain});
  }
  return candidates;
}

// Greedy choice scores tokens by their logits alone: no filters, no noise.
std::vector<Candidate> GreedyCandidates(const Vector& logits) {
  std::vector<Candidate> candidates;
  for (size_t v = 0; v < logits.size(); ++v) {
    if (!std::isinf(logits[v])) candidates.push_back({static_cast<int32_t>(v), logits[v], /*certain=*/true});
  }
  return candidates;
}

// The tokens that may win if scores are off by at most `error`, ascending.
std::vector<int32_t> Winners(const std::vector<Candidate>& candidates, double error) {
  double bar = -INFINITY;
  for (const Candidate& candidate : candidates) {
    if (candidate.certain) bar = std::max(bar, candidate.score);
  }
  std::vector<int32_t> winners;
  for (const Candidate& candidate : candidates) {
    if (candidate.score >= bar - 2 * error) winners.push_back(candidate.token);
  }
  std::sort(winners.begin(), winners.end());
  return winners;
}

}  // namespace

Choices PossibleChoices(const SamplingParams& sampling, const ChoiceHistory& history, int position,
                        const Vector& logits, double error) {
  Vector adjusted = Adjusted(sampling, history, logits);
  const bool greedy = sampling.temperature == 0;
  double largest = greedy ? 0 : double{kMaxGumbel};
  for (double& logit : adjusted) {
    if (!greedy) logit /= sampling.temperature;
    if (!std::isinf(logit)) largest = std::max(largest, std::abs(logit));
  }
  const auto winners = [&](double each) {
    return Winners(greedy ? GreedyCandidates(adjusted) : CandidatesOf(sampling, position, adjusted, each),
                   each);
  };
  // The most by which penalties and temperature can multiply an error of a logit.
  const double penalty = sampling.repetition_penalty;
  const double slope = std::max({1.0, penalty, 1 / penalty}) / (greedy ? 1.0 : sampling.temperature);
  return {.best = winners(0).front(), .possible = winners(error * slope + kFloatSteps * largest * 0x1p-24)};
}

}  // namespace foredraft::reference
