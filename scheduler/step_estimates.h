#ifndef FOREDRAFT_SCHEDULER_STEP_ESTIMATES_H_
#define FOREDRAFT_SCHEDULER_STEP_ESTIMATES_H_

// What the adaptive draft policy has learned from results: how long a decode step of a bucket takes with K
// drafts, and how likely the draft of each position is accepted. No clock, no randomness: the same results
// give the same estimates. Owner: DraftPolicy. Thread: scheduler.

#include <vector>

namespace foredraft {

// Seconds of a decode step, per (bucket, K). In logarithms: a level per bucket, which follows what slows all
// K alike (longer contexts, a busy machine), and a shape over K, which is the bucket's own and moves slowly.
class StepTimes {
 public:
  // Buckets ascending.
  StepTimes(const std::vector<int>& buckets, int max_draft_len);

  void Observe(int bucket, int draft_len, double seconds);

  // Comparable between the K of one bucket; in seconds where the bucket was observed. A cell never observed
  // is estimated from its bucket's others, else from the shape of the nearest bucket that has one.
  double Estimate(int bucket, int draft_len) const;

  bool known(int bucket, int draft_len) const;

  // Steps of this bucket since the cell was last observed; large where it never was.
  int age(int bucket, int draft_len) const;

 private:
  struct Cell {
    double weight = 0;     // observations, less those that grew old; 0 = none yet
    double shape = 0;      // log seconds - level
    bool doubted = false;  // the last observation was far too long, and was left aside
    int last_step = 0;
  };
  struct Bucket {
    int size = 0;
    int step_count = 0;
    double level = 0;
    std::vector<Cell> cells;  // [Kmax + 1]
  };

  int IndexOf(int bucket) const;
  static int CountKnown(const Bucket& bucket);
  double ShapeOf(const Bucket& bucket, int draft_len) const;
  const Bucket* NearestWithShape(int index) const;

  std::vector<Bucket> buckets_;
};

// The chance that the draft at position i (1..Kmax) is accepted, given that those before it were. The group's
// as a whole, over its last few hundred drafts.
class AcceptanceCurve {
 public:
  explicit AcceptanceCurve(int max_draft_len);

  // One decode step: [i] drafts of position i + 1 that were tried (all before them accepted), and accepted.
  void Observe(const std::vector<int>& tried, const std::vector<int>& accepted);

  double at(int position) const;

 private:
  struct Position {
    double tried = 2;  // discounted counts; starts with a mild optimism, which few results outweigh
    double accepted = 1.5;
  };
  std::vector<Position> positions_;  // [Kmax]
};

}  // namespace foredraft

#endif  // FOREDRAFT_SCHEDULER_STEP_ESTIMATES_H_
