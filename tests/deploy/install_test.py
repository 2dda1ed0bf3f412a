#!/usr/bin/env python3
"""`cmake --install` into a folder gives a tree that works from there: files, paths in units and configurations, version,
completions, an answer; a second installation keeps the operator's configuration.

usage: tests/deploy/install_test.py BUILD   (the build folder)
"""

import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

import installed

faults: list[str] = []


def check(good: bool, text: str) -> None:
    if not good:
        faults.append(text)


def install(build: str, prefix: pathlib.Path) -> None:
    subprocess.run(["cmake", "--install", build, "--prefix", prefix], check=True, stdout=subprocess.DEVNULL)


def check_files(prefix: pathlib.Path) -> None:
    files = installed.files_below(prefix)
    expected = installed.FILES | {f"etc/{name}" for name in installed.ETC} | {"share/zsh/site-functions/_foredraft"}
    check(expected <= files, f"lacks {sorted(expected - files)}")
    # What may be there besides: more documents and more configurations.
    besides = {name for name in files - expected if not name.startswith(("share/doc/foredraft/docs/", "share/foredraft/configs/"))}
    check(not besides, f"also has {sorted(besides)}")
    for name in files:
        if name.startswith(("lib/systemd", "etc/", "share/foredraft/configs/")):
            text = (prefix / name).read_text()
            stray = [path for path in ("/usr/bin/foredraft", "/usr/share/", "/etc/foredraft", "deploy/configs/", "deploy/models/")
                     if path in text.replace(str(prefix), "PREFIX").replace("PREFIX/etc", "PREFIX_ETC")]
            check(not stray, f"{name}: names {stray}")


def completions(prefix: pathlib.Path, *words: str) -> list[str]:
    """What bash offers for the last word."""
    script = (f"source {prefix}/share/bash-completion/completions/foredraft; COMP_WORDS=(\"$@\"); COMP_CWORD=$(($# - 1));"
              " _foredraft; printf '%s\\n' \"${COMPREPLY[@]}\"")
    run = subprocess.run(["bash", "-c", script, "bash", *words], capture_output=True, text=True, check=True, cwd=prefix)
    return run.stdout.split()


def check_completions(prefix: pathlib.Path) -> None:
    for words, offered in (
        (("foredraft", "ser"), ["serve"]),
        (("foredraft", "serve", "--c"), ["--config"]),
        (("foredraft", "serve", "--config", "et"), ["etc"]),
        (("foredraft", "quantize", "--dtype", ""), ["fp8", "int4", "nvfp4"]),
        (("foredraft", "completion", "z"), ["zsh"]),
        (("foredraft", "serve", "--backend", ""), ["cpu", "cuda"]),
        (("foredraft", "serve", "--set", "server.http_a"), ["server.http_address="]),
        # As readline divides it.
        (("foredraft", "serve", "--set", "speculative_config.draft_policy", "=", "a"), ["adaptive"]),
        (("foredraft", "serve", "--set", "speculative_config.draft_policy", "="), ["fixed", "schedule", "adaptive", "confidence"]),
        (("foredraft", "worker", "--rank", ""), []),
    ):
        found = completions(prefix, *words)
        check(found == offered, f"completions of {' '.join(words)}: {found}, expected {offered}")


def git(*arguments: str) -> bool:
    if shutil.which("git") is None:
        return False
    return subprocess.run(["git", "-C", installed.ROOT, *arguments], capture_output=True, check=False).returncode == 0


def main() -> int:
    build = str(pathlib.Path(sys.argv[1]).resolve())
    with tempfile.TemporaryDirectory() as directory:
        prefix = pathlib.Path(directory).resolve() / "opt"
        install(build, prefix)
        check_files(prefix)
        foredraft = str(prefix / "bin/foredraft")
        version = subprocess.run([foredraft, "--version"], capture_output=True, text=True, check=True).stdout.strip()
        if git("rev-parse", "HEAD"):  # else there is no commit: sources without a checkout, or one of another user
            commit = re.search(r" \(([0-9a-f]{12})(-dirty)?\)$", version)
            check(bool(commit) and git("cat-file", "-e", commit[1]), f"--version: {version}, no commit of this repository")
        check_completions(prefix)
        for config in ("share/foredraft/configs/abacus-cpu.yaml", "etc/foredraft/foredraft.yaml"):
            run = subprocess.run([foredraft, "check-config", "--config", prefix / config], capture_output=True, text=True, cwd="/", check=False)
            check(run.returncode == 0, f"{config}: {run.stderr.strip()}")

        config = prefix / "etc/foredraft/foredraft.yaml"
        config.write_text(config.read_text().replace("max_batch_size: 16", "max_batch_size: 2"))
        edited = config.read_text()
        install(build, prefix)
        check(config.read_text() == edited, "the second installation replaced foredraft.yaml")
        with installed.Daemon([foredraft, "serve", "--config", str(config)], prefix / "log") as daemon:
            faults.extend(installed.wrong_answers([foredraft], daemon.address, installed.QUESTIONS[:1]))
    for fault in faults:
        print(fault)
    print(f"install_test: {version}, {len(faults)} faults")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
