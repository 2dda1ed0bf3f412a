#pragma once

// How many prompt tokens an iteration takes: at most max_num_tokens, and no more than are expected to be
// computed in the time that an iteration may have. A rank whose iteration takes longer than
// parallel.step_timeout_s is given up, and the streams that decode wait for the iteration to end. What a
// token costs depends on the machine, the model and, through attention, on its position, so it is learned
// from the iterations before. No clock, no randomness: the same results give the same chunks. Owner:
// Scheduler. Thread: scheduler.

#include <array>
#include <cstdint>

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
  // Always allowed. The time of fewer says nothing, as it is that of reading the weights.
  static constexpr int32_t kLeastTokens = 256;

  // `seconds`: of an iteration's prompt tokens; 0: as long as max_num_tokens take.
  PrefillPace(int32_t max_num_tokens, double seconds);

  // How many of `wanted` tokens from position `first` on there is room for beside `planned`.
  int32_t Room(const PrefillWork& planned, int32_t first, int32_t wanted) const;

  void Observe(const PrefillWork& work, double seconds);

 private:
  // The latest iteration whose mean position is in [2^k, 2^(k + 1)); all below kNear are one.
  struct Cell {
    double position = 0;
    double token_seconds = 0;  // of a token there
    bool known = false;
  };
  static constexpr int kCells = 32;

  // Attention over so many positions takes no longer than all else that a token needs: it does over 1,500 in
  // a model of 1.6 GB with eight heads, over 15,000 in DeepSeek-R1.
  static constexpr double kNear = 1024;

  static int CellOf(double position);

  // A bound, from the nearest iteration at such a position or before it. Infinite while nothing is known.
  double TokenSeconds(double position) const;

  const int32_t max_num_tokens_;
  const double seconds_;
  std::array<Cell, kCells> cells_;
};

}  // namespace foredraft
