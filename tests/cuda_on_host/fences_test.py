#!/usr/bin/env python3
"""Leaves out each fence of the kernels in turn: the emulation has to find that it is missing.

usage: fences_test.py CUDA_OPS_ON_HOST_TEST

The source says where the fences are, so a new one is tried, too. With all of them the same tests pass.
"""

import os
import pathlib
import re
import subprocess
import sys

# Small cases of all kernels that have such fences.
TESTS = ("MlaDecode.Fp8RowsGiveTheBitsOfTheirBf16Values:MlaDecode.RowsPastTheOwnOneMayBeNaN:"
         "MlaDecodeItems.HopperGivesTheSameBitsForLists:MlaDecodeItems.PairsOfBlocksDoNotShowForFp8:"
         "MlaDecodeItems.HowRowsComeDoesNotShowForFp8Products:GroupedGemm.Holds:"
         "Gemm4Bit.ManySplitRowsAreComputedInPieces:GemmKernels.ManySplitRowsAreComputedInPieces:"
         "Ranks/PushExchangeTest.EveryRankGetsTheRowsOfAll/0")
FAULTS = {
    "FenceProxyAsync": "wrote without a fence.proxy.async",
    "FenceMbarrierInit": "initialised without a fence.mbarrier_init",
    "FenceGpu": "nothing orders the read behind the write",
    "FenceSystem": "rows of a peer are missing",
}


def fences():
    for path in sorted(pathlib.Path("kernels/cuda").rglob("*")):
        if path.suffix not in (".cu", ".h") or path.parent.name == "common":
            continue
        for number, line in enumerate(path.read_text().splitlines(), 1):
            if match := re.match(r"\s*(Fence\w+)\(\);", line):
                yield match[1], f"{path.name}:{number}"


def run(binary, skipped):
    environment = dict(os.environ, FOREDRAFT_HOST_ASYNC_PROXY="1", FOREDRAFT_HOST_GLOBAL_ORDER="1",
                       FOREDRAFT_HOST_SKIP_FENCE=skipped)
    return subprocess.run([binary, f"--gtest_filter={TESTS}"], env=environment, capture_output=True, text=True, check=False)


def main():
    binary = sys.argv[1]
    places = list(fences())
    if not places:
        sys.exit("no fences below kernels/cuda")
    whole = run(binary, "")
    if whole.returncode != 0:
        sys.exit(f"fails with all fences:\n{whole.stdout[-2000:]}{whole.stderr[-2000:]}")
    missed = []
    for fence, place in places:
        result = run(binary, place)
        found = result.returncode != 0 and FAULTS[fence] in result.stdout + result.stderr
        output = (result.stderr + result.stdout).splitlines()
        fault = next((line for line in output if "kernel fault" in line or FAULTS[fence] in line), "nothing found")
        print(f"without {fence} at {place}: {fault}")
        if not found:
            missed.append(place)
    if missed:
        sys.exit(f"not found: {', '.join(missed)}")


if __name__ == "__main__":
    main()
