#!/usr/bin/env python3
"""Makes the model goldens: logits of transformers' DeepseekV3ForCausalLM and MtpModel in float32.

For the shipped model and two small random checkpoints (written anew with --checkpoints). Weights are read as they
stand (BF16, or FP8 times its block's scale) and computed with in float32. Writes <name>_model.golden.json and .bin:
little-endian float32, laid out by the JSON. "prompts": name, ids, and
  logits_offset   in floats: [len(ids), vocab_size], the target's logits of every position
  mtp             per module: first_position s and offset: [len(ids) - s, vocab_size], the module's logits at
                  positions s.., given the prompt's own tokens: level i at position p takes token p and level i-1's
                  output (after the final norm) at position p-1
"bfloat16" is transformers' own distance from these logits when it computes in BF16: a scale for what is close.
"""

import argparse
import json
import pathlib
import random
import tempfile

import numpy as np
import torch
import transformers
from safetensors import safe_open
from safetensors.torch import save_file
from transformers import AutoTokenizer, DeepseekV3ForCausalLM
from transformers.cache_utils import MtpCache
from transformers.modeling_layers import MtpModel

import random_checkpoint

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
ABACUS = ROOT / "deploy" / "models" / "abacus"
SEED = 20240229
LENGTHS = {"grouped": (1, 7, 40, 150), "fp8": (1, 7, 40, 150), "abacus": (1, 7, 40, 80)}
# Modules past the first are given for one prompt only, to keep the files small.
DEEP_LENGTH = 40
CANDIDATES = 64


def read_float32(folder):
    """All tensors of a checkpoint as float32, FP8 blocks multiplied by their scales."""
    tensors = {}
    for file in sorted(folder.glob("*.safetensors")):
        with safe_open(file, framework="pt") as opened:
            tensors |= {name: opened.get_tensor(name) for name in opened.keys()}
    config = json.loads((folder / "config.json").read_text())
    height, width = (config.get("quantization_config") or {"weight_block_size": (1, 1)})["weight_block_size"]
    result = {}
    for name, tensor in tensors.items():
        if name.endswith("_scale_inv"):
            continue
        values = tensor.to(torch.float32)
        if name + "_scale_inv" in tensors:
            scale = tensors[name + "_scale_inv"]
            scale = scale.repeat_interleave(height, 0).repeat_interleave(width, 1)
            values = values * scale[:values.shape[0], :values.shape[1]]
        result[name] = values
    config.pop("quantization_config", None)
    return config, result


def load(folder, config, tensors, dtype):
    """The target and its MTP modules, of a plain copy of the checkpoint in `folder`."""
    (folder / "config.json").write_text(json.dumps(config | {"torch_dtype": "float32"}))
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, folder / "model.safetensors", metadata={"format": "pt"})
    # transformers knows DeepSeek-V3's own layer count only.
    layers = range(config["num_hidden_layers"], config["num_hidden_layers"] + config["num_nextn_predict_layers"])
    DeepseekV3ForCausalLM._keys_to_ignore_on_load_unexpected = [rf"model\.layers\.{layer}\..*" for layer in layers]
    target, report = DeepseekV3ForCausalLM.from_pretrained(folder, dtype=dtype, attn_implementation="eager", experts_implementation="eager",
                                                           output_loading_info=True)
    assert not report["missing_keys"] and not report["mismatched_keys"], report
    return target.eval(), MtpModel.from_pretrained(target).eval()


@torch.no_grad()
def run(target, mtp, ids):
    """Logits [len(ids), vocab] of the target and of each module, the latter from its first position on."""
    tokens = torch.tensor([ids])
    hidden = target.model(tokens, use_cache=False).last_hidden_state
    logits = target.lm_head(hidden)[0].float()
    cache, modules = MtpCache(config=target.config.get_mtp_config()), []
    for module in range(mtp.num_mtp_layers):
        first = module + 1
        if len(ids) <= first:
            break
        hidden = mtp.forward_layer(module, hidden[:, :-1], torch.arange(first, len(ids))[None], cache, input_ids=tokens[:, first:])
        modules.append(mtp.shared_head(hidden)[0].float())
    return logits, modules


def distance(reference, other):
    """Largest difference over the reference's root mean square, per position; and whether the argmax is the same."""
    scale = reference.pow(2).mean(-1).sqrt()
    return (reference - other).abs().amax(-1) / scale, reference.argmax(-1) == other.argmax(-1)


