#pragma once

// The rank for which a layer waits. Where several ranks spread the experts of a layer, each reads the weights
// of the experts that rows of all ranks chose, and every rank waits for the one that has most of them: at few
// rows it has several times the mean.

#include <cstdint>
#include <vector>

namespace foredraft {

// How rows choose experts, as a router without preferences does: the groups of a row are equally likely, then
// the experts of these.
struct ExpertChoice {
  int expert_count = 0;  // of all ranks, which have equal consecutive parts
  int ranks = 1;
  int top_k = 1;          // experts of a row, all different
  int groups = 1;         // equal consecutive parts of the experts
  int chosen_groups = 1;  // of a row

  int rank_experts() const { return expert_count / ranks; }
};

class SlowestRank {
 public:
  // Simulates layers with a fixed seed.
  explicit SlowestRank(const ExpertChoice& choice);

  // Expected number of different experts of the rank that meets most, if `rows` rows of all ranks choose.
  double MostExperts(int rows) const;

  const ExpertChoice& choice() const { return choice_; }

 private:
  const ExpertChoice choice_;
  std::vector<double> most_;  // by rows; behind the end, all experts of the rank
};

// The choices of the other ranks' rows, [(ranks - 1) * max_rows, top_k], for rank 0 whose own rows choose
// among its own experts alone. For every r, the first (ranks - 1) * r rows name as many of rank 0's experts
// that with r rows of its own it is expected to meet as many as the slowest rank, within half an expert. The
// other choices are the last rank's last expert.
std::vector<int32_t> OthersChoices(const SlowestRank& slowest, int max_rows);

}  // namespace foredraft
