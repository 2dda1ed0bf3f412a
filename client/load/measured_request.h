#ifndef FOREDRAFT_CLIENT_LOAD_MEASURED_REQUEST_H_
#define FOREDRAFT_CLIENT_LOAD_MEASURED_REQUEST_H_

// What one request of a benchmark was seen to do. Plain data; times are the client's, in seconds since the
// start of the run.

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "base/fnv.h"
#include "foredraft/v1/generation.pb.h"

namespace foredraft {

// A chunk with tokens, after the first such chunk of its request.
struct ChunkGap {
  float gap_ms;  // since the last chunk with tokens
  int32_t token_count;
};

enum class RequestOutcome {
  kCompleted,
  kFailed,       // `status` says how
  kInterrupted,  // cancelled by the benchmark's own end
};

struct MeasuredRequest {
  int64_t index = 0;  // in the workload
  // When it should have left: its arrival time or, where the concurrency held it back, the moment that a
  // request before it made room.
  double due_s = 0;
  double sent_s = 0;
  double first_token_s = 0;  // the chunk with the first token; 0 = none came
  double last_token_s = 0;
  std::vector<ChunkGap> gaps;
  int32_t output_tokens = 0;         // received
  uint64_t token_hash = kFnvOffset;  // over the token ids
  v1::Usage usage;                   // the last that came
  v1::Speculation speculation;       // the last that came
  RequestOutcome outcome = RequestOutcome::kCompleted;
  absl::Status status;
};

// A chunk that came at `now_s`; its usage and speculation are taken out of it.
void AddChunk(MeasuredRequest& request, double now_s, v1::GenerateChunk& chunk);

// The call's status. An answer with fewer or more tokens than its usage says is a failure, DATA_LOSS.
void EndRequest(MeasuredRequest& request, const absl::Status& status, bool interrupted);

}  // namespace foredraft

#endif  // FOREDRAFT_CLIENT_LOAD_MEASURED_REQUEST_H_
