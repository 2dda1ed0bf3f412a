#pragma once

// The report of `bench` as one page of HTML that needs nothing else: no scripts, no fonts, no other files. It
// follows the reader's light or dark theme.

#include <string>

#include "client/load/comparison_report.h"
#include "client/load/report.h"
#include "client/load/run_charts.h"

namespace foredraft {

std::string HtmlReport(const BenchSetup& setup, const RunStats& run, const RunCharts& charts);
std::string HtmlReport(const ComparisonReport& report);

}  // namespace foredraft
