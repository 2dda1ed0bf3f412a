#pragma once

// The acceptance rate of the last 60 seconds, in buckets of one second. Not thread-safe. Time is an argument
// so that tests need no clock.

#include <array>
#include <cstdint>

#include "scheduler/request.h"

namespace foredraft {

class AcceptanceWindow {
 public:
  void Add(int64_t verified, int64_t accepted, SteadyTime now) {
    Second& second = seconds_[Index(now) % kSeconds];
    if (second.index != Index(now)) second = {.index = Index(now)};
    second.verified += verified;
    second.accepted += accepted;
  }

  // Accepted / verified drafts; 0 when none were verified.
  double Rate(SteadyTime now) const {
    int64_t verified = 0, accepted = 0;
    for (const Second& second : seconds_) {
      if (second.index <= Index(now) - kSeconds) continue;
      verified += second.verified;
      accepted += second.accepted;
    }
    return verified == 0 ? 0 : static_cast<double>(accepted) / static_cast<double>(verified);
  }

 private:
  static constexpr int64_t kSeconds = 60;
  struct Second {
    int64_t index = -kSeconds;  // seconds of the clock; out of the window = empty
    int64_t verified = 0;
    int64_t accepted = 0;
  };
  static int64_t Index(SteadyTime now) {
    return std::chrono::duration_cast<std::chrono::seconds>(now.time_since_epoch()).count();
  }
  std::array<Second, kSeconds> seconds_;
};

}  // namespace foredraft
