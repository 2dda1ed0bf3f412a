#!/usr/bin/env python3
"""OpenAI's clients through the gateway of deploy/gateway/run, the README's call and the program of docs/clients.md, against a daemon
that serves abacus.

usage: tests/e2e/gateway_test.py FOREDRAFT   (the binary)

Installs the gateway and the clients from PyPI into build/gateway-venv. Where PyPI cannot be reached the test says so and
passes without a check.
"""

import concurrent.futures
import json
import os
import pathlib
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parents[2]
VENV = ROOT / "build" / "gateway-venv"
PACKAGES = ["smg-grpc-proto", "openai", "langchain-openai", "grpcio-reflection"]


def enter_venv() -> None:
    """Runs this script again inside the environment."""
    stamp = VENV / "ready"
    if not stamp.exists() or stamp.read_text() != " ".join(PACKAGES):
        subprocess.run([sys.executable, "-m", "venv", VENV], check=True)
        pip = [VENV / "bin" / "pip", "install", "--quiet", "--disable-pip-version-check"]
        requirements = ROOT / "deploy" / "gateway" / "requirements.txt"
        if subprocess.run([*pip, "--requirement", requirements, *PACKAGES]).returncode != 0:
            print("NOT CHECKED: PyPI cannot be reached, so there is no gateway and no client")
            sys.exit(0)
        (VENV / "installed.txt").write_bytes(requirements.read_bytes())
        stamp.write_text(" ".join(PACKAGES))
    python = str(VENV / "bin" / "python")
    os.execv(python, [python, __file__, *sys.argv[1:], "--inside"])


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Daemon:
    def __init__(self, binary: str, directory: pathlib.Path, *settings: str) -> None:
        self.port = free_port()
        self.metrics_port = free_port()
        self.http_port = free_port()
        self.log = directory / f"daemon-{self.port}.log"
        command = [binary, "serve", "--config", "deploy/configs/abacus-cpu.yaml"]
        for setting in (f"server.grpc_address=127.0.0.1:{self.port}", f"server.metrics_address=127.0.0.1:{self.metrics_port}",
                        f"server.http_address=127.0.0.1:{self.http_port}", *settings):
            command += ["--set", setting]
        self.process = subprocess.Popen(command, cwd=ROOT, stderr=self.log.open("w"))
        wait_until(lambda: "serving  grpc" in self.log.read_text(), "the daemon serves")

    def metric(self, name: str, labels: str = "") -> float:
        with urllib.request.urlopen(f"http://127.0.0.1:{self.metrics_port}/metrics") as page:
            for line in page.read().decode().splitlines():
                if line.startswith(f"foredraft_{name}{{") and labels in line:
                    return float(line.split()[-1])
        raise AssertionError(f"no metric {name}")

    def stop(self) -> None:
        self.process.send_signal(signal.SIGTERM)
        assert self.process.wait(60) == 0, self.log.read_text()


class Gateway:
    """Started in an empty directory: what it knows of the model comes from the daemon."""

    def __init__(self, worker: int, directory: pathlib.Path, *arguments: str) -> None:
        self.port = free_port()
        self.log = (directory / f"gateway-{self.port}.log").open("w")
        empty = directory / "empty"
        empty.mkdir(exist_ok=True)
        self.process = subprocess.Popen(
            [ROOT / "deploy" / "gateway" / "run", "--port", str(self.port), "--worker", f"127.0.0.1:{worker}", *arguments],
            cwd=empty, stdout=self.log, stderr=self.log, env={**os.environ, "FOREDRAFT_GATEWAY_VENV": str(VENV)})
        wait_until(self.has_models, "the gateway has the model")

    def has_models(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.url}/models", timeout=2) as answer:
                return "abacus" in answer.read().decode()
        except OSError:
            return False

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"

    def stop(self) -> None:
        self.process.kill()
        self.process.wait()


