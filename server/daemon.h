#pragma once

// Makes a serving daemon from a configuration: the only class that connects configuration, ranks, scheduler
// and frontend.
//
// Life: Start (the ports open, requests get UNAVAILABLE), Load (SERVING), Run until drained or a rank is
// lost. Any thread may call RequestDrain, Reload and functions that only read; the owner's thread calls the
// rest.

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "config/config_reader.h"
#include "engine/model/model_config.h"
#include "ranks/rank_group.h"
#include "ranks/start_observer.h"
#include "server/api/reload.h"
#include "server/frontend.h"

namespace foredraft {

// A configuration with its defaults resolved against this machine and the model.
struct ResolvedConfig {
  LoadedConfig loaded;
  ModelConfig model;
};
absl::StatusOr<ResolvedConfig> ResolveConfig(LoadedConfig loaded);

// After this long without a turn of the scheduler or the output thread, the daemon counts as hung: a turn may
// collect two results, each within the step timeout; the rest is slack for a busy machine.
std::chrono::seconds LongestTurn(const Config& config);

// Limits how often a lost group is started again, so that a repeated crash ends the daemon. The pauses
// between restarts grow while nothing is served. Time is an argument.
class RestartBudget {
 public:
  static constexpr std::chrono::minutes kWindow{10};

  explicit RestartBudget(int max_restarts) : max_restarts_(max_restarts) {}

  // Takes a restart and returns the pause before it: 0, 1, 2, 4, then 8 s; 0 again once the group has served
  // since the last restart. Empty if there were max_restarts within the window.
  std::optional<std::chrono::seconds> Take(std::chrono::steady_clock::time_point now, bool has_served) {
    constexpr int kMostDoublings = 3;
    while (!taken_.empty() && now - taken_.front() >= kWindow) taken_.pop_front();
    if (static_cast<int>(taken_.size()) >= max_restarts_) return std::nullopt;
    in_vain_ = has_served || taken_.empty() ? 0 : in_vain_ + 1;
    taken_.push_back(now);
    return std::chrono::seconds(in_vain_ == 0 ? 0 : 1 << std::min(in_vain_ - 1, kMostDoublings));
  }

 private:
  const int max_restarts_;
  int in_vain_ = 0;  // restarts in a row after which nothing was served
  std::deque<std::chrono::steady_clock::time_point> taken_;
};

class Daemon {
 public:
  using ReadAgain = std::function<absl::StatusOr<LoadedConfig>()>;

  // Errors are one line that names the file, key or address at fault.
  static absl::StatusOr<std::unique_ptr<Daemon>> Start(ResolvedConfig resolved, ReadAgain read_again);
  ~Daemon();

  absl::Status Load(StartObserver& observer);
  // Returns after RequestDrain, once the last call has ended or the drain has cut it short. Not ok: a rank
  // was lost for good. A drain that cuts calls short is ok: a stop was asked for, and a supervisor that
  // restarts after failures must not undo it.
  absl::Status Run();

  // The first call begins a drain; the second ends it at once.
  void RequestDrain();
  // Reads configuration, tokens and certificates again.
  absl::StatusOr<ReloadReport> Reload();
  // True once Load is done: from then on there may be requests to drain.
  bool loaded() const { return loaded_.load(); }
  ServingState state() const { return frontend_->health().state(); }
  std::optional<SteadyTime> last_turn() const { return frontend_->last_turn(); }
  std::chrono::seconds drain_timeout();

 private:
  explicit Daemon(ResolvedConfig resolved)
      : config_(std::move(resolved.loaded.config)),
        admin_is_default_(!resolved.loaded.origins.contains("server.admin_address")),
        model_(resolved.model),
        restarts_(config_.parallel.max_restarts) {}

  absl::Status Listen(ReadAgain read_again);
  void Apply(const Config& config);
  std::optional<ThinkingIds> tokenizer_thinking();
  absl::Status CheckThinking(const Config& again);
  absl::Status CheckRanks();
  absl::Status Restart(const absl::Status& lost);
  bool WaitForDrain(std::chrono::milliseconds timeout);
  absl::Status Drain();

  const Config config_;  // as started
  const bool admin_is_default_;
  const ModelConfig model_;
  std::unique_ptr<Reloader> reloader_;
  std::unique_ptr<RankGroup> ranks_;  // outlives the frontend
  SchedulerOptions scheduler_;        // once loaded
  RestartBudget restarts_;
  double tokens_at_restart_ = 0;  // generated before the last restart
  bool ranks_down_ = false;       // aborted, and not started again because of a drain
  std::unique_ptr<Frontend> frontend_;

  std::atomic<bool> loaded_ = false;

  std::mutex mutex_;
  std::condition_variable changed_;
  int drain_requests_ = 0;                         // guarded by mutex_
  int drain_timeout_s_ = 0;                        // guarded by mutex_
  std::optional<ThinkingIds> tokenizer_thinking_;  // guarded by mutex_; none until the tokenizer is read
};

}  // namespace foredraft
