#include "tests/bench/bench_report.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <string_view>

#include "absl/strings/str_format.h"
#include "base/grouped_digits.h"
#include "tests/bench/spread.h"
#include "tests/bench/table.h"

namespace foredraft {
namespace {

// Three digits at least; thousands grouped.
std::string Rounded(double value) {
  const double size = std::abs(value);
  if (size >= 100) return Grouped(std::llround(value));
  return absl::StrFormat("%.*f", size >= 10 ? 1 : size >= 1 ? 2 : 3, value);
}

}  // namespace

BenchFlags ParseBenchFlags(int argc, char** argv) {
  BenchFlags flags;
  for (int i = 1; i < argc; ++i) {
    const std::string_view flag = argv[i];
    if (flag == "--markdown") {
      flags.style = ReportStyle::kMarkdown;
    } else if (flag == "--json") {
      flags.style = ReportStyle::kTabs;
    } else if (flag == "--quick") {
      flags.quick = true;
    } else {
      std::fprintf(stderr, "%s: %s: unknown flag; --markdown, --json and --quick are known\n", argv[0],
                   argv[i]);
      std::exit(2);
    }
  }
  return flags;
}

void Print(const BenchReport& report, ReportStyle style) {
  if (style == ReportStyle::kTabs) {
    for (const Figure& figure : report.figures) {
      const auto [least, most] = std::minmax_element(figure.samples.begin(), figure.samples.end());
      absl::PrintF("%s\t%.6g\t%s\t%.6g\t%.6g\n", figure.name, Spread::Of(figure.samples).median, figure.unit,
                   *least, *most);
    }
    return;
  }
  const bool markdown = style == ReportStyle::kMarkdown;
  absl::PrintF(markdown ? "## %s\n\n`%s`: %s\n\n" : "%s\n%s: %s\n\n", report.heading, report.command,
               report.measured);
  std::fflush(stdout);
  Table table({"measure", "median", "min..max", "unit"});
  for (const Figure& figure : report.figures) {
    const auto [least, most] = std::minmax_element(figure.samples.begin(), figure.samples.end());
    table.Add({figure.name, Rounded(Spread::Of(figure.samples).median),
               absl::StrCat(Rounded(*least), "..", Rounded(*most)), figure.unit});
  }
  table.Print(markdown);
}

}  // namespace foredraft