def calmest(exact, rounded, candidates):
    """The prompt whose logits BF16 moves least: one where no router has to choose between experts that tie."""
    tokens = torch.tensor(candidates)
    with torch.no_grad():
        reference = exact[0](tokens, use_cache=False).logits.float()
        errors, _ = distance(reference, rounded[0](tokens, use_cache=False).logits.float())
    return candidates[errors.amax(-1).argmin()]


def prompts(name, config, exact, rounded):
    if name == "abacus":
        tokenizer = AutoTokenizer.from_pretrained(ABACUS)
        text = (ABACUS / "heldout.jsonl").read_text().splitlines() if (ABACUS / "heldout.jsonl").exists() else []
        question = json.loads(text[0]).get("question", "What is 27 + 58?") if text else "What is 27 + 58?"
        for length in LENGTHS[name]:
            chat = tokenizer.apply_chat_template([{"role": "user", "content": question}], tokenize=False, add_generation_prompt=True)
            ids = tokenizer.encode(chat, add_special_tokens=False)
            rng = random.Random(SEED + length)
            while len(ids) < length:
                ids += tokenizer.encode(f" {rng.randrange(1000)} and {rng.randrange(1000)}, then", add_special_tokens=False)
            yield ids[:length]
        return
    rng = random.Random(SEED)
    for length in LENGTHS[name]:
        yield calmest(exact, rounded, [[rng.randrange(config["vocab_size"]) for _ in range(length)] for _ in range(CANDIDATES)])


def make(name, checkpoint):
    config, tensors = read_float32(checkpoint)
    with tempfile.TemporaryDirectory() as folder:
        exact = load(pathlib.Path(folder), config, tensors, torch.float32)
        rounded = load(pathlib.Path(folder), config, tensors, torch.bfloat16)
    blocks, size, described, errors, agreements = [], 0, [], [], []

    def append(logits):
        nonlocal size
        offset = size
        blocks.append(logits.numpy().astype("<f4").tobytes())
        size += logits.numel()
        return offset

    for ids in prompts(name, config, exact, rounded):
        logits, modules = run(*exact, ids)
        error, agrees = distance(logits, run(*rounded, ids)[0])
        errors.append(error)
        agreements.append(agrees)
        kept = modules if len(ids) == DEEP_LENGTH else modules[:1]
        described.append({
            "name": f"{len(ids)} tokens", "ids": ids, "logits_offset": append(logits),
            "mtp": [{"module": i + 1, "first_position": i + 1, "offset": append(block)} for i, block in enumerate(kept)]})
    errors, agreements = torch.cat(errors), torch.cat(agreements)
    golden = {
        "maker": "tests/golden/make_model_golden.py", "torch": torch.__version__.split("+")[0], "transformers": transformers.__version__,
        "seed": SEED, "checkpoint": str(checkpoint.relative_to(ROOT)), "data": f"{name}_model.golden.bin", "float_count": size,
        "vocab_size": config["vocab_size"],
        "bfloat16": {"max_error_over_rms": {"mean": round(errors.mean().item(), 4), "max": round(errors.max().item(), 4)},
                     "argmax_agreement": round(agreements.float().mean().item(), 4)},
        "prompts": described}
    (HERE / golden["data"]).write_bytes(b"".join(blocks))
    (HERE / f"{name}_model.golden.json").write_text(json.dumps(golden, separators=(",", ":")) + "\n")
    all_logits = np.concatenate([np.frombuffer(block, "<f4") for block in blocks])
    print(f"{name}: {len(described)} prompts, {4 * size:,} bytes, logits' std {all_logits.std():.2f}, bfloat16 {golden['bfloat16']}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--checkpoints", action="store_true", help="write the random checkpoints anew first")
    parser.add_argument("--only", choices=sorted(LENGTHS), help="one of the three")
    args = parser.parse_args()
    transformers.utils.logging.disable_progress_bar()
    transformers.utils.logging.set_verbosity_error()
    folder = HERE / "checkpoints"
    if args.checkpoints:
        random_checkpoint.write(folder / "grouped", random_checkpoint.GROUPED, SEED, shards=2, with_copies=True)
        random_checkpoint.write(folder / "fp8", random_checkpoint.FP8, SEED + 1, shards=1, with_copies=False)
    for name, checkpoint in (("grouped", folder / "grouped"), ("fp8", folder / "fp8"), ("abacus", ABACUS)):
        if args.only in (None, name):
            make(name, checkpoint)


if __name__ == "__main__":
    main()
