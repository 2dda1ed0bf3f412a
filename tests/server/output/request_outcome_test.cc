#include "server/output/request_outcome.h"

#include <gtest/gtest.h>

#include "base/error_reason.h"

namespace foredraft {
namespace {

TEST(RequestOutcome, ARefusalSaysWhoseFaultItIs) {
  struct Case {
    absl::Status status;
    RequestOutcome outcome;
  };
  const Case cases[] = {
      {absl::InvalidArgumentError("top_p: 2"), RequestOutcome::kInvalid},
      {absl::NotFoundError("model: gpt-4"), RequestOutcome::kInvalid},
      {absl::UnauthenticatedError("no token"), RequestOutcome::kUnauthorized},
      {absl::PermissionDeniedError("role"), RequestOutcome::kUnauthorized},
      {absl::UnavailableError("draining"), RequestOutcome::kUnavailable},
      {WithReason(absl::ResourceExhaustedError("queue full"), kReasonQueueFull), RequestOutcome::kRejected},
      {absl::ResourceExhaustedError("out of memory"), RequestOutcome::kError},
      {absl::InternalError("bug"), RequestOutcome::kError},
      {absl::DeadlineExceededError("late"), RequestOutcome::kDeadline},
  };
  for (const Case& test : cases) EXPECT_EQ(OutcomeOfRefusal(test.status), test.outcome) << test.status;
}

TEST(RequestOutcome, AStreamThatADrainCutIsNotItsClientsDoing) {
  EXPECT_EQ(OutcomeOf({.finish = FinishReason::kCancelled, .status = absl::CancelledError("by the client")}),
            RequestOutcome::kCancelled);
  EXPECT_EQ(OutcomeOf({.finish = FinishReason::kCancelled, .status = absl::UnavailableError("draining")}),
            RequestOutcome::kDrained);
  // It was cut for reading too slowly.
  EXPECT_EQ(OutcomeOf({.finish = FinishReason::kCancelled,
                       .status = WithReason(absl::ResourceExhaustedError("slow"), kReasonReaderTooSlow)}),
            RequestOutcome::kCancelled);
  EXPECT_EQ(OutcomeOf({.finish = FinishReason::kError, .status = absl::UnavailableError("rank 1 lost")}),
            RequestOutcome::kError);
}

}  // namespace
}  // namespace foredraft
