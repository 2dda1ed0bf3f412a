#!/usr/bin/env python3
"""Checks that transformers reads what `foredraft quantize` writes, and gives the log-probabilities that foredraft serves.

    tests/golden/check_quantized.py build/cpu/bin/foredraft     (Python with requirements.txt; no GPU)

Quantises abacus to INT4 (groups of 32 and 64) and a random GLM-4.7-Flash checkpoint to the same and to FP8. Each directory is
served, answers a prompt greedily, and is loaded by transformers as it stands (compressed-tensors for INT4; without a GPU
transformers turns the weights of both back into BF16 values). Compared are the log-probabilities of the 20 most probable tokens:
their mean difference at a position, and of that the median over the generated positions, because at some a router nearly ties and
rounding picks another expert. Two programs that compute in BF16 are each about as far from float32 as transformers' own BF16
is, so the median may be twice transformers' between BF16 and float32.

What transformers 5.23 cannot read, and is not tried here: FP8 weights whose rows or columns are no multiple of 128 (it spreads
the scales evenly over the rows, where DeepSeek's last block is the short one: without a GPU abacus and R1's kv_a_proj_with_mqa),
and experts of which only some projections are packed, which a group that does not divide their columns gives.
"""

import argparse
import json
import pathlib
import signal
import statistics
import subprocess
import tempfile
import time
import warnings

import torch
import transformers
from transformers import AutoModelForCausalLM, CompressedTensorsConfig

ROOT = pathlib.Path(__file__).resolve().parents[2]
ABACUS = ROOT / "deploy" / "models" / "abacus"
ADDRESS, METRICS = "127.0.0.1:50873", "127.0.0.1:50874"
PROMPT = "0,630,374,264,223,22,25,486,223,24,33,631,628,201"  # abacus' question: What is 47 times 6?
# The tiny GLM checkpoint with rows and columns that are one block of 128 or whole blocks.
GLM = {"hidden_size": 256, "intermediate_size": 256, "moe_intermediate_size": 128, "q_lora_rank": 128, "kv_lora_rank": 96,
       "qk_nope_head_dim": 32, "v_head_dim": 32, "qk_rope_head_dim": 32, "vocab_size": 640}
INT4 = {"INT4, groups of 32": ["int4"], "INT4, groups of 64": ["int4", "--group", "64"]}


def served(binary, folder, max_tokens, drafts=1):
    """(ids of prompt and answer, per generated position the log-probabilities by token id, what was drafted) of a daemon."""
    config = {"model": str(folder), "server": {"grpc_address": ADDRESS, "metrics_address": METRICS}, "max_batch_size": 1,
              "speculative_config": {"decoding_type": "MTP", "max_draft_len": drafts}, "kv_cache_config": {"max_tokens": 4096}}
    with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file, tempfile.TemporaryFile("w+") as log:
        file.write(json.dumps(config))
        file.flush()
        daemon = subprocess.Popen([binary, "serve", "--config", file.name], stderr=log)
        try:
            deadline = time.monotonic() + 120
            while "serving  grpc" not in (log.seek(0), log.read())[1]:
                if time.monotonic() > deadline or daemon.poll() is not None:
                    raise SystemExit("the daemon did not start:\n" + (log.seek(0), log.read())[1])
                time.sleep(0.1)
            command = [binary, "generate", "--server", ADDRESS, "--token-ids", PROMPT, "--temperature", "0", "--ignore-eos",
                       "--max-tokens", str(max_tokens), "--logprobs", "20", "--json"]
            reply = json.loads(subprocess.run(command, capture_output=True, check=True, text=True).stdout)
        finally:
            daemon.send_signal(signal.SIGTERM)
            daemon.wait(60)
    positions = [{top["token_id"]: top["logprob"] for top in each["top"]} for each in reply["logprobs"]]
    return [int(token) for token in PROMPT.split(",")] + reply["token_ids"], positions, reply["speculation"]


@torch.no_grad()
def by_transformers(folder, ids, first, dtype):
    """Log-probabilities [positions from `first` on, vocab] and the types of what was loaded."""
    packed = json.loads((folder / "config.json").read_text())["quantization_config"]["quant_method"] == "compressed-tensors"
    # Only this way does transformers read packed experts into its fused expert weights.
    options = {"quantization_config": CompressedTensorsConfig(dequantize=True)} if packed else {}
    model, report = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16, output_loading_info=True, **options)
    layers = model.config.num_hidden_layers
    left = [name for name in report["unexpected_keys"] if int(name.split(".")[2]) < layers]  # transformers reads no MTP modules here
    if report["missing_keys"] or report["mismatched_keys"] or left:
        raise SystemExit(f"{folder.name}: missing {report['missing_keys']}, mismatched {report['mismatched_keys']}, left over {left}")
    logits = model.to(dtype).eval()(torch.tensor([ids[:-1]])).logits[0, first - 1:]
    return logits.float().log_softmax(-1)


def check(binary, folder, name):
    ids, positions, _ = served(binary, folder, 24)
    first = len(PROMPT.split(","))
    exact, rounded = (by_transformers(folder, ids, first, dtype) for dtype in (torch.float32, torch.bfloat16))
    ours, theirs, scale = [], [], []
    for row, tops in enumerate(positions):
        tokens, logprobs = list(tops), torch.tensor(list(tops.values()))
        for into, one, other in ((ours, logprobs, exact[row, tokens]), (theirs, logprobs, rounded[row, tokens]),
                                 (scale, rounded[row, tokens], exact[row, tokens])):
            into.append((one - other).abs().mean().item())
    ours, theirs, scale = (statistics.median(values) for values in (ours, theirs, scale))
    good = ours <= 2 * scale and theirs <= 2 * scale
    print(f"{'ok' if good else 'WRONG'}  {name}: median difference {ours:.4f} from transformers in float32, {theirs:.4f} in BF16; "
          f"between these two {scale:.4f}", flush=True)
    return good


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("binary")
    binary = str(pathlib.Path(parser.parse_args().binary).resolve())
    torch.set_num_threads(1)
    transformers.utils.logging.set_verbosity_error()
    warnings.filterwarnings("ignore", "You passed `quantization_config`")
    transformers.utils.logging.disable_progress_bar()
    good = True
    with tempfile.TemporaryDirectory() as work:
        work = pathlib.Path(work)
        tiny = json.loads((ROOT / "tests/golden/checkpoints/glm4_moe_lite/config.json").read_text())
        (work / "config.json").write_text(json.dumps(tiny | GLM))
        subprocess.run([binary, "synth", "--config-json", work / "config.json", "--out", work / "glm", "--seed", "3"], check=True,
                       capture_output=True)
        for model, source, formats in (("abacus", ABACUS, INT4), ("GLM", work / "glm", INT4 | {"FP8": ["fp8"]})):
            for number, (name, options) in enumerate(formats.items()):
                folder = work / f"{model}-{number}"
                subprocess.run([binary, "quantize", source, folder, "--dtype", *options], check=True, capture_output=True)
                good = check(binary, folder, f"{model}, {name}") and good
    raise SystemExit(0 if good else 1)


if __name__ == "__main__":
    main()
