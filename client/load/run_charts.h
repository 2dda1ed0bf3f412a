#pragma once

// What the page of `bench --html` draws in addition to RunStats.

#include <vector>

#include "client/load/load_run.h"
#include "client/load/run_stats.h"

namespace foredraft {

// A run in intervals of the same length, from its start to its end.
struct RunTimeline {
  double interval_s = 0;             // 0: nothing ran
  std::vector<double> tokens_per_s;  // output tokens received
  std::vector<double> requests;      // in flight, on average over the interval
};

struct RunCharts {
  LatencySamples latencies;
  RunTimeline timeline;
};

RunTimeline TimelineOf(const LoadResult& result);
RunCharts ChartsOf(const LoadResult& result);

}  // namespace foredraft
