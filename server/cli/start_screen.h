#ifndef FOREDRAFT_SERVER_CLI_START_SCREEN_H_
#define FOREDRAFT_SERVER_CLI_START_SCREEN_H_

// What `foredraft serve` shows on stderr while it starts: a few lines and a progress bar per rank on a
// terminal, otherwise the same as log lines (progress every 10%, or every 50% with several ranks).

#include <chrono>
#include <string>
#include <vector>

#include "server/group/start_observer.h"

namespace foredraft {

class StartScreen : public StartObserver {
 public:
  explicit StartScreen(bool terminal) : terminal_(terminal) {}

  void ModelKnown(const Config& config, const ModelFacts& facts) override;
  void Waiting(const std::string& what) override;
  void RanksKnown(const GroupFacts& facts) override;
  void Loading(int rank, int64_t done_bytes, int64_t total_bytes) override;
  void WarmedUp(int graph_count, double seconds) override;
  void Serving(const std::string& grpc_address, const std::string& metrics_address,
               const std::string& gateway_address) override;

 private:
  struct Progress {  // of one rank
    int64_t done_bytes = 0;
    int64_t total_bytes = 0;
    int64_t logged_tenths = -1;
  };

  void Line(const std::string& text) const;
  std::string Label(int rank) const;
  void DrawBars();
  double Seconds() const;  // since the start

  const bool terminal_;
  const std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
  std::vector<std::string> model_lines_;  // shown once the ranks are known
  std::vector<Progress> ranks_;
  bool drawn_ = false;
};

}  // namespace foredraft

#endif  // FOREDRAFT_SERVER_CLI_START_SCREEN_H_
