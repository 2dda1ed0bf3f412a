"""The tests of the ops: the kernels one by one, then the rest; then the ops over and over beside traffic, ops_bench at 32
rows and the sanitizer."""

import json
import os
import re
import shutil

from gpu_machine import json_lines
from test_runs import add_tests, list_tests

# Tests of the stage shapes, and what add_probe takes.
LATER = ("Probe.", "R1Shapes.", "CpuAndGpu.", "SameTokens", "GoldenLogits", "RelaxedAcceptance")
SANITIZED = ("Ladder.*:DecodeRows.*:VerifyDrafts.*:GroupRows.*:CombineExperts.*:Argmax.*:GroupedGemm.HasTheBitsOfGemm:"
             "MlaDecode.RowsPast*:WindowAttention.LeavesIdleRows:SelectEntries.GivesIdle*:Compress.SkipsIdleRows")


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


PROBED = re.compile(r"^probe: (.+): ([\d.]+) (\S+), model ([\d.]+)$", re.MULTILINE)
CONSTANTS = {"kernel to kernel, programmatic": "follow_us", "kernel to kernel, by an edge": "edge_us",
             "one multiprocessor from L2": "multiprocessor_gb_per_s"}


def add_probe(report, tests="Probe.*"):
    """Lines that gpu_tests prints of what it has measured; what predictions take for granted is kept for the stage
    steps, which predicts with it (measured.json)."""
    result = report.add_program("probe", [report.machine.program("gpu_tests"), f"--gtest_filter={tests}"], 60)
    measured = {}
    for name, value, unit, model in PROBED.findall(result.output if result else ""):
        report.add(name, "measured", measured=float(value), predicted=float(model), unit=unit)
        if name in CONSTANTS:
            measured[CONSTANTS[name]] = float(value)
    if measured:
        (report.out / "measured.json").write_text(json.dumps(measured) + "\n")


def probe(report, _quick, _jobs):
    add_probe(report)


REPEATED = "*.Holds*:SelectEntries.*"
REPEATS = 100  # of each case


def add_sanitizer(report):
    sanitizer = shutil.which("compute-sanitizer") or "/usr/local/cuda/bin/compute-sanitizer"
    if not os.path.exists(sanitizer):
        report.add("compute-sanitizer", "skipped", reason="compute-sanitizer: not on this machine")
        return
    # racecheck cannot judge memory that TMA wrote.
    for tool in ("memcheck", "synccheck", "initcheck"):
        report.add_program(tool, [sanitizer, "--tool", tool, "--error-exitcode", "99", report.machine.program("gpu_tests"),
                                  f"--gtest_filter={SANITIZED}"], 100)


def run(report, quick, jobs):
    machine = report.machine
    tests = [name for name in list_tests(machine) if not any(word in name for word in LATER)]
    ladder = [name for name in tests if name.startswith("Ladder.")]
    if not tests:
        report.add("gpu_tests --gtest_list_tests", "no tests")
    # NCCL between two ranks first: no emulation can stand for it. Then in the source file's order, the simplest first.
    exchanges = [name for name in tests if "NcclRanks." in name]
    add_tests(report, exchanges, 60)
    add_tests(report, ladder, 20)
    add_probe(report)
    if not quick:
        add_tests(report, [name for name in tests if name not in ladder + exchanges], 60, jobs)
    report.add_program("ops repeated beside traffic",
                       ["env", f"FOREDRAFT_OP_REPEATS={2 if quick else REPEATS}", machine.program("gpu_tests"),
                        f"--gtest_filter={'RouteExperts.Holds' if quick else REPEATED}"], 120)
    add_op_times(report, ["--small", "--gpu", "h200", "--rows", "2", "--only", "gemm router"] if quick else ["--rows", "32"], 150)
    if quick:
        return
    add_sanitizer(report)
