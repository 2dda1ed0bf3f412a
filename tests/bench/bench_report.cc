#include "tests/bench/bench_report.h"

#include <cmath>
#include <cstdio>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/grouped_digits.h"
#include "client/measure/summary.h"
#include "client/measure/table.h"
#include "tests/bench/bench_flags.h"

namespace foredraft {
namespace {

// At least three digits.
std::string Rounded(double value) {
  const double size = std::abs(value);
  return Grouped(value, size >= 100 ? 0 : size >= 10 ? 1 : size >= 1 ? 2 : 3);
}

}  // namespace

void AddSample(std::vector<Measurement>& measurements, const std::string& name, const std::string& unit,
               double sample) {
  for (Measurement& known : measurements) {
    if (known.name == name) return known.samples.push_back(sample);
  }
  measurements.push_back({.name = name, .unit = unit, .samples = {sample}});
}

void Print(const BenchReport& report, bool markdown) {
  if (markdown) {
    absl::PrintF("## %s\n\n`%s`: %s\n\n", report.heading, report.command, report.measured);
  } else {
    absl::PrintF("%s\n%s: %s\n\n", report.heading, report.command, report.measured);
  }
  std::fflush(stdout);
  Table table({"measure", "median", "min..max", "unit"});
  for (const Measurement& measurement : report.measurements) {
    const Summary summary = Summarize(measurement.samples);
    table.Add({measurement.name, Rounded(summary.p50),
               absl::StrCat(Rounded(summary.min), "..", Rounded(summary.max)), measurement.unit});
  }
  table.Print(markdown);
}

ReportFlags ParseReportFlags(int argc, char** argv) {
  ReportFlags flags;
  ParseBenchFlags(argc, argv, {{"--markdown", &flags.markdown}, {"--quick", &flags.quick}});
  return flags;
}

}  // namespace foredraft
