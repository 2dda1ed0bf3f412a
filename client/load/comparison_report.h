#pragma once

// What `bench --compare` prints: for people and as JSON.

#include <optional>
#include <string>

#include "client/load/comparison.h"
#include "client/load/report.h"
#include "client/load/workload.h"

namespace foredraft {

struct ComparisonReport {
  const BenchSetup& setup;
  const std::optional<MeasuredServer>& baseline;  // of --baseline
  const Comparison& comparison;                   // at least one round
  const Workload& workload;                       // names the requests whose tokens differ
};

std::string TextReport(const ComparisonReport& report);
// TextReport's rows on servers, load, rounds and errors, and on whether tokens agree.
std::string NotesText(const ComparisonReport& report);
// Which setting gives the most tokens per second: "K=3 gives 1.80 (1.70..2.10) times the output tok/s of
// K=0". If the rounds do not agree on that, the text begins with "no clear difference: ".
std::string ResultText(const Comparison& comparison);
std::string JsonReport(const ComparisonReport& report);

}  // namespace foredraft
