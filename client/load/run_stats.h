#pragma once

// Statistics of one run, computed from every request of it.
//
// clang-format off
// | metric                       | definition                                                             | same as in                 |
// |------------------------------|------------------------------------------------------------------------|----------------------------|
// | TTFT                         | sent -> first chunk with a token, per request                          | vLLM, SGLang, trtllm-bench |
// | TPOT                         | (last - first token) / (tokens - 1), per request with 2 tokens or more | vLLM, SGLang, trtllm-bench |
// | inter-token latency          | gap between two chunks / tokens of the later one, once per token       | SGLang                     |
// | inter-chunk latency          | gap between two chunks with tokens: how long a reader waits            | vLLM, there named ITL      |
// | end-to-end latency           | sent -> chunk with the last token, per request                         | vLLM, SGLang, trtllm-bench |
// | acceptance rate per position | drafts accepted at the position / decode steps                         | vLLM                       |
// clang-format on
//
// A step that accepts drafts gives several tokens in one chunk. The inter-token latency divides the gap among
// them; the inter-chunk latency does not. Latencies and categories count completed requests only. Token
// counts and throughput also count what interrupted requests received. Failed requests count only as sent, as
// errors and in ClientStats.

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "client/load/load_run.h"
#include "client/measure/summary.h"

namespace foredraft {

struct ErrorStats {
  absl::StatusCode code = absl::StatusCode::kUnknown;
  int64_t count = 0;
  std::string message;  // of the first
};

// Adds to the entry of the same code, or appends one.
void AddError(const ErrorStats& error, std::vector<ErrorStats>& errors);

struct SpeculationStats {  // sums over requests
  int64_t steps = 0, draft_tokens = 0, accepted_tokens = 0, relaxed_tokens = 0;
  std::vector<int64_t> accepted_per_position;
  bool forced = false;

  void Add(const SpeculationStats& other);
  double acceptance_length() const;  // 1 + accepted / steps; 1 without steps
  double acceptance_rate() const;    // accepted / drafts; 0 without drafts
  std::vector<double> acceptance_rate_per_position() const;
};

// Every sample from which latencies are computed.
struct LatencySamples {
  std::vector<WeightedSample> ttft_ms, tpot_ms, inter_token_ms, inter_chunk_ms, e2e_ms;

  // No effect unless the request completed.
  void Add(const MeasuredRequest& request);
  void Append(const LatencySamples& other);
};

// Speculation on the prompts of one category, and the speed that it gave.
struct CategoryStats {
  std::string name;
  int64_t completed = 0;       // requests
  int64_t output_tokens = 0;   // of these requests
  double request_seconds = 0;  // the sum of these requests' end-to-end latencies
  SpeculationStats speculation;

  // Tokens per second of a request's time: what one user gets, however many requests ran at the same time.
  double output_tokens_per_s_per_user() const;
  void Add(const CategoryStats& other);
};

// Adds to the entry of the same name, or inserts one: entries are in order of their names.
void AddCategory(const CategoryStats& category, std::vector<CategoryStats>& categories);

// Cost of the load generator itself, to tell a slow client from a slow server.
struct ClientStats {
  double cpu_s = 0;
  double cpu_cores = 0;                // CPU time / wall time: 1 = one core busy all the time
  double cpu_us_per_output_token = 0;  // 0 without tokens
  Summary send_delay_ms;               // due -> sent
  std::vector<std::string> warnings;   // reasons why the client may have been the bottleneck
};

struct RunStats {
  double wall_s = 0;
  bool interrupted = false;
  std::string gave_up;
  int64_t sent = 0, completed = 0, failed = 0, interrupted_requests = 0;
  std::vector<ErrorStats> errors;  // most frequent first
  int64_t input_tokens = 0, cached_tokens = 0, output_tokens = 0;
  double sent_per_s = 0;  // from the first request sent to the last; 0 if all were sent at once
  double requests_per_s = 0, input_tokens_per_s = 0, output_tokens_per_s = 0;  // over wall_s
  Summary ttft_ms, tpot_ms, inter_token_ms, inter_chunk_ms, e2e_ms;
  SpeculationStats speculation;
  std::vector<CategoryStats> categories;  // in order of their names; empty where prompts have none
  ClientStats client;
};

RunStats Evaluate(const LoadResult& result);

}  // namespace foredraft
