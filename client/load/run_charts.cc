#include "client/load/run_charts.h"

#include <algorithm>
#include <cmath>

namespace foredraft {
namespace {

constexpr double kIntervals = 100;  // about as many as a chart can show

// The next of 1, 2, 5, 10, ... times a power of ten.
double RoundUp(double value) {
  const double power = std::pow(10, std::floor(std::log10(value)));
  for (const double digit : {1.0, 2.0, 5.0}) {
    if (digit * power >= value) return digit * power;
  }
  return 10 * power;
}

}  // namespace

RunTimeline TimelineOf(const LoadResult& result) {
  RunTimeline timeline;
  if (result.requests.empty() || result.wall_s <= 0) return timeline;
  timeline.interval_s = RoundUp(result.wall_s / kIntervals);
  const size_t count = static_cast<size_t>(std::ceil(result.wall_s / timeline.interval_s));
  timeline.tokens_per_s.assign(count, 0);
  timeline.requests.assign(count, 0);
  const auto interval_of = [&](double time_s) {
    return std::min(static_cast<size_t>(std::max(time_s, 0.0) / timeline.interval_s), count - 1);
  };
  // The last interval may be shorter: the run ends in it.
  const auto length_s = [&](size_t interval) {
    return std::min(timeline.interval_s, result.wall_s - static_cast<double>(interval) * timeline.interval_s);
  };
  for (const MeasuredRequest& request : result.requests) {
    if (request.output_tokens == 0) continue;
    int32_t first_tokens = request.output_tokens;
    for (const ChunkGap& gap : request.gaps) first_tokens -= gap.token_count;
    double time_s = request.first_token_s;
    timeline.tokens_per_s[interval_of(time_s)] += first_tokens;
    for (const ChunkGap& gap : request.gaps) {
      time_s += gap.gap_ms / 1e3;
      timeline.tokens_per_s[interval_of(time_s)] += gap.token_count;
    }
    for (size_t i = interval_of(request.sent_s); i <= interval_of(request.last_token_s); ++i) {
      const double begin_s = static_cast<double>(i) * timeline.interval_s;
      const double shared_s =
          std::min(request.last_token_s, begin_s + length_s(i)) - std::max(request.sent_s, begin_s);
      if (length_s(i) > 0) timeline.requests[i] += std::max(shared_s, 0.0) / length_s(i);
    }
  }
  for (size_t i = 0; i < count; ++i) timeline.tokens_per_s[i] /= std::max(length_s(i), 1e-9);
  // The last interval is left out if it is too short to measure a rate.
  if (count > 1 && length_s(count - 1) < 0.5 * timeline.interval_s) {
    timeline.tokens_per_s.pop_back();
    timeline.requests.pop_back();
  }
  return timeline;
}

RunCharts ChartsOf(const LoadResult& result) {
  RunCharts charts{.timeline = TimelineOf(result)};
  for (const MeasuredRequest& request : result.requests) charts.latencies.Add(request);
  return charts;
}

}  // namespace foredraft
