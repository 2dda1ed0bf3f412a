#pragma once

// Measurements of one request. Plain data; times are in seconds since the start of the run, by the client's
// clock.

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "base/fnv.h"
#include "foredraft/v1/generation.pb.h"

namespace foredraft {

// A chunk with tokens, after the first such chunk of its request.
struct ChunkGap {
  float gap_ms;  // since the previous chunk with tokens
  int32_t token_count;
};

enum class RequestOutcome {
  kCompleted,
  kFailed,       // `status` is the error
  kInterrupted,  // cancelled when the benchmark was interrupted
};

struct MeasuredRequest {
  int64_t index = 0;  // in the workload
  int turn = 0;       // of a chat, from 0
  std::string category;
  // When it should have been sent: its arrival time or, if the concurrency delayed it, the end of the request
  // that made room. A later turn of a chat is due when the turn before ends.
  double due_s = 0;
  double sent_s = 0;
  double first_token_s = 0;  // arrival of the chunk with the first token; 0 = none arrived
  double last_token_s = 0;
  std::vector<ChunkGap> gaps;
  int32_t output_tokens = 0;         // received
  uint64_t token_hash = kFnvOffset;  // over the token ids
  v1::Usage usage;                   // the last received
  v1::Speculation speculation;       // the last received
  RequestOutcome outcome = RequestOutcome::kCompleted;
  absl::Status status;
};

// Adds a chunk that arrived at `now_s`; moves usage and speculation out of it.
void AddChunk(MeasuredRequest& request, double now_s, v1::GenerateChunk& chunk);

// Ends the request with the status of its call. If the number of tokens received is not that in the usage,
// the request failed with DATA_LOSS.
void EndRequest(MeasuredRequest& request, const absl::Status& status, bool interrupted);

}  // namespace foredraft
