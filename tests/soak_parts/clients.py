"""The clients of a soak: threads that ask, check every token they get, and misbehave in all allowed ways."""

import collections
import itertools
import random
import re
import threading
import time

import grpc

from soak_parts.catalogue import Spec, logprobs_of
from soak_parts.daemon import EndLine
from soak_parts.ledger import Ledger, Result

PATIENCE_S = 150.0  # more than any loss and restart may take
# What a request that comes while the ranks restart is told. One that was taken in has a line in the daemon's log, so that Ledger.match
# tells it from one that was lost.
REFUSAL = re.compile(r"rank lost: |rank \d+ lost: |loading: ")


class Gate:
    """Lets calls through or not, and knows how many are open. A quiet moment is a closed gate without open calls."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._open = False
        self._calls = 0
        self.stopped = False

    def set(self, is_open: bool) -> None:
        with self._changed:
            self._open = is_open
            self._changed.notify_all()

    def stop(self) -> None:
        with self._changed:
            self.stopped = True
            self._changed.notify_all()

    def enter(self) -> bool:
        """Waits until calls may go; False: the soak is over."""
        with self._changed:
            self._changed.wait_for(lambda: self._open or self.stopped)
            self._calls += not self.stopped
            return not self.stopped

    def leave(self) -> None:
        with self._changed:
            self._calls -= 1
            self._changed.notify_all()

    def wait_open(self, seconds: float) -> bool:
        with self._changed:
            return self._changed.wait_for(lambda: self._open or self.stopped, seconds) and not self.stopped

    def wait_quiet(self, seconds: float) -> bool:
        with self._changed:
            return self._changed.wait_for(lambda: self._calls == 0, seconds)


class Wire:
    """One way to reach the daemon: the modules of its protocol and a new channel."""

    def __init__(self, modules: dict, address: str, credentials: grpc.ChannelCredentials | None) -> None:
        self.modules, self.address, self.credentials = modules, address, credentials

    def connect(self) -> grpc.Channel:
        options = [("grpc.use_local_subchannel_pool", 1)]  # a connection of its own
        if self.credentials is None:
            return grpc.insecure_channel(self.address, options)
        return grpc.secure_channel(self.address, self.credentials, options)


class Client(threading.Thread):
    """One connection at a time, one call at a time."""

    numbers = itertools.count()

    def __init__(self, wire: Wire, specs: list[Spec], ledger: Ledger, gate: Gate, seed: int) -> None:
        super().__init__(daemon=True)
        self.number = next(Client.numbers)
        self.wire, self.specs, self.ledger, self.gate = wire, specs, ledger, gate
        self.random = random.Random(seed)
        self.requests = itertools.count()
        self.habits: collections.Counter[str] = collections.Counter()
        self.channel: grpc.Channel | None = None
        self.connect()

    def connect(self) -> None:
        if self.channel is not None:
            self.channel.close()
        self.channel = self.wire.connect()
        self.habits["connections"] += 1

    def run(self) -> None:
        while self.gate.enter():
            try:
                self.one_call()
            except Exception as error:  # noqa: BLE001  a soak ends with a report, whatever its client met
                self.ledger.violate(f"client {self.number}: {type(error).__name__}: {error}")
            finally:
                self.gate.leave()
            if self.random.random() < 0.3:
                time.sleep(self.random.random() * 0.2)
        self.channel.close()

    def next_id(self) -> str:
        return f"soak-{self.number}-{next(self.requests)}"

    def one_call(self) -> None:
        raise NotImplementedError

    def check_tokens(self, request_id: str, spec: Spec, token_ids: list[int], whole: bool) -> None:
        wanted = spec.answer.token_ids
        if token_ids != list(wanted[:len(token_ids)]) or (whole and len(token_ids) != len(wanted)):
            at = next((i for i, (a, b) in enumerate(zip(token_ids, wanted)) if a != b), min(len(token_ids), len(wanted)))
            self.ledger.wrong(f"{request_id} at {at} of {len(wanted)}: {token_ids[at:at + 8]}, undisturbed {list(wanted[at:at + 8])}, "
                              f"of {str(spec.request)!r}")
        self.ledger.compared(len(token_ids))

    def judge_error(self, request_id: str, error: grpc.RpcError, chunks: int) -> Result:
        code, text = error.code(), error.details() or ""
        if code == grpc.StatusCode.UNAVAILABLE and chunks == 0 and REFUSAL.match(text):
            time.sleep(0.1 + self.random.random() * 0.4)
            return Result("refused", "refused while the ranks restart")
        if code == grpc.StatusCode.RESOURCE_EXHAUSTED and chunks == 0 and "queue" in text:
            return Result("refused", "queue full")
        if code == grpc.StatusCode.RESOURCE_EXHAUSTED and text.startswith("reader too slow"):
            return Result("cut", "reader too slow")
        self.ledger.violate(f"{request_id}: {code.name} {text!r} after {chunks} chunks")
        return Result("cut", code.name)


class ForedraftClient(Client):
    """foredraft.v1, over TLS."""

    def one_call(self) -> None:
        choose = self.random
        spec = choose.choice(self.specs)
        request = type(spec.request)()
        request.CopyFrom(spec.request)
        request.request_id = self.next_id()
        request.priority = choose.randrange(3)
        if choose.random() < 0.25:
            request.max_draft_tokens = choose.randrange(4)
        # Relaxed acceptance, which reloads turn on at times, may change a greedy request's tokens unless it opts out.
        free = spec.greedy and choose.random() < 0.1
        request.strict_acceptance = not free
        draw = choose.random()
        if draw < 0.03:
            self.ask_nonsense(request)
        elif draw < 0.2:
            self.generate(spec, request, free)
        else:
            self.stream(spec, request, free)

    def stub(self):
        return self.wire.modules["api"].GenerationServiceStub(self.channel)

    def ask_nonsense(self, request) -> None:
        request.sampling.temperature = -1
        try:
            self.stub().Generate(request, timeout=PATIENCE_S, wait_for_ready=True)
            self.ledger.violate(f"{request.request_id}: temperature -1 was accepted")
        except grpc.RpcError as error:
            if error.code() == grpc.StatusCode.INVALID_ARGUMENT and "sampling.temperature" in error.details():
                self.ledger.add(request.request_id, Result("refused", "invalid"))
            else:
                self.ledger.add(request.request_id, self.judge_error(request.request_id, error, 0))

    def generate(self, spec: Spec, request, free: bool) -> None:
        try:
            response = self.stub().Generate(request, timeout=PATIENCE_S, wait_for_ready=True)
        except grpc.RpcError as error:
            self.ledger.add(request.request_id, self.judge_error(request.request_id, error, 0))
            return
        self.habits["unary"] += 1
        self.judge_end(spec, request, free, response, list(response.token_ids), response.text, logprobs_of(response))

    def stream(self, spec: Spec, request, free: bool) -> None:
        choose = self.random
        habit = choose.choices(("reads", "cancels", "disconnects", "is slow", "rpc deadline", "timeout"), (60, 14, 3, 8, 7, 8))[0]
        self.habits[habit] += 1
        timeout = PATIENCE_S
        if habit == "rpc deadline":
            timeout = 0.005 + choose.random() * 0.5
        if habit == "timeout":
            request.timeout_s = 0.005 + choose.random() * 0.5
        if habit == "is slow" and not free:
            request.logprobs = 20  # many bytes wait for this reader
        stop_after = choose.randrange(20) if habit in ("cancels", "disconnects") else -1
        call = self.stub().GenerateStream(request, timeout=timeout, wait_for_ready=True)
        token_ids, text, logprobs, last, chunks = [], "", (), None, 0
        error = None
        try:
            if stop_after == 0:
                time.sleep(choose.random() * 0.05)
            while chunks != stop_after and (chunk := next(call, None)) is not None:
                chunks += 1
                token_ids.extend(chunk.token_ids)
                text += chunk.text
                logprobs += logprobs_of(chunk)
                last = chunk
                if habit == "is slow":
                    time.sleep(0.05 + choose.random() * 0.1)
        except grpc.RpcError as rpc_error:
            error = rpc_error
        if not free:
            self.check_tokens(request.request_id, spec, token_ids, whole=False)
        if error is None and chunks == stop_after:
            call.cancel()
            if habit == "disconnects":
                self.connect()
            self.ledger.add(request.request_id, Result("cut", habit))
        elif error is None or (last is not None and last.finish_reason):
            self.judge_end(spec, request, free, last, token_ids, text, logprobs)
        elif error.code() == grpc.StatusCode.DEADLINE_EXCEEDED and habit in ("rpc deadline", "timeout"):
            self.ledger.add(request.request_id, Result("cut", "deadline"))
        else:
            self.ledger.add(request.request_id, self.judge_error(request.request_id, error, chunks))

    def judge_end(self, spec: Spec, request, free: bool, last, token_ids: list[int], text: str, logprobs: tuple) -> None:
        """`last`: the unary response or the last chunk."""
        usage, speculation = last.usage, last.speculation
        line = EndLine(last.finish_reason, usage.prompt_tokens, usage.cached_tokens, usage.completion_tokens, speculation.steps,
                       speculation.accepted_tokens, speculation.draft_tokens)
        self.ledger.add(request.request_id, Result("ended", last.finish_reason, line))
        if usage.completion_tokens != len(token_ids) or (token_ids and len(token_ids) != 1 + line.steps + line.accepted):
            self.ledger.violate(f"{request.request_id}: {len(token_ids)} tokens came, usage {line}")
        if last.finish_reason == "deadline" or free:
            return
        self.check_tokens(request.request_id, spec, token_ids, whole=True)
        answer = spec.answer
        if (text, last.finish_reason, usage.prompt_tokens) != (answer.text, answer.finish, answer.prompt_tokens):
            self.ledger.wrong(f"{request.request_id}: {text!r} {last.finish_reason}, undisturbed {answer.text!r} {answer.finish}")
        if request.logprobs == spec.request.logprobs and logprobs != answer.logprobs:
            self.ledger.wrong(f"{request.request_id}: logprobs differ from the undisturbed ones")


class GatewayClient(Client):
    """vllm.grpc.engine.VllmEngine, in plain text. It has no field to opt out of relaxed acceptance, so it only samples."""

    def __init__(self, wire: Wire, specs: list[Spec], ledger: Ledger, gate: Gate, seed: int) -> None:
        specs = [spec for spec in specs if not spec.greedy and spec.request.HasField("token_ids")]
        super().__init__(wire, specs, ledger, gate, seed)

    def one_call(self) -> None:
        choose = self.random
        spec = choose.choice(self.specs)
        request = self.message(spec)
        stop_after = choose.randrange(10) if choose.random() < 0.2 else -1
        self.habits["gateway"] += 1
        call = self.wire.modules["vllm_api"].VllmEngineStub(self.channel).Generate(request, timeout=PATIENCE_S, wait_for_ready=True)
        token_ids, complete, chunks = [], None, 0
        try:
            while chunks != stop_after and (response := next(call, None)) is not None:
                chunks += 1
                if response.HasField("complete"):
                    complete = response.complete
                else:
                    token_ids.extend(response.chunk.token_ids)
        except grpc.RpcError as error:
            self.check_tokens(request.request_id, spec, token_ids, whole=False)
            self.ledger.add(request.request_id, self.judge_error(request.request_id, error, chunks))
            return
        self.check_tokens(request.request_id, spec, token_ids, whole=False)
        if complete is None:
            self.habits["gateway cancels"] += 1
            call.cancel()
            self.ledger.add(request.request_id, Result("cut", "cancels"))
            return
        self.check_tokens(request.request_id, spec, list(complete.output_ids), whole=True)
        steps = max(len(complete.output_ids) - 1 - complete.spec_accepted_tokens, 0)
        self.ledger.add(request.request_id, Result("ended", complete.finish_reason, EndLine(
            complete.finish_reason, complete.prompt_tokens, complete.cached_tokens, complete.completion_tokens, steps,
            complete.spec_accepted_tokens, complete.spec_draft_tokens)))

    def message(self, spec: Spec):
        wanted, sampling = spec.request, spec.request.sampling
        request = self.wire.modules["vllm_pb"].GenerateRequest(request_id=self.next_id(), stream=self.random.random() < 0.8)
        request.tokenized.input_ids.extend(wanted.token_ids.ids)
        params = request.sampling_params
        params.temperature, params.seed = sampling.temperature, sampling.seed
        params.top_p, params.frequency_penalty = sampling.top_p, sampling.frequency_penalty
        params.max_tokens, params.ignore_eos = wanted.max_tokens, wanted.ignore_eos
        params.stop.extend(wanted.stop)
        return request
