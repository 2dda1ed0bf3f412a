#pragma once

// Turns absl::Status into gRPC's status, and answers unary calls at once.

#include <grpcpp/server_context.h>
#include <grpcpp/support/server_callback.h>
#include <grpcpp/support/status.h>

#include "absl/status/status.h"

namespace foredraft {

// absl and gRPC have the same canonical codes and numbers. A reason (base/error_reason.h) becomes the
// status's details: google.rpc.Status with one google.rpc.ErrorInfo.
grpc::Status ToGrpc(const absl::Status& status);

// Finishes a call with `reactor`, the call's default one, under a new request id; an error is logged as a
// refusal.
void Answer(grpc::CallbackServerContext* context, grpc::ServerUnaryReactor* reactor,
            const absl::Status& status);

// Answers a call at once.
grpc::ServerUnaryReactor* FinishNow(grpc::CallbackServerContext* context, const absl::Status& status);

}  // namespace foredraft
