"""Tests pack, run and sass_lint: on programs that fail in the ways a GPU makes programs fail, and on the real ones over
tests/cuda_on_host.

usage: scripts_test.py DIR   (DIR/bin has gpu_tests_on_host, ops_bench_on_host and step_bench_on_host)"""

import json
import os
import pathlib
import subprocess
import sys
import tarfile
import tempfile
import unittest

HERE = pathlib.Path(__file__).resolve().parent
ON_HOST = None

# Lists five tests, of which a run runs those of its filter: two pass, one hangs, one traps at a barrier, one fails.
FAKE_TESTS = """#!/bin/bash
if [[ $1 == --gtest_list_tests ]]; then
  printf 'Gemm.\\n  Holds\\nLadder.\\n  Launch\\n  Hangs\\nSlots.  # TypeParam = int\\n  Fails\\n  Moves\\n'
  exit
fi
for name in Ladder.Launch Ladder.Hangs Gemm.Holds Slots.Fails Slots.Moves; do
  [[ ":${1#--gtest_filter=}:" == *":$name:"* ]] || continue
  echo "[ RUN      ] $name"
  case $name in
    Ladder.Hangs) trap '' TERM; echo 'waiting'; while :; do sleep 0.1; done ;;
    Gemm.Holds) echo 'CHECK error == cudaSuccess: cuda, synchronize: unspecified launch failure; gemm_hopper_tile.h:110: mbarrier "full", parity 0'; kill -ABRT $$ ;;
    Slots.Fails) echo 'slots_test.cc:7: Failure'; echo "[  FAILED  ] $name (1 ms)"; failed=1 ;;
    *) if [[ $failed ]]; then echo "[  FAILED  ] $name (0 ms)"; else echo "[       OK ] $name (2 ms)"; fi ;;
  esac
done
"""
FAKE_SMI = """#!/bin/bash
case "$1" in
  *name*) echo "H, 143771, 580" ;;
  *) sleep 0.2; echo "1755, 3201, 690.1, 60"; echo "[N/A], 3201, 1, 60"; echo "1200, 3201, 500, 61"; echo "1755, 3201, 1, 60"; exec sleep 60 ;;
esac
"""
FAKE_OPS = """#!/bin/bash
while [[ $1 != --json ]]; do shift; done
echo '{"program": "ops_bench"}' > "$2"
echo '{"op": "gemm o", "rows": 32, "us": 40.0, "predicted_us": 32.0, "roofline_us": 27.0}' >> "$2"
echo -n '{"op": "cut' >> "$2"
exit 1
"""


# Seven replays of a graph of three nodes, and one of another: the second node of a replay begins 3 us after the first
# ended, the third 1 us before the second ends.
FAKE_STEPS = """#!/bin/bash
[[ $CUDA_MODULE_LOADING && -e $CUDA_INJECTION64_PATH ]] || exit 1
for launch in 1 2 3 4 5 6 7; do
  at=$((launch * 100000))
  echo "4 $launch 11 7 $at $((at + 10000)) RmsNormK<16, bf16>"
  echo "4 $launch 13 7 $((at + 17000)) $((at + 22000)) CombineK"
  echo "4 $launch 12 7 $((at + 13000)) $((at + 18000)) MlaDecodeK"
done > "$FOREDRAFT_STEP_TRACE"
echo "5 8 11 7 1 2 CopyK" >> "$FOREDRAFT_STEP_TRACE"
echo -n "4 9 11" >> "$FOREDRAFT_STEP_TRACE"
"""


# Prints what cuobjdump prints of the kernel Fold, whose machine code is the file's.
FAKE_CUOBJDUMP = """#!/bin/bash
if [[ $1 == -res-usage ]]; then echo " Function Fold:"; echo "  REG:96 STACK:0 SHARED:0"; exit; fi
printf '\\n\\t\\tFunction : Fold\\n'
address=0
while read -r line; do printf '        /*%04x*/  %s ;\\n' $((address += 16)) "$line"; done < "$2"
"""


def run(*command, **options):
    return subprocess.run([str(word) for word in command], capture_output=True, text=True, timeout=400, **options)


