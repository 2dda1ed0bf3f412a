#!/usr/bin/env python3
"""Writes deploy/grafana/foredraft.json: a row of panels per question an operator asks.

usage: deploy/grafana/make_dashboard.py   (standard library alone; run again after a change here)
"""

import json
import pathlib

M = 'model_name=~"$model_name", instance=~"$instance"'

QUANTILES = (50, 90, 99)


def total(metric, window="5m", by="instance"):
    """The rate of a counter of each daemon, summed over its ranks."""
    return f"sum by ({by}) (rate(foredraft_{metric}{{{M}}}[{window}]))"


def quantile(q, histogram):
    """Of all requests to the chosen daemons: quantiles cannot be added up."""
    return (f"p{q}", f"histogram_quantile(0.{q}, sum by (le) (rate(foredraft_{histogram}_bucket{{{M}}}[5m])))")


def quantiles(histogram):
    return [quantile(q, histogram) for q in QUANTILES]


# Title, unit, description, queries (legend, expression); a panel each, three to a row.
PANELS = [
    ("State", "state",
     "What each daemon does: only while it serves does it take requests. DaemonNotServing fires after half an hour of another state.",
     [("{{instance}} {{state}}", f"max by (instance, state) (foredraft_state{{{M}}}) == 1")]),
    ("Tokens per step with drafts", "none",
     "Acceptance length: what a decode step emits, accepted drafts and one token of the target. 1 = no draft is accepted.",
     [("{{instance}}", f"foredraft:acceptance_length:5m{{{M}}}")]),
    ("Tokens per step with drafts, by request", "none",
     "Over the chosen daemons: acceptance lengths of the requests that ended, each once. Where p50 and p90 are far apart, some "
     "requests gain by drafts and others do not.",
     quantiles("request_acceptance_length")),
    ("Drafts accepted, by phase", "percentunit",
     "Accepted over verified drafts, while the model thinks and while it answers.",
     [("{{instance}} {{phase}}", f"foredraft:acceptance_rate:5m{{{M}}}")]),
    ("Drafts accepted, by position", "percentunit",
     "Share of the steps that accept the draft at this position. Where the last position's share is small, a lower max_draft_len is likely faster.",
     [("{{instance}} {{position}}", f"foredraft:acceptance_per_position:5m{{{M}}}")]),
    ("Draft length in use", "none",
     "K, the drafts per step, as the draft policy chose it last.",
     [("{{instance}}", f"foredraft_spec_decode_draft_length{{{M}}}")]),
    ("Speed-up by drafts", "none",
     "Tokens per second with drafts over those with K = 0, from measured step times and acceptance. No line until steps "
     "with K = 0 were measured in the decode bucket (docs/metrics.md).",
     [("{{instance}}", f"foredraft:speed_up_estimate:5m{{{M}}}")]),
    ("Tokens per second", "none",
     "Generated tokens that clients were sent, and prompt tokens of their requests.",
     [("{{instance}} generated", total("generation_tokens_total", "1m")), ("{{instance}} prompt", total("prompt_tokens_total", "1m"))]),
    ("Requests", "none",
     "Running: with a slot or swapped out. Waiting: in the queue; a line that stays above 0 means too little capacity.",
     [("{{instance}} running", f"sum by (instance) (foredraft_requests_running{{{M}}})"),
      ("{{instance}} waiting", f"sum by (instance) (foredraft_requests_waiting{{{M}}})")]),
    ("Ended requests per second", "none",
     "By outcome. rejected: the queue was full. unavailable: loading, draining, or a rank is lost. drained: cut by a drain. error: a "
     "rank was lost meanwhile, memory was short, or a bug. invalid and unauthorized are the client's doing.",
     [("{{instance}} {{outcome}}", total("requests_total", by="instance, outcome"))]),
    ("Failed requests", "percentunit",
     "Share of the requests with outcome error, rejected, deadline or unavailable; invalid and unauthorized ones count nowhere. "
     "RequestsFail fires above 5%.",
     [("{{instance}}", f"foredraft:request_failures:ratio_5m{{{M}}}")]),
    ("Time to first token", "s",
     "Over the chosen daemons. Arrival of a request to its first token: queue and prefill. FirstTokenSlow fires at a p99 of 5 s.",
     quantiles("time_to_first_token_seconds")),
    ("Time per output token", "s",
     "Over the chosen daemons. Between tokens after the first; each token counts once. OutputTokensSlow fires at a p99 of 200 ms.",
     quantiles("time_per_output_token_seconds")),
    ("Time in the queue", "s",
     "Over the chosen daemons. Arrival of a request to its slot.",
     quantiles("queue_duration_seconds")),
    ("Step duration, p50", "s",
     "A prefill forward and a decode step; with several ranks the slowest rank's.",
     [("{{instance}} {{kind}}", f"histogram_quantile(0.5, sum by (le, instance, kind) (rate(foredraft_step_duration_seconds_bucket{{{M}}}[5m])))")]),
    ("Sequences per decode step", "none",
     "Mean batch of a decode step over all ranks. Larger batches make steps longer, and drafts worth less.",
     [("{{instance}}", f"{total('step_batch_size_sum')} / {total('step_batch_size_count')}")]),
    ("KV cache in use, by rank", "percentunit",
     "Blocks held by sequences over all blocks. KvCacheFull fires above 95%.",
     [("{{instance}} rank {{rank}}", f"foredraft_kv_cache_usage_ratio{{{M}}}")]),
    ("Requests running, by rank", "none",
     "Lines that stay apart mean that the ranks are not level: all of them wait for the fullest one in every step.",
     [("{{instance}} rank {{rank}}", f"foredraft_requests_running{{{M}}}")]),
    ("Prompt tokens computed per second, by rank", "none",
     "Without those that the prefix cache had. The backlog is what admitted requests still wait for.",
     [("{{instance}} rank {{rank}}", total("prefill_tokens_total", by="instance, rank")),
      ("{{instance}} backlog of rank {{rank}}", f"sum by (instance, rank) (foredraft_prefill_backlog_tokens{{{M}}})")]),
    ("Prompt tokens from the cache", "percentunit",
     "Prompt tokens found in the prefix cache over those looked up.",
     [("{{instance}}", f"{total('prefix_cache_hit_tokens_total')} / {total('prefix_cache_queried_tokens_total')}")]),
    ("Swapped out, wasted, per second", "none",
     "Preemptions: sequences moved to host memory for want of KV blocks. Wasted: steps computed for sequences that had ended.",
     [("{{instance}} preemptions", total("preemptions_total")), ("{{instance}} wasted steps", total("wasted_steps_total"))]),
    ("Lost ranks and restarts", "none",
     "Since the daemon's start.",
     [("{{instance}} ranks lost", f"foredraft_rank_failures_total{{{M}}}"), ("{{instance}} restarts", f"foredraft_group_restarts_total{{{M}}}")]),
    ("Memory of the daemon's process", "bytes",
     "Resident memory. With several ranks the weights are in the workers' processes, which this does not see.",
     [("{{instance}}", f"process_resident_memory_bytes{{{M}}}")]),
    ("CPU of the daemon's process", "none",
     "Cores in use. With the CPU backend this is the model's work; on GPUs it is the scheduler's and the network's.",
     [("{{instance}}", f"rate(process_cpu_seconds_total{{{M}}}[1m])")]),
    ("Constrained requests per second, by kind", "reqps",
     "Requests whose outputs must follow a schema, expression, grammar or the format of calls, and constraints refused.",
     [("{{instance}} {{kind}}", total("constrained_requests_total", by="instance, kind")),
      ("{{instance}} refused: {{reason}}", total("constraint_refused_total", by="instance, reason"))]),
    ("Time to compile constraints, p95", "s",
     "Over the chosen daemons, of constraints that were not in the cache. Long times mean large or ambiguous schemas; "
     "constraints.max_compile_steps bounds them.",
     [quantile(95, "constraint_compile_seconds")]),
]


