#!/usr/bin/env python3
"""Four ranks on several hosts give the tokens of one rank; then a host is cut off.

usage: tests/e2e/several_hosts_test.py FOREDRAFT   (the binary)

Network namespaces serve as hosts: the leader runs in one, and two workers in each of two others. They are joined by a
bridge and talk over TLS. The namespaces end with the test. If the machine forbids namespaces, the test says so and uses
loopback addresses as hosts; it then stops a host's workers instead of cutting its link.
"""

import contextlib
import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
RANKS = 4
HEARTBEAT_S = 3
# The heartbeat timeout, 3 s for workers to end after that, and 10 s of slack for a busy machine.
GONE_WITHIN_S = HEARTBEAT_S + 3 + 10
INSIDE = "--in-namespaces"


def run(*command: str) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


class Namespaces:
    """Three hosts on a bridge: leader 10.77.0.1, workers 10.77.0.2 and 10.77.0.3."""

    interface = "eth0"
    cut_name = "a cable pulled"

    def __init__(self) -> None:
        run("mount", "-t", "tmpfs", "tmpfs", "/run")
        run("ip", "link", "add", "br0", "type", "bridge")
        run("ip", "link", "set", "br0", "up")
        for number in (1, 2, 3):
            host = f"host{number}"
            run("ip", "netns", "add", host)
            run("ip", "link", "add", f"veth{number}", "type", "veth", "peer", "name", "eth0", "netns", host)
            run("ip", "link", "set", f"veth{number}", "master", "br0", "up")
            for command in (("addr", "add", f"10.77.0.{number}/24", "dev", "eth0"), ("link", "set", "eth0", "up"), ("link", "set", "lo", "up")):
                run("ip", "-n", host, *command)

    def address(self, number: int) -> str:
        return f"10.77.0.{number}"

    def enter(self, number: int) -> list[str]:
        return ["ip", "netns", "exec", f"host{number}"]

    def cut(self, number: int, _processes: list[subprocess.Popen]) -> None:
        run("ip", "link", "set", f"veth{number}", "down")


class LoopbackAddresses:
    """127.0.0.1, 127.0.0.2 and 127.0.0.3 of this machine."""

    interface = "lo"
    cut_name = "workers stopped"

    def address(self, number: int) -> str:
        return f"127.0.0.{number}"

    def enter(self, _number: int) -> list[str]:
        return []

    def cut(self, _number: int, processes: list[subprocess.Popen]) -> None:
        for process in processes:
            process.send_signal(signal.SIGSTOP)


def make_certificates(directory: pathlib.Path, addresses: list[str]) -> None:
    """One authority, and one certificate for all hosts, which both ends of a worker's stream present."""
    (directory / "san").write_text("subjectAltName=" + ",".join(f"IP:{a}" for a in {*addresses, "127.0.0.1"}))
    os.chdir(directory)
    run("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", "ca.key", "-out", "ca.pem", "-days", "2", "-subj", "/CN=ca")
    run("openssl", "req", "-newkey", "rsa:2048", "-nodes", "-keyout", "host.key", "-out", "host.csr", "-subj", "/CN=host")
    run("openssl", "x509", "-req", "-in", "host.csr", "-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-days", "2", "-extfile", "san", "-out", "host.pem")
    os.chdir(ROOT)


