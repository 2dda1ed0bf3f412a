"""What disturbs the daemon of a soak: lost ranks, reloads, full queues, connections that say nothing or nonsense, floods."""

import collections
import os
import random
import signal
import socket
import threading
import time

import grpc

from soak_parts.clients import ForedraftClient, Gate
from soak_parts.daemon import Daemon
from soak_parts.ledger import Ledger, Result
from soak_parts.strangers import FLOODS, drip, flood

LOSS_IN_A_FLOOD = "loss in a flood"
LOSSES = ("kill one", "kill all", "kill twice", "kill while starting", "stop until lost")
OTHERS = ("stop and continue", "reload", "bad reload", "full queue", "silent connections", "nonsense bytes", "dripping bodies", *FLOODS,
          LOSS_IN_A_FLOOD)


class Faults(threading.Thread):
    """Strikes at random moments while the gate is open. Hold `pause` for a quiet moment."""

    def __init__(self, daemon: Daemon, burst: ForedraftClient, ledger: Ledger, gate: Gate, base_yaml: str, every_s: float, seed: int) -> None:
        super().__init__(daemon=True)
        self.daemon_process, self.burst, self.ledger, self.gate = daemon, burst, ledger, gate
        self.base_yaml, self.every_s = base_yaml, every_s
        self.random = random.Random(seed)
        self.pause = threading.Lock()
        self.with_losses = True
        self.counts: collections.Counter[str] = collections.Counter()
        self.losses = 0  # workers whose end this thread caused and saw
        self.slowest_restart_s = 0.0

    def run(self) -> None:
        plan: list[str] = []
        while not self.gate.stopped:
            time.sleep(self.random.uniform(0.3, 1.7) * self.every_s)
            if not self.gate.wait_open(600):
                return
            if not plan:  # every kind once before any comes again
                plan = [*LOSSES, *LOSSES, *OTHERS]
                self.random.shuffle(plan)
            kind = plan.pop()
            if (kind in LOSSES or kind == LOSS_IN_A_FLOOD) and not self.with_losses:
                continue
            time.sleep(self.random.random() * 0.5)
            with self.pause:
                if not self.gate.stopped:
                    self.strike(kind)

    def strike(self, kind: str) -> None:
        try:
            if kind in FLOODS:
                self.flood(kind)
            else:
                getattr(self, kind.replace(" ", "_"))()
            self.counts[kind] += 1
        except (OSError, RuntimeError, grpc.RpcError) as error:
            self.ledger.violate(f"fault {kind}: {error}")

    # Lost ranks.

    def pids(self) -> list[int]:
        self.daemon_process.wait_for(lambda: len(self.daemon_process.workers()) == 2, 60, "has two workers")
        return self.daemon_process.workers()

    def send(self, pids: list[int], number: int) -> None:
        for pid in pids:
            try:
                os.kill(pid, number)
            except ProcessLookupError:
                pass  # it ended with the worker before it

    def wait_served_again(self, lost: list[int]) -> None:
        start = time.monotonic()
        self.daemon_process.wait_for(lambda: not any(self.daemon_process.alive(pid) for pid in lost), 60, "ends the workers it lost")
        self.losses += len(lost)
        self.daemon_process.wait_for(lambda: self.serves(), 90, "serves again")
        self.slowest_restart_s = max(self.slowest_restart_s, time.monotonic() - start)

    def serves(self) -> bool:
        api, pb = self.burst.wire.modules["admin"], self.burst.wire.modules["admin_pb"]
        return api.AdminServiceStub(self.burst.channel).GetLoad(pb.GetLoadRequest(), timeout=60).state == "serving"

    def kill_one(self) -> None:
        victim = self.random.choice(self.pids())
        self.send([victim], signal.SIGKILL)
        self.wait_served_again([victim])

    def kill_all(self) -> None:
        victims = self.pids()
        self.send(victims, signal.SIGKILL)
        self.wait_served_again(victims)

    def kill_twice(self) -> None:
        self.kill_one()
        time.sleep(self.random.random() * 0.3)
        self.kill_one()

    def kill_while_starting(self) -> None:
        first = self.pids()
        self.send(first, signal.SIGKILL)
        new: list[int] = []

        def two_new() -> bool:
            new[:] = [pid for pid in self.daemon_process.workers() if pid not in first]
            return len(new) > 0

        self.daemon_process.wait_for(two_new, 60, "starts workers")
        time.sleep(self.random.random() * 0.2)
        self.send(new[:1], signal.SIGKILL)
        self.wait_served_again([*first, new[0]])

    def stop_until_lost(self) -> None:
        victim = self.random.choice(self.pids())
        self.send([victim], signal.SIGSTOP)
        self.wait_served_again([victim])

    def stop_and_continue(self) -> None:
        victim = self.random.choice(self.pids())
        self.send([victim], signal.SIGSTOP)
        time.sleep(0.2 + self.random.random())
        self.send([victim], signal.SIGCONT)

    # Configuration.

    def reload_with(self, text: str, result: str) -> None:
        name = f'foredraft_config_reloads_total{{result="{result}"}}'
        before = self.daemon_process.metrics()[name]
        self.daemon_process.config.write_text(text)
        self.daemon_process.process.send_signal(signal.SIGHUP)
        self.daemon_process.wait_for(lambda: self.daemon_process.metrics()[name] > before, 30, f"says that a reload was {result}")

    def reload(self) -> None:
        most = self.random.randrange(4)
        steps = ", ".join(f"{batch}: {min(draft_len, most)}" for batch, draft_len in ((1, 3), (2, 2), (4, 1)))
        policy = self.random.choice(("draft_policy: fixed", "draft_policy: adaptive", f"draft_policy: schedule\n  draft_len_schedule: {{{steps}}}"))
        relaxed = self.random.choice(("true", "false"))
        queue = self.random.choice((24, 32, 48))
        text = self.base_yaml.replace("max_draft_len: 3", f"max_draft_len: {most}").replace("max_queue_size: 32", f"max_queue_size: {queue}")
        self.reload_with(text + f"  {policy}\n  use_relaxed_acceptance_for_thinking: {relaxed}\n  relaxed_topk: 5\n  relaxed_delta: 0.3\n", "accepted")

    def bad_reload(self) -> None:
        kept = self.daemon_process.config.read_text()
        self.reload_with(self.random.choice(("max_queue_size: -1\n", "{", "no_such_key: 1\n", "")) + kept.replace("model:", "modell:"), "refused")
        self.daemon_process.config.write_text(kept)

    # Clients.

    def full_queue(self) -> None:
        """More requests at once than slots and queue hold. Each ends with its tokens or is refused at once."""
        client, calls = self.burst, []
        stub = client.stub()
        for _ in range(90):
            spec = self.random.choice(client.specs)
            request = type(spec.request)()
            request.CopyFrom(spec.request)
            request.request_id, request.strict_acceptance, request.priority = client.next_id(), True, self.random.randrange(3)
            calls.append((spec, request, stub.Generate.future(request, timeout=150, wait_for_ready=True)))
        for spec, request, call in calls:
            try:
                response = call.result()
                client.judge_end(spec, request, False, response, list(response.token_ids), response.text, spec.answer.logprobs)
            except grpc.RpcError as error:
                self.ledger.add(request.request_id, client.judge_error(request.request_id, error, 0))

    def addresses(self) -> list[tuple[str, int]]:
        daemon = self.daemon_process
        texts = [daemon.grpc_address, daemon.gateway_address, daemon.metrics_address, daemon.worker_address]
        return [(text.rpartition(":")[0], int(text.rpartition(":")[2])) for text in texts]

    def silent_connections(self) -> None:
        sockets = [socket.create_connection(address, 10) for address in self.addresses() for _ in range(25)]
        time.sleep(1 + self.random.random() * 2)
        for connection in sockets:
            connection.close()

    def nonsense_bytes(self) -> None:
        for address in self.addresses():
            for opening in (b"", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b"GET / HTTP/1.1\r\n", b"\x16\x03\x01\x02\x00\x01"):
                with socket.create_connection(address, 10) as connection:
                    connection.settimeout(5)
                    try:
                        connection.sendall(opening + self.random.randbytes(self.random.randrange(1, 4000)))
                    except OSError:
                        pass  # the daemon closed it first

    # Strangers.

    def strangers_address(self) -> tuple[str, int]:
        """The gateway's port: the other one wants a certificate before it reads a frame."""
        host, _, port = self.daemon_process.gateway_address.rpartition(":")
        return host, int(port)

    def flood(self, kind: str) -> None:
        flood(self.strangers_address(), kind, 1 + self.random.random() * 3)
        self.daemon_process.metrics()  # answers

    def loss_in_a_flood(self) -> None:
        attacker = threading.Thread(target=flood, args=(self.strangers_address(), self.random.choice(list(FLOODS)), 4.0))
        attacker.start()
        try:
            self.reload()
            self.kill_one()
        finally:
            attacker.join()

    def dripping_bodies(self) -> None:
        host, _, port = self.daemon_process.metrics_address.rpartition(":")
        attacker = threading.Thread(target=drip, args=((host, int(port)), 40, 3.0))
        attacker.start()
        try:
            time.sleep(1)
            begin = time.monotonic()
            self.daemon_process.metrics()
            if (took := time.monotonic() - begin) > 5:
                raise RuntimeError(f"/metrics took {took:.1f} s")
        finally:
            attacker.join()
