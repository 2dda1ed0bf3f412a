#pragma once

// Limits how much of something may come per time. Callers pass the time. Not thread-safe.

#include <algorithm>
#include <chrono>

namespace foredraft {

struct Rate {
  double burst = 0;       // at once
  double per_second = 0;  // in the long run
};

class TokenBucket {
 public:
  using Time = std::chrono::steady_clock::time_point;

  TokenBucket(Rate rate, Time now) : rate_(rate), level_(rate.burst), time_(now) {}

  // False: nothing is left, and nothing is taken. Otherwise the whole amount is taken: the level may become
  // negative, so that an amount above the burst passes once and is paid for later.
  bool Take(double amount, Time now) {
    Refill(now);
    if (level_ <= 0) return false;
    level_ -= amount;
    return true;
  }
  bool IsFull(Time now) const {
    const double elapsed = std::chrono::duration<double>(now - time_).count();
    return level_ + elapsed * rate_.per_second >= rate_.burst;
  }
  // When Take succeeds again.
  Time ready_at() const {
    const double missing = std::max(-level_, 0.0) / rate_.per_second;
    return time_ + std::chrono::duration_cast<Time::duration>(std::chrono::duration<double>(missing)) +
           std::chrono::milliseconds(1);
  }

 private:
  void Refill(Time now) {
    if (now <= time_) return;
    const double elapsed = std::chrono::duration<double>(now - time_).count();
    level_ = std::min(level_ + elapsed * rate_.per_second, rate_.burst);
    time_ = now;
  }

  Rate rate_;
  double level_;
  Time time_;
};

}  // namespace foredraft
