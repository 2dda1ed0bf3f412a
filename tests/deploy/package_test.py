#!/usr/bin/env python3
"""The Debian package: its content, its dependencies, the manual page and the completions of zsh; then a bare Debian 12
in which it is installed, serves its configuration without systemd, gives three right answers, and is purged.

usage: tests/deploy/package_test.py BUILD [--root DIR]
  --root DIR   use this minimal Debian 12 (debootstrap --variant=minbase bookworm DIR) instead of making one

The bare Debian needs root, debootstrap and a mirror of Debian; without root that part is not checked, and the test says so.
"""

import argparse
import gzip
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

import installed

MIRROR = "http://deb.debian.org/debian"
faults: list[str] = []


def check(good: bool, text: str) -> None:
    if not good:
        faults.append(text)


def run(*command: object, **options: object) -> str:
    return subprocess.run([str(word) for word in command], check=True, capture_output=True, text=True, **options).stdout


def make_package(build: str, directory: pathlib.Path) -> pathlib.Path:
    run("cpack", "-G", "DEB", "--config", f"{build}/CPackConfig.cmake", "-B", directory / "cpack")
    packages = list((directory / "cpack").glob("*.deb"))
    assert len(packages) == 1, packages
    return packages[0]


def check_refuses_without_depends(build: str, directory: pathlib.Path) -> None:
    """A dpkg-shlibdeps that finds nothing, like one that is not there, leaves Depends empty: cpack fails and no package stays."""
    tools = directory / "tools"
    tools.mkdir()
    (tools / "dpkg-shlibdeps").write_text("#!/bin/sh\nexit 0\n")
    (tools / "dpkg-shlibdeps").chmod(0o755)
    cpack = subprocess.run(["cpack", "-G", "DEB", "--config", f"{build}/CPackConfig.cmake", "-B", directory / "broken"],
                           env={**os.environ, "PATH": f"{tools}:{os.environ['PATH']}"}, capture_output=True, text=True, check=False)
    check(cpack.returncode != 0 and "deploy/install-packages build" in cpack.stderr + cpack.stdout,
          f"cpack without dependencies: exit {cpack.returncode}, {cpack.stderr.strip()[-300:]}")
    check(not list((directory / "broken").glob("*.deb")), "cpack left a package without dependencies")
    for tool in ("dpkg-dev", "file"):
        check(f"\n{tool} build\n" in (installed.ROOT / "deploy/packages.txt").read_text(), f"deploy/packages.txt: {tool} is not of build")


def check_content(package: pathlib.Path, tree: pathlib.Path) -> None:
    run("dpkg-deb", "--raw-extract", package, tree)
    expected = {f"usr/{name}" for name in installed.FILES} | {f"etc/{name}" for name in installed.ETC}
    expected |= {"usr/share/zsh/vendor-completions/_foredraft", "usr/share/doc/foredraft/changelog.gz"}
    files = {name for name in installed.files_below(tree) if not name.startswith("DEBIAN/")}
    check(expected <= files, f"lacks {sorted(expected - files)}")
    besides = {name for name in files - expected
               if not name.startswith(("usr/share/doc/foredraft/docs/", "usr/share/foredraft/configs/"))}
    check(not besides, f"also has {sorted(besides)}")
    listing = run("dpkg-deb", "--contents", package)
    owners = set(re.findall(r"^\S+ (\S+)", listing, re.MULTILINE))
    check(owners == {"root/root"}, f"owners {owners}")
    conffiles = set((tree / "DEBIAN/conffiles").read_text().split())
    check(conffiles == {f"/etc/{name}" for name in installed.ETC}, f"conffiles {conffiles}")
    # ELF files without their symbols: strip leaves no .symtab.
    check(".symtab" not in run("readelf", "--section-headers", "--wide", tree / "usr/bin/foredraft"), "the binary is not stripped")
    for name in ("foredraft.service", "foredraft-worker@.service", "foredraft-gateway.service"):
        check("ExecStart=/usr/bin/foredraft " in (tree / "usr/lib/systemd/system" / name).read_text()
              or "ExecStart=/usr/share/foredraft/gateway/run " in (tree / "usr/lib/systemd/system" / name).read_text(), f"{name}: another path")
    for name in ("generation", "admin"):
        proto = (tree / f"usr/share/foredraft/proto/foredraft/v1/{name}.proto").read_text()
        check("option go_package = " in proto, f"{name}.proto: no go_package")


def check_control(package: pathlib.Path) -> None:
    fields = dict(re.findall(r"^(\S+): (.*)$", run("dpkg-deb", "--field", package), re.MULTILINE))
    check(fields["Package"] == "foredraft" and fields["Architecture"] == run("dpkg", "--print-architecture").strip(), str(fields))
    changelog = (installed.ROOT / "deploy/debian/changelog").read_text()
    check(changelog.startswith(f"foredraft ({fields['Version']}) "), f"deploy/debian/changelog: not of version {fields['Version']}")
    depends = fields.get("Depends", "")
    for name in ("libgrpc++1.51", "libprotobuf32", "libstdc++6", "libabsl20220623"):
        check(name in depends, f"Depends lacks {name}: {depends}")


