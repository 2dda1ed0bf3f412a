#pragma once

// The metrics of a run, one row each: `bench` takes its text, its JSON and its comparison of several runs
// from this table.

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "client/load/run_stats.h"

namespace foredraft {

using MetricValue = std::variant<int64_t, double, std::vector<int64_t>, std::vector<double>, Summary>;

enum class NumberStyle {
  kPlain,
  kUnlessZero,  // left out if 0
  kPercent,     // 1 is 100%
  kPercentUnlessZero,
};

struct RunMetric {
  struct Text {
    std::string_view line = "";  // heading of its line, or kLatencyTable; "" = not in the text
    const char* label = "";
    int decimals = 0;
    NumberStyle style = NumberStyle::kPlain;
  };
  struct Column {
    // What a comparison shows. kByRound: the medians over the rounds of the value (of a Summary, its p50) and
    // of its ratio to the first setting. kPooled: the value over the requests of all rounds together.
    enum class Kind { kNone, kByRound, kPooled } kind = Kind::kNone;
    const char* heading = "";
  };

  const char* object;  // in the JSON; "" = the top level
  const char* key;     // in the JSON; ends in the unit if there is one
  MetricValue (*value)(const RunStats&);
  Text text = {};
  Column column = {};
};

inline constexpr std::string_view kLatencyTable = "latency, ms";

std::span<const RunMetric> RunMetrics();

std::string NumberText(double number, int decimals, NumberStyle style);
// "1,037.4", "60.7%", "90.0% 57.0%", "0.02 (p99 0.20)": mean and p99 of a Summary. "" = nothing to show.
std::string ValueText(const RunMetric& metric, const MetricValue& value);

}  // namespace foredraft
