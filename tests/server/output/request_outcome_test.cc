#include "server/output/request_outcome.h"

#include <gtest/gtest.h>

#include "base/error_reason.h"

namespace foredraft {
namespace {

TEST(OutcomeKind, ARefusalSaysWhoseFaultItIs) {
  struct Case {
    absl::Status status;
    OutcomeKind outcome;
  };
  const Case cases[] = {
      {absl::InvalidArgumentError("top_p: 2"), OutcomeKind::kInvalid},
      {absl::NotFoundError("model: gpt-4"), OutcomeKind::kInvalid},
      {absl::UnauthenticatedError("no token"), OutcomeKind::kUnauthorized},
      {absl::PermissionDeniedError("role"), OutcomeKind::kUnauthorized},
      {absl::UnavailableError("draining"), OutcomeKind::kUnavailable},
      {WithReason(absl::ResourceExhaustedError("queue full"), kReasonQueueFull), OutcomeKind::kRejected},
      {absl::ResourceExhaustedError("out of memory"), OutcomeKind::kError},
      {absl::InternalError("bug"), OutcomeKind::kError},
      {absl::DeadlineExceededError("late"), OutcomeKind::kDeadline},
  };
  for (const Case& test : cases) EXPECT_EQ(OutcomeOfRefusal(test.status), test.outcome) << test.status;
}

TEST(OutcomeKind, AStreamThatADrainCutIsNotItsClientsDoing) {
  EXPECT_EQ(OutcomeOf({.finish = FinishReason::kCancelled, .status = absl::CancelledError("by the client")}),
            OutcomeKind::kCancelled);
  EXPECT_EQ(OutcomeOf({.finish = FinishReason::kCancelled, .status = absl::UnavailableError("draining")}),
            OutcomeKind::kDrained);
  // It was cut for reading too slowly.
  EXPECT_EQ(OutcomeOf({.finish = FinishReason::kCancelled,
                       .status = WithReason(absl::ResourceExhaustedError("slow"), kReasonReaderTooSlow)}),
            OutcomeKind::kCancelled);
  EXPECT_EQ(OutcomeOf({.finish = FinishReason::kError, .status = absl::UnavailableError("rank 1 lost")}),
            OutcomeKind::kError);
}

}  // namespace
}  // namespace foredraft
