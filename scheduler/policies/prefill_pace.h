#pragma once

// How many prompt tokens an iteration takes: at most max_num_tokens, and no more than are expected to be
// computed in the time that an iteration may have. A rank whose iteration takes longer than
// parallel.step_timeout_s is given up, and the streams that decode wait for the iteration to end. What a
// token costs depends on the machine, the model, through attention on its position, and on how many tokens
// share the reading of the weights, so it is learned from the iterations before. No clock, no randomness: the
// same results give the same chunks. Owner: Scheduler. Thread: scheduler.

#include <array>
#include <cstdint>
#include <limits>

namespace foredraft {

// Prompt tokens of a rank in one iteration.
struct PrefillWork {
  int32_t tokens = 0;
  double position_sum = 0;  // of all tokens

  void Add(int32_t first, int32_t count) {
    tokens += count;
    position_sum += count * (first + count / 2.0);
  }
  // Needs at least one token.
  double mean_position() const { return position_sum / tokens; }
};

class PrefillPace {
 public:
  // Always allowed. The time of fewer tokens is not learned from: it is that of reading the weights.
  static constexpr int32_t kLeastTokens = 64;

  static constexpr double kNoLimit = std::numeric_limits<double>::infinity();

  explicit PrefillPace(int32_t max_num_tokens);

  // How many of `wanted` tokens, from position `first` on, fit into `seconds` together with `planned`.
  int32_t Room(const PrefillWork& planned, int32_t first, int32_t wanted, double seconds) const;

  void Observe(const PrefillWork& work, double seconds);

 private:
  // Size i has the iterations of [kLeastTokens 2^i, kLeastTokens 2^(i + 1)) tokens; the last size has no
  // upper end, because reading the weights costs little there.
  static constexpr int kSizes = 7;

  // The latest iteration of a size.
  struct Point {
    double position = 0;  // mean
    double tokens = 0;    // 0: there was none
    double seconds = 0;
  };
  // Cell k has the iterations whose mean position is in [2^k, 2^(k + 1)); all below kNear are in one cell.
  using Cell = std::array<Point, kSizes>;
  static constexpr int kCells = 32;

  // Attention over kNear positions takes no longer than all else that a token needs. Both take equally long
  // at 1,500 positions in a model of 1.6 GB with eight heads, and at 15,000 in DeepSeek-R1.
  static constexpr double kNear = 1024;

  static int CellOf(double position);
  static int SizeOf(double tokens);

  struct Estimate {
    double seconds = 0;
    bool known = false;
    bool is_bound = false;  // an upper bound: the cell has an iteration of at most as many tokens
  };
  static Estimate InCell(const Cell& cell, double position, double tokens);

  // The time of `work`, from the nearest cells at its mean position or before. Infinite while nothing is
  // known.
  double Seconds(const PrefillWork& work) const;

  const int32_t max_num_tokens_;
  std::array<Cell, kCells> cells_;
};

}  // namespace foredraft
