#pragma once

// What a reload may change about drafts: their number, the acceptance rule, the policy. One value, so that a
// reload takes effect as a whole, between two iterations.

#include <map>

#include "config/acceptance_rule.h"
#include "config/config.h"

namespace foredraft {

struct DraftPolicyOptions {
  DraftPolicyKind kind = DraftPolicyKind::kFixed;
  std::map<int, int> schedule;  // decode bucket up to which K applies -> K; above the last one K is 0
  bool operator==(const DraftPolicyOptions&) const = default;
};

struct Speculation {
  int draft_len = 0;  // K of the fixed policy, the largest K of the others; <= max_draft_len
  AcceptanceRule acceptance;
  DraftPolicyOptions draft_policy;
  bool operator==(const Speculation&) const = default;
};

}  // namespace foredraft