class Scripts(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def rows(self, stage):
        report = json.loads((self.folder / "out" / f"{stage}.json").read_text())
        return {row["name"]: row for row in report["rows"]}

    def fake_pack(self):
        for name, text in (("gpu_tests", FAKE_TESTS), ("ops_bench", FAKE_OPS), ("step_bench", "#!/bin/bash\n")):
            path = self.folder / "pack/bin" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
            path.chmod(0o755)
        return self.folder / "pack"

    def test_ladder_goes_on_past_failures_and_names_them(self):
        sys.path.insert(0, str(HERE))
        import gpu_machine
        import ladder
        import test_runs
        machine = gpu_machine.Machine(self.fake_pack(), on_host=True)
        report = gpu_machine.Report("ladder", machine, self.folder / "out", minutes=0.2)
        ladder.add_tests = lambda report, names, limit, jobs=1: test_runs.add_tests(report, names, 1, jobs)
        ladder.run(report, quick=False, jobs=1)
        self.assertEqual(report.end(), 1)
        names = [row["name"] for row in report.rows]
        self.assertEqual(names[:6], ["Ladder.Launch", "Ladder.Hangs", "probe", "Gemm.Holds", "Slots.Fails", "Slots.Moves"])
        rows = self.rows("ladder")
        self.assertEqual(rows["Ladder.Launch"]["result"], "passed")
        self.assertEqual(rows["Ladder.Hangs"]["result"], "past 1 s")
        self.assertEqual(rows["Gemm.Holds"]["result"], "SIGABRT")
        self.assertIn('mbarrier "full", parity 0', rows["Gemm.Holds"]["reason"])
        self.assertEqual(rows["Slots.Fails"]["result"], "failed")
        # In a new process: the failure before spoils only its own.
        self.assertEqual(rows["Slots.Moves"]["result"], "passed")
        self.assertIn("--gtest_filter=Slots.Fails", rows["Slots.Fails"]["repeat"])
        # What ops_bench wrote before it ended counts.
        self.assertEqual((rows["gemm o, 32 rows"]["measured"], rows["gemm o, 32 rows"]["predicted"]), (40.0, 32.0))
        table = (self.folder / "out/ladder.txt").read_text()
        self.assertRegex(table, r"gemm o, 32 rows\s+measured\s+-\s+40.00\s+32.00\s+1.25\s+us")
        self.assertIn("mbarrier", table)

    def test_figures_have_their_clocks(self):
        sys.path.insert(0, str(HERE))
        import gpu_machine
        smi = self.folder / "nvidia-smi"
        smi.write_text(FAKE_SMI)
        smi.chmod(0o755)
        path = os.environ["PATH"]
        self.addCleanup(os.environ.update, {"PATH": path})
        os.environ["PATH"] = f"{self.folder}:{path}"
        machine = gpu_machine.Machine(self.fake_pack(), on_host=False)
        report = gpu_machine.Report("steps", machine, self.folder / "out", minutes=1)
        report.add_program("sleeps", ["sleep", "0.6"], 10)
        report.end()
        row = self.rows("steps")["sleeps"]
        self.assertEqual((row["sm_mhz"], row["least_sm_mhz"]), (1755, 1200))
        self.assertIn("clocks.sm 1200 to 1755", self.rows("steps")["clocks"]["reason"])

    def test_a_trace_tells_kernels_from_gaps(self):
        sys.path.insert(0, str(HERE))
        import gpu_machine
        import node_times
        pack = self.fake_pack()
        (pack / "bin/step_bench").write_text(FAKE_STEPS)
        (pack / "lib").mkdir()
        machine = gpu_machine.Machine(pack, on_host=True)
        report = gpu_machine.Report("trace", machine, self.folder / "out", minutes=1)
        node_times.run(report, quick=True, _jobs=1)
        self.assertEqual([row["result"] for row in report.rows], ["skipped"])  # a pack without the tracer
        (pack / node_times.TRACER).write_text("")
        node_times.find_library = lambda name: "/usr/lib"
        node_times.run(report, quick=True, _jobs=1)
        report.end()
        rows = self.rows("trace")
        self.assertEqual(rows["1 rows, step_bench"]["result"], "passed")
        self.assertNotIn("1 rows, graph 2, step", rows)
        for name, us in (("1 rows, graph 1, step", 22), ("1 rows, graph 1, kernels", 19), ("1 rows, graph 1, gaps", 3),
                         ("  RmsNormK<16, bf16>", 10), ("  MlaDecodeK", 5), ("  CombineK", 4),
                         ("  gap RmsNormK<16, bf16> > MlaDecodeK", 3)):
            self.assertAlmostEqual(rows[name]["measured"], us)
        (pack / "bin/step_bench").write_text("#!/bin/bash\n")
        node_times.run(report, quick=True, _jobs=1)
        self.assertEqual(report.end(), 1)
        self.assertEqual(self.rows("trace")["1 rows, trace"]["result"], "no nodes")

    def lint(self, *lines):
        """sass_lint on a kernel of these instructions, whose row is in the table."""
        for name in ("cuobjdump", "nvdisasm"):
            (self.folder / name).write_text(FAKE_CUOBJDUMP)
            (self.folder / name).chmod(0o755)
        (self.folder / "fold.o").write_text("".join(line + "\n" for line in lines))
        command = [sys.executable, HERE / "sass_lint", "--table", self.folder / "table.txt", self.folder / "fold.o"]
        environment = dict(os.environ, PATH=f"{self.folder}:{os.environ['PATH']}")
        if not (self.folder / "table.txt").exists():
            self.assertEqual(run(*command, "--record", env=environment).returncode, 0)
        return run(*command, env=environment)

    def test_lint_finds_what_the_source_does_not_mean(self):
        products = ["HGMMA.64x32x16.F32.BF16 R24, gdesc[UR8], R24", "HGMMA.64x32x16.F32.BF16 R24, gdesc[UR12], R24, gsb0"]
        clean = [*products, "WARPGROUP.DEPBAR.LE gsb0, 0x0", *["LDG.E.128 R4, desc[UR4][R2.64]"] * 8, "FADD R1, R2, R3"]
        self.assertEqual(self.lint(*clean).returncode, 0)
        for lines, fault in (
            ([*clean, "LDG.E.128 R4, desc[UR4][R2.64]"], "9 loads in a row into the same registers"),
            ([*clean, "STL [R1], R4", "LDL R4, [R1]"], "2 loads and stores of local memory"),
            ([products[0], "CALL.REL.NOINC 0x100", *clean[1:]], "1 calls between matrix instructions"),
            ([*products, *clean[3:]], "0  Fold: not in table.txt"),
        ):
            result = self.lint(*lines)
            self.assertEqual(result.returncode, 1)
            self.assertIn(fault, result.stderr)

    def test_run_refuses_a_machine_without_a_gpu_and_unknown_stages(self):
        result = run(HERE / "run", "--pack", self.fake_pack(), "--out", self.folder / "out")
        if pathlib.Path("/dev/nvidia0").exists():
            self.skipTest("there is a GPU")
        self.assertEqual(result.returncode, 1)
        self.assertIn("no GPU on this machine", result.stderr)
        self.assertEqual(run(HERE / "run", "everything").returncode, 2)

    def test_the_pack_runs_over_the_emulation(self):
        pack = self.folder / "pack"
        daemon = pathlib.Path(ON_HOST) / "bin/foredraft"
        daemon_arguments = ["--daemon", daemon] if daemon.exists() else []
        result = run(HERE / "pack", "--build", ON_HOST, "--suffix", "_on_host", "--out", pack, *daemon_arguments)
        self.assertEqual(result.returncode, 0, result.stderr)
        with tarfile.open(self.folder / "foredraft-gpu.tar.xz") as tar:
            self.assertIn("foredraft-gpu/tests/gpu/run", tar.getnames())
        result = run(pack / "tests/gpu/run", "--on-host", "--quick", "--pack", pack, "--out", self.folder / "out",
                     "ladder", "shapes", "torch", "steps", "serve", "first", "second")
        self.assertEqual(result.returncode, 0, result.stdout[-4000:] + result.stderr)
        ladder = self.rows("ladder")
        tests = [row for name, row in ladder.items() if name.startswith("Ladder.")]
        self.assertGreater(len(tests), 20)
        self.assertEqual({row["result"] for row in tests}, {"passed"})
        for stage, name in (("ladder", "gemm router, 2 rows"), ("torch", "gemm router, 2 rows"),
                            ("steps", "1 rows, K 3, graph, overlap on")):
            row = self.rows(stage)[name]
            self.assertGreater(row["measured"], 0)
            self.assertGreater(row["predicted"], 0)
        for stage, name in (("slices", "columns 1, 1 rows, K 3, graph, overlap on"), ("prefill", "prefill of 16 tokens"),
                            ("kernels", "mla_decode, 20 heads, 1 rows"), ("kernels", "mla_decode, 128 rows, pairs")):
            self.assertGreater(self.rows(stage)[name]["measured"], 0)
        self.assertEqual(self.rows("trace")["trace"]["result"], "skipped")
        self.assertEqual(self.rows("nccl")["NcclRanks"]["result"], "skipped")
        self.assertEqual(self.rows("torch")["torch"]["result"], "skipped")
        for name in ("load from L2", "e4m3 m64n64k32, error of sums", "64 keys x 512 turned"):
            self.assertGreater(ladder[name]["measured"], 0)
        self.assertEqual(ladder["e4m3 m64n64k32"]["predicted"], 1580)
        measured = json.loads((self.folder / "out/measured.json").read_text())
        self.assertEqual(set(measured), {"follow_us", "edge_us", "multiprocessor_gb_per_s"})
        serve = self.rows("serve")
        if daemon.exists():
            self.assertEqual(serve["abacus: greedy, K 0,1,3"]["result"], "passed")
            self.assertGreater(serve["  K 3"]["measured"], 0)
        else:
            self.assertEqual(serve["serve"]["result"], "skipped")


if __name__ == "__main__":
    ON_HOST = sys.argv.pop(1)
    unittest.main()
