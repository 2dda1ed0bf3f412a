#!/usr/bin/env python3
"""OpenAI's, Anthropic's and LangChain's Python libraries: the golden event streams are read by them as they are meant, and a daemon that
serves abacus-tools answers them, whole and streamed, with tools.

usage: tests/e2e/sdk_test.py FOREDRAFT   (the binary)

Installs the libraries from PyPI into build/sdk-venv. Where PyPI cannot be reached the test says so and passes without a
check.
"""

import http.server
import json
import os
import pathlib
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
VENV = ROOT / "build" / "sdk-venv"
PACKAGES = ["openai==3.57.0", "anthropic==2.14.0", "langchain-openai==1.7.4"]
STREAMS = ROOT / "tests" / "golden" / "streams"
MODEL = "abacus-tools"
QUESTION = "What is 48 + 275?"
SCHEMA = {"type": "object", "properties": {"expression": {"type": "string"}}, "required": ["expression"]}


def enter_venv() -> None:
    """Runs this script again inside the environment."""
    stamp = VENV / "ready"
    if not stamp.exists() or stamp.read_text() != " ".join(PACKAGES):
        subprocess.run([sys.executable, "-m", "venv", VENV], check=True)
        pip = [VENV / "bin" / "pip", "install", "--quiet", "--disable-pip-version-check"]
        if subprocess.run([*pip, *PACKAGES]).returncode != 0:
            print("NOT CHECKED: PyPI cannot be reached, so there are no libraries")
            sys.exit(0)
        stamp.write_text(" ".join(PACKAGES))
    python = str(VENV / "bin" / "python")
    os.execv(python, [python, __file__, *sys.argv[1:], "--inside"])


class Player(http.server.BaseHTTPRequestHandler):
    """Answers each request with the stream whose name is its model."""

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.end_headers()
        self.wfile.write((STREAMS / f"{body['model']}.sse").read_bytes())

    def log_message(self, *_) -> None:
        pass


def check_goldens() -> None:
    import anthropic
    import openai

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Player)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    url = f"http://127.0.0.1:{server.server_port}"
    messages = anthropic.Anthropic(base_url=url, api_key="none", max_retries=0).messages
    responses = openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0).responses
    count = 0
    for path in sorted(STREAMS.glob("*.sse")):
        count += 1
        events = [json.loads(line[6:]) for line in path.read_text().splitlines() if line.startswith("data: ")]
        if path.stem.startswith("messages_"):
            with messages.stream(model=path.stem, max_tokens=9, messages=[{"role": "user", "content": "a"}]) as stream:
                message = stream.get_final_message()
            started = [event["content_block"]["type"] for event in events if event["type"] == "content_block_start"]
            assert [block.type for block in message.content] == started, path
            text = "".join(event["delta"].get("text", "") for event in events if event["type"] == "content_block_delta")
            assert "".join(block.text for block in message.content if block.type == "text") == text, path
            end = next(event for event in events if event["type"] == "message_delta")
            assert message.stop_reason == end["delta"]["stop_reason"], path
            assert message.usage.output_tokens == end["usage"]["output_tokens"], path
        else:
            with responses.stream(model=path.stem, input="a") as stream:
                seen = list(stream)
                assert [event.sequence_number for event in seen if hasattr(event, "sequence_number")], path
                ended = events[-1]["response"]
                if ended["status"] == "completed":
                    response = stream.get_final_response()
                    assert [item.type for item in response.output] == [item["type"] for item in ended["output"]], path
                else:
                    assert seen[-1].type == "response.incomplete" and seen[-1].response.output, path
    server.shutdown()
    assert count >= 22, count
    print(f"{count} golden streams are read as they are meant")


