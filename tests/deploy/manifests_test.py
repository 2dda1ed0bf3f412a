#!/usr/bin/env python3
"""deploy/k8s against the schema of the fields it uses, its configurations against the binary, its names against each
other; deploy/systemd by systemd-analyze verify.

usage: tests/deploy/manifests_test.py FOREDRAFT   (the binary)
"""

import json
import pathlib
import re
import subprocess
import sys
import tempfile

import jsonschema
import yaml

ROOT = pathlib.Path(__file__).resolve().parents[2]
MOST_EXPOSED = 3.0  # of ten, by systemd-analyze security
faults: list[str] = []


def check(good: bool, text: str) -> None:
    if not good:
        faults.append(text)


def check_config(binary: str, name: str, text: str) -> dict:
    """The configuration reads well but for its model, which is not on this machine."""
    config = yaml.safe_load(text)
    with tempfile.TemporaryDirectory() as directory:
        path = pathlib.Path(directory) / "foredraft.yaml"
        path.write_text(text.replace(config["model"], str(ROOT / "deploy/models/abacus")).replace("backend: cuda", "backend: cpu"))
        run = subprocess.run([binary, "check-config", "--config", path], capture_output=True, text=True, check=False)
    check(run.returncode == 0, f"{name}: foredraft.yaml: {run.stderr.strip()}")
    return config


def check_pod(name: str, pod: dict, config: dict) -> int:
    """Grace longer than the drain, every mount has its volume. Returns its GPUs."""
    drain = config["server"]["drain_timeout_s"]
    check(pod["terminationGracePeriodSeconds"] > drain, f"{name}: grace is not above drain_timeout_s, {drain}")
    volumes = {volume["name"] for volume in pod["volumes"]}
    gpus = 0
    for container in pod["containers"]:
        mounts = {mount["name"] for mount in container["volumeMounts"]}
        check(mounts == volumes, f"{name}: mounts {sorted(mounts)}, volumes {sorted(volumes)}")
        gpus += int(container["resources"]["limits"]["nvidia.com/gpu"])
    return gpus


def check_manifest(binary: str, path: pathlib.Path, schema: dict) -> None:
    documents = list(yaml.safe_load_all(path.read_text()))
    validator = jsonschema.Draft7Validator(schema)
    kinds = {}
    for document in documents:
        kinds[document["kind"]] = document
        definition = schema["definitions"][document["kind"][0].lower() + document["kind"][1:]]
        for error in validator.evolve(schema={**definition, "definitions": schema["definitions"]}).iter_errors(document):
            faults.append(f"{path.name}: {document['kind']}.{'.'.join(map(str, error.absolute_path))}: {error.message}")
    config = check_config(binary, path.name, kinds["ConfigMap"]["data"]["foredraft.yaml"])
    spec = kinds["LeaderWorkerSet"]["spec"]
    template = spec["leaderWorkerTemplate"]
    leader = template.get("leaderTemplate", template["workerTemplate"])
    labels = leader["metadata"]["labels"]
    selector = kinds["Service"]["spec"]["selector"]
    check(selector.items() <= labels.items(), f"{path.name}: the service selects {selector}, the leader has {labels}")
    gpus = check_pod(f"{path.name}: leader", leader["spec"], config)
    if template["size"] > 1:
        gpus += (template["size"] - 1) * check_pod(f"{path.name}: worker", template["workerTemplate"]["spec"], config)
        check(template["workerTemplate"]["metadata"]["labels"] != labels, f"{path.name}: workers are selected too")
    ranks = config["parallel"]["attention_dp"]
    check(gpus == ranks, f"{path.name}: {gpus} GPUs in a group, {ranks} ranks")


def check_endpoint_picker(schema: dict) -> None:
    """The ConfigMap's form; plugins that are named exist; metrics are exported without a label rank."""
    path = ROOT / "deploy/k8s/endpoint-picker.yaml"
    document = yaml.safe_load(path.read_text())
    definition = {**schema["definitions"]["configMap"], "definitions": schema["definitions"]}
    for error in jsonschema.Draft7Validator(definition).iter_errors(document):
        faults.append(f"{path.name}: {error.message}")
    config = yaml.safe_load(document["data"]["config.yaml"])
    plugins = {plugin.get("name", plugin["type"]): plugin for plugin in config["plugins"]}
    sources = config["dataLayer"]["sources"]
    named = [entry for profile in config["schedulingProfiles"] for entry in profile["plugins"]] + sources
    named += [extractor for source in sources for extractor in source["extractors"]]
    for entry in named:
        check(entry["pluginRef"] in plugins, f"{path.name}: no plugin {entry['pluginRef']}")
    engine = plugins["metrics-extractor"]["parameters"]["engineConfigs"][0]
    document_rows = re.findall(r"^\| `([\w:]+)` \|(.*)$", (ROOT / "docs/metrics.md").read_text(), re.MULTILINE)
    exported = {name for name, rest in document_rows if "rank (" not in rest}
    for key in ("queuedRequestsSpec", "runningRequestsSpec", "kvUsageSpec"):
        check(engine[key] in exported, f"{path.name}: {key}: {engine[key]} is no metric, or has a series for each rank")


def check_schema_refuses(schema: dict) -> None:
    """The schema is closed: a misspelt field must not pass."""
    wrong = {"type": "object", **schema["definitions"]["probe"], "definitions": schema["definitions"]}
    probe = {"periodSeconds": 1, "failureThreshold": 1, "tcpSoket": {"port": 1}}
    check(bool(list(jsonschema.Draft7Validator(wrong).iter_errors(probe))), "the schema takes any field")


def check_units(binary: str) -> None:
    units = sorted((ROOT / "deploy/systemd").glob("*.service"))
    check(len(units) == 3, f"systemd: {len(units)} units")
    for unit in units:
        with tempfile.TemporaryDirectory() as directory:
            # verify wants the program to exist
            text = unit.read_text().replace("/usr/bin/foredraft", str(pathlib.Path(binary).resolve()))
            text = text.replace("/usr/share/foredraft/gateway/run", str(ROOT / "deploy/gateway/run"))
            copy = pathlib.Path(directory) / unit.name.replace("@.", "@4.")
            copy.write_text(text)
            run = subprocess.run(["systemd-analyze", "verify", "--man=no", copy], capture_output=True, text=True, check=False)
            said = [line for line in run.stderr.splitlines() if unit.stem.rstrip("@") in line or "Unknown" in line]
            check(not said, f"{unit.name}: {'; '.join(said)}")
            rated = subprocess.run(["systemd-analyze", "security", "--offline=true", copy], capture_output=True, text=True, check=False)
            exposure = re.search(r"exposure level for \S+: ([0-9.]+)", rated.stdout)
            check(exposure is not None and float(exposure[1]) < MOST_EXPOSED, f"{unit.name}: exposure {exposure and exposure[1]}")


def main() -> int:
    binary = sys.argv[1]
    schema = json.loads((ROOT / "tests/deploy/k8s_schema.json").read_text())
    check_schema_refuses(schema)
    manifests = sorted((ROOT / "deploy/k8s").glob("foredraft-*.yaml"))
    check(len(manifests) == 2, f"{len(manifests)} manifests")
    for path in manifests:
        check_manifest(binary, path, schema)
    check_config(binary, "container", (ROOT / "deploy/container/abacus.yaml").read_text())
    check_endpoint_picker(schema)
    check_units(binary)
    for fault in faults:
        print(fault)
    print(f"manifests_test: {len(manifests)} manifests, 3 units, {len(faults)} faults")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
