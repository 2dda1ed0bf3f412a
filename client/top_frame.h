#pragma once

// The screen of `foredraft top`: what a daemon says about itself, and how it looks. No terminal, no network.

#include <chrono>
#include <deque>
#include <optional>
#include <string>
#include <vector>

#include "client/metrics_page.h"
#include "foredraft/v1/admin.pb.h"
#include "foredraft/v1/generation.pb.h"

namespace foredraft {

// What does not change while a daemon runs.
struct TopServer {
  std::string address;
  v1::GetModelResponse model;
  int slots = 0;                // of all ranks; 0 = unknown
  std::string metrics_address;  // HOST:PORT; empty = the daemon has no page of metrics
};

// What a daemon said at one time.
struct TopSample {
  std::chrono::steady_clock::time_point time;
  v1::GetLoadResponse load;
  std::optional<MetricsPage> metrics;
  std::string metrics_error;  // why there is no page
  std::string error;          // the daemon does not answer: nothing else is valid
};

// The samples from which a frame is drawn, the newest last. Rates of tokens are over the last two samples,
// all other rates over the whole history. The history begins anew when a daemon does not answer or has
// restarted.
class TopHistory {
 public:
  void Add(TopSample sample);

  bool empty() const { return samples_.empty(); }
  const TopSample& newest() const { return samples_.back(); }
  double seconds() const;  // from the oldest sample to the newest
  // How much the sum of a metric grew since the oldest sample, and its rate since the sample before the
  // newest; absent: unknown.
  std::optional<double> Growth(const std::string& name, const MetricsPage::Labels& labels = {}) const;
  std::optional<double> LastRate(const std::string& name, const MetricsPage::Labels& labels = {}) const;
  // Tokens per second at the samples so far, the newest last; goes further back than Growth.
  const std::deque<double>& token_rates() const { return token_rates_; }

 private:
  std::optional<double> GrowthSince(const TopSample& before, const std::string& name,
                                    const MetricsPage::Labels& labels) const;

  std::deque<TopSample> samples_;
  std::deque<double> token_rates_;
};

// Text in one style. Styles are escape sequences, which a plain frame leaves out.
struct TopSpan {
  enum class Style { kPlain, kBold, kDim, kGood, kBad };
  std::string text;
  Style style = Style::kPlain;
};
using TopLine = std::vector<TopSpan>;

// The frame, at most `width` columns wide. The history is not empty.
std::vector<TopLine> TopFrame(const TopServer& server, const TopHistory& history, int width);

// A line as text, cut to `width` columns.
std::string TopText(const TopLine& line, int width, bool colour);

}  // namespace foredraft
