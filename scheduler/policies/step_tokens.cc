#include "scheduler/policies/step_tokens.h"

#include <algorithm>

namespace foredraft {
namespace {

struct Draft {
  double chance;  // that it and all before it are accepted
  int k;
};

std::vector<Draft> DraftsOf(const std::vector<SequenceDrafts>& sequences,
                            const ConfidenceCalibration& calibration, int max_draft_len) {
  std::vector<Draft> drafts;
  drafts.reserve(sequences.size() * max_draft_len);
  for (const SequenceDrafts& sequence : sequences) {
    double chance = 1;
    for (int k = 1; k <= std::min(sequence.cap, max_draft_len); ++k) {
      const bool has = static_cast<size_t>(k) <= sequence.confidences.size();
      chance *= has ? calibration.Chance(k, sequence.confidences[k - 1]) : calibration.MeanChance(k);
      drafts.push_back({chance, k});
    }
  }
  std::sort(drafts.begin(), drafts.end(), [](const Draft& a, const Draft& b) { return a.chance > b.chance; });
  return drafts;
}

}  // namespace

int StepDrafts::live_count() const {
  size_t count = 0;
  for (const auto& rank : ranks) count += rank.size();
  return static_cast<int>(count);
}

bool StepDrafts::have_confidences() const {
  const auto has = [](const SequenceDrafts& sequence) { return !sequence.confidences.empty(); };
  return std::any_of(ranks.begin(), ranks.end(),
                     [&has](const auto& rank) { return std::any_of(rank.begin(), rank.end(), has); });
}

std::vector<double> TokensByShape(const StepDrafts& drafts, const ConfidenceCalibration& calibration,
                                  int bucket, int max_draft_len) {
  std::vector<double> tokens(StepShape::Count(max_draft_len));
  for (const std::vector<SequenceDrafts>& sequences : drafts.ranks) {
    const int live = static_cast<int>(sequences.size());
    for (double& sum : tokens) sum += live;
    // By K: counts = how many drafts so far a step with K drafts has; least = the smallest v with rows left
    // for more.
    std::vector<int> counts(max_draft_len + 1), least(max_draft_len + 1, 1);
    for (const Draft& draft : DraftsOf(sequences, calibration, max_draft_len)) {
      for (int draft_len = draft.k; draft_len <= max_draft_len; ++draft_len) {
        int& v = least[draft_len];
        // Drafts also take the rows that padding seats do not need.
        while (v <= draft_len && counts[draft_len] >= bucket * (v + 1) - live) ++v;
        for (int verify_len = v; verify_len <= draft_len; ++verify_len) {
          tokens[StepShape{draft_len, verify_len}.index()] += draft.chance;
        }
        ++counts[draft_len];
      }
    }
  }
  return tokens;
}

}  // namespace foredraft
