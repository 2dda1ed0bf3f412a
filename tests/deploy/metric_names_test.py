#!/usr/bin/env python3
"""Every metric that deploy/prometheus and deploy/grafana name exists: in server/output/metric_table.cc, or as a recording rule.

Of several daemons each can be told from the others: on the dashboard, in recorded series, in alerts. What scripts of deploy/
write is what they would write now.
"""

import json
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path[:0] = [str(ROOT / "deploy/grafana"), str(ROOT / "deploy/prometheus")]

import make_dashboard  # noqa: E402: deploy/ is no package
import make_prometheus_rule  # noqa: E402

NAME = re.compile(r"\b(?:foredraft[_:]|process_)[a-z0-9_:]+")


def daemons_mixed(rules: str, dashboard: dict) -> list[str]:
    """Where two daemons of one model would be one number, or two lines with one name."""
    texts = []
    for clause in re.findall(r"\b(?:by|on) \(([^)]*)\)", rules):
        if "instance" not in clause:
            texts.append(f"rules.yml: by ({clause}): without instance")
    for text in re.findall(r'summary: "(.*)"', rules):
        if "$labels.instance" not in text:
            texts.append(f"rules.yml: {text}: does not name the instance")
    for panel in dashboard["panels"]:
        needs_rules = False
        for target in panel["targets"]:
            needs_rules |= "foredraft:" in target["expr"]
            if 'instance=~"$instance"' not in target["expr"]:
                texts.append(f"{panel['title']}: does not follow the variable instance")
            quantile_of_all = re.fullmatch(r"p\d\d", target["legendFormat"]) is not None
            if not quantile_of_all and "{{instance}}" not in target["legendFormat"]:
                texts.append(f"{panel['title']}: the legend {target['legendFormat']} is that of every daemon")
        if needs_rules and "rules.yml" not in panel["description"]:
            texts.append(f"{panel['title']}: does not say that it needs rules.yml")
    if "instance" not in [variable["name"] for variable in dashboard["templating"]["list"]]:
        texts.append("the dashboard has no variable instance")
    if "foredraft_state" not in json.dumps(dashboard["panels"]):
        texts.append("no panel shows foredraft_state")
    return texts


def stale_files() -> list[str]:
    written = {"deploy/grafana/foredraft.json": make_dashboard.dashboard(), "deploy/k8s/prometheus-rule.yaml": make_prometheus_rule.manifest()}
    return [f"{path}: not what its script writes now" for path, text in written.items() if (ROOT / path).read_text() != text]


def main() -> int:
    exported = set(re.findall(r'"((?:foredraft|process)_[a-z0-9_]+)"', (ROOT / "server/output/metric_table.cc").read_text()))
    rules = (ROOT / "deploy/prometheus/rules.yml").read_text()
    recorded = set(re.findall(r"record: (\S+)", rules))
    expressions = re.sub(r"(?m)^\s*(#.*|- name: .*|- record: .*)$", "", rules)
    dashboard = json.loads((ROOT / "deploy/grafana/foredraft.json").read_text())
    queries = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    queries += [variable["query"] for variable in dashboard["templating"]["list"]]

    named = set(NAME.findall(expressions)) | {name for query in queries for name in NAME.findall(query)}
    unknown = {name for name in named
               if name not in recorded and name not in exported
               and re.sub(r"_(bucket|sum|count)$", "", name) not in exported}
    undescribed = [panel["title"] for panel in dashboard["panels"] if len(panel["description"]) < 20]
    mixed = daemons_mixed(rules, dashboard)
    stale = stale_files()
    for text in mixed + stale:
        print(text)
    for name in sorted(unknown):
        print(f"{name}: named in deploy/, but neither exported nor recorded")
    for title in undescribed:
        print(f"{title}: a panel without a description")
    print(f"metric_names: {len(named)} names in use, {len(exported)} exported, {len(unknown)} unknown")
    return 1 if unknown or mixed or stale or undescribed or len(named) < 20 or len(exported) < 30 else 0


if __name__ == "__main__":
    sys.exit(main())
