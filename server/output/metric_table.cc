#include "server/output/metric_table.h"

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "server/output/vllm_metrics.h"

namespace foredraft {
namespace {

constexpr MetricType kCounter = MetricType::kCounter;
constexpr MetricType kGauge = MetricType::kGauge;
constexpr MetricType kHistogram = MetricType::kHistogram;

constexpr char kPhase[] = "phase (thinking, answer)";
constexpr char kRank[] = "rank (0 to ranks - 1)";
constexpr char kPhaseAndPosition[] = "phase (thinking, answer), position (1 to max_draft_len)";

constexpr MetricRow kMetrics[] = {
    {"foredraft_spec_decode_drafts_total", kCounter, kPhase,
     "Decode steps of sequences that verified at least one draft."},
    {"foredraft_spec_decode_draft_tokens_total", kCounter, kPhase, "Drafts verified."},
    {"foredraft_spec_decode_accepted_tokens_total", kCounter, kPhase, "Drafts accepted and emitted."},
    {"foredraft_spec_decode_accepted_tokens_per_position_total", kCounter, kPhaseAndPosition,
     "Drafts accepted and emitted, by their position in the step."},
    {"foredraft_spec_decode_relaxed_tokens_total", kCounter, "",
     "Drafts that only relaxed acceptance accepted; strict acceptance would have refused them."},
    {"foredraft_spec_decode_acceptance_rate", kGauge, "", "Accepted / verified drafts, last 60 s."},
    {"foredraft_spec_decode_draft_length", kGauge, "", "K, the drafts per decode step, in use now."},
    {"foredraft_spec_decode_speed_up_estimate", kGauge, "",
     "Expected tokens per second with drafts over those without, for the last step's batch, from measured "
     "step times and acceptance. 0 until steps without drafts were measured in that decode bucket."},
    {"foredraft_spec_decode_calibration_error", kGauge, "",
     "With `draft_policy: confidence`: the mean distance between the predicted and the observed acceptance "
     "of drafts, over about the last 2,000 verified ones in ten bins of the prediction. 0 before the first."},
    {"foredraft_spec_decode_cut_tokens_total", kCounter, "",
     "With `draft_policy: confidence`: drafts made and not verified, because a step had rows for more "
     "promising ones alone."},
    {"foredraft_spec_decode_forced", kGauge, "",
     "1 while forced acceptance is configured: tokens are not the model's."},
    {"foredraft_requests_total", kCounter,
     "outcome (stop, length, cancelled, deadline, error, rejected, invalid, unauthorized, unavailable, "
     "drained)",
     "Requests ended or refused, by outcome. The client's doing: cancelled; invalid, refused for what it "
     "asked; unauthorized, without a token that may. The daemon's: rejected, the queue was full; "
     "unavailable, refused while it loads, drains or has lost a rank; drained, cut by a drain; error, a rank "
     "was lost meanwhile, memory was short, or a bug. deadline: too slow for the client."},
    {"foredraft_tool_calls_total", kCounter, "result (complete, incomplete, text)",
     "Calls of tools in answers. Incomplete: the answer ended within the call, or went on otherwise than the "
     "model's format says. Text: what began like a call was none, or of an unknown tool."},
    {"foredraft_ignored_fields_total", kCounter,
     "wire (chat, completions, responses, messages, other), kind (unknown, dropped)",
     "Fields of requests that had no effect, once for each request and name. unknown: no such field is "
     "known; dropped: a hint, or a part of a conversation, that this model or daemon cannot follow. The log "
     "has each name once, the header `x-foredraft-ignored` of the answer those of its request."},
    {"foredraft_constrained_requests_total", kCounter,
     "kind (json_schema, json_object, regex, choice, grammar, structural_tag, tools)",
     "Requests whose outputs are constrained, by what they ask. tools: calls that are forced, of "
     "allowed_tools, or whose arguments must follow a schema."},
    {"foredraft_constraint_refused_total", kCounter, "reason (off, combination, source, limit)",
     "Constraints refused. off: `constraints: null`; combination: with fields that do not go with it; "
     "source: what it asks is malformed or not supported; limit: more than `constraints.*` allows."},
    {"foredraft_constraint_compile_seconds", kHistogram, "",
     "Time to compile a constraint that was not in the cache."},
    {"foredraft_constraint_cache_lookups_total", kCounter, "result (hit, miss)",
     "Constraints looked up in the cache of compiled ones."},
    {"foredraft_constraint_cache_bytes", kGauge, "",
     "Memory of the cached constraints with their states and masks."},
    {"foredraft_masks_total", kCounter, "", "Masks of the rows of decode steps."},
    {"foredraft_mask_seconds_total", kCounter, "client (an API token's name, none)",
     "CPU time to make the masks of decode steps, by whose requests asked for them. none: without a token."},
    {"foredraft_steps_for_masks_total", kCounter, "",
     "Decode steps that began after the results of the ones before, because their masks follow from them."},
    {"foredraft_held_slots_total", kCounter, "",
     "Slots that a step left as they were because they had no mask: one step where a thought or a tool's "
     "trigger ends, and more where a mask takes long to make."},
    {"foredraft_drafts_outside_grammar_total", kCounter, "",
     "Steps of a request with a draft that its constraint refuses."},
    {"foredraft_forced_drafts_total", kCounter, "",
     "Drafts of text that a constraint forces, in the place of drafts that it refuses or that there are "
     "not."},
    {"foredraft_prompt_tokens_total", kCounter, "", "Prompt tokens of requests."},
    {"foredraft_generation_tokens_total", kCounter, "", "Tokens emitted."},
    {"foredraft_request_prompt_tokens", kHistogram, "", "Prompt tokens of a request."},
    {"foredraft_request_generation_tokens", kHistogram, "", "Tokens that a request got, when it ends."},
    {"foredraft_request_max_tokens", kHistogram, "", "Most tokens that an admitted request may get."},
    {"foredraft_request_choices", kHistogram, "",
     "Choices of each prompt that a client asks for (`n`); requests over gRPC have one."},
    {"foredraft_request_acceptance_length", kHistogram, "",
     "Tokens per decode step of a request that had drafts, when it ends."},
    {"foredraft_request_time_per_output_token_seconds", kHistogram, "",
     "Mean time between the tokens of a request, when it ends; each request counts once."},
    {"foredraft_request_prefill_seconds", kHistogram, "",
     "Admission of a request into a slot to its first token, when it ends."},
    {"foredraft_request_decode_seconds", kHistogram, "", "First token of a request to its end."},
    {"foredraft_request_inference_seconds", kHistogram, "",
     "Admission of a request into a slot to its end: the two above together."},
    {"foredraft_time_to_first_token_seconds", kHistogram, "", "Arrival of a request to its first token."},
    {"foredraft_time_per_output_token_seconds", kHistogram, "",
     "Time between tokens after the first; each token counts once."},
    {"foredraft_e2e_request_duration_seconds", kHistogram, "", "Arrival of a request to its end."},
    {"foredraft_queue_duration_seconds", kHistogram, "",
     "Arrival of a request to its admission into a slot."},
    {"foredraft_requests_running", kGauge, kRank, "Requests that have a slot or are swapped out."},
    {"foredraft_requests_waiting", kGauge, "", "Requests in the queue."},
    {"foredraft_state", kGauge, "state (loading, serving, draining, failed)",
     "1 for the state that the daemon is in, 0 for the others. Only while it serves does it take requests."},
    {"foredraft_rank_failures_total", kCounter, "", "Ranks lost."},
    {"foredraft_group_restarts_total", kCounter, "", "Restarts of all ranks after one was lost."},
    {"foredraft_requests_resumed_total", kCounter, "", "Requests that went on after a restart of all ranks."},
    {"foredraft_resume_replayed_tokens_total", kCounter, "",
     "Tokens that clients had already and that were computed again so that their requests could go on."},
    {"foredraft_nonfinite_logits_total", kCounter, "",
     "Requests that ended with INTERNAL because the model's logits were NaN or infinite."},
    {"foredraft_prefix_cache_queried_tokens_total", kCounter, "",
     "Prompt tokens looked up in the prefix cache."},
    {"foredraft_prefix_cache_hit_tokens_total", kCounter, "", "Prompt tokens found in the prefix cache."},
    {"foredraft_preemptions_total", kCounter, "", "Sequences swapped out to make room in the KV cache."},
    {"foredraft_wasted_steps_total", kCounter, "",
     "Steps computed for sequences that had already ended; the price of planning ahead."},
    {"foredraft_rewound_blocks_total", kCounter, "",
     "KV blocks taken for drafts that were not accepted, and given back."},
    {"foredraft_graph_replays_total", kCounter, "", "Decode steps replayed from a graph."},
    {"foredraft_eager_steps_total", kCounter, "", "Decode steps run without a graph."},
    {"foredraft_config_reloads_total", kCounter, "result (accepted, refused)",
     "Configuration reloads, by result. A `server.auth.tokens_file` that is refused counts, too."},
    {"foredraft_log_lines_dropped_total", kCounter, "",
     "Log lines that were dropped because nobody read stderr."},
    {"foredraft_connections", kGauge, "", "Open connections to the API and the gateway listener."},
    {"foredraft_connections_refused_total", kCounter, "",
     "Connections that were closed at once because server.max_connections were open."},
    {"foredraft_connections_closed_total", kCounter,
     "reason (preface, frame, header_block, resets, pings, settings, frames, streams, handshake, evicted)",
     "gRPC connections that were closed for what their client sent or did not send in time, or, `evicted`, "
     "for a newer one while server.max_connections were open. Connections with an admitted call are closed "
     "for the first three reasons only, and for headers that do not end in time."},
    {"foredraft_connections_slowed_total", kCounter, "who (stranger, client)",
     "Times that a gRPC connection was left unread for a while because of its rate of frames or calls. "
     "stranger: no call on it was admitted so far."},
    {"foredraft_tokens_refused_total", kCounter, "cause (missing, malformed, unknown, role)",
     "Calls and requests that were not let in. missing: without a token; malformed: not `Bearer TOKEN`; "
     "unknown: no line of `server.auth.tokens_file` has it, as when somebody guesses; role: it may not do "
     "this."},
    {"foredraft_rank_disagreements_total", kCounter, "",
     "Results of a rank that differ from those of the first rank of its tensor group. Each ends the group's "
     "life: its tokens are not delivered."},
    {"foredraft_worker_connections_refused_total", kCounter, "",
     "Connections to parallel.leader_address that were closed because more than "
     "parallel.max_pending_connections had not joined as a worker."},
    {"foredraft_thinking_budget_reached_total", kCounter, "",
     "Outputs whose thought was ended because their thinking_token_budget was spent."},
    {"foredraft_port_probe_failures_total", kCounter, "",
     "Times that the daemon dialled its own API listener and got no answer. After three in a row /healthz "
     "fails."},
    {"foredraft_tls_certificate_expiry_timestamp_seconds", kGauge, "",
     "When the certificate of server.tls.cert expires, in seconds since the epoch; 0 without TLS."},
    {"foredraft_kv_cache_usage_ratio", kGauge, kRank, "KV blocks held by sequences / all KV blocks."},
    {"foredraft_kv_cache_blocks", kGauge, "rank (0 to ranks - 1), state (used, free, cached)",
     "KV blocks, by state. cached: content of ended sequences, reused or taken when needed."},
    {"foredraft_kv_cache_group_blocks", kGauge,
     "rank (0 to ranks - 1), group (history; DeepSeek-V4 also window, tail), state (used, free, cached)",
     "KV blocks of each cache group, by state. history: those of `foredraft_kv_cache_blocks`. The pools of "
     "the others follow from `max_batch_size`; where they are full, prompts keep fewer reusable ends."},
    {"foredraft_prefill_tokens_total", kCounter, kRank, "Prompt tokens that prefills computed."},
    {"foredraft_prefill_backlog_tokens", kGauge, kRank,
     "Prompt tokens of admitted requests that no prefill computes yet."},
    {"foredraft_step_duration_seconds", kHistogram, "kind (prefill, decode)",
     "Duration of forwards, by kind; the slowest rank's."},
    {"foredraft_rank_step_seconds", kGauge, "rank (0 to ranks - 1), kind (prefill, decode)",
     "Duration of the rank's last forward, by kind."},
    {"foredraft_step_batch_size", kHistogram, "", "Sequences that a decode step advanced."},
    {"foredraft_iteration_tokens", kHistogram, "",
     "Prompt tokens that an iteration computed and tokens that came of it."},
    {"foredraft_build_info", kGauge, "version, commit, numerics_class",
     "Always 1. Daemons with the same numerics class give the same tokens."},
    {"foredraft_config_info", kGauge,
     "backend, max_batch_size, max_seq_len, max_draft_len, attention_dp, attention_tp, moe_ep, moe_tp, "
     "tokens_per_block, kv_cache_dtype, enable_block_reuse",
     "Always 1. Configuration that decides speed and memory."},
    {"process_cpu_seconds_total", kCounter, "", "CPU time of the daemon's process, user and system."},
    {"process_start_time_seconds", kGauge, "", "When the process started, in seconds since the epoch."},
    {"process_resident_memory_bytes", kGauge, "", "Resident memory of the daemon's process."},
    {"process_virtual_memory_bytes", kGauge, "", "Virtual memory of the daemon's process."},
    {"process_open_fds", kGauge, "", "Open file descriptors of the daemon's process."},
    {"process_max_fds", kGauge, "", "Limit of open file descriptors."},
};

constexpr char kIntroduction[] =
    R"(<!-- Written by `foredraft check-config --docs docs` from server/output/metric_table.cc. -->

# Metrics

The daemon serves its metrics in Prometheus' text format at `http://127.0.0.1:9464/metrics` (`server.metrics_address`); with
`metrics.on_http: true` on `server.http_address`, too, to callers of the API.
Every metric has the label `model_name` beside those in the table, and exists from the start. What a request counts is
added before its client sees the last chunk, so over any window the counters are the sums of what the responses report.

A metric with the label `rank` has a series for each rank; sum over them for the group. The `process_*` metrics are of the
daemon's process: with several ranks, the workers are processes of their own, and `process_*` does not see them.

[rules.yml](../deploy/prometheus/rules.yml) has recording rules and alerts for Prometheus,
[foredraft.json](../deploy/grafana/foredraft.json) is a dashboard for Grafana.

## Which metric answers what

| question | metric, with prefix `foredraft_` |
|---|---|
| do drafts pay? | `spec_decode_acceptance_rate`, and the expressions below |
| is it fast? | `time_to_first_token_seconds`, `time_per_output_token_seconds`, `step_duration_seconds` |
| is it full? | `requests_waiting`, `kv_cache_usage_ratio`, `preemptions_total` |
| are the ranks level? | `requests_running`, `kv_cache_usage_ratio`, `prefill_tokens_total`, by `rank` |
| does prefix reuse work? | `prefix_cache_hit_tokens_total` / `prefix_cache_queried_tokens_total` |

## How to read acceptance

A decode step verifies up to K drafts of a sequence and emits the accepted ones plus one token of the target model.
The first token of a request comes from its prefill, so for every request, and summed over all of them:

