"""Short stages for what only a card answers: NCCL between two ranks on it, a rank's share of a request that eight ranks
serve together, the kernels that take most of a step, and prefill by the rows of a chunk."""

import shutil

from gpu_machine import json_lines
from ladder import add_op_times, add_probe
from steps import add_steps, shape_of
from test_runs import add_tests, list_tests

KERNELS = ("mla_decode", "head_gemm", "grouped_gemm gate and up, FP8", "add_partials")
ABACUS = ["--quick", "--gpu", "h200", "--model", "deploy/models/abacus/config.json", "--context", "32", "--rows", "1"]


def nccl(report, _quick, _jobs):
    tests = [name for name in list_tests(report.machine) if "NcclRanks." in name]
    if not tests:
        report.add("NcclRanks", "skipped", reason="the pack's gpu_tests have no NCCL")
    add_tests(report, tests, 60)


def slices(report, quick, _jobs):
    for columns in (1,) if quick else (1, 4, 8):
        layout = ["--attention-tp", "2", "--ranks", "2"] if quick else ["--attention-tp", "8", "--ranks", "8", "--moe-tp", str(columns)]
        shape = ABACUS if quick else [*shape_of(report.machine), "--rows", "1,4"]
        add_steps(report, f"columns {columns}, ", [*shape, "--how", "graph", *layout], 60)


def add_profile(report):
    """Nsight Compute's counters of three launches, kept beside the table for its own viewer."""
    profiler = shutil.which("ncu")
    if profiler is None:
        report.add("ncu", "skipped", reason="ncu: not on this machine")
        return
    report.add_program("ncu, mla_decode", [
        profiler, "--set", "full", "--kernel-name", "regex:MlaDecode", "--launch-skip", "20", "--launch-count", "3", "--force-overwrite",
        "--export", str(report.out / "mla_decode"), report.machine.program("ops_bench"), "--backend", "cuda", "--rows", "128",
        "--only", "mla_decode"], 60)


def kernels(report, quick, _jobs):
    add_probe(report, "MlaDecodePairs.*")
    if quick:
        add_op_times(report, ["--small", "--gpu", "h200", "--rows", "1", "--only", "mla_decode, 20 heads"], 60)
        return
    for word in KERNELS:
        add_op_times(report, ["--rows", "1,4,128", "--only", word], 50)
    add_profile(report)


def prefill(report, quick, _jobs):
    path = report.out / "prefill.jsonl"
    shape = [*ABACUS, "--prompts", "16"] if quick else [*shape_of(report.machine), "--prompts", "1024,8192"]
    report.add_program("step_bench", [report.machine.program("step_bench"), "--backend", "cuda", "--json", str(path), "--only", "prefill",
                                      *shape], 110)
    for line in json_lines(path):
        if "prompt" in line:
            report.add(f"prefill of {line['prompt']:,} tokens", "measured", measured=line["prefill_us"],
                       predicted=line.get("predicted_us"), unit="us")
    path.unlink(missing_ok=True)
