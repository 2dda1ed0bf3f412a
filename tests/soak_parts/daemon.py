"""The daemon of a soak: its files, its processes, its log and its metrics."""

import dataclasses
import os
import pathlib
import re
import signal
import subprocess
import threading
import time
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parents[2]
END_LINE = re.compile(r" request (\S+) (\w+): prompt (\d+) \(cached (\d+)\), completion (\d+), steps (\d+), accepted (\d+) of (\d+) drafts,")
TICKS = os.sysconf("SC_CLK_TCK")


@dataclasses.dataclass(frozen=True)
class EndLine:
    """What the daemon's log says of a request that has ended."""

    outcome: str
    prompt: int
    cached: int
    completion: int
    steps: int
    accepted: int
    drafts: int


def make_certificates(folder: pathlib.Path) -> None:
    """ca.pem, and server and client certificates that it signed, for 127.0.0.1."""
    def openssl(*arguments: str) -> None:
        subprocess.run(["openssl", *arguments], cwd=folder, check=True, capture_output=True)

    (folder / "san").write_text("subjectAltName=IP:127.0.0.1\n")
    openssl("req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", "ca.key", "-out", "ca.pem", "-days", "30", "-subj", "/CN=ca")
    for name in ("server", "client"):
        openssl("req", "-newkey", "rsa:2048", "-nodes", "-keyout", f"{name}.key", "-out", f"{name}.csr", "-subj", f"/CN={name}")
        openssl("x509", "-req", "-in", f"{name}.csr", "-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-days", "30",
                "-extfile", "san", "-out", f"{name}.pem")


def parse_metrics(page: str) -> dict[str, float]:
    """Samples by `name{labels}` without the model's name, and their sums by `name`."""
    samples: dict[str, float] = {}
    for line in page.splitlines():
        match = re.fullmatch(r"(\w+)(?:\{([^}]*)\})? (\S+)", line)
        if match is None:
            continue
        labels = sorted(label for label in (match[2] or "").split(",") if label and not label.startswith("model_name="))
        value = float(match[3])
        samples[f"{match[1]}{{{','.join(labels)}}}"] = value
        samples[match[1]] = samples.get(match[1], 0) + value
    return samples


class Daemon:
    """A `foredraft serve` with the configuration `yaml`. All addresses have port 0; the log says which were taken."""

    def __init__(self, binary: pathlib.Path, folder: pathlib.Path, name: str, yaml: str) -> None:
        self.folder = folder
        self.config = folder / f"{name}.yaml"
        self.log = folder / f"{name}.log"
        self.config.write_text(yaml)
        with self.log.open("w") as stderr:
            self.process = subprocess.Popen([binary, "serve", "--config", self.config], cwd=ROOT, stderr=stderr, stdin=subprocess.DEVNULL,
                                            process_group=0)  # an interrupt of the soak is not one of the daemon
        self.pid = self.process.pid
        self.wait_for(lambda: "serving  grpc" in self.log.read_text(), 120, "serves")
        serving = re.search(r"serving  grpc .*", self.log.read_text())[0]
        address = lambda pattern: match[1] if (match := re.search(pattern, serving)) else None  # noqa: E731
        self.grpc_address, self.metrics_address = address(r"grpc (\S+)"), address(r"http://(\S+)/metrics")
        self.gateway_address, self.http_address = address(r"gateway (\S+)"), address(r"openai http://(\S+)/v1")
        worker_port = re.search(r"--leader (\S+)", " ".join(self.command_line(pid) for pid in self.workers()))
        self.worker_address = worker_port[1] if worker_port else None
        self._offset = 0

    def wait_for(self, condition, seconds: float, what: str) -> None:
        deadline = time.monotonic() + seconds
        while not condition():
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"the daemon {what}: not within {seconds} s, see {self.log} at {time.strftime('%H:%M:%S', time.gmtime())}")
            time.sleep(0.05)

    def metrics(self) -> dict[str, float]:
        with urllib.request.urlopen(f"http://{self.metrics_address}/metrics", timeout=30) as page:
            return parse_metrics(page.read().decode())

    def new_end_lines(self) -> list[tuple[str, EndLine]]:
        """Lines of requests that have ended since the last call: request id and line."""
        with self.log.open("rb") as file:
            file.seek(self._offset)
            text = file.read()
        whole = text[:text.rfind(b"\n") + 1]
        self._offset += len(whole)
        return [(match[1], EndLine(match[2], *map(int, match.groups()[2:]))) for match in END_LINE.finditer(whole.decode(errors="replace"))]

    def alarms(self) -> list[str]:
        """Log lines that no run may have."""
        return [line for line in self.log.read_text(errors="replace").splitlines() if re.search(r"\bCHECK\b|Sanitizer|INTERNAL|is not idle", line)]

    @staticmethod
    def command_line(pid: int) -> str:
        try:
            return pathlib.Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
        except OSError:
            return ""

    def workers(self) -> list[int]:
        """Process ids by rank. A worker that has just ended is not among them."""
        ranks = {}
        for entry in pathlib.Path("/proc").iterdir():
            if not entry.name.isdigit():
                continue
            line = self.command_line(int(entry.name))
            if re.match(r"\S*foredraft worker ", line) and f" --parent {self.pid} " in line:
                ranks[int(re.search(r" --rank (\d+) ", line)[1])] = int(entry.name)
        return [ranks[rank] for rank in sorted(ranks)]

    def alive(self, pid: int) -> bool:
        return self.command_line(pid) != ""

    @staticmethod
    def status(pid: int) -> tuple[float, int, int]:
        """Resident MiB, threads, descriptors; zeros if the process has ended."""
        try:
            text = pathlib.Path(f"/proc/{pid}/status").read_text()
            descriptors = len(os.listdir(f"/proc/{pid}/fd"))
            return int(re.search(r"VmRSS:\s+(\d+)", text)[1]) / 1024, int(re.search(r"Threads:\s+(\d+)", text)[1]), descriptors
        except (OSError, TypeError):
            return 0.0, 0, 0

    def cpu_seconds(self) -> float:
        """Of the daemon, its workers, and its workers that have ended."""
        total = 0
        for pid, with_children in [(self.pid, True), *((pid, False) for pid in self.workers())]:
            try:
                fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            total += sum(int(field) for field in fields[11:15 if with_children else 13])
        return total / TICKS

    def stop(self) -> int | str:
        """Drains; the exit code, or "killed" if it did not end within 90 s."""
        self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(90)
        except subprocess.TimeoutExpired:
            self.process.kill()
            return "killed"

    def kill(self) -> None:
        workers = self.workers()
        self.process.kill()
        self.process.wait()
        for pid in workers:
            if self.alive(pid):
                os.kill(pid, signal.SIGKILL)


class Meter:
    """CPU time per wall time, of the daemon and of this process, since the last reading."""

    def __init__(self, daemon: Daemon) -> None:
        self._daemon = daemon
        self._lock = threading.Lock()
        self.total = 0.0
        self._last = self._now()

    def _now(self) -> float:
        own = os.times()
        return self._daemon.cpu_seconds() + own.user + own.system

    def spent(self) -> float:
        """CPU seconds since the last call."""
        with self._lock:
            now = self._now()
            # A worker that ends moves from one count to the other; between the two it is in none.
            spent = max(now - self._last, 0.0)
            self._last = max(now, self._last)
            self.total += spent
            return spent
