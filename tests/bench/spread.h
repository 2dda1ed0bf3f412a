#ifndef FOREDRAFT_TESTS_BENCH_SPREAD_H_
#define FOREDRAFT_TESTS_BENCH_SPREAD_H_

#include <algorithm>
#include <vector>

namespace foredraft {

// What a set of measurements says: its median, and the quartiles on either side.
struct Spread {
  double median = 0;
  double low = 0;
  double high = 0;

  // Zeros where there are none.
  static Spread Of(std::vector<double> values) {
    if (values.empty()) return {};
    std::sort(values.begin(), values.end());
    const size_t last = values.size() - 1;
    return {.median = values[last / 2 + last % 2], .low = values[last / 4], .high = values[last - last / 4]};
  }
};

}  // namespace foredraft

#endif  // FOREDRAFT_TESTS_BENCH_SPREAD_H_
