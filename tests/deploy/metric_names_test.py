#!/usr/bin/env python3
"""Every metric that deploy/prometheus and deploy/grafana name exists: in server/output/metric_table.cc, or as a recording rule."""

import json
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).parent.parent.parent
NAME = re.compile(r"\b(?:foredraft[_:]|process_)[a-z0-9_:]+")


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
    for name in sorted(unknown):
        print(f"{name}: named in deploy/, but neither exported nor recorded")
    for title in undescribed:
        print(f"{title}: a panel without a description")
    print(f"metric_names: {len(named)} names in use, {len(exported)} exported, {len(unknown)} unknown")
    return 1 if unknown or undescribed or len(named) < 20 or len(exported) < 30 else 0


if __name__ == "__main__":
    sys.exit(main())
