"""step_bench of one rank's share of R1: rows 1 to 128, K 0, 1, 3, eager, as a graph and as a graph without side branches,
overlap on and off, and the idle time between steps. A card under 120 GiB takes the small shape. Then one rank's
share of DeepSeek-V4-Flash, and GLM-4.7-Flash in INT4, whole, at few rows."""

import os

from gpu_machine import json_lines

LARGE_GIB = 120  # of device memory, for r1-shape-61x32 with 128 sequences
V4 = "deploy/configs/v4-flash-shape-43x32.json"
GLM = "deploy/configs/glm-4.7-flash.json"  # 19 GB


def add_steps(report, prefix, arguments, limit):
    path = str(report.out / "step_bench.jsonl")
    command = [report.machine.program("step_bench"), "--backend", "cuda", "--json", path, *arguments]
    if (report.out / "measured.json").exists():  # of the stage ladder
        command += ["--measured", str(report.out / "measured.json")]
    report.add_program(f"{prefix}step_bench", command, limit)
    for line in json_lines(path):
        if "step_us" not in line:
            continue
        name = f"{prefix}{line['rows']} rows, K {line['k']}, {line['how']}, overlap {'on' if line['overlap'] else 'off'}"
        figures = {"roofline_us": line["roofline_us"], "period_us": line["period_us"], "idle_us": line["idle_us"]}
        report.add(name, "measured", measured=line["step_us"], predicted=line.get("predicted_us"), unit="us", **figures)
        report.add("  between steps", "measured", measured=line["idle_us"], unit="us")
    if os.path.exists(path):
        os.unlink(path)


def shape_of(machine):
    """step_bench's arguments of one rank's share of R1 that fits the card."""
    if machine.memory_gib >= LARGE_GIB:
        return ["--model", "deploy/configs/r1-shape-61x32.json", "--ranks", "8"]
    return ["--model", "deploy/configs/r1-shape-small.json"]


def run(report, quick, _jobs):
    if quick:
        add_steps(report, "", ["--quick", "--gpu", "h200", "--model", "deploy/models/abacus/config.json", "--context", "32",
                               "--rows", "1", "--how", "graph"], 330)
        return
    add_steps(report, "", [*shape_of(report.machine), "--how", "graph,unforked,eager"], 330)
    add_steps(report, "V4-Flash, ", ["--model", V4, "--ranks", "8", "--rows", "1,8,32", "--how", "graph"], 120)
    add_steps(report, "GLM INT4, ", ["--model", GLM, "--rows", "1,8,32", "--how", "graph"], 120)
