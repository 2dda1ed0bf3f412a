#pragma once

// Charts as inline SVG. Colours come from the page's style sheet: element classes are `s0`, `s1`, ... for
// series, and `grid`, `label`, `mark` for the rest. No scripts; a title element gives a tooltip where it
// helps.

#include <string>
#include <utility>
#include <vector>

#include "client/measure/summary.h"

namespace foredraft {

// The ticks of an axis: from `low` to `high` in steps of 1, 2 or 5 times a power of ten.
struct AxisTicks {
  double low = 0;
  double high = 1;
  double step = 1;
};
// Covers `most`, from 0 on, with three to eight steps.
AxisTicks TicksUpTo(double most);

// "<", "&" and quotes as HTML needs them.
std::string EscapeHtml(const std::string& text);

struct ChartLabels {
  std::string name;  // what a screen reader says
  std::string x, y;  // axes
};

struct LineSeries {
  std::string name;
  std::vector<std::pair<double, double>> points;  // in order of x
};

// Lines from 0 on; a single series is filled below.
std::string LineChart(const ChartLabels& labels, const std::vector<LineSeries>& series);

// How many samples lie in each of equal intervals up to the 99.5th percentile, with marks at p50, p90 and
// p99.
std::string HistogramChart(const ChartLabels& labels, const std::vector<WeightedSample>& samples);

struct BarGroup {
  std::string name;            // on the x axis
  std::vector<double> shares;  // one per series, 0..1
};
std::string BarChart(const ChartLabels& labels, const std::vector<BarGroup>& groups);

struct RangeRow {
  std::string name;
  double low = 0, middle = 0, high = 0;
};
// One row each: a line from low to high, a dot at the middle, and a reference line at 1. Row i has the colour
// of series first_series + i.
std::string RangeChart(const ChartLabels& labels, const std::vector<RangeRow>& rows, int first_series);

}  // namespace foredraft
