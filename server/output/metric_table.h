#pragma once

// Every metric the daemon exports, one row each. Metrics registers from these rows, and docs/metrics.md is
// written from them; a new metric is a row here and a member there.

#include <span>
#include <string>
#include <string_view>

namespace foredraft {

enum class MetricType { kCounter, kGauge, kHistogram };

struct MetricRow {
  const char* name;
  MetricType type;
  const char* labels;  // in addition to model_name, with their values: "kind (prefill, decode)"; "" = none
  const char* help;
};

std::span<const MetricRow> MetricTable();
// The row of `name`; a CHECK fails if there is none.
const MetricRow& FindMetric(std::string_view name);

// The content of docs/metrics.md.
std::string MetricsDocument();

}  // namespace foredraft
