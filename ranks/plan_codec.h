#pragma once

// Plans and results as bytes between a leader and its workers: the fields in the order of
// scheduler/plan_fields.h, without tags, because both ends are the same build (PlanLayout). Numbers are
// varints of the difference to the number before them in their list, reals are their bits. Pure. Decoding
// gives back every field as it was encoded, so a rank behind a stream gets the same plan as a rank in this
// process (same-plan); it refuses a value out of its range before it builds an object with it.
// INVALID_ARGUMENT names the field, its value and what is allowed, on one line.

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "scheduler/field_visitor.h"
#include "scheduler/plan.h"

namespace foredraft {

// Encodes the fields that all ranks share and, of plan.ranks, the one of tensor group `rank`.
std::string EncodePlan(const IterationPlan& plan, int rank);
// The plan's `ranks` has one entry per tensor group; all except `rank`'s are empty.
absl::StatusOr<IterationPlan> DecodePlan(absl::string_view bytes, int rank, const PlanLimits& limits);

// Which result answers a plan.
struct ExpectedResult {
  uint64_t number = 0;
  int32_t draft_len = 0;
  std::vector<int32_t> live_slots;
};

std::string EncodeResult(const RankResult& result);
absl::StatusOr<RankResult> DecodeResult(absl::string_view bytes, const ExpectedResult& expected,
                                        const PlanLimits& limits);
// The most bytes of a result.
int64_t LargestResult(const PlanLimits& limits);

// 8 hex digits over the names, types and order of all fields: a leader and a worker that differ in it do not
// understand each other.
std::string PlanLayout();

}  // namespace foredraft
