#ifndef FOREDRAFT_SERVER_API_RESPONSE_FIELDS_H_
#define FOREDRAFT_SERVER_API_RESPONSE_FIELDS_H_

// From the output thread's plain figures to the messages of the API. Pure.

#include <grpcpp/support/status.h>

#include <string>

#include "absl/status/status.h"
#include "foredraft/v1/generation.pb.h"
#include "server/output/response_sink.h"

namespace foredraft {

// The same in every response of one request.
struct ResponseLabels {
  std::string request_id;
  uint64_t seed = 0;
  int max_draft_len = 0;  // entries of accepted_per_position
};

// `chunk` is a new one or the call's last: what a chunk before the end can have is written over.
void FillChunk(const OutputDelta& delta, const ResponseLabels& labels, v1::GenerateChunk* chunk);
// Makes it the last chunk.
void FillEnd(const Tally& tally, const OutputEnd& end, const ResponseLabels& labels,
             v1::GenerateChunk* chunk);
void FillResponse(const v1::GenerateChunk& whole, v1::GenerateResponse* response);

grpc::Status ToGrpc(const absl::Status& status);

}  // namespace foredraft

#endif  // FOREDRAFT_SERVER_API_RESPONSE_FIELDS_H_
