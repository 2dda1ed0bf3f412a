"""The requests of a soak, and their answers when nothing disturbs them."""

import dataclasses
import random

import grpc


@dataclasses.dataclass(frozen=True)
class Answer:
    token_ids: tuple[int, ...]
    text: str
    finish: str
    prompt_tokens: int
    logprobs: tuple  # (token, logprob, ((token, logprob), ...)) per token; empty if not asked for


@dataclasses.dataclass
class Spec:
    """A request, without what a client chooses each time: id, priority, deadline, draft cap."""

    request: object  # foredraft.v1.GenerateRequest
    answer: Answer | None = None

    @property
    def greedy(self) -> bool:
        return self.request.sampling.temperature == 0


QUESTIONS = ("What is 31 * 9?", "Compute 368+6234.", "Put 7, 1, 9, 4, 8, 3 in descending order.", "Count the letter m in noma.",
             "What is 8 weeks in days?", "Which is larger, 7060 or 886?", "What is 48 + 275?", "Sort 41, 7, 88, 19.")


def logprobs_of(message) -> tuple:
    return tuple((entry.token_id, entry.logprob, tuple((top.token_id, top.logprob) for top in entry.top)) for entry in message.logprobs)


def make_specs(pb, seed: int, count: int = 48) -> list[Spec]:
    """Chat, text and token ids; greedy and sampled; a third share long prefixes; some are long enough to be swapped."""
    choose = random.Random(seed)
    prefixes = [[choose.randrange(100, 400) for _ in range(length)] for length in (64, 128, 224)]
    specs = []
    for i in range(count):
        request = pb.GenerateRequest()
        kind = i % 4
        if kind == 0:
            request.chat.messages.add(role="user", content=QUESTIONS[i // 4 % len(QUESTIONS)])
        elif kind == 1:
            request.text = QUESTIONS[i // 4 % len(QUESTIONS)]
        else:
            own = [choose.randrange(100, 400) for _ in range(choose.randrange(1, 60))]
            request.token_ids.ids.extend((prefixes[i % 3] if kind == 2 else []) + own)
        request.sampling.seed = 1000 * seed + i  # the gateway's wire has 32 bits
        request.sampling.temperature = choose.choice((0, 0, 0.7, 1.0))
        if request.sampling.temperature > 0 and choose.random() < 0.5:
            request.sampling.top_p = 0.9
            request.sampling.frequency_penalty = 0.25
        request.max_tokens = choose.choice((1, 7, 40, 90, 160, 220))
        request.ignore_eos = choose.random() < 0.5
        if choose.random() < 0.2:
            request.logprobs = choose.choice((0, 3, 20))
        if choose.random() < 0.1:
            request.stop.append("1")
        specs.append(Spec(request))
    return specs


def answer_all(specs: list[Spec], address: str, api) -> None:
    """One at a time, on a daemon that nothing disturbs."""
    with grpc.insecure_channel(address) as channel:
        stub = api.GenerationServiceStub(channel)
        for spec in specs:
            response = stub.Generate(spec.request, timeout=120, wait_for_ready=True)
            spec.answer = Answer(tuple(response.token_ids), response.text, response.finish_reason, response.usage.prompt_tokens,
                                 logprobs_of(response))
