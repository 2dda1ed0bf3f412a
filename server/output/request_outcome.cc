#include "server/output/request_outcome.h"

#include "base/check.h"
#include "base/error_reason.h"

namespace foredraft {

OutcomeKind OutcomeOf(const OutputEnd& end) {
  switch (end.finish) {
    case FinishReason::kStop:
      return OutcomeKind::kStop;
    case FinishReason::kLength:
      return OutcomeKind::kLength;
    case FinishReason::kCancelled:
      return absl::IsUnavailable(end.status) ? OutcomeKind::kDrained : OutcomeKind::kCancelled;
    case FinishReason::kDeadline:
      return OutcomeKind::kDeadline;
    case FinishReason::kError:
      return OutcomeKind::kError;
    case FinishReason::kNone:
      break;
  }
  CHECK(false) << "a request ended without a reason";
}

OutcomeKind OutcomeOfRefusal(const absl::Status& status) {
  switch (status.code()) {
    case absl::StatusCode::kInvalidArgument:
    case absl::StatusCode::kNotFound:
    case absl::StatusCode::kOutOfRange:
    case absl::StatusCode::kFailedPrecondition:
    case absl::StatusCode::kUnimplemented:
      return OutcomeKind::kInvalid;
    case absl::StatusCode::kUnauthenticated:
    case absl::StatusCode::kPermissionDenied:
      return OutcomeKind::kUnauthorized;
    case absl::StatusCode::kUnavailable:
      return OutcomeKind::kUnavailable;
    case absl::StatusCode::kCancelled:
      return OutcomeKind::kCancelled;
    case absl::StatusCode::kDeadlineExceeded:
      return OutcomeKind::kDeadline;
    case absl::StatusCode::kResourceExhausted:
      return ReasonOf(status) == kReasonQueueFull ? OutcomeKind::kRejected : OutcomeKind::kError;
    default:
      return OutcomeKind::kError;
  }
}

}  // namespace foredraft
