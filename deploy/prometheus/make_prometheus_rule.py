#!/usr/bin/env python3
"""Writes deploy/k8s/prometheus-rule.yaml: the rules of rules.yml as the Prometheus operator takes them.

usage: deploy/prometheus/make_prometheus_rule.py   (standard library alone; run again after a change of rules.yml)
"""

import pathlib
import textwrap

HEAD = """\
# Written by deploy/prometheus/make_prometheus_rule.py from deploy/prometheus/rules.yml. Needs the Prometheus operator; a
# Prometheus that chooses rules by label needs that label here, `release: kube-prometheus-stack` for one of that chart.
apiVersion: monitoring.coreos.com/v1
kind: PrometheusRule
metadata:
  name: foredraft
spec:
"""


def manifest() -> str:
    rules = (pathlib.Path(__file__).parent / "rules.yml").read_text()
    return HEAD + textwrap.indent(rules[rules.index("groups:"):], "  ")


if __name__ == "__main__":
    (pathlib.Path(__file__).parents[1] / "k8s/prometheus-rule.yaml").write_text(manifest())
