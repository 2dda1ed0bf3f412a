"""Every test of the ops in a process of its own, the simplest first, then ops_bench at 32 rows and the sanitizer."""

import os
import shutil

from gpu_machine import json_lines, run_program

# Of the tests besides Ladder.*, which the source file orders. The slow ones at R1's size are shapes.py's.
ORDER = ["GemmKernels.", "Gemm4Bit.", "Gemm.", "HeadGemm.", "GroupedGemm.", "QuantizedRows.", "MlaDecode", "MlaPrefill.",
         "WindowAttention", "SelectEntries."]
LATER = ("R1Shapes.", "CpuAndGpu.", "SameTokens", "GoldenLogits", "RelaxedAcceptance")
SANITIZED = ("Ladder.*:DecodeRows.*:VerifyDrafts.*:GroupRows.*:CombineExperts.*:Argmax.*:GroupedGemm.HasTheBitsOfGemm:"
             "MlaDecode.RowsPast*:WindowAttention.LeavesIdleRows:SelectEntries.GivesIdle*:Compress.SkipsIdleRows")


def list_tests(machine):
    """Full names, parametrised tests as the binary lists them."""
    listing = run_program(machine, [machine.program("gpu_tests"), "--gtest_list_tests"], 60)
    names, suite = [], ""
    for line in listing.output.splitlines():
        if line and not line.startswith(" ") and line.split("#")[0].rstrip().endswith("."):
            suite = line.split("#")[0].strip()
        elif line.startswith("  ") and suite:
            names.append(suite + line.split("#")[0].strip())
    return names


def rank(name):
    if name.startswith("Ladder."):
        return 0
    return next((i + 1 for i, prefix in enumerate(ORDER) if prefix in name), len(ORDER) + 1)


def test_command(machine, name):
    return [machine.program("gpu_tests"), f"--gtest_filter={name}"]


def add_op_times(report, arguments, limit):
    """ops_bench as one row per op and row count, each beside its prediction."""
    path = str(report.out / "ops_bench.jsonl")
    command = [report.machine.program("ops_bench"), "--backend", "cuda", "--json", path, *arguments]
    report.add_program("ops_bench", command, limit)
    for line in json_lines(path):
        if "op" not in line:
            continue
        figures = {"measured": line.get("us"), "predicted": line.get("predicted_us"), "unit": "us",
                   "roofline_us": line.get("roofline_us"), "library_us": line.get("library_us")}
        report.add(f"{line['op']}, {line['rows']} rows", "measured", **figures)
    if os.path.exists(path):
        os.unlink(path)


def run(report, quick):
    machine = report.machine
    tests = [name for name in list_tests(machine) if not any(word in name for word in LATER)]
    tests.sort(key=rank)  # stable: Ladder's keep their order
    if quick:
        tests = [name for name in tests if name.startswith("Ladder.")]
    if not tests:
        report.add("gpu_tests --gtest_list_tests", "no tests")
    for name in tests:
        report.add_program(name, test_command(machine, name), 20)
    add_op_times(report, ["--small", "--gpu", "h200", "--rows", "2", "--only", "gemm router"] if quick else ["--rows", "32"], 150)
    if quick:
        return
    sanitizer = shutil.which("compute-sanitizer") or "/usr/local/cuda/bin/compute-sanitizer"
    if not os.path.exists(sanitizer):
        report.add("compute-sanitizer", "skipped", reason="compute-sanitizer: not on this machine")
        return
    # racecheck cannot judge memory that TMA wrote, so only memcheck.
    report.add_program("memcheck", [sanitizer, "--tool", "memcheck", "--error-exitcode", "99",
                                    machine.program("gpu_tests"), f"--gtest_filter={SANITIZED}"], 100)
