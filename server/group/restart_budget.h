#ifndef FOREDRAFT_SERVER_GROUP_RESTART_BUDGET_H_
#define FOREDRAFT_SERVER_GROUP_RESTART_BUDGET_H_

// Limits how often a lost group is started again, with growing pauses, so that a crash that repeats ends the
// daemon. Pure; time is an argument. Owner: Daemon.

#include <chrono>
#include <deque>
#include <optional>

namespace foredraft {

class RestartBudget {
 public:
  static constexpr int kRestarts = 5;  // within kWindow
  static constexpr std::chrono::minutes kWindow{10};

  // Takes a restart and returns the pause before it: 0, 1, 2, 4 or 8 s. Empty if the budget is spent.
  std::optional<std::chrono::seconds> Take(std::chrono::steady_clock::time_point now) {
    while (!taken_.empty() && now - taken_.front() >= kWindow) taken_.pop_front();
    const int count = static_cast<int>(taken_.size());
    if (count >= kRestarts) return std::nullopt;
    taken_.push_back(now);
    return std::chrono::seconds(count == 0 ? 0 : 1 << (count - 1));
  }

 private:
  std::deque<std::chrono::steady_clock::time_point> taken_;
};

}  // namespace foredraft

#endif  // FOREDRAFT_SERVER_GROUP_RESTART_BUDGET_H_
