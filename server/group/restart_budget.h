#ifndef FOREDRAFT_SERVER_GROUP_RESTART_BUDGET_H_
#define FOREDRAFT_SERVER_GROUP_RESTART_BUDGET_H_

// How often, and after which pauses, a lost group is started again. A crash that comes back at once is not
// cured by trying harder. Pure; time is an argument.

#include <chrono>
#include <deque>
#include <optional>

namespace foredraft {

class RestartBudget {
 public:
  static constexpr int kRestarts = 5;  // within kWindow
  static constexpr std::chrono::minutes kWindow{10};

  // The pause before the next restart: none, 1 s, 2 s, 4 s, 8 s. Empty: the budget is spent.
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