# Panels that are not lines over time, by their unit.
STATES = {"type": "state-timeline", "fieldConfig": {"defaults": {"mappings": [
    {"type": "value", "options": {"1": {"text": "yes", "color": "green"}}}]}, "overrides": []}}
RULES = "Empty unless Prometheus has the recording rules of deploy/prometheus/rules.yml"


def panel(index, title, unit, description, queries):
    if any("foredraft:" in expression for _, expression in queries):
        description += f" {RULES}."
    lines = {"type": "timeseries", "fieldConfig": {"defaults": {"unit": unit, "min": 0}, "overrides": []}}
    return {
        "id": index + 1, **(STATES if unit == "state" else lines), "title": title, "description": description,
        "gridPos": {"x": index % 3 * 8, "y": index // 3 * 8, "w": 8, "h": 8},
        "datasource": {"type": "prometheus", "uid": "${datasource}"},
        "targets": [{"refId": chr(ord("A") + i), "expr": expression, "legendFormat": legend}
                    for i, (legend, expression) in enumerate(queries)],
    }


def dashboard():
    made = {
        "title": "foredraft", "uid": "foredraft",
        "description": "Panels of recorded series (drafts, speed-up, failed requests) need deploy/prometheus/rules.yml.",
        "schemaVersion": 39, "version": 1, "refresh": "10s",
        "time": {"from": "now-1h", "to": "now"},
        "templating": {"list": [
            {"name": "datasource", "type": "datasource", "query": "prometheus"},
            {"name": "model_name", "type": "query", "datasource": {"type": "prometheus", "uid": "${datasource}"},
             "query": "label_values(foredraft_build_info, model_name)", "includeAll": True, "multi": True},
            {"name": "instance", "type": "query", "datasource": {"type": "prometheus", "uid": "${datasource}"},
             "query": "label_values(foredraft_build_info{model_name=~\"$model_name\"}, instance)", "includeAll": True, "multi": True},
        ]},
        "panels": [panel(i, *row) for i, row in enumerate(PANELS)],
    }
    return json.dumps(made, indent=1) + "\n"


if __name__ == "__main__":
    pathlib.Path(__file__).with_name("foredraft.json").write_text(dashboard())