def check_lintian(package: pathlib.Path) -> None:
    run = subprocess.run(["lintian", "--allow-root", "--tag-display-limit", "0", package], capture_output=True, text=True, check=False)
    errors = [line for line in run.stdout.splitlines() if line.startswith("E:")]
    check(run.returncode in (0, 1, 2) and not errors, f"lintian: {errors or run.stderr.strip()}")


def check_documents(tree: pathlib.Path) -> None:
    """What the documents call by an installed path is there, and nothing is called by its path in the repository."""
    for document in sorted((tree / "usr/share/doc/foredraft").rglob("*.md")):
        text = document.read_text()
        for path in set(re.findall(r"/usr/(?:bin|lib|share)/[\w./@*-]*[\w*]", text)):
            check(any(tree.glob(path[1:])), f"{document.name}: {path} is not in the package")
        for path in set(re.findall(r"deploy/(?:bench|configs|gateway|k8s|models)/[\w./-]+", text)):
            check(False, f"{document.name}: names {path} of the repository")
        for target in set(re.findall(r"\]\(([^)#\s]+)", text)):
            if not re.match(r"[a-z+]+:", target):
                file = tree / target[1:] if target.startswith("/") else document.parent / target
                check(file.exists(), f"{document.name}: links to {target}, which is not in the package")


def check_manual(tree: pathlib.Path) -> None:
    page = gzip.decompress((tree / "usr/share/man/man1/foredraft.1.gz").read_bytes()).decode()
    groff = subprocess.run(["groff", "-ww", "-man", "-Tutf8"], input=page, capture_output=True, text=True, check=False)
    check(groff.returncode == 0 and not groff.stderr, f"foredraft.1: {groff.stderr.strip()[:500]}")
    text = re.sub("\x1b\\[[0-9;]*m|.\b", "", groff.stdout)
    for word in ("foredraft serve", "--max-draft-tokens", "EXIT STATUS"):
        check(word in text, f"foredraft.1: no {word}")
    fish = subprocess.run(["fish", "--no-execute", tree / "usr/share/fish/vendor_completions.d/foredraft.fish"], capture_output=True, text=True, check=False)
    check(fish.returncode == 0, f"foredraft.fish: {fish.stderr.strip()}")
    zsh = subprocess.run(["zsh", "-n", tree / "usr/share/zsh/vendor-completions/_foredraft"], capture_output=True, text=True, check=False)
    check(zsh.returncode == 0, f"_foredraft: {zsh.stderr.strip()}")


def in_root(root: pathlib.Path, *command: str) -> list[str]:
    """The command in the bare Debian, with /proc mounted for it alone. It replaces the shell, so signals reach it."""
    proxies = [f"{name}={value}" for name, value in os.environ.items() if name.lower() in ("http_proxy", "no_proxy")]
    return ["unshare", "--mount", "sh", "-c", 'mount -t proc proc "$0/proc" && exec chroot "$0" "$@"', str(root),
            "/usr/bin/env", "-i", "PATH=/usr/sbin:/usr/bin:/sbin:/bin", "HOME=/root", *proxies, *command]


def check_bare_debian(package: pathlib.Path, root: pathlib.Path, directory: pathlib.Path) -> None:
    shutil.copy(package, root / "tmp/foredraft.deb")
    shutil.copy("/etc/resolv.conf", root / "etc/resolv.conf")
    run(*in_root(root, "apt-get", "update", "-qq"))
    run(*in_root(root, "env", "DEBIAN_FRONTEND=noninteractive", "apt-get", "install", "-y", "-qq", "--no-install-recommends", "/tmp/foredraft.deb"))
    check(run(*in_root(root, "foredraft", "--version")).startswith("foredraft "), "--version in the bare Debian")
    serve = in_root(root, "foredraft", "serve", "--config", "/etc/foredraft/foredraft.yaml")
    with installed.Daemon(serve, directory / "log") as daemon:
        faults.extend(installed.wrong_answers(in_root(root, "foredraft"), daemon.address))
    run(*in_root(root, "dpkg", "--purge", "foredraft"))
    left = [path for path in ("usr/bin/foredraft", "etc/foredraft", "usr/share/foredraft") if (root / path).exists()]
    check(not left, f"after the purge there are still {left}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build")
    parser.add_argument("--root", type=pathlib.Path)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        directory = pathlib.Path(name)
        package = make_package(str(pathlib.Path(arguments.build).resolve()), directory)
        check_refuses_without_depends(str(pathlib.Path(arguments.build).resolve()), directory)
        tree = directory / "tree"
        check_content(package, tree)
        check_control(package)
        check_manual(tree)
        check_documents(tree)
        check_lintian(package)
        if os.geteuid() == 0:
            root = arguments.root
            if root is None:
                root = directory / "debian"
                run("debootstrap", "--variant=minbase", "bookworm", root, MIRROR)
            check_bare_debian(package, root, directory)
        else:
            print("NOT CHECKED: a bare Debian, which needs root")
    for fault in faults:
        print(fault)
    print(f"package_test: {package.name}, {len(faults)} faults")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
