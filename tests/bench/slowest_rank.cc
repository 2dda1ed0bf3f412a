#include "tests/bench/slowest_rank.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>
#include <span>
#include <utility>

#include "base/check.h"

namespace foredraft {
namespace {

constexpr int kLayers = 4000;  // simulated: the standard error is about 0.02 experts
constexpr uint64_t kSeed = 57;

// `count` different values of [0, size), all equally likely.
class Draw {
 public:
  explicit Draw(int size) : values_(size) { std::iota(values_.begin(), values_.end(), 0); }

  // Valid until the next call.
  std::span<const int> operator()(int count, std::mt19937_64& random) {
    for (int i = 0; i < count; ++i) std::swap(values_[i], values_[i + random() % (values_.size() - i)]);
    return {values_.data(), static_cast<size_t>(count)};
  }

 private:
  std::vector<int> values_;
};

// Calls visit(expert) for the choices of one row after another, and row_ends() behind each, while it returns
// true.
template <class Visit, class RowEnds>
void ForRows(const ExpertChoice& choice, std::mt19937_64& random, const Visit& visit,
             const RowEnds& row_ends) {
  const int group_size = choice.expert_count / choice.groups;
  Draw draw_groups(choice.groups), draw_experts(choice.chosen_groups * group_size);
  do {
    const std::span<const int> groups = draw_groups(choice.chosen_groups, random);
    for (const int place : draw_experts(choice.top_k, random)) {
      visit(groups[place / group_size] * group_size + place % group_size);
    }
  } while (row_ends());
}

}  // namespace

SlowestRank::SlowestRank(const ExpertChoice& choice) : choice_(choice) {
  CHECK_EQ(choice.expert_count % choice.ranks, 0);
  CHECK_EQ(choice.expert_count % choice.groups, 0);
  CHECK_LE(choice.top_k, choice.expert_count / choice.groups * choice.chosen_groups);
  const int all = choice.rank_experts();
  std::mt19937_64 random(kSeed);
  std::vector<int64_t> unmet = {int64_t{all} *
                                kLayers};  // by rows: of the rank that meets most, in all layers
  for (int layer = 0; layer < kLayers; ++layer) {
    std::vector<bool> met(choice.expert_count);
    std::vector<int> met_by(choice.ranks);
    size_t rows = 0;
    ForRows(
        choice, random,
        [&](int expert) {
          met_by[expert / all] += !met[expert];
          met[expert] = true;
        },
        [&] {
          if (++rows == unmet.size()) unmet.push_back(0);
          const int most = *std::max_element(met_by.begin(), met_by.end());
          unmet[rows] += all - most;
          return most < all;
        });
  }
  for (const int64_t count : unmet) most_.push_back(all - static_cast<double>(count) / kLayers);
}

double SlowestRank::MostExperts(int rows) const {
  return static_cast<size_t>(rows) < most_.size() ? most_[rows] : choice_.rank_experts();
}

std::vector<int32_t> OthersChoices(const SlowestRank& slowest, int max_rows) {
  const ExpertChoice& choice = slowest.choice();
  const int own = choice.rank_experts();
  const int choices_per_row = (choice.ranks - 1) * choice.top_k;  // for each row of rank 0
  std::vector<int32_t> choices(size_t{1} * choices_per_row * max_rows, choice.expert_count - 1);
  std::mt19937_64 random(kSeed);
  Draw draw_named(own);
  const std::span<const int> named = draw_named(own, random);
  int count = 0;    // named so far
  double left = 1;  // the share of the own experts that the own rows do not meet
  for (int rows = 1; rows <= max_rows && count < own; ++rows) {
    left *= 1 - static_cast<double>(choice.top_k) / own;
    if (left <= 0) break;
    const double unmet = own - slowest.MostExperts(rows * choice.ranks);
    // A named expert is new if the own rows do not meet it.
    const double needed = std::clamp(own - unmet / left, 0.0, static_cast<double>(own));
    for (int i = 0; i < choices_per_row && count < std::lround(needed); ++i) {
      choices[size_t{1} * (rows - 1) * choices_per_row + i] = named[count++];
    }
  }
  return choices;
}

}  // namespace foredraft
