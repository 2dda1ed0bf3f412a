#ifndef FOREDRAFT_SERVER_API_UNDECODABLE_REQUESTS_H_
#define FOREDRAFT_SERVER_API_UNDECODABLE_REQUESTS_H_

// Answers requests that are no message of their method, or have text that is not UTF-8, with INVALID_ARGUMENT
// and a text. By itself gRPC's callback API answers UNIMPLEMENTED without one, as if there were no such
// method.

#include <grpcpp/server_builder.h>

namespace foredraft {

// For all services of the server.
void AnswerUndecodableRequests(grpc::ServerBuilder& builder);

}  // namespace foredraft

#endif  // FOREDRAFT_SERVER_API_UNDECODABLE_REQUESTS_H_
