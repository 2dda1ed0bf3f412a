#pragma once

// When requests are due: all at once (a closed loop, where only the concurrency delays them), or as a Poisson
// process. Not thread safe.

#include <cstdint>
#include <optional>

namespace foredraft {

class Arrivals {
 public:
  // `rate_per_s` absent = closed loop.
  Arrivals(std::optional<double> rate_per_s, uint64_t seed);

  // When the next request is due, since the start of the run. The first is due at 0.
  double next_s() const { return next_s_; }
  void Advance();

 private:
  const std::optional<double> rate_per_s_;
  const uint64_t seed_;
  uint64_t drawn_ = 0;
  double next_s_ = 0;
};

}  // namespace foredraft
