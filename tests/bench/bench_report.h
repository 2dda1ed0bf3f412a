#ifndef FOREDRAFT_TESTS_BENCH_BENCH_REPORT_H_
#define FOREDRAFT_TESTS_BENCH_BENCH_REPORT_H_

// What the programs of tests/bench take and print, so that tests/bench/run can join them:
//   --markdown   a section for RESULTS.md: heading, what was measured and how, a table
//   --json       a line per figure: name, median, unit, least, most, parted by tabs
//   --quick      a fraction of a second, to see that it runs: the figures say nothing
// Without the first two: the same table for people.

#include <string>
#include <vector>

namespace foredraft {

enum class ReportStyle { kText, kTabs, kMarkdown };

struct BenchFlags {
  ReportStyle style = ReportStyle::kText;
  bool quick = false;
};

struct Figure {
  std::string name;
  std::string unit;
  std::vector<double> samples;  // one per round
};

struct BenchReport {
  std::string heading;
  std::string measured;  // one sentence
  std::string command;
  std::vector<Figure> figures;
};

// Ends the program with 2 and a line on stderr for a flag that it does not know.
BenchFlags ParseBenchFlags(int argc, char** argv);

// To stdout.
void Print(const BenchReport& report, ReportStyle style);

}  // namespace foredraft

#endif  // FOREDRAFT_TESTS_BENCH_BENCH_REPORT_H_
