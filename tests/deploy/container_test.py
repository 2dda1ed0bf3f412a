#!/usr/bin/env python3
"""deploy/container as far as it can be checked without a container engine: the form of the files, the stages and paths
that they name, the packages of the last stage against the libraries of a built binary, and that the build configures
from what .dockerignore leaves. The images themselves are built and run by nobody here.

usage: tests/deploy/container_test.py FOREDRAFT   (the binary; one with CUDA is compared with Containerfile.cuda)
"""

import fnmatch
import json
import os
import pathlib
import re
import shlex
import shutil
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
INSTRUCTIONS = {"ARG", "CMD", "COPY", "ENTRYPOINT", "ENV", "EXPOSE", "FROM", "RUN", "STOPSIGNAL", "USER", "WORKDIR"}
# Come with every Debian image, or as dependencies of the others.
BASE_PACKAGES = {"libc6", "libgcc-s1", "libstdc++6"}
# Package with no library of its own, and libraries that only headers of another package use.
NOT_LINKED = {"ca-certificates", "libfmt9"}
faults: list[str] = []


def check(good: bool, text: str) -> None:
    if not good:
        faults.append(text)


def instructions(path: pathlib.Path) -> list[tuple[str, str]]:
    """(instruction, arguments); continued lines joined, comments dropped."""
    lines = [line for line in path.read_text().splitlines() if line.strip() and not line.lstrip().startswith("#")]
    joined = re.sub(r"\\\n\s*", " ", "\n".join(lines))
    result = []
    for line in joined.splitlines():
        name, _, rest = line.partition(" ")
        check(name in INSTRUCTIONS, f"{path.name}: unknown instruction {name}")
        result.append((name, rest.strip()))
    return result


def ignored(path: str, patterns: list[str]) -> bool:
    """.dockerignore: a pattern covers a path and what is below it."""
    parts = pathlib.PurePath(path).parts
    prefixes = ["/".join(parts[: i + 1]) for i in range(len(parts))]
    for pattern in patterns:
        anywhere = pattern.removeprefix("**/")
        for prefix in prefixes:
            name = prefix.rsplit("/", 1)[-1] if pattern.startswith("**/") else prefix
            if fnmatch.fnmatch(name, anywhere):
                return True
    return False


def check_copy(name: str, rest: str, stages: set[str], patterns: list[str]) -> None:
    words = shlex.split(rest)
    source_stage = [word.split("=", 1)[1] for word in words if word.startswith("--from=")]
    paths = [word for word in words if not word.startswith("--")]
    if source_stage:
        check(source_stage[0] in stages, f"{name}: COPY --from={source_stage[0]}: no such stage")
        return
    for path in paths[:-1]:
        check((ROOT / path).exists(), f"{name}: COPY {path}: not in the repository")
        check(path == "." or not ignored(path, patterns), f"{name}: COPY {path}: in .dockerignore")


def check_form(path: pathlib.Path, patterns: list[str]) -> None:
    parsed = instructions(path)
    stages: set[str] = set()
    arguments: dict[str, str] = {}
    last: dict[str, str] = {}
    for instruction, rest in parsed:
        if instruction == "ARG":
            key, _, value = rest.partition("=")
            arguments[key] = value
        elif instruction == "FROM":
            image, _, stage = re.sub(r"\$\{(\w+)\}", lambda m: arguments[m[1]], rest).partition(" AS ")
            check(re.fullmatch(r"[a-z0-9./-]+:[\w.-]+", image) is not None, f"{path.name}: FROM {image}: no tag")
            stages.add(stage)
            last = {}
        elif instruction == "COPY":
            check_copy(path.name, rest, stages, patterns)
        elif instruction == "RUN":
            shell = subprocess.run(["bash", "-n", "-c", rest], capture_output=True, text=True, check=False)
            check(shell.returncode == 0, f"{path.name}: RUN: {shell.stderr.strip()}")
        last[instruction] = rest
    check(parsed[0][0] in ("ARG", "FROM"), f"{path.name}: begins with {parsed[0][0]}")
    check(re.fullmatch(r"[1-9]\d*:[1-9]\d*", last.get("USER", "")) is not None, f"{path.name}: runs as root")
    check(last.get("EXPOSE") == "50051 8000 9464", f"{path.name}: EXPOSE {last.get('EXPOSE')}")
    check_run_line(path, last.get("EXPOSE", ""))
    for instruction in ("ENTRYPOINT", "CMD"):
        check(isinstance(json.loads(last[instruction]), list), f"{path.name}: {instruction}: not a list")


