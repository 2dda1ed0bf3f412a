#pragma once

// Limits how often a lost group is started again, so that a crash that repeats ends the daemon, with pauses
// that grow while nothing is served in between. Pure; time is an argument. Owner: Daemon.

#include <algorithm>
#include <chrono>
#include <deque>
#include <optional>

namespace foredraft {

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

}  // namespace foredraft
