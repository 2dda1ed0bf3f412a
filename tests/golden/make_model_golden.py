#!/usr/bin/env python3
"""Makes the model goldens: logits of transformers' DeepseekV3ForCausalLM and MtpModel in float32.

For the shipped model and four small random checkpoints (written anew with --checkpoints). Weights are read as they
stand (BF16, FP8 times its block's scale, a 4-bit code's value times its group's scale) and computed with in float32. Writes <name>_model.golden.json and .bin:
little-endian float32, laid out by the JSON. "prompts": name, ids, and
  logits_offset   in floats: [len(ids), vocab_size], the target's logits of every position
  mtp             per module: first_position s and offset: [len(ids) - s, vocab_size], the module's logits at
                  positions s.., given the prompt's own tokens: level i at position p takes token p and level i-1's
                  output (after the final norm) at position p-1
"bfloat16" is transformers' own distance from these logits (target and module 1) when it computes in BF16: a scale
for what is close. Prompts are chosen so that no router has to decide between experts that nearly tie: rounding
then moves logits a little where it would move them a lot.
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
from transformers.models.deepseek_v3.modeling_deepseek_v3 import DeepseekV3TopkRouter

import pack_quantized
import random_checkpoint

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
ABACUS = ROOT / "deploy" / "models" / "abacus"
SEED = 20240229
LENGTHS = {"grouped": (1, 7, 40, 150), "fp8": (1, 7, 40, 150), "int4": (1, 7, 40, 80), "fp4": (1, 7, 40, 80), "abacus": (1, 7, 40, 80)}
# Modules past the first are given for one prompt only, to keep the files small.
DEEP_LENGTH = 40
CANDIDATES = 48


def read_float32(folder):
    """All tensors of a checkpoint as float32, FP8 blocks multiplied by their scales."""
    tensors = {}
    for file in sorted(folder.glob("*.safetensors")):
        with safe_open(file, framework="pt") as opened:
            tensors |= {name: opened.get_tensor(name) for name in opened.keys()}
    config = json.loads((folder / "config.json").read_text())
    if (config.get("quantization_config") or {}).get("quant_method") == "compressed-tensors":
        return {key: value for key, value in config.items() if key != "quantization_config"}, pack_quantized.read_float32(config, tensors)
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
def run(target, mtp, prompts):
    """Logits [prompts, positions, vocab] of the target, and of each module from its first position on."""
    tokens = torch.tensor(prompts)
    length = tokens.shape[1]
    hidden = target.model(tokens, use_cache=False).last_hidden_state
    logits = [target.lm_head(hidden).float()]
    cache = MtpCache(config=target.config.get_mtp_config())
    for module in range(min(mtp.num_mtp_layers, length - 1)):
        first = module + 1
        positions = torch.arange(first, length).expand(len(prompts), -1)
        hidden = mtp.forward_layer(module, hidden[:, :-1], positions, cache, input_ids=tokens[:, first:])
        logits.append(mtp.shared_head(hidden).float())
    return logits


def distance(reference, other):
    """Per position: largest difference over the reference's root mean square, and whether the argmax is the same."""
    scale = reference.pow(2).mean(-1).sqrt()
    return (reference - other).abs().amax(-1) / scale, reference.argmax(-1) == other.argmax(-1)


def leads(exact, prompts):
    """Per position [prompts, positions]: by how little any router preferred what it chose to what it left."""
    tokens = torch.tensor(prompts)
    result = torch.full(tokens.shape, torch.inf)

    def watch(router, _, output):
        logits = output[0].view(len(prompts), -1, router.num_experts)
        choice = logits.sigmoid() + router.e_score_correction_bias
        groups = choice.unflatten(-1, (router.num_group, -1)).topk(2).values.sum(-1).sort(-1, descending=True)
        lead = torch.full(choice.shape[:2], torch.inf)
        if router.num_group > router.topk_group:
            lead = groups.values[..., router.topk_group - 1] - groups.values[..., router.topk_group]
            kept = torch.zeros_like(groups.values).scatter(-1, groups.indices[..., :router.topk_group], 1).bool()
            choice = choice.unflatten(-1, (router.num_group, -1)).masked_fill(~kept[..., None], -torch.inf).flatten(-2)
        experts = choice.sort(-1, descending=True).values
        lead = torch.minimum(lead, experts[..., router.top_k - 1] - experts[..., router.top_k])
        part = result[:, result.shape[1] - lead.shape[1]:]
        part.copy_(torch.minimum(part, lead))

    routers = [module for model in exact for module in model.modules() if isinstance(module, DeepseekV3TopkRouter)]
    hooks = [router.register_forward_hook(watch) for router in routers]
    run(*exact, prompts)
    for hook in hooks:
        hook.remove()
    return result


def random_prompt(exact, config, rng, length):
    """Random tokens, each the calmest of a few."""
    ids = []
    while len(ids) < length:
        candidates = [ids + [token] for token in rng.sample(range(config["vocab_size"]), CANDIDATES)]
        ids = candidates[leads(exact, candidates)[:, -1].argmax()]
    return ids


def abacus_prompt(exact, tokenizer, rng, length):
    """A question in the chat format, the calmest of a few, going on with the calmest of the likeliest tokens."""
    def chat():
        message = {"role": "user", "content": f"What is {rng.randrange(100)} + {rng.randrange(100)}?"}
        text = tokenizer.apply_chat_template([message], tokenize=False, add_generation_prompt=True)
        return tokenizer.encode(text, add_special_tokens=False)[:length]

    ids = max((chat() for _ in range(CANDIDATES)), key=lambda ids: leads(exact, [ids]).amin().item())
    while len(ids) < length:
        likeliest = run(*exact, [ids])[0][0, -1].topk(CANDIDATES // 4).indices.tolist()
        candidates = [ids + [token] for token in likeliest]
        ids = candidates[leads(exact, candidates)[:, -1].argmax()]
    return ids


def prompts(name, config, exact):
    rng = random.Random(SEED)
    tokenizer = AutoTokenizer.from_pretrained(ABACUS) if name == "abacus" else None
    for length in LENGTHS[name]:
        yield random_prompt(exact, config, rng, length) if tokenizer is None else abacus_prompt(exact, tokenizer, rng, length)


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

    for ids in prompts(name, config, exact):
        levels = [level[0] for level in run(*exact, [ids])]
        for level, other in zip(levels[:2], run(*rounded, [ids])):
            error, agrees = distance(level, other[0])
            errors.append(error)
            agreements.append(agrees)
        kept = levels[1:] if len(ids) == DEEP_LENGTH else levels[1:2]
        described.append({
            "name": f"{len(ids)} tokens", "ids": ids, "logits_offset": append(levels[0]),
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
    parser.add_argument("--only", choices=sorted(LENGTHS), help="one of the five")
    args = parser.parse_args()
    transformers.utils.logging.disable_progress_bar()
    transformers.utils.logging.set_verbosity_error()
    folder = HERE / "checkpoints"
    if args.checkpoints:
        random_checkpoint.write(folder / "grouped", random_checkpoint.GROUPED, SEED, shards=2, with_copies=True)
        random_checkpoint.write(folder / "fp8", random_checkpoint.FP8, SEED + 1, shards=1, with_copies=False)
        for seed, (kind, config) in enumerate(random_checkpoint.PACKED.items(), SEED + 2):
            random_checkpoint.write(folder / kind, config, seed, shards=1, with_copies=False)
    for name in LENGTHS:
        checkpoint = ABACUS if name == "abacus" else folder / name
        if args.only in (None, name):
            make(name, checkpoint)


if __name__ == "__main__":
    main()