def check_tool_changes(client, user: dict, tool: dict) -> None:
    """A tool that a message defines is called, also by the library's own loop; one that it removes cannot be."""
    import anthropic

    added = {"type": "tool_addition", "tool": {"type": "tool_definition", "definition": tool}}
    removed = {"type": "tool_removal", "tool": {"type": "tool_reference", "name": tool["name"]}}
    options = {"model": MODEL, "max_tokens": 300, "tool_choice": {"type": "any"}, "extra_body": {"temperature": 0}}
    create = client.beta.messages.create
    called = create(messages=[user, {"role": "system", "content": [added]}], **options)
    assert called.content[-1].name == tool["name"], called
    try:
        create(messages=[user, {"role": "system", "content": [removed]}], tools=[tool], **options)
        raise AssertionError("a removed tool was called")
    except anthropic.BadRequestError as error:
        assert "no message of the conversation has removed" in error.message, error
    runner = client.beta.messages.tool_runner(messages=[user], tools=[], thread=False, max_iterations=2, **options)
    runner.add_tools(tool)
    first = next(iter(runner))  # the library runs functions alone, not a definition
    assert first.stop_reason == "tool_use" and first.content[-1].name == tool["name"], first


def check_anthropic(url: str) -> None:
    import anthropic

    client = anthropic.Anthropic(base_url=url, api_key="none", max_retries=0)
    user = {"role": "user", "content": QUESTION}
    tools = [{"name": "calculate", "description": "Computes", "input_schema": SCHEMA}]
    options = {"model": MODEL, "max_tokens": 300, "tools": tools, "tool_choice": {"type": "any"},
               "extra_body": {"temperature": 0}}  # the library has no name for it
    called = client.messages.create(messages=[user], **options)
    assert called.stop_reason == "tool_use" and called.content[-1].type == "tool_use", called
    assert "expression" in called.content[-1].input, called
    with client.messages.stream(messages=[user], **options) as stream:
        joined = stream.get_final_message()
    assert [b.model_dump(exclude={"id", "signature"}) for b in joined.content] == [
        b.model_dump(exclude={"id", "signature"}) for b in called.content], joined
    result = {"type": "tool_result", "tool_use_id": called.content[-1].id, "content": "323"}
    history = [user, {"role": "assistant", "content": called.content}, {"role": "user", "content": [result]}]
    options["tool_choice"] = {"type": "auto"}
    answer = client.messages.create(messages=history, **options)
    assert "323" in answer.content[-1].text and answer.stop_reason == "end_turn", answer
    counted = client.messages.count_tokens(model=MODEL, messages=history, tools=tools)
    assert counted.input_tokens == answer.usage.input_tokens + answer.usage.cache_read_input_tokens
    try:
        client.messages.create(model="claude-x", max_tokens=9, messages=[user])
        raise AssertionError("another model was served")
    except anthropic.NotFoundError as error:
        assert error.request_id, error
    check_tool_changes(client, user, tools[0])
    print("Anthropic's library is answered")


def check_openai(url: str) -> None:
    import openai
    import pydantic

    client = openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)
    tools = [{"type": "function", "name": "calculate", "description": "Computes", "parameters": SCHEMA, "strict": False},
             {"type": "web_search"}]
    options = {"model": MODEL, "max_output_tokens": 300, "temperature": 0, "tools": tools, "tool_choice": "required"}
    called = client.responses.create(input=QUESTION, **options)
    call = called.output[-1]
    assert called.status == "completed" and call.type == "function_call" and "expression" in json.loads(call.arguments), called
    with client.responses.stream(input=QUESTION, **options) as stream:
        joined = stream.get_final_response()
    assert [item.type for item in joined.output] == [item.type for item in called.output]
    assert joined.output[-1].arguments == call.arguments, joined
    history = [{"role": "user", "content": QUESTION}, *[item.model_dump(exclude_none=True) for item in called.output],
               {"type": "function_call_output", "call_id": call.call_id, "output": "323"}]
    options["tool_choice"] = "auto"
    answer = client.responses.create(input=history, **options)
    assert "323" in answer.output_text, answer
    counted = client.responses.input_tokens.count(model=MODEL, input=history, tools=tools)
    assert counted.input_tokens == answer.usage.input_tokens, (counted, answer.usage)

    class Sum(pydantic.BaseModel):
        sum: int

    parsed = client.responses.parse(model=MODEL, input=f"{QUESTION} Reply as JSON.", text_format=Sum, temperature=0)
    assert parsed.output_parsed.sum == 323, parsed
    try:
        client.responses.create(model=MODEL, input="a", previous_response_id="resp_1")
        raise AssertionError("an earlier response was taken")
    except openai.BadRequestError as error:
        assert error.code == "previous_response_not_found", error
    name = "org/abacus"  # an alias; the slash is a part of it
    assert [model.id for model in client.models.list()] == [MODEL] and client.models.retrieve(name).id == name
    named = client.chat.completions.create(model=name, messages=[{"role": "user", "content": QUESTION}], temperature=0)
    assert "323" in named.choices[0].message.content and named.model == name, named
    print("OpenAI's library is answered")


