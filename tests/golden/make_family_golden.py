#!/usr/bin/env python3
"""Makes the goldens of the families in deepseek_v3_families.h that are not DeepSeek-V3: tests/golden/<family>_model.golden.json.

For each a small random checkpoint (random_checkpoint.FAMILIES). The target's logits are those of the family's class
in transformers, in float32 (for Kimi-K2 and JoyAI, whose class is no part of transformers, DeepseekV3ForCausalLM's);
those of the MTP modules, which transformers does not compute for these families, are reference_model's in float64.
That reference has to agree with transformers on the target first. The format is make_model_golden.py's.
"""

import argparse
import collections
import json
import pathlib
import random
import tempfile

import torch
import transformers
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, DeepseekV3ForCausalLM

import make_model_golden
import random_checkpoint
from reference_model import ReferenceModel

HERE = make_model_golden.HERE
SEED = make_model_golden.SEED
LENGTHS = (1, 7, 24)
# Past several times index_topk no choice of tokens keeps every selection far from a tie: the tokens are any.
LONG_LENGTHS = (24, 160)
CANDIDATES = 64
# float32 against float64, in units of the logits' root mean square.
AGREEMENT = 1e-4


TopK = collections.namedtuple("TopK", "values indices")


def stable_topk(x, k, dim=-1, **_):
    """torch.topk, which says nothing of equal values, with the lower index first among these."""
    best = x.sort(dim=dim, descending=True, stable=True)
    return TopK(best.values.narrow(dim, 0, k), best.indices.narrow(dim, 0, k))


def load_transformers(config, tensors, dtype):
    """The target, from a plain copy without the MTP modules."""
    config = dict(config)
    cls = DeepseekV3ForCausalLM if config["architectures"] == ["DeepseekV3ForCausalLM"] else AutoModelForCausalLM
    if cls is DeepseekV3ForCausalLM:
        config["model_type"] = "deepseek_v3"
    config["num_nextn_predict_layers"] = 0
    layers = tuple(f"model.layers.{layer}." for layer in range(config["num_hidden_layers"]))
    kept = {name: values.contiguous() for name, values in tensors.items() if not name.startswith("model.layers.") or name.startswith(layers)}
    with tempfile.TemporaryDirectory() as folder:
        (pathlib.Path(folder) / "config.json").write_text(json.dumps(config))
        save_file(kept, pathlib.Path(folder) / "model.safetensors", metadata={"format": "pt"})
        model, report = cls.from_pretrained(folder, dtype=dtype, attn_implementation="eager", experts_implementation="eager",
                                            output_loading_info=True)
    assert not report["missing_keys"] and not report["mismatched_keys"] and not report["unexpected_keys"], report
    assert type(model).__name__ == config["architectures"][0], type(model)
    return model.eval()


@torch.no_grad()
def target_logits(model, ids):
    return model(torch.tensor([ids]), use_cache=False).logits[0].float()


def calm_prompt(reference, vocab_size, rng, length):
    """Random tokens, each the one of a few that leaves every router furthest from a tie."""
    ids = []
    while len(ids) < length:
        def lead(token):
            reference.run(ids + [token])
            return reference.lead[-1].item()
        ids.append(max(rng.sample(range(vocab_size), CANDIDATES), key=lead))
    return ids


@torch.no_grad()
def make(name):
    folder = HERE / "checkpoints" / name
    config = json.loads((folder / "config.json").read_text())
    tensors = {}
    for file in sorted(folder.glob("*.safetensors")):
        tensors |= load_file(file)
    reference = ReferenceModel(config, tensors, torch.float64)
    rounded_reference = ReferenceModel(config, tensors, torch.bfloat16)
    wide = {key: values.float() for key, values in tensors.items()}
    exact = load_transformers(config, wide, torch.float32)
    rounded = load_transformers(config, wide, torch.bfloat16)
    rng = random.Random(SEED)
    blocks, size, described, errors, agreements = [], 0, [], [], []

    def append(logits):
        nonlocal size
        offset = size
        blocks.append(logits.float().numpy().astype("<f4").tobytes())
        size += logits.numel()
        return offset

    for length in LONG_LENGTHS if name.endswith("_long") else LENGTHS:
        calm = length <= max(LENGTHS)
        ids = calm_prompt(reference, config["vocab_size"], rng, length) if calm else [rng.randrange(config["vocab_size"]) for _ in range(length)]
        levels, rounded_levels = reference.run(ids), rounded_reference.run(ids)
        transformers_target = target_logits(exact, ids)
        error, _ = make_model_golden.distance(levels[0].float(), transformers_target)
        assert error.max() < AGREEMENT, f"{name}: the reference differs from transformers by {error.max():.2e}"
        levels[0] = transformers_target
        rounded_levels[0] = target_logits(rounded, ids)
        for level, other in zip(levels, rounded_levels):
            error, agrees = make_model_golden.distance(level.float(), other.float())
            errors.append(error)
            agreements.append(agrees)
        described.append({
            "name": f"{length} tokens", "ids": ids, "logits_offset": append(levels[0]),
            "mtp": [{"module": i + 1, "first_position": i + 1, "offset": append(block)} for i, block in enumerate(levels[1:])]})
    errors, agreements = torch.cat(errors), torch.cat(agreements)
    golden = {
        "maker": "tests/golden/make_family_golden.py", "torch": torch.__version__.split("+")[0], "transformers": transformers.__version__,
        "seed": SEED, "checkpoint": str(folder.relative_to(make_model_golden.ROOT)), "data": f"{name}_model.golden.bin",
        "float_count": size, "vocab_size": config["vocab_size"],
        "bfloat16": {"max_error_over_rms": {"mean": round(errors.mean().item(), 4), "max": round(errors.max().item(), 4)},
                     "argmax_agreement": round(agreements.float().mean().item(), 4)},
        "prompts": described}
    (HERE / golden["data"]).write_bytes(b"".join(blocks))
    (HERE / f"{name}_model.golden.json").write_text(json.dumps(golden, separators=(",", ":")) + "\n")
    print(f"{name}: {4 * size:,} bytes of logits, bfloat16 {golden['bfloat16']}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--checkpoints", action="store_true", help="write the random checkpoints anew first")
    parser.add_argument("--only", choices=sorted(random_checkpoint.FAMILIES))
    args = parser.parse_args()
    torch.Tensor.topk = stable_topk  # as the indexers call it
    transformers.utils.logging.disable_progress_bar()
    transformers.utils.logging.set_verbosity_error()
    for i, name in enumerate(random_checkpoint.FAMILIES):
        if args.only not in (None, name):
            continue
        if args.checkpoints:
            random_checkpoint.write_family(HERE / "checkpoints" / name, name, SEED + 10 + i)
        make(name)


if __name__ == "__main__":
    main()
