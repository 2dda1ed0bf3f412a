"""An installed foredraft as the tests of deploy/ see it: what must be there, and three questions with known answers."""

import os
import pathlib
import re
import subprocess
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
# Below the prefix; the page, the completions and the units are made at installation.
FILES = {
    "bin/foredraft",
    "lib/systemd/system/foredraft-gateway.service",
    "lib/systemd/system/foredraft.service",
    "lib/systemd/system/foredraft-worker@.service",
    "share/bash-completion/completions/foredraft",
    "share/fish/vendor_completions.d/foredraft.fish",
    "share/man/man1/foredraft.1.gz",
    "share/foredraft/bench/r1-1k-2k.jsonl",
    "share/foredraft/configs/abacus-cpu.yaml",
    "share/foredraft/configs/r1-shape-61x256.json",
    "share/foredraft/gateway/requirements.txt",
    "share/foredraft/gateway/run",
    *(f"share/foredraft/k8s/{name}.yaml" for name in ("endpoint-picker", "foredraft-1x8", "foredraft-2x8", "operations-1x8", "prometheus-rule")),
    "share/foredraft/grafana/foredraft.json",
    "share/foredraft/prometheus/prometheus.yml",
    "share/foredraft/prometheus/rules.yml",
    "share/doc/foredraft/CHANGELOG.md",
    "share/doc/foredraft/README.md",
    "share/doc/foredraft/SECURITY.md",
    "share/doc/foredraft/copyright",
    "share/doc/foredraft/docs/configuration.md",
    "share/doc/foredraft/docs/examples/cpp/client.cc",
    "share/doc/foredraft/docs/examples/python/client.py",
    *(f"share/foredraft/models/{model}/{name}" for model in ("abacus", "abacus-tools") for name in (
        "README.md", "config.json", "generation_config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json")),
    *(f"share/foredraft/proto/{name}.proto" for name in (
        "foredraft/v1/generation", "foredraft/v1/admin", "google/rpc/error_details", "vllm/grpc/engine/vllm_engine", "smg/grpc/common/common")),
}
ETC = {"foredraft/foredraft.yaml", "foredraft/gateway.env", "foredraft/worker.env"}
QUESTIONS = (
    ("What is 347 + 586?", "The answer is 933."),
    ("Sort these numbers from smallest to largest: 41, 7, 88, 19.", "The answer is 7, 19, 41, 88."),
    ("Which is larger, 512 or 521?", "The answer is 521."),
)


class Daemon:
    """A daemon started by `command`, on ports that it chooses."""

    def __init__(self, command: list[str], log: pathlib.Path) -> None:
        self.log = log
        arguments = ["--set", "server.grpc_address=127.0.0.1:0", "--set", "server.metrics_address=127.0.0.1:0",
                     "--set", "server.http_address=127.0.0.1:0"]
        with log.open("w") as stderr:
            self.process = subprocess.Popen([*command, *arguments], cwd="/", stderr=stderr)
        deadline = time.monotonic() + 120
        while not (serving := re.search(r"serving  grpc (\S+)", log.read_text())):
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"the daemon does not serve:\n{log.read_text()}")
            time.sleep(0.05)
        self.address = serving[1]

    def __enter__(self) -> "Daemon":
        return self

    def __exit__(self, *_: object) -> None:
        self.process.terminate()
        self.process.wait(60)


def wrong_answers(client: list[str], address: str, questions=QUESTIONS) -> list[str]:
    """What `foredraft generate` answers otherwise than it should. client: the command up to `foredraft`."""
    faults = []
    for question, answer in questions:
        run = subprocess.run([*client, "generate", "--server", address, "--chat", question, "--answer", "--temperature", "0", "--timeout", "100"],
                             capture_output=True, text=True, check=False, cwd="/")
        if run.returncode != 0 or answer != run.stdout.strip():
            faults.append(f"{question}: {run.stdout.strip()!r} {run.stderr.strip()}, expected {answer}")
    return faults


def files_below(folder: pathlib.Path) -> set[str]:
    return {(pathlib.Path(parent) / name).relative_to(folder).as_posix()
            for parent, _, names in os.walk(folder) for name in names}
