"""The accounting of a soak: what clients saw against what the daemon's log and metrics say."""

import collections
import dataclasses
import threading

from soak_parts.daemon import Daemon, EndLine


@dataclasses.dataclass(frozen=True)
class Result:
    """How a call ended for its client.

    kind: ended (the daemon told its outcome, `line` is what its log must say), refused (the daemon took nothing in),
    cut (cancelled, disconnected or late: the daemon may have ended it in any way, or never have seen it).
    """

    kind: str
    what: str  # for the report: stop, length, deadline, queue full, cancelled, ...
    line: EndLine | None = None


# The outcome by which the daemon counts what a client saw refused.
REFUSALS = {"queue full": "rejected", "invalid": "invalid", "refused while the ranks restart": "unavailable"}


class Ledger:
    """Results of clients, matched with the daemon's log at each quiet moment. Any thread may add; one checks."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._results: dict[str, Result] = {}
        self._lines: dict[str, EndLine] = {}
        self.asked = 0
        self.by_what: collections.Counter[str] = collections.Counter()
        self.tokens_compared = 0
        self.wrong_tokens: list[str] = []
        self.violations: list[str] = []
        self.line_sums: collections.Counter[str] = collections.Counter()
        self.outcomes: collections.Counter[str] = collections.Counter()
        self.refused: collections.Counter[str] = collections.Counter()  # by what
        self._errors: collections.Counter[str] = collections.Counter()  # by counter: how much it is above the sum
        self.unseen = 0  # cut calls without a line: refused, or they never arrived

    def add(self, request_id: str, result: Result) -> None:
        with self._lock:
            self.asked += 1
            self.by_what[result.what] += 1
            self._results[request_id] = result

    def compared(self, tokens: int) -> None:
        with self._lock:
            self.tokens_compared += tokens

    def wrong(self, text: str) -> None:
        with self._lock:
            self.wrong_tokens.append(text)
        self.violate(f"wrong tokens: {text}")

    def violate(self, text: str) -> None:
        with self._lock:
            self.violations.append(text)
        print(f"VIOLATION {text}", flush=True)

    def match(self, daemon: Daemon) -> None:
        """Every ended call has its line, every line its call. Called when no call is open."""
        for request_id, line in daemon.new_end_lines():
            if request_id in self._lines:
                self.violate(f"request {request_id} ended twice: {self._lines[request_id]}, {line}")
            self._lines[request_id] = line
        with self._lock:
            results, self._results = self._results, {}
        for request_id, result in results.items():
            self._match_one(request_id, result, self._lines.pop(request_id, None))
        for request_id, line in self._lines.items():
            self.violate(f"the daemon ended {request_id}, which nobody asked: {line}")
        self._lines.clear()

    def _match_one(self, request_id: str, result: Result, line: EndLine | None) -> None:
        if line is not None:
            self.outcomes[line.outcome] += 1
            for name in ("prompt", "cached", "completion", "steps", "accepted", "drafts"):
                self.line_sums[name] += getattr(line, name)
        if result.kind == "ended" and line != result.line:
            self.violate(f"request {request_id}: the client saw {result.line}, the daemon's log has {line}")
        if result.kind == "refused":
            self.refused[result.what] += 1
            if line is not None:
                self.violate(f"request {request_id} was refused ({result.what}), but the daemon's log has {line}")
        if result.kind == "cut" and line is None:
            self.unseen += 1

    def compare_metrics(self, now: dict[str, float]) -> None:
        """The daemon's counters are the sums of its lines, which are those of the responses (`match`)."""
        wanted = {f'foredraft_requests_total{{outcome="{outcome}"}}': self.outcomes[outcome]
                  for outcome in ("stop", "length", "cancelled", "deadline", "error")}
        wanted["foredraft_prompt_tokens_total"] = self.line_sums["prompt"]
        wanted["foredraft_generation_tokens_total"] = self.line_sums["completion"]
        wanted["foredraft_spec_decode_draft_tokens_total"] = self.line_sums["drafts"]
        wanted["foredraft_spec_decode_accepted_tokens_total"] = self.line_sums["accepted"]
        wanted["foredraft_prefix_cache_hit_tokens_total"] = self.line_sums["cached"]
        for name, value in wanted.items():
            error = now[name] - value
            if error != self._errors[name]:  # once, and not again each minute
                self.violate(f"{name} is {now[name]:.0f}, the requests' sum is {value}")
            self._errors[name] = error
        for what, outcome in REFUSALS.items():
            counted, seen = now[f'foredraft_requests_total{{outcome="{outcome}"}}'], self.refused[what]
            if not seen <= counted <= seen + self.unseen:
                self.violate(f"{outcome} is {counted:.0f}, clients saw {seen} times {what} and cut {self.unseen} calls without a line")
