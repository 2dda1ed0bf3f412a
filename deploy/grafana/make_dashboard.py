#!/usr/bin/env python3
"""Writes deploy/grafana/foredraft.json: a row of panels per question an operator asks.

usage: deploy/grafana/make_dashboard.py   (standard library alone; run again after a change here)
"""

import json
import pathlib

M = 'model_name=~"$model_name"'

QUANTILES = (50, 90, 99)


def total(metric, window="5m", by=""):
    """The rate of a counter, summed over daemons and ranks."""
    return f"sum{by and f' by ({by}) '}(rate(foredraft_{metric}{{{M}}}[{window}]))"


def quantiles(histogram):
    return [(f"p{q}", f"histogram_quantile(0.{q}, sum by (le) (rate(foredraft_{histogram}_bucket{{{M}}}[5m])))") for q in QUANTILES]


# Title, unit, description, queries (legend, expression); a panel each, three to a row.
PANELS = [
    ("Tokens per step with drafts", "none",
     "Acceptance length: what a decode step emits, accepted drafts and one token of the target. 1 = no draft is accepted.",
     [("length", f"foredraft:acceptance_length:5m{{{M}}}")]),
    ("Drafts accepted, by phase", "percentunit",
     "Accepted over verified drafts, while the model thinks and while it answers.",
     [("{{phase}}", f"foredraft:acceptance_rate:5m{{{M}}}")]),
    ("Drafts accepted, by position", "percentunit",
     "Share of the steps that accept the draft at this position. Where the last position's share is small, a lower max_draft_len is likely faster.",
     [("{{position}}", f"foredraft:acceptance_per_position:5m{{{M}}}")]),
    ("Draft length in use", "none",
     "K, the drafts per step, as the draft policy chose it last.",
     [("K", f"foredraft_spec_decode_draft_length{{{M}}}")]),
    ("Speed-up by drafts", "none",
     "Tokens per second with drafts over those with K = 0, from measured step times and acceptance. No line until steps "
     "with K = 0 were measured in the decode bucket (docs/metrics.md).",
     [("estimate", f"foredraft:speed_up_estimate:5m{{{M}}}")]),
    ("Tokens per second", "none",
     "Generated tokens that clients were sent, and prompt tokens of their requests.",
     [("generated", total("generation_tokens_total", "1m")), ("prompt", total("prompt_tokens_total", "1m"))]),
    ("Requests", "none",
     "Running: with a slot or swapped out. Waiting: in the queue; a line that stays above 0 means too little capacity.",
     [("running", f"sum(foredraft_requests_running{{{M}}})"), ("waiting", f"sum(foredraft_requests_waiting{{{M}}})")]),
    ("Ended requests per second", "none",
     "By outcome. rejected: the queue was full. error: a rank was lost, or a bug.",
     [("{{outcome}}", total("requests_total", by="outcome"))]),
    ("Failed requests", "percentunit",
     "Share of the ended requests with outcome error, rejected or deadline. RequestsFail fires above 5%.",
     [("failed", f"foredraft:request_failures:ratio_5m{{{M}}}")]),
    ("Time to first token", "s",
     "Arrival of a request to its first token: queue and prefill. FirstTokenSlow fires at a p99 of 5 s.",
     quantiles("time_to_first_token_seconds")),
    ("Time per output token", "s",
     "Between tokens after the first; each token counts once. OutputTokensSlow fires at a p99 of 200 ms.",
     quantiles("time_per_output_token_seconds")),
    ("Time in the queue", "s",
     "Arrival of a request to its slot.",
     quantiles("queue_duration_seconds")),
    ("Step duration, p50", "s",
     "A prefill forward and a decode step; with several ranks the slowest rank's.",
     [("{{kind}}", f"histogram_quantile(0.5, sum by (le, kind) (rate(foredraft_step_duration_seconds_bucket{{{M}}}[5m])))")]),
    ("Sequences per decode step", "none",
     "Mean batch of a decode step over all ranks. Larger batches make steps longer, and drafts worth less.",
     [("mean", f"{total('step_batch_size_sum')} / {total('step_batch_size_count')}")]),
    ("KV cache in use, by rank", "percentunit",
     "Blocks held by sequences over all blocks. KvCacheFull fires above 95%.",
     [("rank {{rank}}", f"foredraft_kv_cache_usage_ratio{{{M}}}")]),
    ("Requests running, by rank", "none",
     "Lines that stay apart mean that the ranks are not level: all of them wait for the fullest one in every step.",
     [("rank {{rank}}", f"foredraft_requests_running{{{M}}}")]),
    ("Prompt tokens computed per second, by rank", "none",
     "Without those that the prefix cache had. The backlog is what admitted requests still wait for.",
     [("rank {{rank}}", total("prefill_tokens_total", by="rank")),
      ("backlog of rank {{rank}}", f"sum by (rank) (foredraft_prefill_backlog_tokens{{{M}}})")]),
    ("Prompt tokens from the cache", "percentunit",
     "Prompt tokens found in the prefix cache over those looked up.",
     [("hit", f"{total('prefix_cache_hit_tokens_total')} / {total('prefix_cache_queried_tokens_total')}")]),
    ("Swapped out, wasted, per second", "none",
     "Preemptions: sequences moved to host memory for want of KV blocks. Wasted: steps computed for sequences that had ended.",
     [("preemptions", total("preemptions_total")), ("wasted steps", total("wasted_steps_total"))]),
    ("Lost ranks and restarts", "none",
     "Since the daemon's start.",
     [("ranks lost", f"foredraft_rank_failures_total{{{M}}}"), ("restarts", f"foredraft_group_restarts_total{{{M}}}")]),
    ("Memory of the daemon's process", "bytes",
     "Resident memory. With several ranks the weights are in the workers' processes, which this does not see.",
     [("{{instance}}", f"process_resident_memory_bytes{{{M}}}")]),
    ("CPU of the daemon's process", "none",
     "Cores in use. With the CPU backend this is the model's work; on GPUs it is the scheduler's and the network's.",
     [("{{instance}}", f"rate(process_cpu_seconds_total{{{M}}}[1m])")]),
]


def panel(index, title, unit, description, queries):
    return {
        "id": index + 1, "type": "timeseries", "title": title, "description": description,
        "gridPos": {"x": index % 3 * 8, "y": index // 3 * 8, "w": 8, "h": 8},
        "datasource": {"type": "prometheus", "uid": "${datasource}"},
        "fieldConfig": {"defaults": {"unit": unit, "min": 0}, "overrides": []},
        "targets": [{"refId": chr(ord("A") + i), "expr": expression, "legendFormat": legend}
                    for i, (legend, expression) in enumerate(queries)],
    }


def main():
    dashboard = {
        "title": "foredraft", "uid": "foredraft", "schemaVersion": 39, "version": 1, "refresh": "10s",
        "time": {"from": "now-1h", "to": "now"},
        "templating": {"list": [
            {"name": "datasource", "type": "datasource", "query": "prometheus"},
            {"name": "model_name", "type": "query", "datasource": {"type": "prometheus", "uid": "${datasource}"},
             "query": "label_values(foredraft_build_info, model_name)", "includeAll": True, "multi": True},
        ]},
        "panels": [panel(i, *row) for i, row in enumerate(PANELS)],
    }
    path = pathlib.Path(__file__).with_name("foredraft.json")
    path.write_text(json.dumps(dashboard, indent=1) + "\n")


if __name__ == "__main__":
    main()