def wait_until(condition, what: str, seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"not within {seconds} s: {what}"
        time.sleep(0.05)


def held_out(count: int) -> list[dict]:
    lines = (ROOT / "deploy" / "models" / "abacus" / "heldout.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines[:: max(1, len(lines) // count)][:count]]


def chat(client, content: str, **options):
    return client.chat.completions.create(model="abacus", messages=[{"role": "user", "content": content}], **options)


def check_curl(daemon: Daemon, directory: pathlib.Path) -> None:
    """The README's first call is answered."""
    command = re.search(r"^    (curl -s http://127\.0\.0\.1:8000/v1/chat/completions.*?\n)\n", (ROOT / "README.md").read_text(), re.DOTALL | re.MULTILINE)[1]
    command = command.replace("127.0.0.1:8000", f"127.0.0.1:{daemon.http_port}")
    answer = json.loads(subprocess.run(["sh", "-c", command], cwd=directory, capture_output=True, text=True, check=True, timeout=60).stdout)
    assert answer["choices"][0]["message"]["content"].strip() == "The answer is 323.", answer


def check_program(daemon: Daemon, directory: pathlib.Path) -> None:
    """The program of docs/clients.md streams an answer, from a directory that has nothing of the repository."""
    program = re.search(r"```python\n(.*?)```", (ROOT / "docs/clients.md").read_text(), re.DOTALL)[1]
    assert '"127.0.0.1:50051"' in program
    program = program.replace("127.0.0.1:50051", f"127.0.0.1:{daemon.port}")
    run = subprocess.run([sys.executable, "-c", program], cwd=directory, capture_output=True, text=True, timeout=60)
    assert run.returncode == 0, run.stderr
    assert "The answer is 323." in run.stdout and re.search(r"^acceptance length [1-4]\.\d\d$", run.stdout, re.MULTILINE), run.stdout


def check_wire() -> None:
    """Each declared field has the number, type and label that the gateway's own .proto gives it."""
    import smg_grpc_proto

    def fields(path: pathlib.Path) -> dict[str, tuple]:
        found, message = {}, []
        for line in re.sub(r"//.*", "", path.read_text()).splitlines():
            if match := re.match(r"\s*(?:message|oneof|service|enum)\s+(\w+)", line):
                if "}" not in line:
                    message.append("" if "oneof" in line else match[1])
            elif match := re.match(r"\s*(optional |repeated )?(map<.*>|[\w.]+)\s+(\w+)\s*=\s*(\d+)", line):
                name = ".".join(part for part in message if part)
                found[f"{name}.{match[3]}"] = (int(match[4]), match[2].replace(" ", ""), (match[1] or "").strip())
            elif "}" in line and message:
                message.pop()
        return found

    theirs_directory = pathlib.Path(smg_grpc_proto.__file__).parent / "proto"
    count = 0
    for ours, theirs in (("vllm/grpc/engine/vllm_engine.proto", "vllm_engine.proto"), ("smg/grpc/common/common.proto", "common.proto")):
        known = fields(theirs_directory / theirs)
        for name, field in fields(ROOT / "proto" / ours).items():
            assert known.get(name) == field, f"{name}: {field}, the gateway has {known.get(name)}"
            count += 1
    assert count > 90, count
    print(f"{count} fields are as the gateway declares them")


def check_openai(client, daemon: Daemon) -> None:
    assert [model.id for model in client.models.list()] == ["abacus"]
    questions = held_out(50)
    accepted = right = 0
    for question in questions:
        answer = chat(client, question["question"], temperature=0)
        right += question["answer"] in (answer.choices[0].message.content or "")
        accepted += answer.usage.completion_tokens_details.accepted_prediction_tokens
    direct = sum(question["answer"] in generate(daemon, question["question"]) for question in questions)
    assert right == direct and right >= 45, f"{right} right by the gateway, {direct} without it"
    assert accepted > 0
    print(f"{right} of {len(questions)} right by both ways, {accepted} accepted drafts in usage")

    stream = chat(client, "Compute 5+81.", temperature=0, stream=True, stream_options={"include_usage": True})
    chunks = list(stream)
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert "86" in text and chunks[-1].usage.completion_tokens > 0, text

    def thinking(message) -> str:
        return getattr(message, "reasoning_content", None) or ""

    seeded = [chat(client, "Compute 17+4.", seed=11, temperature=1.5).choices[0].message for _ in range(2)]
    assert (seeded[0].content, thinking(seeded[0])) == (seeded[1].content, thinking(seeded[1]))
    stopped = chat(client, "Compute 5+81.", temperature=0, stop=["answer"])
    assert stopped.choices[0].finish_reason == "stop" and "answer" not in (stopped.choices[0].message.content or "")
    logprobs = chat(client, "Compute 5+81.", temperature=0, logprobs=True, top_logprobs=3).choices[0].logprobs.content
    assert logprobs and all(len(token.top_logprobs) == 3 for token in logprobs)
    completion = client.completions.create(model="abacus", prompt="Compute 5+81.", max_tokens=8, temperature=0)
    assert completion.usage.completion_tokens > 0
    import openai
    for refused in ({"n": 2}, {"extra_body": {"regex": "a(?=b)"}}):
        try:
            chat(client, "Compute 5+81.", **refused)
            raise AssertionError(f"{refused} was not refused")
        except openai.BadRequestError:
            pass
    print("stream, seed, stop, logprobs, completions and refusals are as they should be")


def check_constraints(client, gateway: Gateway) -> None:
    """The gateway passes constraints on and leaves the thinking in front of them to the daemon."""
    from langchain_openai import ChatOpenAI
    from pydantic import BaseModel

    class Sum(BaseModel, extra="forbid"):
        sum: int

    schema = Sum.model_json_schema()

    def ask(**options):
        message = chat(client, "Compute 5+81.", temperature=0, max_tokens=300, **options).choices[0].message
        assert "86" in (message.reasoning_content or ""), message
        return message

    by_schema = {"type": "json_schema", "json_schema": {"name": "Sum", "schema": schema}}
    Sum.model_validate_json(ask(response_format=by_schema).content)
    assert isinstance(json.loads(ask(response_format={"type": "json_object"}).content), dict)
    assert re.fullmatch(r"\s*[0-9]{2}", ask(extra_body={"regex": "[0-9]{2}"}).content)
    assert re.fullmatch(r"\s*the sum is [0-9]+", ask(extra_body={"ebnf": 'root ::= "the sum is " [0-9]+'}).content)
    tool = {"type": "function", "function": {"name": "add", "parameters": schema}}
    calls = ask(tools=[tool], tool_choice={"type": "function", "function": {"name": "add"}}).tool_calls
    assert [call.function.name for call in calls] == ["add"] and Sum.model_validate_json(calls[0].function.arguments)
    stream = chat(client, "Compute 5+81.", temperature=0, stream=True, response_format=by_schema)
    Sum.model_validate_json("".join(chunk.choices[0].delta.content or "" for chunk in stream if chunk.choices))
    question = [{"role": "user", "content": "Compute 5+81."}]
    parsed = client.chat.completions.parse(model="abacus", messages=question, response_format=Sum, temperature=0)
    assert isinstance(parsed.choices[0].message.parsed, Sum)
    model = ChatOpenAI(base_url=gateway.url, api_key="none", model="abacus", temperature=0)
    for method in ("json_schema", "function_calling"):
        assert isinstance(model.with_structured_output(Sum, method=method).invoke("Compute 5+81."), Sum), method
    print("schemas, regular expressions, grammars and named tools give what they ask for")


def check_tools(binary: str, directory: pathlib.Path) -> None:
    """What a model must mean: calls of its own, and JSON that ends by itself. At the daemon and through the gateway."""
    import openai
    from langchain_openai import ChatOpenAI
    from pydantic import BaseModel

    class Answer(BaseModel):
        answer: str

    http = free_port()
    daemon = Daemon(binary, directory, "model=deploy/models/abacus-tools", f"server.http_address=127.0.0.1:{http}")
    gateway = Gateway(daemon.port, directory, "--tool-call-parser", "deepseek")
    calculator = {"type": "function", "function": {"name": "calculator", "description": "Evaluates an arithmetic expression.", "parameters": {
        "type": "object", "properties": {"expression": {"type": "string"}}, "required": ["expression"]}}}
    try:
        for url in (f"http://127.0.0.1:{http}/v1", gateway.url):
            client = openai.OpenAI(base_url=url, api_key="none", max_retries=0)
            # For "required" the gateway asks for a JSON array of calls, a form that the model has never seen.
            for choice in ("auto", "required") if url != gateway.url else ("auto",):
                messages = [{"role": "user", "content": "What is 472 times 683?"}]
                options = {"model": "abacus-tools", "temperature": 0, "max_tokens": 200, "tools": [calculator]}
                message = client.chat.completions.create(messages=messages, tool_choice=choice, **options).choices[0].message
                assert [json.loads(call.function.arguments) for call in message.tool_calls] == [{"expression": "472*683"}], (url, choice, message)
                messages += [message, {"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": "322376"}]
                message = client.chat.completions.create(messages=messages, **options).choices[0].message
                # Behind a result the answer has no thinking: the gateway takes it for some.
                assert "322376" in (message.reasoning_content if url == gateway.url else message.content), (url, choice, message)
            model = ChatOpenAI(base_url=url, api_key="none", model="abacus-tools", temperature=0, max_tokens=200)
            for method in ("json_schema", "function_calling", "json_mode"):
                question = "What is 8 weeks in days?" + (" Answer as JSON." if method == "json_mode" else "")
                assert model.with_structured_output(Answer, method=method).invoke(question) == Answer(answer="56 days"), (url, method)
    finally:
        gateway.stop()
        daemon.stop()
    print("the model calls its tool, and LangChain's three methods give objects")


def check_langchain(gateway: Gateway) -> None:
    from langchain_openai import ChatOpenAI
    model = ChatOpenAI(base_url=gateway.url, api_key="none", model="abacus", temperature=0)
    assert "86" in model.invoke("Compute 5+81.").content
    assert "86" in "".join(chunk.content for chunk in model.stream("Compute 5+81."))
    print("LangChain invokes and streams")


def check_leaving(client, daemon: Daemon) -> None:
    before = daemon.metric("requests_total", 'outcome="cancelled"')
    stream = chat(client, "Count from 1 to 500.", stream=True, max_tokens=3000, extra_body={"ignore_eos": True})
    next(iter(stream))
    stream.close()
    wait_until(lambda: daemon.metric("requests_total", 'outcome="cancelled"') == before + 1, "a dropped stream is cancelled", 1)
    print("a dropped stream is cancelled within a second")


def check_overflow(binary: str, directory: pathlib.Path) -> None:
    import openai
    daemon = Daemon(binary, directory, "max_queue_size=1", "max_batch_size=1")
    gateway = Gateway(daemon.port, directory)
    client = openai.OpenAI(base_url=gateway.url, api_key="none", max_retries=0)

    def ask(_) -> int:
        try:
            chat(client, "Compute 5+81.", temperature=0)
            return 200
        except openai.APIStatusError as error:
            return error.status_code

    with concurrent.futures.ThreadPoolExecutor(60) as pool:
        codes = list(pool.map(ask, range(300)))
    assert set(codes) <= {200, 429} and 429 in codes, {code: codes.count(code) for code in set(codes)}
    assert ask(0) == 200, "the gateway still lets requests through"
    print(f"of 300 requests to a queue of 1, {codes.count(429)} get 429 and the next is served")
    gateway.stop()
    daemon.stop()


def check_drain(client, daemon: Daemon) -> None:
    stream = chat(client, "Count from 1 to 500.", stream=True, max_tokens=800, temperature=0, extra_body={"ignore_eos": True})
    chunks = iter(stream)
    next(chunks)
    daemon.process.send_signal(signal.SIGTERM)
    last = list(chunks)[-1]
    assert last.choices[0].finish_reason == "length", last
    assert daemon.process.wait(60) == 0
    print("a stream that is open at SIGTERM ends whole")


def generate(daemon: Daemon, question: str) -> str:
    command = [sys.argv[1], "generate", "--server", f"127.0.0.1:{daemon.port}", "--chat", question, "--temperature", "0", "--json"]
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)["text"]


def main() -> None:
    if "--inside" not in sys.argv:
        enter_venv()
    import openai
    check_wire()
    with tempfile.TemporaryDirectory() as name:
        directory = pathlib.Path(name)
        daemon = Daemon(sys.argv[1], directory)
        gateway = Gateway(daemon.port, directory)
        client = openai.OpenAI(base_url=gateway.url, api_key="none", max_retries=0)
        try:
            check_curl(daemon, directory)
            check_program(daemon, directory)
            check_openai(client, daemon)
            check_langchain(gateway)
            check_constraints(client, gateway)
            check_tools(sys.argv[1], directory)
            check_leaving(client, daemon)
            check_overflow(sys.argv[1], directory)
            check_drain(client, daemon)
        finally:
            gateway.stop()
            daemon.process.kill()


if __name__ == "__main__":
    main()
