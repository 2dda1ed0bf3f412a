#ifndef FOREDRAFT_SCHEDULER_SPECULATION_H_
#define FOREDRAFT_SCHEDULER_SPECULATION_H_

// What a reload may change about drafts: how many, how they are accepted, who chooses how many. One value, so
// that an iteration sees all of a reload or nothing of it.

#include <map>

#include "config/config.h"
#include "scheduler/plan.h"

namespace foredraft {

struct DraftPolicyOptions {
  DraftPolicyKind kind = DraftPolicyKind::kFixed;
  std::map<int, int> schedule;  // decode bucket up to which this K is used -> K; above the last 0
  bool operator==(const DraftPolicyOptions&) const = default;
};

struct Speculation {
  int draft_len = 0;  // K of the fixed policy, the most of the others; <= max_draft_len
  Acceptance acceptance;
  DraftPolicyOptions draft_policy;
  bool operator==(const Speculation&) const = default;
};

}  // namespace foredraft

#endif  // FOREDRAFT_SCHEDULER_SPECULATION_H_
