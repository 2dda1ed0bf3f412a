#pragma once

// Answers requests that are no message of their method, or have text that is not UTF-8, with INVALID_ARGUMENT
// and a text. By itself gRPC's callback API answers without a text, and UNIMPLEMENTED (1.51), as if there
// were no such method, or INTERNAL (1.83).

#include <grpcpp/server_builder.h>

namespace foredraft {

// For all services of the server.
void AnswerUndecodableRequests(grpc::ServerBuilder& builder);

}  // namespace foredraft
