#pragma once

// A table of measurements with its heading: a section of RESULTS.md, or the same for a terminal.

#include <string>
#include <vector>

namespace foredraft {

struct Measurement {
  std::string name;
  std::string unit;
  std::vector<double> samples;  // one per round
};

// Appends the sample to the measurement of this name; adds the measurement if there is none.
void AddSample(std::vector<Measurement>& measurements, const std::string& name, const std::string& unit,
               double sample);

struct BenchReport {
  std::string heading;
  std::string measured;  // one sentence
  std::string command;
  std::vector<Measurement> measurements;
};

// To stdout.
void Print(const BenchReport& report, bool markdown);

// --markdown: print Markdown. --quick: run for a fraction of a second, which only shows that the program
// runs.
struct ReportFlags {
  bool markdown = false;
  bool quick = false;
};
ReportFlags ParseReportFlags(int argc, char** argv);

}  // namespace foredraft
