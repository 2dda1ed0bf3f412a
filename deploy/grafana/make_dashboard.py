#!/usr/bin/env python3
"""Writes deploy/grafana/foredraft.json: a row of panels per question an operator asks.

usage: deploy/grafana/make_dashboard.py   (standard library alone; run again after a change here)
"""

import json
import pathlib

M = 'model_name=~"$model_name"'

# Title, unit, queries (legend, expression); a panel each, three to a row.
PANELS = [
    ("Tokens per step with drafts", "none", [("length", f"foredraft:acceptance_length:5m{{{M}}}")]),
    ("Drafts accepted, by phase", "percentunit", [("{{phase}}", f"foredraft:acceptance_rate:5m{{{M}}}")]),
    ("Drafts accepted, by position", "percentunit",
     [("{{position}}", f"foredraft:acceptance_per_position:5m{{{M}}}")]),
    ("Draft length in use", "none", [("K", f"foredraft_spec_decode_draft_length{{{M}}}")]),
    ("Tokens per second", "none", [
        ("generated", f"sum(rate(foredraft_generation_tokens_total{{{M}}}[1m]))"),
        ("prompt", f"sum(rate(foredraft_prompt_tokens_total{{{M}}}[1m]))")]),
    ("Requests", "none", [
        ("running", f"foredraft_requests_running{{{M}}}"), ("waiting", f"foredraft_requests_waiting{{{M}}}")]),
    ("Time to first token", "s", [
        (f"p{q}", f"histogram_quantile(0.{q}, sum by (le) (rate(foredraft_time_to_first_token_seconds_bucket{{{M}}}[5m])))")
        for q in (50, 90, 99)]),
    ("Time per output token", "s", [
        (f"p{q}", f"histogram_quantile(0.{q}, sum by (le) (rate(foredraft_time_per_output_token_seconds_bucket{{{M}}}[5m])))")
        for q in (50, 90, 99)]),
    ("Step duration, p50", "s", [
        ("{{kind}}", f"histogram_quantile(0.5, sum by (le, kind) (rate(foredraft_step_duration_seconds_bucket{{{M}}}[5m])))")]),
    ("KV cache in use", "percentunit", [("used", f"foredraft_kv_cache_usage_ratio{{{M}}}")]),
    ("Prompt tokens from the cache", "percentunit", [
        ("hit", f"sum(rate(foredraft_prefix_cache_hit_tokens_total{{{M}}}[5m]))"
                f" / sum(rate(foredraft_prefix_cache_queried_tokens_total{{{M}}}[5m]))")]),
    ("Ended requests per second", "none", [
        ("{{outcome}}", f"sum by (outcome) (rate(foredraft_requests_total{{{M}}}[5m]))")]),
]


def panel(index, title, unit, queries):
    return {
        "id": index + 1, "type": "timeseries", "title": title,
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
