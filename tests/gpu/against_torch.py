"""ops_bench beside PyTorch on the same device: torch.mm in BF16, torch._scaled_mm in FP8, both captured and with cold
weights, and mla_decode beside FlashMLA's published rates. Without torch, that part is skipped by name.

`--torch-times` (how run() calls it, with the machine's Python) prints the times as JSON lines."""

import json
import os
import shutil
import sys

from gpu_machine import json_lines, run_program

ROWS = (1, 4, 8, 32, 128)
COLD_BYTES = 256e6  # five times an H200's L2
# As in ops_gpu.cc: name, outputs, inputs, FP8. Torch has no product with 4-bit weights: those are beside BF16's.
GEMMS = (("q_a and kv_a", 2112, 7168, True), ("q_b", 24576, 1536, True), ("o", 7168, 16384, True),
         ("shared gate and up", 4096, 7168, True), ("shared down", 7168, 2048, True),
         ("dense gate and up", 36864, 7168, True), ("dense down", 7168, 18432, True), ("router", 256, 7168, False),
         ("q_b in BF16", 24576, 1536, False), ("head", 129280, 7168, False), ("eh_proj", 7168, 14336, False),
         ("q_a and kv_a in INT4", 2112, 7168, False), ("q_b in INT4", 24576, 1536, False),
         ("o in INT4", 7168, 16384, False), ("o in FP4", 7168, 16384, False),
         ("dense gate and up in INT4", 36864, 7168, False))
# FlashMLA's README, dense decoding on an H800: the rates at which it is bound by products and by memory.
FLASH_MLA_FLOPS, FLASH_MLA_BYTES = 660e12, 3000e9


def captured_us(torch, call, copies):
    """Microseconds of a call: the median of 15 replays of a graph of calls, each with the next copy of the weight."""
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for i in range(3):
            call(i % copies)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        calls = max(copies, 16)
        with torch.cuda.graph(graph, stream=stream):
            for i in range(calls):
                call(i % copies)
        samples = []
        for _ in range(17):
            start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            start.record(stream)
            graph.replay()
            end.record(stream)
            end.synchronize()
            samples.append(start.elapsed_time(end) * 1e3 / calls)
    return sorted(samples[2:])[7]


def torch_gemm(torch, rows, n, k, f8):
    """The call that multiplies by copy i of the weight, how it is scaled, and how many copies there are."""
    copies = int(min(32, max(1, COLD_BYTES // (n * k * (1 if f8 else 2)))))
    if not f8:
        x = torch.randn(rows, k, device="cuda", dtype=torch.bfloat16)
        weights = [torch.randn(n, k, device="cuda", dtype=torch.bfloat16) * 0.02 for _ in range(copies)]
        return (lambda i: torch.mm(x, weights[i].t())), "torch.mm", copies
    f8_type = torch.float8_e4m3fn
    padded = (rows + 15) // 16 * 16  # _scaled_mm's unit
    x = torch.randn(padded, k, device="cuda").to(f8_type)
    weights = [torch.randn(n, k, device="cuda").to(f8_type) for _ in range(copies)]
    # Scales as ours (rows x 128, blocks of 128 x 128) where this torch has them, else one per tensor.
    blocks = (torch.ones(k // 128, padded, device="cuda").t(), torch.ones(k // 128, (n + 127) // 128, device="cuda"))
    one = torch.ones((), device="cuda")
    for how, (scale_x, scale_w) in (("blocks", blocks), ("one scale", (one, one))):
        def call(i, scale_x=scale_x, scale_w=scale_w):
            return torch._scaled_mm(x, weights[i].t(), scale_a=scale_x, scale_b=scale_w, out_dtype=torch.bfloat16)
        try:
            call(0)
            torch.cuda.synchronize()
            return call, f"torch._scaled_mm, {how}", copies
        except (RuntimeError, ValueError):
            continue
    raise RuntimeError("torch._scaled_mm: refused")


def print_torch_times():
    import torch
    for name, n, k, f8 in GEMMS:
        for rows in ROWS:
            line = {"op": f"gemm {name}", "rows": rows}
            try:
                call, how, copies = torch_gemm(torch, rows, n, k, f8)
                line.update(us=captured_us(torch, call, copies), how=how)
                del call
            except Exception as error:  # one shape that torch refuses does not end the others
                line.update(error=str(error).splitlines()[0][:200])
            torch.cuda.empty_cache()
            print(json.dumps(line), flush=True)


def torch_times(report, quick):
    """By op and rows."""
    python = shutil.which("python3") or sys.executable
    probe = run_program(report.machine, [python, "-c", "import torch; assert torch.cuda.is_available()"], 60)
    if not probe.passed or quick:
        report.add("torch", "skipped", reason="torch: not on this machine" if not quick else "torch: --quick")
        return {}
    result = report.add_program("torch.mm, torch._scaled_mm", [python, os.path.abspath(__file__), "--torch-times"], 200)
    times = {}
    for line in (result.output if result else "").splitlines():
        if line.startswith("{"):
            entry = json.loads(line)
            times[entry["op"], entry["rows"]] = entry
    return times


def flash_mla_us(line):
    return max(line["flops"] / FLASH_MLA_FLOPS, line["bytes"] / FLASH_MLA_BYTES) * 1e6


def run(report, quick, _jobs):
    path = str(report.out / "ops_bench.jsonl")
    command = [report.machine.program("ops_bench"), "--backend", "cuda", "--json", path]
    command += ["--small", "--gpu", "h200", "--rows", "2", "--only", "gemm router"] if quick else []
    report.add_program("ops_bench", command, 240)
    theirs = torch_times(report, quick)
    for line in json_lines(path):
        if "op" not in line:
            continue
        name = f"{line['op']}, {line['rows']} rows"
        report.add(name, "measured", measured=line.get("us"), predicted=line.get("predicted_us"), unit="us",
                   roofline_us=line.get("roofline_us"), library_us=line.get("library_us"))
        peer = theirs.get((line["op"], line["rows"]))
        if peer and "us" in peer:
            report.add("  " + peer["how"], "measured", measured=peer["us"], unit="us")
        elif peer:
            report.add("  torch", "skipped", reason=peer["error"])
        if line["op"].startswith("mla_decode"):
            report.add("  FlashMLA, published rates", "measured", measured=flash_mla_us(line), unit="us, not measured here")
    if os.path.exists(path):
        os.unlink(path)


if __name__ == "__main__" and sys.argv[1:] == ["--torch-times"]:
    print_torch_times()
