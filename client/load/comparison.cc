#include "client/load/comparison.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

namespace foredraft {
namespace {

Spread SpreadOf(const std::vector<double>& values) {
  const auto [min, max] = std::minmax_element(values.begin(), values.end());
  return {.median = Median(values), .min = *min, .max = *max};
}

double Ratio(double value, double first) { return first > 0 ? value / first : 0; }

void AddSums(const SpeculationFigures& one, SpeculationFigures& all) {
  all.steps += one.steps;
  all.draft_tokens += one.draft_tokens;
  all.accepted_tokens += one.accepted_tokens;
  all.relaxed_tokens += one.relaxed_tokens;
  all.forced |= one.forced;
  all.accepted_per_position.resize(
      std::max(all.accepted_per_position.size(), one.accepted_per_position.size()));
  for (size_t i = 0; i < one.accepted_per_position.size(); ++i) {
    all.accepted_per_position[i] += one.accepted_per_position[i];
  }
}

}  // namespace

void TokenAgreement::Add(const std::string& run, const std::vector<MeasuredRequest>& requests) {
  ++run_count_;
  for (const MeasuredRequest& request : requests) {
    Entry& entry = entries_[request.index];
    if (request.outcome != RequestOutcome::kCompleted) continue;
    if (++entry.runs == 1) {
      entry.hash = request.token_hash;
      entry.run = run;
    } else if (entry.hash != request.token_hash && entry.other_run.empty()) {
      entry.other_run = run;
    }
  }
}

int64_t TokenAgreement::compared() const {
  return std::count_if(entries_.begin(), entries_.end(),
                       [this](const auto& entry) { return entry.second.runs == run_count_; });
}

int64_t TokenAgreement::agreed() const {
  return std::count_if(entries_.begin(), entries_.end(), [this](const auto& entry) {
    return entry.second.runs == run_count_ && entry.second.other_run.empty();
  });
}

int64_t TokenAgreement::incomplete() const { return static_cast<int64_t>(entries_.size()) - compared(); }

std::vector<TokenAgreement::Difference> TokenAgreement::differences() const {
  std::vector<Difference> all;
  for (const auto& [index, entry] : entries_) {
    if (!entry.other_run.empty())
      all.push_back({.index = index, .run = entry.run, .other_run = entry.other_run});
  }
  return all;
}

std::vector<SettingFigures> Comparison::Settings() const {
  std::vector<SettingFigures> settings;
  for (size_t i = 0; i < max_draft_tokens.size(); ++i) {
    SettingFigures setting{.max_draft_tokens = max_draft_tokens[i]};
    const auto spread = [&](const auto& figure_of) {
      std::vector<double> values, ratios;
      for (const std::vector<RunFigures>& round : rounds) {
        values.push_back(figure_of(round[i]));
        ratios.push_back(Ratio(values.back(), figure_of(round[0])));
      }
      return std::pair(SpreadOf(values), SpreadOf(ratios));
    };
    std::tie(setting.output_tokens_per_s, setting.output_tokens_per_s_ratio) =
        spread([](const RunFigures& figures) { return figures.output_tokens_per_s; });
    std::tie(setting.tpot_p50_ms, setting.tpot_p50_ratio) =
        spread([](const RunFigures& figures) { return figures.tpot_ms.p50; });
    std::tie(setting.ttft_p50_ms, setting.ttft_p50_ratio) =
        spread([](const RunFigures& figures) { return figures.ttft_ms.p50; });
    for (const std::vector<RunFigures>& round : rounds) AddSums(round[i].speculation, setting.speculation);
    settings.push_back(std::move(setting));
  }
  return settings;
}

bool Comparison::AllFailed() const {
  for (const std::vector<RunFigures>& round : rounds) {
    for (const RunFigures& figures : round) {
      if (figures.completed > 0) return false;
    }
  }
  return true;
}

bool Comparison::TokensMayDiffer() const {
  for (const std::vector<RunFigures>& round : rounds) {
    for (const RunFigures& figures : round) {
      if (figures.speculation.forced || figures.speculation.relaxed_tokens > 0) return true;
    }
  }
  return false;
}

Comparison Compare(const std::vector<int>& max_draft_tokens, int round_count,
                   const std::function<LoadResult(int, const std::string&)>& run) {
  Comparison comparison{.max_draft_tokens = max_draft_tokens};
  const int settings = static_cast<int>(max_draft_tokens.size());
  for (int round = 0; round < round_count && !comparison.gave_up; ++round) {
    std::vector<RunFigures> figures(settings);
    for (int turn = 0; turn < settings; ++turn) {
      const int setting = (round + turn) % settings;
      const std::string name = absl::StrCat("K=", max_draft_tokens[setting], " round ", round + 1);
      const LoadResult result = run(max_draft_tokens[setting], name);
      if (result.interrupted) {
        comparison.interrupted = true;
        return comparison;
      }
      comparison.tokens.Add(name, result.requests);
      figures[setting] = Evaluate(result);
      comparison.gave_up |= !result.gave_up.empty();
    }
    comparison.rounds.push_back(std::move(figures));
  }
  return comparison;
}

}  // namespace foredraft
