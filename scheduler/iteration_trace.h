#pragma once

// The ranks' rows of the trace (base/trace.h): an iteration with its prefill and its decode step. The ranks
// may be on other hosts, with other clocks, so only the lengths of the spans are the ranks' own measurements.
// An iteration ends when its results were read, and it does not begin before the one before has ended.

#include <vector>

#include "base/trace.h"
#include "scheduler/plan.h"

namespace foredraft {

// Owner: ServingLoop. Thread: scheduler.
class IterationTrace {
 public:
  // Called while a trace runs: `results` of all ranks, for `plan`, were read at `now`.
  void Record(const IterationPlan& plan, const std::vector<RankResult>& results, TraceTime now);

 private:
  std::vector<TraceTime> ends_;  // [ranks] of the last iteration
};

}  // namespace foredraft
