"""The nodes of a decode step's graph, timed by CUPTI (step_trace.cc): the step as kernels and gaps, the kernels that take
most of it, and the ten largest gaps between nodes by the kernels around them. Modules loaded lazily and at the start."""

import collections
import statistics

from gpu_machine import find_library
from steps import shape_of

LIBRARY = "libcupti.so.13"
TRACER = "lib/libstep_trace.so"
FIRST_LAUNCHES = 5  # of a graph, that warm up


class Node:
    def __init__(self, name, start, end):
        self.name, self.start, self.end = name, start, end


def read_launches(path):
    """The launches of each graph: lists of nodes by start."""
    graphs = collections.defaultdict(lambda: collections.defaultdict(list))
    with open(path) as lines:
        for line in lines:
            parts = line.rstrip("\n").split(" ", 6)
            if len(parts) < 7:  # cut off where the process was ended
                continue
            graph, launch, _node, _stream, start, end, name = parts
            graphs[int(graph)][int(launch)].append(Node(name, int(start), int(end)))
    return {graph: [sorted(nodes, key=lambda node: node.start) for nodes in launches.values()]
            for graph, launches in graphs.items()}


def split(nodes):
    """What each node adds to the step: {name: ns during which it was the last to end}, {(before, after): ns without a node}."""
    busy, idle = collections.Counter(), collections.Counter()
    end, before = nodes[0].start, None
    for node in nodes:
        if node.start > end:
            idle[before, node.name] += node.start - end
        busy[node.name] += max(0, node.end - max(end, node.start))
        if node.end > end:
            end, before = node.end, node.name
    return busy, idle


def add_up(launches):
    """Means over the launches, in us: the step, busy by name, idle by pair, count of nodes by name."""
    busy, idle, steps = collections.Counter(), collections.Counter(), []
    for nodes in launches:
        steps.append((max(node.end for node in nodes) - nodes[0].start) / 1000)
        for total, part in zip((busy, idle), split(nodes)):
            for key, ns in part.items():
                total[key] += ns / 1000 / len(launches)
    return statistics.mean(steps), busy, idle, collections.Counter(node.name for node in launches[0])


def add_graph(report, name, launches):
    step, busy, idle, counts = add_up(launches)
    report.add(f"{name}, step", "measured", measured=step, unit=f"us, {len(launches)} steps of {sum(counts.values())} nodes")
    report.add(f"{name}, kernels", "measured", measured=sum(busy.values()), unit="us")
    report.add(f"{name}, gaps", "measured", measured=sum(idle.values()), unit="us")
    for kernel, us in busy.most_common(12):
        report.add(f"  {kernel}", "measured", measured=us, unit=f"us in {counts[kernel]} nodes")
    for (before, after), us in idle.most_common(10):
        report.add(f"  gap {before[:20]} > {after[:20]}", "measured", measured=us, unit=f"us: {before} > {after}")


def add_trace(report, name, path):
    """Rows of each graph that ran often, which step_bench captures by ascending K; a failed row where none did."""
    graphs = read_launches(path) if path.exists() else {}
    often = [launches[FIRST_LAUNCHES:] for _, launches in sorted(graphs.items()) if len(launches) > FIRST_LAUNCHES]
    if not often:
        report.add(f"{name}, trace", "no nodes", reason=f"{path}: no graph ran {FIRST_LAUNCHES + 1} times")
    for graph, launches in enumerate(often, 1):
        add_graph(report, f"{name}, graph {graph}", launches)


def trace_step(report, name, arguments, loading, limit):
    path = report.out / "nodes.txt"
    path.unlink(missing_ok=True)
    machine = report.machine
    environment = [f"CUDA_INJECTION64_PATH={machine.pack / TRACER}", f"FOREDRAFT_STEP_TRACE={path}", f"CUDA_MODULE_LOADING={loading}"]
    program = [machine.program("step_bench"), "--backend", "cuda", "--how", "graph", *arguments]
    report.add_program(f"{name}, step_bench", ["env", *environment, *program], limit)
    add_trace(report, name, path)
    path.unlink(missing_ok=True)


def run(report, quick, _jobs):
    if not (report.machine.pack / TRACER).exists():
        report.add("trace", "skipped", reason=f"{TRACER}: not in the pack, whose build machine has no CUPTI")
        return
    if find_library(LIBRARY) is None:  # the report says so
        return
    for rows in ("1",) if quick else ("1", "4", "128"):
        trace_step(report, f"{rows} rows", [*shape_of(report.machine), "--rows", rows], "EAGER", 100)
    if not quick:
        trace_step(report, "1 rows, lazy", [*shape_of(report.machine), "--rows", "1"], "LAZY", 100)
