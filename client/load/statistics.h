#ifndef FOREDRAFT_CLIENT_LOAD_STATISTICS_H_
#define FOREDRAFT_CLIENT_LOAD_STATISTICS_H_

// The figures of a run, from all of its samples.
//
// | figure | definition | same as in |
// |---|---|---|
// | TTFT | sent -> first chunk with a token, per request | vLLM, SGLang, trtllm-bench |
// | TPOT | (last token - first token) / (tokens - 1), per request with at least 2 tokens | vLLM, SGLang,
// trtllm-bench | | inter-token latency | gap between two chunks / tokens of the later one, once per token |
// SGLang | | inter-chunk latency | gap between two chunks with tokens: what a reader waits | vLLM, which
// calls it ITL | | end-to-end latency | sent -> chunk with the last token, per request | vLLM, SGLang,
// trtllm-bench | | acceptance rate per position | drafts accepted there / decode steps | vLLM |
//
// A step that accepts drafts sends several tokens in one chunk: the inter-token latency divides its gap among
// them, the inter-chunk latency does not. Latencies are of completed requests. Token counts and throughput
// include what interrupted requests had received; failed requests count as errors only.

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "client/load/load_run.h"

namespace foredraft {

struct WeightedSample {
  double value;
  int64_t weight;  // as if it were there so often
};

struct LatencySummary {
  int64_t count = 0;  // 0: the rest means nothing
  double mean = 0, p50 = 0, p90 = 0, p99 = 0, max = 0;
};

// Percentiles are exact, with numpy's linear interpolation between neighbours: rank p/100 * (n - 1).
LatencySummary Summarize(std::vector<WeightedSample> samples);

double Median(std::vector<double> values);  // not of nothing

struct ErrorFigures {
  absl::StatusCode code = absl::StatusCode::kUnknown;
  int64_t count = 0;
  std::string message;  // of the first
};

struct SpeculationFigures {  // sums over the requests
  int64_t steps = 0, draft_tokens = 0, accepted_tokens = 0, relaxed_tokens = 0;
  std::vector<int64_t> accepted_per_position;
  bool forced = false;

  double acceptance_length() const;  // 1 + accepted / steps; 1 without steps
  double acceptance_rate() const;    // accepted / drafts; 0 without drafts
};

// What the benchmark itself cost, so that nobody blames the server for it.
struct ClientFigures {
  double cpu_s = 0;
  double cpu_cores = 0;                // CPU time / wall time: 1 = one core busy all the time
  double cpu_us_per_output_token = 0;  // 0 without tokens
  LatencySummary send_delay_ms;        // due -> sent
  std::vector<std::string> warnings;   // the client was the bottleneck
};

struct RunFigures {
  double wall_s = 0;
  bool interrupted = false;
  std::string gave_up;
  int64_t sent = 0, completed = 0, failed = 0, interrupted_requests = 0;
  std::vector<ErrorFigures> errors;  // most frequent first
  int64_t input_tokens = 0, cached_tokens = 0, output_tokens = 0;
  double sent_per_s = 0;      // from the first request to the last that left; 0 where they left together
  double requests_per_s = 0;  // completed ones, over wall_s, as the tokens
  double input_tokens_per_s = 0, output_tokens_per_s = 0;
  LatencySummary ttft_ms, tpot_ms, inter_token_ms, inter_chunk_ms, e2e_ms;
  SpeculationFigures speculation;
  ClientFigures client;
};

RunFigures Evaluate(const LoadResult& result);

}  // namespace foredraft

#endif  // FOREDRAFT_CLIENT_LOAD_STATISTICS_H_