class Cluster:
    def __init__(self, binary: str, hosts, directory: pathlib.Path) -> None:
        self.binary, self.hosts, self.directory = binary, hosts, directory
        leader = f"{hosts.address(1)}:50052"
        self.grpc = f"{hosts.address(1)}:50051"
        self.tls = {"cert": directory / "host.pem", "key": directory / "host.key", "client_ca": directory / "ca.pem"}
        sets = [
            f"server.grpc_address={self.grpc}", f"server.metrics_address={hosts.address(1)}:9464",
            "server.http_address=127.0.0.1:0",
            *(f"server.tls.{key}={path}" for key, path in self.tls.items()),
            f"parallel.attention_dp={RANKS}", f"parallel.moe_ep={RANKS}", f"parallel.leader_address={leader}",
            f"parallel.interface={hosts.interface}", f"parallel.heartbeat_timeout_s={HEARTBEAT_S}", "parallel.step_timeout_s=10",
            "max_batch_size=4", "kv_cache_config.max_tokens=16384", "cpu.threads=1",
        ]
        token = directory / "worker-token"
        token.write_text("the-secret-of-workers-on-other-hosts\n")
        sets.append(f"parallel.token_file={token}")
        self.leader = self.start(1, ["serve"], [*sets, "parallel.local_workers=0"])
        self.workers = {
            rank: self.start(2 + rank // 2, ["worker", "--leader", leader, "--rank", str(rank)], [*sets, "parallel.local_workers=2"])
            for rank in range(RANKS)
        }

    def start(self, host: int, command: list[str], sets: list[str]) -> subprocess.Popen:
        arguments = [*self.hosts.enter(host), self.binary, *command, "--config", "deploy/configs/abacus-cpu.yaml"]
        for value in sets:
            arguments += ["--set", value]
        log = open(self.directory / f"host{host}.log", "a", encoding="utf-8")  # noqa: SIM115: the child's
        return subprocess.Popen(arguments, stderr=log, stdout=log, cwd=ROOT)

    def log(self) -> str:
        return "".join(f"--- {path.name}\n{path.read_text()}" for path in sorted(self.directory.glob("host*.log")))

    def wait_for(self, text: str, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while text not in (self.directory / "host1.log").read_text():
            if time.monotonic() > deadline or self.leader.poll() is not None:
                sys.exit(f"the leader did not log '{text}'\n{self.log()}")
            time.sleep(0.05)

    def generate(self, *arguments: str) -> subprocess.Popen:
        tls = ["--tls-ca", self.tls["client_ca"], "--tls-cert", self.tls["cert"], "--tls-key", self.tls["key"]]
        return subprocess.Popen(
            [*self.hosts.enter(1), self.binary, "generate", "--server", self.grpc, *tls, "--json", "--temperature", "0", *arguments],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT)

    def kill(self) -> None:
        for process in [self.leader, *self.workers.values()]:
            process.kill()
            process.wait()


def tokens_of(process: subprocess.Popen) -> list[int]:
    out, err = process.communicate(timeout=120)
    if process.returncode != 0:
        sys.exit(f"generate: {err}")
    return json.loads(out)["token_ids"]


def expected_tokens(binary: str, questions: list[str], directory: pathlib.Path) -> list[list[int]]:
    """The answers of a daemon with one rank."""
    log = directory / "alone.log"
    with log.open("w") as stderr:
        daemon = subprocess.Popen([binary, "serve", "--config", "deploy/configs/abacus-cpu.yaml", "--set", "server.grpc_address=127.0.0.1:0", "--set", "server.http_address=127.0.0.1:0",
                                   "--set", "server.metrics_address=127.0.0.1:0"], stderr=stderr, cwd=ROOT)
    try:
        deadline = time.monotonic() + 60
        while "serving  grpc " not in log.read_text() and time.monotonic() < deadline:
            time.sleep(0.05)
        address = log.read_text().split("serving  grpc ")[1].split()[0]
        return [
            tokens_of(subprocess.Popen([binary, "generate", "--server", address, "--json", "--temperature", "0", "--chat", question],
                                       stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT))
            for question in questions
        ]
    finally:
        daemon.terminate()
        daemon.wait()


def check(binary: str, hosts, directory: pathlib.Path) -> None:
    make_certificates(directory, [hosts.address(number) for number in (1, 2, 3)])
    questions = ["What is 48 + 275?", "Sort 41, 7, 19.", "Count the letter m in noma.", "What is 8 weeks in days?"]
    expected = expected_tokens(binary, questions, directory)
    cluster = Cluster(binary, hosts, directory)
    with contextlib.ExitStack() as stack:
        stack.callback(cluster.kill)
        cluster.wait_for("serving  grpc", 90)
        answers = [tokens_of(stream) for stream in [cluster.generate("--chat", question) for question in questions]]
        if answers != expected:
            sys.exit(f"tokens differ: one rank {expected}, four on two hosts {answers}")
        long = cluster.generate("--token-ids", "100,101,102", "--max-tokens", "3000", "--ignore-eos")
        time.sleep(1)
        start = time.monotonic()
        hosts.cut(3, [cluster.workers[2], cluster.workers[3]])
        _, err = long.communicate(timeout=60)
        if long.returncode != 1 or "UNAVAILABLE" not in err:
            sys.exit(f"{hosts.cut_name}: the stream ended with {long.returncode}: {err}\n{cluster.log()}")
        seen = time.monotonic() - start
        codes = {"leader": cluster.leader.wait(timeout=60)}
        stopped = [2, 3] if isinstance(hosts, LoopbackAddresses) else []
        for rank in stopped:
            cluster.workers[rank].send_signal(signal.SIGCONT)
        codes |= {rank: worker.wait(timeout=60) for rank, worker in cluster.workers.items()}
        gone = time.monotonic() - start
        if any(code != 1 for code in codes.values()):
            sys.exit(f"exit codes {codes}, expected 1 of all\n{cluster.log()}")
        if gone > GONE_WITHIN_S:
            sys.exit(f"{hosts.cut_name}: all were gone after {gone:.1f} s, the bound is {GONE_WITHIN_S} s")
    print(f"several_hosts_test: the same tokens on {RANKS} ranks of two hosts; {hosts.cut_name}: stream ended after {seen:.1f} s, all gone after {gone:.1f} s")


def main() -> int:
    binary = str(pathlib.Path(sys.argv[1]).resolve())
    if INSIDE not in sys.argv:
        user = [] if os.geteuid() == 0 else ["--user", "--map-root-user"]
        wrap = ["unshare", *user, "--net", "--mount", "--pid", "--fork", "--mount-proc"]
        probe = subprocess.run([*wrap, "sh", "-c", "mount -t tmpfs tmpfs /run && ip netns add probe"], capture_output=True, text=True, check=False)
        if probe.returncode == 0:
            return subprocess.run([*wrap, sys.executable, __file__, binary, INSIDE], check=False).returncode
        print(f"this machine forbids network namespaces ({probe.stderr.strip()}): loopback addresses serve as hosts")
    if INSIDE in sys.argv:
        run("ip", "link", "set", "lo", "up")
        hosts = Namespaces()
    else:
        hosts = LoopbackAddresses()
    with tempfile.TemporaryDirectory() as directory:
        check(binary, hosts, pathlib.Path(directory))
    return 0


if __name__ == "__main__":
    sys.exit(main())
