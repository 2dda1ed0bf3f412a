#pragma once

// Sends the same requests once per setting, in rounds, and compares how long each setting takes and whether
// all settings give the same tokens, as the daemon promises.

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "client/load/load_run.h"
#include "client/load/run_charts.h"
#include "client/load/run_metrics.h"
#include "client/load/run_stats.h"
#include "client/measure/summary.h"

namespace foredraft {

// Whether requests got the same tokens in every run. Compares hashes of the tokens.
class TokenAgreement {
 public:
  struct Difference {
    int64_t index;  // of the request in the workload
    int turn;
    std::string run, other_run;
  };

  void Add(const std::string& run, const std::vector<MeasuredRequest>& requests);

  int64_t compared() const;    // requests that completed in every run
  int64_t agreed() const;      // of those, requests with the same tokens in all runs
  int64_t incomplete() const;  // requests that failed in at least one run
  // One per request whose tokens in a later run differ from those in the first run in which it completed;
  // sorted by index and turn.
  std::vector<Difference> differences() const;

 private:
  struct Entry {
    int runs = 0;  // in which the request completed
    uint64_t hash = 0;
    std::string run;        // the first of these runs
    std::string other_run;  // the first run with other tokens; empty = none
  };

  int run_count_ = 0;
  std::map<std::pair<int64_t, int>, Entry> entries_;  // by index and turn
};

// The setting of one column, which its runs share.
struct ComparisonSetting {
  std::string name;                     // "K=3", "baseline"
  std::optional<int> max_draft_tokens;  // of each request; absent = the daemon chooses
  bool on_baseline = false;             // sent to the daemon of --baseline

  static ComparisonSetting OfDraftLen(int max_draft_tokens);
  static ComparisonSetting Baseline() { return {.name = "baseline", .on_baseline = true}; }
};

// One metric of one setting over all rounds.
struct ComparedMetric {
  const RunMetric* metric = nullptr;
  Summary value;
  Summary ratio;  // to the first setting of the same round; count 0 = nothing to divide by
};

struct Comparison {
  std::vector<ComparisonSetting> settings;
  std::vector<std::vector<RunStats>> rounds;  // [rounds][settings], whole rounds only
  std::vector<RunCharts> charts;              // [settings]: latencies of these rounds, timeline of the first
  TokenAgreement tokens;
  bool interrupted = false;
  bool gave_up = false;  // the daemon went away in the last round

  // The columns of a comparison, in the order of RunMetrics(): output tokens per second first. Needs at least
  // one round.
  std::vector<ComparedMetric> MetricsOf(size_t setting) const;
  // The categories over all rounds, in order of their names; empty where prompts have no categories.
  std::vector<CategoryStats> CategoriesOf(size_t setting) const;
  bool AllFailed() const;  // no request of any round completed
  // True if acceptance is forced or relaxed: tokens may depend on drafts.
  bool TokensMayDiffer() const;
  // True if tokens depend on the setting although they must not.
  bool Broken() const { return !TokensMayDiffer() && !tokens.differences().empty(); }
};

// Round r begins with setting r, so that no setting is always first or always after the same one. `run`
// measures one setting; the name identifies the run in progress lines and reports.
Comparison Compare(const std::vector<ComparisonSetting>& settings, int round_count,
                   const std::function<LoadResult(const ComparisonSetting&, const std::string& name)>& run);

}  // namespace foredraft
