#pragma once

// What engine/comm/communicator.h promises, as checks of a connected group on any backend.

#include <chrono>
#include <functional>
#include <span>
#include <vector>

#include "tests/engine/comm/rank_threads.h"

namespace foredraft {

inline constexpr std::chrono::seconds kPatience{60};  // a deadline that a test does not reach
inline constexpr std::chrono::milliseconds kDeadline{200};
inline constexpr std::chrono::seconds kSlack{10};  // added to bounds for a busy machine

// Each for several counts of rows per rank, eagerly and from a captured graph that is replayed.
void ExpectAllGather(std::vector<RankParts>& group);
void ExpectAllToAll(std::vector<RankParts>& group);
// Both among the ranks of adjacent sets and of sets with a stride, each with rows of its own.
void ExpectSets(std::vector<RankParts>& group);
// AllReduce, Broadcast and Barrier.
void ExpectHostCollectives(std::vector<RankParts>& group);

// One call of every collective.
struct Call {
  const char* name;
  std::function<absl::Status(RankParts& parts)> run;
};
std::span<const Call> AllCalls();

// Every collective fails at once with `status`.
void ExpectOver(const absl::Status& status, RankParts& parts);

}  // namespace foredraft
