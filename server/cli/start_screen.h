#pragma once

// What `foredraft serve` shows on stderr while it starts: a few lines and a progress bar per rank on a
// terminal, otherwise both as log lines (progress every 10%, or every 50% with several ranks).

#include <chrono>
#include <string>
#include <vector>

#include "ranks/start_observer.h"

namespace foredraft {

class StartScreen : public StartObserver {
 public:
  // Made after InstallLog, so that a terminal shows its lines and the log's in order.
  explicit StartScreen(bool terminal) : terminal_(terminal) {}
  ~StartScreen() override;

  void ModelKnown(const Config& config, const ModelSummary& summary) override;
  void Waiting(const std::string& what) override;
  void RanksKnown(const RankGroupSummary& summary) override;
  void Loading(int rank, int64_t done_bytes, int64_t total_bytes) override;
  void WarmingUp() override;
  void WarmedUp(int graph_count, double seconds) override;
  void Serving(const ServedAddresses& addresses) override;

 private:
  using Clock = std::chrono::steady_clock;

  struct Progress {  // of one rank
    int64_t done_bytes = 0;
    int64_t total_bytes = 0;  // 0: it has not begun to load
    int64_t logged_tenths = -1;
    Clock::time_point began;  // of its loading: ranks join at different times
    Clock::time_point ended;

    double seconds() const {
      const Clock::time_point until = done_bytes < total_bytes ? Clock::now() : ended;
      return std::chrono::duration<double>(until - began).count();
    }
  };

  void Line(const std::string& text) const;
  std::string Label(int rank) const;
  void DrawBars() const;

  const bool terminal_;
  std::vector<std::string> model_lines_;  // shown once the ranks are known
  std::vector<Progress> ranks_;
  std::string warm_up_;  // after the last bar
};

}  // namespace foredraft
