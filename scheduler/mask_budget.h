#pragma once

// How much work on masks a client may ask for: a number of steps (grammar/limits.h, MaskWork) for each decode
// step. A client that has had more owes the rest. Later steps pay it off; until then the client's slots are
// held. Slots of other clients go on. Owner: Scheduler. Not thread-safe.

#include <algorithm>
#include <cstdint>

#include "absl/container/flat_hash_map.h"

namespace foredraft {

class MaskBudget {
 public:
  explicit MaskBudget(int thread_count) : thread_count_(thread_count) {}

  // Takes the time of a decode step, masks included.
  void Observe(double step_seconds) {
    if (step_seconds <= 0) return;
    step_seconds_ = step_seconds_ == 0 ? step_seconds : step_seconds_ + (step_seconds - step_seconds_) / 8;
  }
  // One client's allowance for a step: what the threads get done in a quarter of the step.
  int64_t per_step() const {
    const double steps = step_seconds_ / 4 * thread_count_ * kStepsPerSecond;
    return std::max(kLeastPerStep, static_cast<int64_t>(steps));
  }
  // Called when another decode step is planned: every debt shrinks by a step's allowance.
  void Pay() {
    const int64_t paid = per_step();
    absl::erase_if(owed_, [paid](auto& client) { return (client.second -= paid) <= 0; });
  }
  void Charge(uint64_t client, int64_t steps) { owed_[client] += steps; }
  int64_t Owes(uint64_t client) const {
    const auto found = owed_.find(client);
    return found == owed_.end() ? 0 : found->second;
  }

 private:
  static constexpr double kStepsPerSecond = 20e6;
  static constexpr int64_t kLeastPerStep = 4'000;

  const int thread_count_;
  double step_seconds_ = 0;
  absl::flat_hash_map<uint64_t, int64_t> owed_;  // more than 0
};

}  // namespace foredraft
