"""R1's shapes, the GPU against the CPU, abacus and a small DeepSeek-V4 from prompt to tokens."""

import re

from test_runs import add_tests, list_tests

PARTS = (("R1Shapes.", 100), ("CpuAndGpu.", 60), ("GoldenLogits", 60), ("SameTokens", 120), ("RelaxedAcceptance", 60))
# A measured value and its bound in a test's output.
BOUNDED = re.compile(r"^(?P<what>[^\n\[]*?)\s(?P<measured>[0-9.]+(?:e-?\d+)?), bound (?P<bound>[0-9.]+(?:e-?\d+)?)\s*$", re.MULTILINE)


def run(report, quick, jobs):
    tests = list_tests(report.machine)
    for prefix, limit in PARTS:
        own = [name for name in tests if prefix in name]
        if not own:
            report.add(prefix.strip("."), "skipped", reason=f"{prefix}: not in this gpu_tests")
        results = add_tests(report, own[:1] if quick else own, limit, jobs)
        for name, result in results.items():
            for found in BOUNDED.finditer(result.output):
                report.add("  " + found["what"].strip(), "measured", measured=float(found["measured"]),
                           predicted=float(found["bound"]), unit="of its bound")
