#include "client/load/arrivals.h"

#include <cmath>

#include "client/load/random_bits.h"

namespace foredraft {

Arrivals::Arrivals(std::optional<double> rate_per_s, uint64_t seed) : rate_per_s_(rate_per_s), seed_(seed) {}

void Arrivals::Advance() {
  // The gaps of a Poisson process are exponential.
  if (rate_per_s_) next_s_ += -std::log1p(-RandomUnit(seed_, drawn_++)) / *rate_per_s_;
}

}  // namespace foredraft