def check_langchain(url: str) -> None:
    import langchain_core.messages as messages
    import langchain_openai
    import pydantic

    class calculate(pydantic.BaseModel):  # noqa: N801: the tool's name
        """Computes"""

        expression: str

    class Sum(pydantic.BaseModel):
        sum: int

    for use_responses in (False, True):
        chat = langchain_openai.ChatOpenAI(model=MODEL, base_url=f"{url}/v1", api_key="none", temperature=0, max_retries=0,
                                           use_responses_api=use_responses)
        answer = chat.invoke(QUESTION)
        assert "323" in answer.text and answer.usage_metadata["output_tokens"] > 0, answer
        assert "".join(chunk.text for chunk in chat.stream(QUESTION)) == answer.text
        parsed = chat.with_structured_output(Sum, method="json_schema").invoke(f"{QUESTION} Reply as JSON.")
        assert parsed == Sum(sum=323), parsed
        with_tool = chat.bind_tools([calculate], tool_choice="required", strict=False)
        called = with_tool.invoke(QUESTION)
        assert called.tool_calls[0]["name"] == "calculate" and "expression" in called.tool_calls[0]["args"], called
        joined = None
        for chunk in with_tool.stream(QUESTION):
            joined = chunk if joined is None else joined + chunk
        assert joined.tool_calls[0]["args"] == called.tool_calls[0]["args"], joined
        result = messages.ToolMessage("323", tool_call_id=called.tool_calls[0]["id"])
        told = chat.bind_tools([calculate]).invoke([messages.HumanMessage(QUESTION), called, result])
        assert "323" in told.text, told
    completion = langchain_openai.OpenAI(model=MODEL, base_url=f"{url}/v1", api_key="none", temperature=0, max_tokens=4)
    assert completion.invoke("What is"), "completions answer, too"
    print("LangChain is answered, by chat, Responses and completions")


def main() -> None:
    binary = sys.argv[1]
    check_goldens()
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with tempfile.TemporaryDirectory() as directory:
        log = pathlib.Path(directory) / "daemon.log"
        settings = [f"server.http_address=127.0.0.1:{port}", "server.grpc_address=127.0.0.1:0", "server.metrics_address=127.0.0.1:0",
                    "server.model_aliases=[org/*]"]
        command = [binary, "serve", f"deploy/models/{MODEL}", *[word for setting in settings for word in ("--set", setting)]]
        daemon = subprocess.Popen(command, cwd=ROOT, stderr=log.open("w"))
        try:
            deadline = time.monotonic() + 60
            while "serving  grpc" not in log.read_text():
                assert daemon.poll() is None and time.monotonic() < deadline, log.read_text()
                time.sleep(0.05)
            check_anthropic(f"http://127.0.0.1:{port}")
            check_openai(f"http://127.0.0.1:{port}")
            check_langchain(f"http://127.0.0.1:{port}")
        finally:
            daemon.send_signal(signal.SIGTERM)
        assert daemon.wait(60) == 0, log.read_text()


if __name__ == "__main__":
    if "--inside" not in sys.argv:
        enter_venv()
    main()
