"""The daemon on the GPU: the same requests with 0 drafts and with more give the same tokens, over gRPC, with batching,
overlap and captured graphs; tokens per second of each."""

import json
import signal
import socket
import subprocess
import time

from gpu_machine import Result

MODELS = ("abacus", "abacus-v4/mtp", "abacus-v4/dspark")
# Arguments of foredraft bench beside --compare.
LOADS = {"greedy": ["--temperature", "0"], "temperature 1": ["--temperature", "1"]}
START_SECONDS, STOP_SECONDS = 90, 20


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Daemon:
    def __init__(self, report, model, backend):
        machine = report.machine
        self.report, self.name = report, f"{model}: serve"
        self.address = f"127.0.0.1:{free_port()}"
        self.command = [machine.program("foredraft"), "serve", f"deploy/models/{model}", "--backend", backend, "--listen",
                        self.address, "--http", f"127.0.0.1:{free_port()}", "--set",
                        f"server.metrics_address=127.0.0.1:{free_port()}"]
        self.log = report.out / (model.replace("/", "-") + ".log")
        self.start = time.monotonic()
        with open(self.log, "w") as log:
            self.process = subprocess.Popen(self.command, stdout=log, stderr=subprocess.STDOUT, env=machine.environment,
                                            cwd=machine.pack, start_new_session=True)

    def ready(self):
        while time.monotonic() < self.start + START_SECONDS and self.process.poll() is None:
            if "serving  grpc" in self.log.read_text():
                self.add("passed")
                return True
            time.sleep(0.2)
        self.add("did not start")
        return False

    def add(self, ended):
        result = Result(ended, time.monotonic() - self.start, self.log.read_text())
        self.report.add_result(self.name, result, self.command)

    def stop(self):
        self.start, self.name = time.monotonic(), self.name + ", stop"
        self.process.send_signal(signal.SIGTERM)
        try:
            status = self.process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            status = self.process.wait()
        self.add("passed" if status == 0 else f"status {status}")


def add_comparison(report, daemon, model, load, settings, requests):
    """Fails if settings of the draft length gave other tokens."""
    path = report.out / "bench.json"
    command = [report.machine.program("foredraft"), "bench", "--server", daemon.address, "--compare", f"K={settings}",
               "--rounds", "1", "--num-requests", str(requests), *LOADS[load], "--json", str(path)]
    result = report.add_program(f"{model}: {load}, K {settings}", command, 120)
    if not result or not path.exists():
        return
    for setting in json.loads(path.read_text()).get("settings", []):
        report.add(f"  K {setting['max_draft_tokens']}", "measured", measured=setting["output_tokens_per_s"]["median"],
                   unit="tokens/s")
    path.unlink()


def run(report, quick, _jobs):
    machine = report.machine
    if not (machine.pack / "bin/foredraft").exists():
        report.add("serve", "skipped", reason="foredraft: not in this pack (tests/gpu/pack --daemon)")
        return
    for model in MODELS[:1] if quick else MODELS:
        daemon = Daemon(report, model, "cpu" if machine.on_host else "cuda")
        try:
            if daemon.ready():
                for load in list(LOADS)[:1] if quick else LOADS:
                    add_comparison(report, daemon, model, load, "0,1,3", 4 if quick else 64)
        finally:
            daemon.stop()
