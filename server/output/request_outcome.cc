#include "server/output/request_outcome.h"

#include "base/check.h"
#include "base/error_reason.h"

namespace foredraft {

RequestOutcome OutcomeOf(const OutputEnd& end) {
  switch (end.finish) {
    case FinishReason::kStop:
      return RequestOutcome::kStop;
    case FinishReason::kLength:
      return RequestOutcome::kLength;
    case FinishReason::kCancelled:
      return absl::IsUnavailable(end.status) ? RequestOutcome::kDrained : RequestOutcome::kCancelled;
    case FinishReason::kDeadline:
      return RequestOutcome::kDeadline;
    case FinishReason::kError:
      return RequestOutcome::kError;
    case FinishReason::kNone:
      break;
  }
  CHECK(false) << "a request ended without a reason";
}

RequestOutcome OutcomeOfRefusal(const absl::Status& status) {
  switch (status.code()) {
    case absl::StatusCode::kInvalidArgument:
    case absl::StatusCode::kNotFound:
    case absl::StatusCode::kOutOfRange:
    case absl::StatusCode::kFailedPrecondition:
    case absl::StatusCode::kUnimplemented:
      return RequestOutcome::kInvalid;
    case absl::StatusCode::kUnauthenticated:
    case absl::StatusCode::kPermissionDenied:
      return RequestOutcome::kUnauthorized;
    case absl::StatusCode::kUnavailable:
      return RequestOutcome::kUnavailable;
    case absl::StatusCode::kCancelled:
      return RequestOutcome::kCancelled;
    case absl::StatusCode::kDeadlineExceeded:
      return RequestOutcome::kDeadline;
    case absl::StatusCode::kResourceExhausted:
      return ReasonOf(status) == kReasonQueueFull ? RequestOutcome::kRejected : RequestOutcome::kError;
    default:
      return RequestOutcome::kError;
  }
}

}  // namespace foredraft
