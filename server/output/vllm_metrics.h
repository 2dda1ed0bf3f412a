#pragma once

// The daemon's metrics again under the names that vLLM gives them, for dashboards, autoscalers and benchmarks
// that read those. Pure.

#include <string>
#include <vector>

#include "prometheus/metric_family.h"

namespace foredraft {

// The families of vLLM that have a counterpart in `ours`, summed over thinking and answer and over
// the ranks (KV usage: the mean), with the label engine="0". Positions of drafts count from 0.
std::vector<prometheus::MetricFamily> VllmFamilies(const std::vector<prometheus::MetricFamily>& ours);

// A section of docs/metrics.md.
std::string VllmMetricsDocument();

}  // namespace foredraft