def check_run_line(path: pathlib.Path, exposed: str) -> None:
    """`podman run` in the head of the file publishes every exposed port, on loopback; with GPUs it lifts the limit of locked memory."""
    head = [line.lstrip("# ") for line in path.read_text().splitlines() if line.startswith("#")]
    line = re.search(r"^podman run (.*?[^\\])$", "\n".join(head), re.MULTILINE | re.DOTALL)
    words = shlex.split(line[1].replace("\\\n", " ")) if line else []
    published = [words[i + 1] for i, word in enumerate(words[:-1]) if word == "-p"]
    expected = [f"127.0.0.1:{port}:{port}" for port in exposed.split()]
    check(published == expected, f"{path.name}: podman run publishes {published}, exposed are {exposed}")
    if path.suffix == ".cuda":
        check("--ulimit memlock=-1" in " ".join(words), f"{path.name}: podman run: without --ulimit memlock=-1")


def last_stage_packages(path: pathlib.Path) -> set[str]:
    text = [rest for instruction, rest in instructions(path) if instruction == "RUN" and "apt-get install" in rest][-1]
    words = shlex.split(text.split("apt-get install", 1)[1].split("&&", 1)[0])
    return {word for word in words if not word.startswith("-")}


def package_of(library: str) -> str:
    """'' where no Debian package has it."""
    for path in (library, os.path.realpath(library), os.path.realpath(library).removeprefix("/usr")):
        run = subprocess.run(["dpkg", "-S", path], capture_output=True, text=True, check=False)
        if run.returncode == 0:
            return run.stdout.split(":", 1)[0]
    return ""


def check_libraries(binary: str) -> None:
    """The direct dependencies: those of the packages are apt's business."""
    elf = subprocess.run(["readelf", "-d", binary], capture_output=True, text=True, check=True).stdout
    needed = set(re.findall(r"NEEDED.*\[(.+)\]", elf))
    where = dict(re.findall(r"(\S+) => (\S+)", subprocess.run(["ldd", binary], capture_output=True, text=True, check=True).stdout))
    cuda = any(name.startswith("libnccl") for name in needed)
    path = ROOT / "deploy/container" / ("Containerfile.cuda" if cuda else "Containerfile")
    listed = last_stage_packages(path)
    copied = path.read_text() if cuda else ""
    packages = set()
    for name in sorted(needed - {"ld-linux-x86-64.so.2"}):
        package = package_of(where.get(name, name))
        if package:
            packages.add(package)
        else:
            check(f"/opt/foredraft/lib/{name}" in copied, f"{path.name}: {name} is of no package and not copied")
    # libgrpc29 comes with libgrpc++1.51.
    check(packages - BASE_PACKAGES - {"libgrpc29"} <= listed, f"{path.name}: lacks {sorted(packages - BASE_PACKAGES - listed)}")
    check(listed - NOT_LINKED <= packages, f"{path.name}: {sorted(listed - NOT_LINKED - packages)} have no library of the binary")
    if cuda:
        source = (ROOT / "kernels/cuda/gemm/cublaslt_library.cc").read_text()
        major = re.search(r"libcublasLt\.so\.(\d+)", copied)
        check("libcublasLt.so." in source and major is not None, f"{path.name}: no libcublasLt, which the binary opens")


def source_files() -> list[str]:
    names = []
    for folder, folders, files in os.walk(ROOT):
        folders[:] = [name for name in folders if name not in {".git", "build", "__pycache__"}]
        names += [(pathlib.Path(folder) / name).relative_to(ROOT).as_posix() for name in files]
    return names


def check_configures(patterns: list[str]) -> None:
    """The CPU image's cmake command, on a copy without what .dockerignore names."""
    with tempfile.TemporaryDirectory() as directory:
        for name in source_files():
            if ignored(name, patterns):
                continue
            target = pathlib.Path(directory) / name
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, target)
        run = subprocess.run(["cmake", "--preset", "cpu", "-DBUILD_TESTING=OFF"], cwd=directory, capture_output=True,
                             text=True, check=False)
        check(run.returncode == 0, f"cmake without what .dockerignore names: {run.stderr.strip()[-500:]}")


def main() -> int:
    patterns = [line for line in (ROOT / ".dockerignore").read_text().splitlines() if line and not line.startswith("#")]
    check("build" in patterns and ".git" in patterns, ".dockerignore: lacks build or .git")
    files = sorted((ROOT / "deploy/container").glob("Containerfile*"))
    check(len(files) == 2, f"{len(files)} Containerfiles")
    for path in files:
        check_form(path, patterns)
    check_libraries(sys.argv[1])
    check_configures(patterns)
    for manifest in sorted((ROOT / "deploy/k8s").glob("foredraft-*.yaml")):
        check("image: foredraft:cuda" in manifest.read_text(), f"{manifest.name}: another image")
    for fault in faults:
        print(fault)
    print(f"container_test: {len(files)} files, {len(faults)} faults")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
