#pragma once

// Counts events that a peer may cause as often as it likes, for a log that has at most one line per interval
// about them. Not thread-safe.

#include <chrono>
#include <utility>

namespace foredraft {

class PacedCount {
 public:
  using Clock = std::chrono::steady_clock;

  explicit PacedCount(Clock::duration interval) : interval_(interval) {}

  // Counts one event. Returns how many there were since the last line if a line is due now, else 0.
  int Add(Clock::time_point now = Clock::now()) {
    ++count_;
    if (now < next_line_) return 0;
    next_line_ = now + interval_;
    return std::exchange(count_, 0);
  }

 private:
  const Clock::duration interval_;
  Clock::time_point next_line_;
  int count_ = 0;
};

}  // namespace foredraft
