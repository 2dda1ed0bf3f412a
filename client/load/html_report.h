#pragma once

// The report of `bench` as one page of HTML that needs nothing else: no fonts, no other files. It is
// report_page.html with two reports in it: the JSON report, which the page's script draws, and the text
// report for readers without JavaScript. It follows the reader's light or dark theme.

#include <string>

#include "client/load/comparison_report.h"
#include "client/load/report.h"
#include "client/load/run_charts.h"

namespace foredraft {

std::string HtmlReport(const BenchSetup& setup, const RunStats& run, const RunCharts& charts);
std::string HtmlReport(const ComparisonReport& report);

}  // namespace foredraft
