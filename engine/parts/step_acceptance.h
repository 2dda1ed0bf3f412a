#pragma once

// The acceptance rule of the plans, which the device keeps until a plan brings another rule
// (docs/invariants.md, rule-on-device).

#include <optional>

#include "config/acceptance_rule.h"
#include "engine/parts/step_part.h"

namespace foredraft {

class StepAcceptance : public StepPart {
 public:
  void BeforePrefill(const SubmittedPlan& submitted) override {
    if (submitted.plan.acceptance == rule_) return;
    rule_ = submitted.plan.acceptance;
    submitted.slots.SetRule(submitted.stream, *rule_);
  }

 private:
  std::optional<AcceptanceRule> rule_;  // the rule on the device; absent before the first plan
};

}  // namespace foredraft
