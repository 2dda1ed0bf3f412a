#pragma once

// How a request ended, or why it was refused, so that readers of metrics and logs see whose fault it was: the
// label `outcome` of foredraft_requests_total and the log's field.

#include "absl/status/status.h"
#include "server/output/response_sink.h"

namespace foredraft {

enum class OutcomeKind {
  kStop,
  kLength,
  kCancelled,  // by its client
  kDeadline,
  kError,         // a rank was lost while it ran, memory was short, or a bug
  kRejected,      // the queue was full
  kInvalid,       // refused: what the client asked cannot be
  kUnauthorized,  // refused: no token, or one without the right
  kUnavailable,   // refused: the daemon loads or drains, or a rank is lost
  kDrained,       // it ran, and a drain or the daemon's end cut it
};
inline constexpr const char* kOutcomeKinds[] = {"stop",        "length",   "cancelled", "deadline",
                                                "error",       "rejected", "invalid",   "unauthorized",
                                                "unavailable", "drained"};

constexpr const char* NameOf(OutcomeKind outcome) { return kOutcomeKinds[static_cast<int>(outcome)]; }

// The outcome of a request that the output thread has opened.
OutcomeKind OutcomeOf(const OutputEnd& end);
// The outcome of a request that was not accepted. `status` is not ok.
OutcomeKind OutcomeOfRefusal(const absl::Status& status);

}  // namespace foredraft
