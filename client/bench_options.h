#pragma once

// The command line of `foredraft bench`.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "client/client_options.h"
#include "client/load/load_run.h"
#include "client/load/workload.h"

namespace foredraft {

struct BenchOptions {
  ServerAddress server;
  std::optional<int64_t> concurrency, connections, request_count;
  std::optional<double> request_rate_per_s, duration_s, timeout_s;
  int64_t warmup = 2;
  std::string dataset;
  SpeedBenchOptions speed_bench;  // path empty = not asked for
  bool thinking = false, no_thinking = false;
  std::string reasoning_effort;
  RandomWorkloadOptions random;
  bool stop_at_eos = false;
  SamplingOptions sampling;
  std::optional<int32_t> max_draft_tokens;
  bool strict_acceptance = false;
  std::vector<int> compare;  // max_draft_tokens of each setting; empty = one run
  std::optional<std::string> baseline;
  int64_t rounds = 3;
  std::optional<std::string> json;  // "-" = stdout
  std::optional<std::string> html;

  // Registers the options and the help. The options must outlive the command.
  void Add(CLI::App& command);
  // OK or an error that names the option, its value and what is allowed.
  absl::Status Check() const;

  int ConnectionCount() const;
  // `default_count` requests are sent (chats, with SPEED-Bench) unless an option limits the run.
  LoadOptions Load(int64_t default_count) const;
};

}  // namespace foredraft