    completion tokens = 1 + steps + accepted tokens

| what | expression, over a window of 5 minutes |
|---|---|
| acceptance rate: accepted / verified drafts | `rate(foredraft_spec_decode_accepted_tokens_total[5m]) / rate(foredraft_spec_decode_draft_tokens_total[5m])` |
| acceptance length: tokens that a step with drafts emits | `1 + rate(foredraft_spec_decode_accepted_tokens_total[5m]) / rate(foredraft_spec_decode_drafts_total[5m])` |
| share of steps that accept the draft at position p | `rate(foredraft_spec_decode_accepted_tokens_per_position_total{position="p"}[5m]) / rate(foredraft_spec_decode_drafts_total[5m])` |

`foredraft_spec_decode_acceptance_rate` is the first of these over the last 60 s, for reading without a query. Use the
acceptance length to see what drafts bring, and the share by position to choose K: where the share at position K is
small, a lower `speculative_config.max_draft_len` is likely faster. `foredraft_spec_decode_speed_up_estimate` compares
times too: the expected tokens per second of the last step's K over those of K = 0, in the same decode bucket. It needs
measured steps without drafts, and is 0 until there were some: `draft_policy: adaptive` may try them by itself; otherwise
send requests with `max_draft_tokens: 0` (`foredraft bench --compare K=0,3` does). K = 0 still runs the MTP module's
cache rows, so a daemon without `speculative_config` is a little faster than that. A drop of the acceptance length means another kind of
load or drafts computed wrongly; the tokens stay the same, they come slower. While `foredraft_spec_decode_forced` is 1,
acceptance is configured and says nothing about the model.

## All metrics

| metric | type | labels | meaning |
|---|---|---|---|
)";

const char* TypeName(MetricType type) {
  switch (type) {
    case MetricType::kCounter:
      return "counter";
    case MetricType::kGauge:
      return "gauge";
    case MetricType::kHistogram:
      break;
  }
  return "histogram";
}

}  // namespace

std::span<const MetricRow> MetricTable() { return kMetrics; }

const MetricRow& FindMetric(std::string_view name) {
  for (const MetricRow& row : kMetrics) {
    if (row.name == name) return row;
  }
  FailCheck(__FILE__, __LINE__, absl::StrCat(std::string(name), ": no such row in the table of metrics"));
}

std::string MetricsDocument() {
  std::string text = kIntroduction;
  for (const MetricRow& row : kMetrics) {
    absl::StrAppend(&text, "| `", row.name, "` | ", TypeName(row.type), " | ", row.labels, " | ", row.help,
                    " |\n");
  }
  return text + VllmMetricsDocument();
}

}  // namespace foredraft
