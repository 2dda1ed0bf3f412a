"""gpu_step of one rank's share of R1: rows 1 to 128, K 0, 1, 3, eager, as a graph and as a graph without side branches,
overlap on and off, and the idle time between steps. A card under 120 GiB takes the small shape."""

import os

from gpu_machine import json_lines

LARGE_GIB = 120  # of device memory, for r1-shape-61x32 with 128 sequences


def run(report, quick):
    machine = report.machine
    path = str(report.out / "gpu_step.jsonl")
    command = [machine.program("gpu_step"), "--backend", "cuda", "--json", path]
    if quick:
        command += ["--quick", "--gpu", "h200", "--model", "deploy/models/abacus/config.json", "--context", "32", "--rows", "1", "--how", "graph"]
    elif machine.memory_gib >= LARGE_GIB:
        command += ["--model", "deploy/configs/r1-shape-61x32.json", "--ranks", "8", "--how", "graph,unforked,eager"]
    else:
        command += ["--model", "deploy/configs/r1-shape-small.json", "--how", "graph,unforked,eager"]
    report.add_program("gpu_step", command, 480)
    for line in json_lines(path):
        if "step_us" not in line:
            continue
        name = f"{line['rows']} rows, K {line['k']}, {line['how']}, overlap {'on' if line['overlap'] else 'off'}"
        figures = {"roofline_us": line["roofline_us"], "period_us": line["period_us"], "idle_us": line["idle_us"]}
        report.add(name, "measured", measured=line["step_us"], predicted=line.get("predicted_us"), unit="us", **figures)
        report.add("  between steps", "measured", measured=line["idle_us"], unit="us")
    if os.path.exists(path):
        os.unlink(path)
