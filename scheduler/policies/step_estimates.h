#pragma once

// What the draft policies learn from results: how long a decode step takes with K drafts, and how likely the
// draft of each position is accepted. No clock, no randomness: the same results give the same estimates.
// Owner: DraftPolicy. Thread: scheduler.

#include <vector>

namespace foredraft {

// What the time of a decode step depends on, within one bucket.
struct StepShape {
  int draft_len = 0;   // K
  int verify_len = 0;  // v: per seat, the drafts that the step has rows for; K, or less where it cuts drafts

  // A step with a row for every draft.
  static constexpr StepShape Of(int draft_len) { return {draft_len, draft_len}; }

  // The shape's place among all with 0 < v <= K or v = K = 0.
  constexpr int index() const { return draft_len * (draft_len - 1) / 2 + verify_len; }
  static constexpr int Count(int max_draft_len) { return Of(max_draft_len).index() + 1; }
  // The shapes, by index.
  static std::vector<StepShape> All(int max_draft_len);

  constexpr bool cuts() const { return verify_len < draft_len; }
  bool operator==(const StepShape&) const = default;
};

// Seconds of a decode step of one bucket, by its shape. Only the comparison between shapes matters, and most
// causes of change slow every shape alike (longer contexts, a busy machine). So the logarithms of all shapes'
// times are one state of a Kalman filter: a step of one shape moves the estimates of the others by the share
// of the changes since their measurement that is common to all. A shape whose few measurements were lucky is
// corrected by its own next steps, and the others stay. Cost: (number of shapes)^2 per step.
class StepTimes {
 public:
  explicit StepTimes(int max_draft_len);

  void Observe(StepShape shape, double seconds);

  // False until this shape was measured a few times.
  bool known(StepShape shape) const;

  // Steps since this shape was last measured, or all measured steps if it never was.
  int age(StepShape shape) const;

  // The time of a known shape, in seconds. Estimate never decreases as K or v grows.
  double Measured(StepShape shape) const;
  double Estimate(StepShape shape) const;

  const std::vector<StepShape>& shapes() const { return shapes_; }
  int known_count() const;

 private:
  struct Cell {
    int count = 0;  // observations
    int last_step = 0;
    double log_seconds = 0;
  };
  // Adds the variance `common` to a change that all shapes share, and `own` to each shape's own change.
  void Widen(double common, double own);

  int step_count_ = 0;
  std::vector<StepShape> shapes_;
  std::vector<Cell> cells_;                      // of each shape
  std::vector<std::vector<double>> covariance_;  // of log_seconds [shape][shape]
};

// The chance that the draft at position i (1..Kmax) is accepted, given that those before it were. It is over
// all sequences; older steps count less and less.
class AcceptanceCurve {
 public:
  explicit AcceptanceCurve(int max_draft_len) : positions_(max_draft_len) {}

  // Takes one decode step: [i] counts the drafts at position i + 1 that were tried (all before them accepted)
  // or accepted.
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
