#ifndef FOREDRAFT_SERVER_CLI_START_SCREEN_H_
#define FOREDRAFT_SERVER_CLI_START_SCREEN_H_

// What `foredraft serve` shows while it starts, on stderr: a few lines and a bar on a terminal, the same
// facts as log lines (a line per 10% loaded) otherwise.

#include <chrono>

#include "server/daemon.h"

namespace foredraft {

class StartScreen : public StartObserver {
 public:
  explicit StartScreen(bool terminal) : terminal_(terminal) {}

  void ModelKnown(const Config& config, const ModelFacts& facts) override;
  void Loading(int64_t done_bytes, int64_t total_bytes) override;
  void WarmedUp(int graph_count, double seconds) override;
  void Serving(const std::string& grpc_address, const std::string& metrics_address) override;

 private:
  void Line(const std::string& text) const;

  const bool terminal_;
  const std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
  int64_t shown_ = -1;  // tenths already logged, or bytes already drawn
};

}  // namespace foredraft

#endif  // FOREDRAFT_SERVER_CLI_START_SCREEN_H_
