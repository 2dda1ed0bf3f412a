"""What must hold at every quiet moment of a soak, and what must not grow over all of them."""

import dataclasses
import time

import grpc

from soak_parts.clients import Wire
from soak_parts.daemon import Daemon
from soak_parts.ledger import Ledger

QUIET_S = 90.0  # a loss may have to be seen and mended first
DESCRIPTOR_SLACK = 12
THREAD_SLACK = 16  # gRPC's pool of pollers breathes


@dataclasses.dataclass
class Sample:
    minute: float
    daemon_mib: float
    threads: int
    descriptors: int
    worker_mib: list[float]
    worker_pids: list[int]


def slope(points: list[tuple[float, float]]) -> float:
    """Of the line of least squares through (minute, value); 0 for fewer than two points."""
    if len(points) < 2:
        return 0.0
    x_mean = sum(x for x, _ in points) / len(points)
    y_mean = sum(y for _, y in points) / len(points)
    spread = sum((x - x_mean) ** 2 for x, _ in points)
    return sum((x - x_mean) * (y - y_mean) for x, y in points) / spread if spread > 0 else 0.0


class Invariants:
    def __init__(self, daemon: Daemon, wire: Wire, ledger: Ledger) -> None:
        self.daemon, self.wire, self.ledger = daemon, wire, ledger
        self.samples: list[Sample] = []
        self.capacity = self.blocks(daemon.metrics())
        self.start = time.monotonic()

    @staticmethod
    def blocks(metrics: dict[str, float]) -> list[float]:
        """Blocks of each rank, whatever their state."""
        return [sum(metrics[f'foredraft_kv_cache_blocks{{rank="{rank}",state="{state}"}}'] for state in ("used", "cached", "free"))
                for rank in (0, 1)]

    def load(self, channel: grpc.Channel):
        return self.wire.modules["admin"].AdminServiceStub(channel).GetLoad(self.wire.modules["admin_pb"].GetLoadRequest(), timeout=60)

    def at_rest(self, load) -> bool:
        return load.state == "serving" and not any(
            (load.running, load.waiting, load.swapped, load.slots_used, load.blocks_used, load.open_streams))

    def check(self) -> dict[str, float]:
        """No call is open and no fault is under way."""
        with self.wire.connect() as channel:
            deadline = time.monotonic() + QUIET_S
            while not self.at_rest(load := self.load(channel)) and time.monotonic() < deadline:
                time.sleep(0.1)
        if not self.at_rest(load):
            self.ledger.violate(f"nothing runs, but {' '.join(str(load).split())}")
        time.sleep(0.3)  # the log is written by a thread of its own
        self.ledger.match(self.daemon)
        metrics = self.daemon.metrics()
        self.ledger.compare_metrics(metrics)
        if self.blocks(metrics) != self.capacity:
            self.ledger.violate(f"blocks by rank: {self.blocks(metrics)}, at the start {self.capacity}")
        if metrics["foredraft_log_lines_dropped_total"] > 0:
            self.ledger.violate(f"{metrics['foredraft_log_lines_dropped_total']:.0f} log lines were dropped")
        self.sample()
        return metrics

    def sample(self) -> None:
        pids = self.daemon.workers()
        if len(pids) != 2:
            self.ledger.violate(f"{len(pids)} workers run, wanted 2")
        resident, threads, descriptors = self.daemon.status(self.daemon.pid)
        self.samples.append(Sample((time.monotonic() - self.start) / 60, resident, threads, descriptors,
                                   [self.daemon.status(pid)[0] for pid in pids], pids))

    def settled(self) -> list[Sample]:
        """After the warm-up, the first quarter."""
        return self.samples[len(self.samples) // 4:]

    def same_workers(self) -> list[Sample]:
        """The last samples whose workers never changed, without the first of them: a worker's own warm-up."""
        last = [sample for sample in self.samples if sample.worker_pids == self.samples[-1].worker_pids]
        return last[1:]

    def growths(self) -> dict[str, tuple[int, float, float, float]]:
        """By process: samples, MiB at the first, slope in MiB per hour, growth over the samples by that slope."""
        result = {}
        series = {"daemon": [(sample.minute, sample.daemon_mib) for sample in self.settled()]}
        for rank in (0, 1):
            series[f"worker {rank}"] = [(sample.minute, sample.worker_mib[rank]) for sample in self.same_workers() if len(sample.worker_mib) == 2]
        for name, points in series.items():
            per_minute = slope(points)
            span = points[-1][0] - points[0][0] if points else 0
            result[name] = (len(points), points[0][1] if points else 0, per_minute * 60, per_minute * span)
        return result

    def check_growth(self) -> None:
        for name, (count, first, per_hour, growth) in self.growths().items():
            # A few MiB come from arenas and connection buffers; a leak of 100 bytes a request is beyond that in an hour.
            if count >= 5 and growth > max(6.0, 0.1 * first):
                self.ledger.violate(f"{name} grew by {growth:.1f} MiB from {first:.1f} MiB, {per_hour:.1f} MiB an hour")
        settled = self.settled()
        if len(settled) >= 5:
            for name, slack in (("descriptors", DESCRIPTOR_SLACK), ("threads", THREAD_SLACK)):
                values = [getattr(sample, name) for sample in settled]
                if min(values[-3:]) > min(values[:3]) + slack:
                    self.ledger.violate(f"{name} grew from {values[:3]} to {values[-3:]}")
