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
DEFAULT_REQUEST_TIMEOUT_S = 600
DEFAULT_MAX_SEQ_LEN = 4096
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
        shape = "deploy/configs/r1-shape-61x256.json" if "DeepSeek-R1" in config["model"] else "deploy/models/abacus"
        path.write_text(text.replace(config["model"], str(ROOT / shape)).replace("backend: cuda", "backend: cpu"))
        run = subprocess.run([binary, "check-config", "--other-host", "--config", path], capture_output=True, text=True, check=False)
    check(run.returncode == 0, f"{name}: foredraft.yaml: {run.stderr.strip()}")
    return config


def check_pod(name: str, pod: dict, config: dict) -> int:
    """Grace longer than preStop and the drain, the drain as long as a request, every mount has its volume. Returns its GPUs."""
    drain = config["server"]["drain_timeout_s"]
    sleeps = [int(container["lifecycle"]["preStop"]["exec"]["command"][1]) for container in pod["containers"] if "lifecycle" in container]
    check(pod["terminationGracePeriodSeconds"] >= max(sleeps, default=0) + drain + 30, f"{name}: grace is too short for a drain of {drain} s")
    check(drain >= config.get("request_timeout_s", DEFAULT_REQUEST_TIMEOUT_S), f"{name}: a drain of {drain} s cuts requests short")
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
    check_listeners(path.name, config, leader["spec"], kinds["Service"])
    check(all("lifecycle" in container for container in leader["spec"]["containers"]), f"{path.name}: the leader has no preStop")
    check(config["max_seq_len"] > DEFAULT_MAX_SEQ_LEN, f"{path.name}: max_seq_len {config['max_seq_len']}")
    check(selector.items() <= labels.items(), f"{path.name}: the service selects {selector}, the leader has {labels}")
    gpus = check_pod(f"{path.name}: leader", leader["spec"], config)
    if template["size"] > 1:
        gpus += (template["size"] - 1) * check_pod(f"{path.name}: worker", template["workerTemplate"]["spec"], config)
        check(template["workerTemplate"]["metadata"]["labels"] != labels, f"{path.name}: workers are selected too")
    ranks = config["parallel"]["attention_dp"]
    check(gpus == ranks, f"{path.name}: {gpus} GPUs in a group, {ranks} ranks")


def check_listeners(name: str, config: dict, pod: dict, service: dict) -> None:
    """What the daemon listens on for clients is reached: a port of the pod and of the service for each address. Callers are known."""
    server = config["server"]
    listeners = {"grpc": "grpc_address", "https": "http_address", "metrics": "metrics_address"}
    ports = {port["name"]: port["containerPort"] for container in pod["containers"] for port in container["ports"]}
    services = {port["name"]: (port["port"], port["targetPort"]) for port in service["spec"]["ports"]}
    check(set(services) == set(listeners), f"{name}: the service has {sorted(services)}, expected {sorted(listeners)}")
    for port, key in listeners.items():
        host, _, number = server.get(key, "").rpartition(":")
        check(host == "0.0.0.0", f"{name}: {key} {host}: the service does not reach it")
        check(ports.get(port) == int(number or 0), f"{name}: {key} has port {number}, the pod's {port} is {ports.get(port)}")
        check(services.get(port) == (int(number or 0), port), f"{name}: {key} has port {number}, the service's {port} is {services.get(port)}")
    known = "tokens_file" in server.get("auth", {}) or "client_ca" in server["tls"]
    check(known and "allow_insecure" not in server, f"{name}: whoever reaches the service may generate")


def check_operations(schema: dict) -> None:
    """Forms; what they select is what foredraft-1x8.yaml has: labels, ports, the set, a metric without a series for each rank."""
    path = ROOT / "deploy/k8s/operations-1x8.yaml"
    documents = {document["kind"]: document for document in yaml.safe_load_all(path.read_text())}
    check(set(documents) == {"PodDisruptionBudget", "PodMonitor", "NetworkPolicy", "HorizontalPodAutoscaler"}, f"{path.name}: {sorted(documents)}")
    for document in documents.values():
        for error in jsonschema.Draft7Validator(schema).iter_errors(document):
            faults.append(f"{path.name}: {document['kind']}: {error.message[:200]}")
    served = {document["kind"]: document for document in yaml.safe_load_all((ROOT / "deploy/k8s/foredraft-1x8.yaml").read_text())}
    template = served["LeaderWorkerSet"]["spec"]["leaderWorkerTemplate"]["workerTemplate"]
    labels, ports = template["metadata"]["labels"], {port["name"] for port in template["spec"]["containers"][0]["ports"]}
    for kind, key in (("PodDisruptionBudget", "selector"), ("PodMonitor", "selector"), ("NetworkPolicy", "podSelector")):
        selector = documents[kind]["spec"][key]["matchLabels"]
        check(selector.items() <= labels.items(), f"{path.name}: {kind} selects {selector}, the pods have {labels}")
    named = {endpoint["port"] for endpoint in documents["PodMonitor"]["spec"]["podMetricsEndpoints"]}
    named |= {port["port"] for rule in documents["NetworkPolicy"]["spec"]["ingress"] for port in rule["ports"]}
    check(named == ports, f"{path.name}: ports {sorted(named)}, the pods have {sorted(ports)}")
    scaler = documents["HorizontalPodAutoscaler"]["spec"]
    check(scaler["scaleTargetRef"]["name"] == served["LeaderWorkerSet"]["metadata"]["name"], f"{path.name}: scales another set")
    for metric in scaler["metrics"]:
        name = metric["pods"]["metric"]["name"]
        check(f"| `{name}` |" in (ROOT / "docs/metrics.md").read_text(), f"{path.name}: {name} is no metric")


def check_prometheus_rule(schema: dict) -> None:
    """The operator's manifest has the rules of rules.yml; the job that DaemonDown asks for is what the PodMonitor gives its targets."""
    path = ROOT / "deploy/k8s/prometheus-rule.yaml"
    manifest, rules = yaml.safe_load(path.read_text()), yaml.safe_load((ROOT / "deploy/prometheus/rules.yml").read_text())
    for error in jsonschema.Draft7Validator(schema).iter_errors(manifest):
        faults.append(f"{path.name}: {error.message[:200]}")
    check(manifest["spec"]["groups"] == rules["groups"], f"{path.name}: not of rules.yml: run deploy/prometheus/make_prometheus_rule.py")
    down = next(rule for group in rules["groups"] for rule in group["rules"] if rule.get("alert") == "DaemonDown")
    jobs = set(re.findall(r'job="([^"]*)"', down["expr"]))
    monitor = next(document for document in yaml.safe_load_all((ROOT / "deploy/k8s/operations-1x8.yaml").read_text()) if document["kind"] == "PodMonitor")
    for manifest in sorted((ROOT / "deploy/k8s").glob("foredraft-*.yaml")):
        sets = [document for document in yaml.safe_load_all(manifest.read_text()) if document["kind"] == "LeaderWorkerSet"]
        template = sets[0]["spec"]["leaderWorkerTemplate"]
        labels = template.get("leaderTemplate", template["workerTemplate"])["metadata"]["labels"]
        job = labels.get(monitor["spec"].get("jobLabel", ""))
        check(job in jobs, f"{manifest.name}: Prometheus' job is {job}, DaemonDown asks for {sorted(jobs)}")


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
    check_operations(schema)
    check_prometheus_rule(schema)
    check_endpoint_picker(schema)
    check_units(binary)
    for fault in faults:
        print(fault)
    print(f"manifests_test: {len(manifests)} manifests, 3 units, {len(faults)} faults")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
