// SelectBest against a stable sort.

#include "kernels/cpu/attention/best_entries.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <functional>
#include <limits>
#include <numeric>
#include <random>
#include <vector>

namespace foredraft {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

std::vector<int32_t> Best(const std::vector<float>& scores, int32_t first, int32_t top_k) {
  std::vector<int32_t> best(top_k, -1);
  cpu::SelectBest(scores.data(), static_cast<int32_t>(scores.size()), first, top_k, best.data());
  return best;
}

std::vector<int32_t> Sorted(const std::vector<float>& scores, int32_t first, int32_t top_k) {
  const auto value = [&](int32_t i) { return scores[i] != scores[i] ? -kInfinity : scores[i]; };
  std::vector<int32_t> order(scores.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) { return value(a) > value(b); });
  order.resize(top_k);
  std::sort(order.begin(), order.end());
  for (int32_t& place : order) place += first;
  return order;
}

// A sequence of scores by its index.
using Scores = std::function<float(int i, std::mt19937& random)>;

struct Kind {
  const char* name;
  Scores score;
};

const Kind kKinds[] = {
    {"any bits", [](int, std::mt19937& random) { return std::bit_cast<float>(uint32_t(random())); }},
    {"one octave",  // one bucket of the first digit holds a quarter of them
     [](int, std::mt19937& random) { return 1.0f + static_cast<float>(random() % 1000003) / 1000003.0f; }},
    {"neighbours",
     [](int, std::mt19937& random) { return std::bit_cast<float>(uint32_t(0x3f800000u + random() % 700)); }},
    {"few values", [](int, std::mt19937& random) { return static_cast<float>(random() % 3) - 1.0f; }},
    {"zeros of both signs", [](int, std::mt19937& random) { return random() % 2 != 0 ? 0.0f : -0.0f; }},
    {"equal", [](int, std::mt19937&) { return 0.25f; }},
    {"rising", [](int i, std::mt19937&) { return static_cast<float>(i) - 500.0f; }},
    {"falling", [](int i, std::mt19937&) { return 500.0f - static_cast<float>(i); }},
    {"not finite",
     [](int, std::mt19937& random) {
       constexpr float kValues[] = {kNan, -kNan, kInfinity, -kInfinity, 1.0f, -1.0f};
       return kValues[random() % 6];
     }},
    {"NaN", [](int, std::mt19937&) { return kNan; }},
};

TEST(SelectBest, AgreesWithAStableSort) {
  for (const Kind& kind : kKinds) {
    std::mt19937 random(7);
    for (const int count : {2, 3, 5, 63, 64, 66, 1000, 4097}) {
      std::vector<float> scores;
      for (int i = 0; i < count; ++i) scores.push_back(kind.score(i, random));
      for (const int top_k : {1, 2, 3, count / 3, count / 2, count - 1}) {
        if (top_k < 1 || top_k >= count) continue;
        for (const int first : {0, 1234}) {
          EXPECT_EQ(Best(scores, first, top_k), Sorted(scores, first, top_k))
              << kind.name << ", the best " << top_k << " of " << count << ", from " << first;
        }
      }
    }
  }
}

}  // namespace
}  // namespace foredraft
