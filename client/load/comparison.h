#ifndef FOREDRAFT_CLIENT_LOAD_COMPARISON_H_
#define FOREDRAFT_CLIENT_LOAD_COMPARISON_H_

// The same work once per setting of max_draft_tokens, in rounds, and what the settings did to time and
// tokens. Time may differ; tokens must not: that is the product's promise.

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "client/load/load_run.h"
#include "client/load/statistics.h"

namespace foredraft {

// Whether requests got the same tokens in every run, by their hashes.
class TokenAgreement {
 public:
  struct Difference {
    int64_t index;  // of the request in the workload
    std::string run, other_run;
  };

  void Add(const std::string& run, const std::vector<MeasuredRequest>& requests);

  int64_t compared() const;    // requests that completed in every run
  int64_t agreed() const;      // of them, those with the same tokens everywhere
  int64_t incomplete() const;  // requests that failed somewhere
  // The first for each request that completed with other tokens than in an earlier run, in order of index.
  std::vector<Difference> differences() const;

 private:
  struct Entry {
    int runs = 0;  // completed in
    uint64_t hash = 0;
    std::string run;        // the first
    std::string other_run;  // the first with other tokens; empty = none
  };

  int run_count_ = 0;
  std::map<int64_t, Entry> entries_;  // by index
};

// Median over the rounds, and their range.
struct Spread {
  double median = 0, min = 0, max = 0;
};

struct SettingFigures {
  int max_draft_tokens = 0;
  Spread output_tokens_per_s, tpot_p50_ms, ttft_p50_ms;
  // To the first setting, of the same round each; 0 where there is nothing to divide by.
  Spread output_tokens_per_s_ratio, tpot_p50_ratio, ttft_p50_ratio;
  SpeculationFigures speculation;  // of all rounds
};

struct Comparison {
  std::vector<int> max_draft_tokens;            // [settings]
  std::vector<std::vector<RunFigures>> rounds;  // [rounds][settings], whole rounds only
  TokenAgreement tokens;
  bool interrupted = false;
  bool gave_up = false;  // the server went away in the last round

  std::vector<SettingFigures> Settings() const;  // rounds not empty
  bool AllFailed() const;                        // no request of any round completed
  // Forced or relaxed acceptance was at work: tokens may depend on drafts.
  bool TokensMayDiffer() const;
  // The product's promise was broken.
  bool Broken() const { return !TokensMayDiffer() && !tokens.differences().empty(); }
};

// Round r begins with setting r, so that no setting is always first or always after the same one. `run` makes
// one run: with so many drafts, under this name.
Comparison Compare(const std::vector<int>& max_draft_tokens, int round_count,
                   const std::function<LoadResult(int max_draft_tokens, const std::string& name)>& run);

}  // namespace foredraft

#endif  // FOREDRAFT_CLIENT_LOAD_COMPARISON_H_
