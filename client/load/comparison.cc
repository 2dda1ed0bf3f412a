#include "client/load/comparison.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

namespace foredraft {
namespace {

using Kind = RunMetric::Column::Kind;

// The number that a comparison takes from a run.
double NumberOf(const RunMetric& metric, const RunStats& run) {
  const MetricValue value = metric.value(run);
  const Summary* latency = std::get_if<Summary>(&value);
  return latency != nullptr ? latency->p50 : std::get<double>(value);
}

}  // namespace

void TokenAgreement::Add(const std::string& run, const std::vector<MeasuredRequest>& requests) {
  ++run_count_;
  for (const MeasuredRequest& request : requests) {
    Entry& entry = entries_[{request.index, request.turn}];
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
  for (const auto& [request, entry] : entries_) {
    if (!entry.other_run.empty()) {
      all.push_back(
          {.index = request.first, .turn = request.second, .run = entry.run, .other_run = entry.other_run});
    }
  }
  return all;
}

ComparisonSetting ComparisonSetting::OfDraftLen(int max_draft_tokens) {
  return {.name = absl::StrCat("K=", max_draft_tokens), .max_draft_tokens = max_draft_tokens};
}

std::vector<ComparedMetric> Comparison::MetricsOf(size_t setting) const {
  RunStats pooled;
  for (const std::vector<RunStats>& round : rounds) pooled.speculation.Add(round[setting].speculation);
  std::vector<ComparedMetric> all;
  for (const RunMetric& metric : RunMetrics()) {
    std::vector<double> values, ratios;
    if (metric.column.kind == Kind::kNone) continue;
    if (metric.column.kind == Kind::kPooled) values.push_back(NumberOf(metric, pooled));
    if (metric.column.kind == Kind::kByRound) {
      for (const std::vector<RunStats>& round : rounds) {
        values.push_back(NumberOf(metric, round[setting]));
        const double first = NumberOf(metric, round[0]);
        if (first > 0) ratios.push_back(values.back() / first);
      }
    }
    all.push_back({.metric = &metric, .value = Summarize(values), .ratio = Summarize(ratios)});
  }
  return all;
}

std::vector<CategoryStats> Comparison::CategoriesOf(size_t setting) const {
  std::vector<CategoryStats> pooled;
  for (const std::vector<RunStats>& round : rounds) {
    for (const CategoryStats& category : round[setting].categories) AddCategory(category, pooled);
  }
  return pooled;
}

bool Comparison::AllFailed() const {
  for (const std::vector<RunStats>& round : rounds) {
    for (const RunStats& run : round) {
      if (run.completed > 0) return false;
    }
  }
  return true;
}

bool Comparison::TokensMayDiffer() const {
  for (const std::vector<RunStats>& round : rounds) {
    for (const RunStats& run : round) {
      if (run.speculation.forced || run.speculation.relaxed_tokens > 0) return true;
    }
  }
  return false;
}

Comparison Compare(const std::vector<ComparisonSetting>& settings, int round_count,
                   const std::function<LoadResult(const ComparisonSetting&, const std::string&)>& run) {
  Comparison comparison{.settings = settings};
  for (int round = 0; round < round_count && !comparison.gave_up; ++round) {
    std::vector<RunStats> runs(settings.size());
    std::vector<RunCharts> charts(settings.size());
    for (size_t turn = 0; turn < settings.size(); ++turn) {
      const size_t index = (round + turn) % settings.size();
      const std::string name = absl::StrCat(settings[index].name, " round ", round + 1);
      const LoadResult result = run(settings[index], name);
      if (result.interrupted) {
        comparison.interrupted = true;
        return comparison;
      }
      comparison.tokens.Add(name, result.requests);
      runs[index] = Evaluate(result);
      charts[index] = ChartsOf(result);
      comparison.gave_up |= !result.gave_up.empty();
    }
    comparison.rounds.push_back(std::move(runs));
    if (round == 0) {
      comparison.charts = std::move(charts);
    } else {
      for (size_t i = 0; i < charts.size(); ++i) {
        comparison.charts[i].latencies.Append(charts[i].latencies);
      }
    }
  }
  return comparison;
}

}  // namespace foredraft
