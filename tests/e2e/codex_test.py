#!/usr/bin/env python3
"""Codex CLI in a network namespace that has loopback alone: it takes the golden event streams as answers, calls what they call,
tries 503 and 429 again, and a daemon reads what it sends.

usage: tests/e2e/codex_test.py FOREDRAFT   (the binary)

Installs Codex from PyPI into build/codex-venv. Where PyPI cannot be reached, or there are no namespaces, the test says so and
passes without a check.
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
VENV = ROOT / "build" / "codex-venv"
PACKAGE = "openai-codex-cli-bin==0.163.0"
STREAMS = ROOT / "tests" / "golden" / "streams"
FULL = {"error": {"message": "the queue is full", "type": "service_unavailable_error", "param": None, "code": "queue_full"}}
SCHEMA = {"type": "object", "properties": {"count": {"type": "integer"}}, "required": ["count"], "additionalProperties": False}
# A server of one tool on standard input and output, as Codex starts them.
TOOL_SERVER = """
import json, sys
tool = {"name": "read", "description": "Reads a file", "inputSchema": {"type": "object", "properties": {"path": {"type": "string"}}}}
for line in sys.stdin:
    message = json.loads(line)
    if "id" not in message:
        continue
    results = {"initialize": {"protocolVersion": message.get("params", {}).get("protocolVersion"), "capabilities": {"tools": {}},
                              "serverInfo": {"name": "files", "version": "1"}},
               "tools/list": {"tools": [tool]}, "tools/call": {"content": [{"type": "text", "text": "seventeen tests"}]}}
    print(json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": results.get(message["method"], {})}), flush=True)
"""


def install() -> None:
    stamp = VENV / "ready"
    if stamp.exists() and stamp.read_text() == PACKAGE:
        return
    subprocess.run([sys.executable, "-m", "venv", VENV], check=True)
    if subprocess.run([VENV / "bin" / "pip", "install", "--quiet", "--disable-pip-version-check", PACKAGE]).returncode != 0:
        print("NOT CHECKED: PyPI cannot be reached, so there is no Codex")
        sys.exit(0)
    stamp.write_text(PACKAGE)


def enter_namespace() -> None:
    """Runs this script again where nothing but loopback can be reached."""
    if subprocess.run(["unshare", "-rn", "ip", "link", "set", "lo", "up"]).returncode != 0:
        print("NOT CHECKED: no network namespaces here")
        sys.exit(0)
    command = 'ip link set lo up && exec "$0" "$@"'
    os.execvp("unshare", ["unshare", "-rn", "sh", "-c", command, sys.executable, __file__, *sys.argv[1:], "--inside"])


class Player(http.server.BaseHTTPRequestHandler):
    """Answers each request with the next of `script`: the events of a stream, or a status."""

    script: list = []
    bodies: list = []

    def do_POST(self) -> None:
        self.bodies.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
        answer = self.script.pop(0)
        is_stream = isinstance(answer, str)
        self.send_response(200 if is_stream else answer)
        self.send_header("Content-Type", "text/event-stream" if is_stream else "application/json")
        if not is_stream:
            self.send_header("Retry-After", "1")
        self.end_headers()
        self.wfile.write((answer if is_stream else json.dumps(FULL)).encode())

    def log_message(self, *_) -> None:
        pass


def golden(name: str, changes: dict[str, str] | None = None) -> str:
    """A golden stream whose call is one of the tools that Codex has here."""
    text = (STREAMS / f"responses_{name}.sse").read_text()
    for old, new in (changes or {}).items():
        assert old in text, (name, old)
        text = text.replace(old, new)
    return text


class Codex:
    def __init__(self, url: str, model: str) -> None:
        self.directory = tempfile.TemporaryDirectory(prefix="codex-", ignore_cleanup_errors=True)
        self.home = pathlib.Path(self.directory.name)
        server = self.home / "tool_server.py"
        server.write_text(TOOL_SERVER)
        (self.home / "config.toml").write_text(f"""
model = "{model}"
model_provider = "foredraft"
model_providers.foredraft = {{ name = "foredraft", base_url = "{url}/v1", wire_api = "responses" }}
[mcp_servers.files]
command = "{sys.executable}"
args = ["{server}"]
""")

    def run(self, *options: str) -> list[dict]:
        """The events of one question."""
        binary = next(VENV.glob("lib/*/site-packages/codex_cli_bin/bin/codex"))
        binary.chmod(0o755)
        command = [binary, "exec", "--skip-git-repo-check", "--sandbox", "danger-full-access", "--json", *options, "How many tests?"]
        ran = subprocess.run(command, cwd=self.home, env={**os.environ, "CODEX_HOME": str(self.home), "HOME": str(self.home)},
                             stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=120)
        return [json.loads(line) for line in ran.stdout.splitlines() if line.startswith("{")]


def play(codex: Codex, script: list, *options: str) -> list[dict]:
    Player.script[:] = script
    Player.bodies.clear()
    events = codex.run(*options)
    assert not Player.script, (Player.script, events)
    texts = [event["item"]["text"] for event in events if event.get("item", {}).get("type") == "agent_message"]
    assert texts == ['2 + 2 = 4, "naïvely"\n'], events
    assert events[-1]["type"] == "turn.completed" and events[-1]["usage"]["cached_input_tokens"] % 32 == 0, events[-1]
    return events


def output_of_call() -> str:
    """What Codex sent back to the model; the call itself must have come back as it was."""
    call, output = Player.bodies[-1]["input"][-2:]
    assert call["type"] == "function_call" and output["type"] == "function_call_output", (call, output)
    assert call["call_id"] == output["call_id"] == "call_x_0", (call, output)
    return json.dumps(output["output"])


def check_player() -> None:
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Player)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    codex = Codex(f"http://127.0.0.1:{server.server_port}", "abacus")
    text = golden("text")

    arguments = json.dumps(json.dumps({"cmd": "printf seventeen; printf 17 > counted"}))
    command = golden("namespaced", {'"namespace":"files",': "", '"name":"read"': '"name":"exec_command"', r'"{\"path\": \"a\"}"': arguments})
    play(codex, [command, text])
    assert "seventeen" in output_of_call() and (codex.home / "counted").read_text() == "17", Player.bodies[-1]["input"]

    play(codex, [golden("namespaced", {'"namespace":"files"': '"namespace":"mcp__files"'}), text])
    assert "seventeen tests" in output_of_call() and Player.bodies[-1]["input"][-2]["namespace"] == "mcp__files"

    schema = codex.home / "schema.json"
    schema.write_text(json.dumps(SCHEMA))
    play(codex, [text], "--output-schema", str(schema))
    form = Player.bodies[0]["text"]["format"]
    assert form["type"] == "json_schema" and form["schema"] == SCHEMA and Player.bodies[0]["tools"], form

    assert not [event for event in play(codex, [503, 503, text]) if event["type"] == "error"], "503 is tried again in silence"
    errors = [event["message"] for event in play(codex, [429, text]) if event["type"] == "error"]
    assert len(errors) == 1 and "429" in errors[0], errors  # one of five times that a turn begins anew
    server.shutdown()
    print("Codex: a call, a call in a namespace, a schema, 503 and 429")


def check_daemon(binary: str) -> None:
    """abacus has no room for Codex's instructions, so a daemon that reads all of them says that the prompt is too long."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with tempfile.TemporaryDirectory() as directory:
        log = pathlib.Path(directory) / "daemon.log"
        settings = [f"server.http_address=127.0.0.1:{port}", "server.grpc_address=127.0.0.1:0", "server.metrics_address=127.0.0.1:0"]
        command = [binary, "serve", "deploy/models/abacus-tools", *[word for setting in settings for word in ("--set", setting)]]
        daemon = subprocess.Popen(command, cwd=ROOT, stderr=log.open("w"))
        try:
            deadline = time.monotonic() + 60
            while "serving  grpc" not in log.read_text():
                assert daemon.poll() is None and time.monotonic() < deadline, log.read_text()
                time.sleep(0.05)
            events = Codex(f"http://127.0.0.1:{port}", "abacus-tools").run()
        finally:
            daemon.send_signal(signal.SIGTERM)
        assert daemon.wait(60) == 0, log.read_text()
        assert events[-1]["type"] == "turn.failed" and "context window" in events[-1]["error"]["message"], events
        assert "no such field is known" not in log.read_text(), log.read_text()
    print("Codex: the daemon reads its requests, and it knows the context's end")


def main() -> None:
    check_player()
    check_daemon(sys.argv[1])


if __name__ == "__main__":
    if "--inside" not in sys.argv:
        install()
        enter_namespace()
    main()
