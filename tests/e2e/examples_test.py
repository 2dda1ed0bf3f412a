#!/usr/bin/env python3
"""docs/examples against a daemon, built as a user builds them: the protos are those of an installation, the modules for
Python come from Debian's plugin, and the C++ client is a project of its own.

usage: tests/e2e/examples_test.py BUILD   (the build folder)
"""

import pathlib
import re
import subprocess
import sys
import tempfile

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1] / "deploy"))
import installed  # noqa: E402

EXAMPLES = installed.ROOT / "docs/examples"
faults: list[str] = []


def check(good: bool, text: str) -> None:
    if not good:
        faults.append(text)


def python_client(proto: pathlib.Path, directory: pathlib.Path) -> list[str]:
    subprocess.run(["protoc", "-I", proto, f"--python_out={directory}", f"--grpc_python_out={directory}",
                    "--plugin=protoc-gen-grpc_python=/usr/bin/grpc_python_plugin", "foredraft/v1/generation.proto"], check=True)
    # Debian's interpreter, which has python3-grpcio. PYTHONPATH: the modules are not beside the program here.
    return ["env", f"PYTHONPATH={directory}", "/usr/bin/python3", str(EXAMPLES / "python/client.py")]


def cpp_client(proto: pathlib.Path, directory: pathlib.Path) -> list[str]:
    quiet = {"check": True, "stdout": subprocess.DEVNULL}
    subprocess.run(["cmake", "-S", EXAMPLES / "cpp", "-B", directory, "-G", "Ninja", f"-DFOREDRAFT_PROTO_DIR={proto}"], **quiet)
    subprocess.run(["cmake", "--build", directory], **quiet)
    return [str(directory / "client")]


def check_client(name: str, client: list[str], server: str) -> None:
    def says(*arguments: str) -> str:
        run = subprocess.run([*client, "--server", server, *arguments], capture_output=True, text=True, check=False, timeout=120)
        check(run.returncode == 0, f"{name} {arguments[0]}: exit code {run.returncode}, {run.stderr.strip()}")
        return run.stdout

    text = says("stream", "What is 347 + 586?")
    check("The answer is 933." in text, f"{name} stream: {text}")
    check(re.search(r"^stop: \d+ \+ \d+ tokens, \d+ of [1-9]\d* drafts accepted, [1-9]\d* tokens/s$", text, re.MULTILINE) is not None,
          f"{name} stream: {text}")
    text = says("cancel", "Count to a hundred.")
    cancelled = re.fullmatch(r"CANCELLED after (\d+) tokens\n", text)
    check(cancelled is not None and 20 <= int(cancelled[1]) < 4000, f"{name} cancel: {text}")
    text = says("logprobs", "3 + 4 =")
    lines = re.findall(r"^(['\"].*['\"]) (-?\d+\.\d+)   of (['\"].*['\"]) (-?\d+\.\d+)", text, re.MULTILINE)
    check(len(lines) > 0 and all(float(line[1]) <= 0 for line in lines), f"{name} logprobs: {text}")
    text = says("turns", "Compute 5+81.", "Compute 7+2.")
    check(re.search(r"\b86\b", text) is not None and re.search(r"\b9\b", text) is not None, f"{name} turns: {text}")
    prompts = [int(count) for count in re.findall(r"\(prompt (\d+) tokens", text)]
    check(len(prompts) == 2 and prompts[1] > 2 * prompts[0] - 5, f"{name} turns: the second prompt has no history: {text}")
    run = subprocess.run([*client, "--server", "127.0.0.1:1", "stream", "a"], capture_output=True, text=True, check=False)
    check(run.returncode == 1 and run.stderr.count("\n") == 1, f"{name}, nobody answers: {run.returncode}, {run.stderr}")


def main() -> int:
    with tempfile.TemporaryDirectory() as name:
        directory = pathlib.Path(name)
        subprocess.run(["cmake", "--install", sys.argv[1], "--prefix", directory / "opt"], check=True, stdout=subprocess.DEVNULL)
        proto = directory / "opt/share/foredraft/proto"
        clients = {}
        for language, make in (("python", python_client), ("cpp", cpp_client)):
            (directory / language).mkdir()
            clients[language] = make(proto, directory / language)
        foredraft = str(directory / "opt/bin/foredraft")
        serve = [foredraft, "serve", "--config", str(directory / "opt/etc/foredraft/foredraft.yaml")]
        with installed.Daemon(serve, directory / "log") as daemon:
            for language, client in clients.items():
                check_client(language, client, daemon.address)
    for fault in faults:
        print(fault)
    print(f"examples_test: {len(clients)} clients, {len(faults)} faults")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
