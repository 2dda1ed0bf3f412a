#include "tests/bench/library_rates.h"
#include "tests/bench/ops_rates.h"

namespace foredraft {

DeviceRates MeasureRates(Device& device, bool small) {
  const int width = small ? 1 << 8 : 1 << 14;
  const double rate = Bf16RateOfOps(device, width / 2);
  return {.bytes_per_second = CopyRateOfOps(device, width), .bf16_flops = rate, .fp8_flops = 2 * rate};
}

std::optional<double> LibraryGemmSeconds(int, int, int) { return std::nullopt; }

}  // namespace foredraft
