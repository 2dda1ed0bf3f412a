#pragma once

// What the adaptive draft policy learns from results: how long a decode step takes with K drafts, and how
// likely the draft of each position is accepted. No clock, no randomness: the same results give the same
// estimates. Owner: DraftPolicy. Thread: scheduler.

#include <vector>

namespace foredraft {

// Seconds of a decode step of one bucket, by K. Only the comparison between values of K matters, and some
// causes slow every K alike (longer contexts, a busy machine). So a time is a level, updated by steps with
// the K in use, times a ratio per K, updated by steps with another K: a slower machine changes the level, not
// the comparison.
class StepTimes {
 public:
  explicit StepTimes(int max_draft_len) : cells_(max_draft_len + 1) {}

  void Observe(int draft_len, double seconds, bool is_in_use);

  // False until this K was measured a few times.
  bool known(int draft_len) const;

  // Steps since this K was last measured; large where it never was.
  int age(int draft_len) const;

  // In seconds. Never decreases as K grows.
  double Estimate(int draft_len) const;

 private:
  struct Cell {
    int count = 0;  // observations
    int last_step = -(1 << 30);
    double ratio = 0;  // log seconds - level
  };
  double level_ = 0;  // log seconds
  int step_count_ = 0;
  std::vector<Cell> cells_;  // [Kmax + 1]
};

// The chance that the draft at position i (1..Kmax) is accepted, given that those before it were. Over all
// sequences, with older steps counting less and less.
class AcceptanceCurve {
 public:
  explicit AcceptanceCurve(int max_draft_len) : positions_(max_draft_len) {}

  // One decode step: [i] drafts of position i + 1 that were tried (all before them accepted), and accepted.
  void Observe(const std::vector<int>& tried, const std::vector<int>& accepted);

  double at(int position) const;

 private:
  struct Position {
    double tried = 2;  // decayed counts; before any step the chance is 0.75
    double accepted = 1.5;
  };
  std::vector<Position> positions_;  // [Kmax]
};

}  // namespace foredraft
