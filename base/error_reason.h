#pragma once

// Why an operation failed, for programs that must tell errors of one code apart. The reason travels as a
// payload of the status; the gRPC wires send it as google.rpc.ErrorInfo (server/api/grpc_status.h).

#include <string>
#include <string_view>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/cord.h"

namespace foredraft {

inline constexpr char kReasonPayload[] = "foredraft/reason";

// RESOURCE_EXHAUSTED: the request may be sent again, later or elsewhere.
inline constexpr std::string_view kReasonQueueFull = "QUEUE_FULL";
// RESOURCE_EXHAUSTED: the client did not read its stream, which was cut.
inline constexpr std::string_view kReasonReaderTooSlow = "READER_TOO_SLOW";

// RESOURCE_EXHAUSTED: the process had no memory for the request.
inline constexpr std::string_view kReasonOutOfMemory = "OUT_OF_MEMORY";
// INVALID_ARGUMENT: the prompt alone is longer than the context.
inline constexpr std::string_view kReasonPromptTooLong = "PROMPT_TOO_LONG";

inline absl::Status WithReason(absl::Status status, std::string_view reason) {
  status.SetPayload(kReasonPayload, absl::Cord(std::string(reason)));
  return status;
}

// The reason of a status; empty where there is none.
inline std::string ReasonOf(const absl::Status& status) {
  const auto payload = status.GetPayload(kReasonPayload);
  return payload.has_value() ? std::string(*payload) : std::string();
}

}  // namespace foredraft
