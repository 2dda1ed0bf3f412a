#!/usr/bin/env python3
"""Makes the goldens of DeepSeek-V4: tests/golden/deepseek_v4*_model.golden.json.

For each of v4_checkpoint.CONFIGS (written anew with --checkpoints) one prompt of 600 tokens, the target's logits by
transformers' DeepseekV4ForCausalLM in float32 and the MTP module's by reference_v4 in float64. Before that, all of these
have to agree: transformers and the reference on the target; the reference's prefill form and its step form, also where
steps were taken with wrong tokens and taken back; transformers' prefill and its decode form. The differences are in the
JSON ("agreement", in units of the logits' root mean square).

"recycled": greedy drafts of the module on its own streams: after the token at `position`, the drafts for position + 1,
position + 2, ... of reference_v4 in float64. The rest of the format is make_model_golden.py's.
"""

import argparse
import json
import pathlib
import random
import tempfile

import torch
import transformers
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM

import v4_checkpoint
from reference_v4 import ReferenceV4, Shape, Steps

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
SEED = 20260424
LENGTH = 600
CANDIDATES = 6
PREFILLED = 37  # of transformers' decode form; the rest goes one token at a time
DRAFTS = 4
WRONG_EVERY = 7  # positions between two steps with wrong drafts
# float32 against float64, and float64 against itself in another order.
AGREEMENT, ORDER = 5e-5, 1e-9


def load_transformers(config, tensors, dtype):
    with tempfile.TemporaryDirectory() as folder:
        (pathlib.Path(folder) / "config.json").write_text(json.dumps(config))
        save_file({name: values.contiguous() for name, values in tensors.items()}, pathlib.Path(folder) / "model.safetensors", metadata={"format": "pt"})
        model, report = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, attn_implementation="eager", experts_implementation="eager",
                                                             output_loading_info=True)
    assert not report["missing_keys"] and not report["mismatched_keys"] and not report["unexpected_keys"], report
    assert type(model).__name__ == config["architectures"][0], type(model)
    return model.eval()


def largest(a, b):
    """The largest difference over b's root mean square."""
    return ((a - b).abs().max() / b.pow(2).mean().sqrt()).item()


def distances(reference, other):
    """Per position: the largest difference over the reference's root mean square, and whether the argmax is the same."""
    return (reference - other).abs().amax(-1) / reference.pow(2).mean(-1).sqrt(), reference.argmax(-1) == other.argmax(-1)


def calm_prompt(reference, vocab_size, rng):
    """Random tokens, each the one of a few that leaves every router and indexer furthest from a tie."""
    steps, ids = Steps(reference, LENGTH), []
    while len(ids) < LENGTH:
        def lead(token):
            steps.step(token, len(ids))
            return reference.lead.item()
        ids.append(max(rng.sample(range(vocab_size), CANDIDATES), key=lead))
        steps.step(ids[-1], len(ids) - 1)
    return ids


@torch.no_grad()
def transformers_decode(model, ids):
    output = model(torch.tensor([ids[:PREFILLED]]), use_cache=True)
    logits = [output.logits[0]]
    for token in ids[PREFILLED:]:
        output = model(torch.tensor([[token]]), past_key_values=output.past_key_values, use_cache=True)
        logits.append(output.logits[0])
    return torch.cat(logits).float()


@torch.no_grad()
def step_form(reference, ids, rng):
    """The levels of reference.run by steps; now and then a few steps with wrong tokens come first."""
    steps, target, module, streams = Steps(reference, LENGTH + DRAFTS), [], [], None
    for position, token in enumerate(ids):
        if position % WRONG_EVERY == 0:
            wrong = streams
            for draft in range(DRAFTS):
                guess = rng.randrange(reference.shape.vocab_size)
                _, guessed = steps.step(guess, position + draft)
                if wrong is not None:
                    steps.step_module(wrong, guess, position + draft)
                wrong = guessed
        previous = streams
        logits, streams = steps.step(token, position)
        target.append(logits)
        if position > 0:
            module.append(steps.step_module(previous, token, position)[0])
    return torch.stack(target), torch.stack(module)


@torch.no_grad()
def recycled_drafts(reference, ids, position):
    """The module's rows 1..position with true streams, then its drafts on its own."""
    steps, streams = Steps(reference, position + DRAFTS + 1), []
    for at, token in enumerate(ids[:position]):
        streams.append(steps.step(token, at)[1])
    for at in range(1, position + 1):
        logits, own = steps.step_module(streams[at - 1], ids[at], at)
    drafts = [logits.argmax().item()]
    while len(drafts) < DRAFTS:
        logits, own = steps.step_module(own, drafts[-1], position + len(drafts))
        drafts.append(logits.argmax().item())
    return {"position": position, "drafts": drafts}


@torch.no_grad()
def make(name):
    folder = HERE / "checkpoints" / name
    config, tensors = v4_checkpoint.read_float32(folder)
    reference = ReferenceV4(config, tensors)
    rng = random.Random(SEED)
    ids = calm_prompt(reference, config["vocab_size"], rng)
    levels = reference.run(ids)
    leads = reference.lead
    exact, rounded = (load_transformers(config, tensors, dtype) for dtype in (torch.float32, torch.bfloat16))
    target = exact(torch.tensor([ids]), use_cache=False).logits[0].float()
    steps = step_form(reference, ids, rng)
    agreement = {"transformers_and_reference": largest(target, levels[0].float()),
                 "transformers_decode_and_prefill": largest(transformers_decode(exact, ids), target),
                 "reference_steps_and_prefill": max(largest(a, b) for a, b in zip(steps, levels))}
    assert agreement["transformers_and_reference"] < AGREEMENT, agreement
    assert agreement["transformers_decode_and_prefill"] < AGREEMENT, agreement
    assert agreement["reference_steps_and_prefill"] < ORDER, agreement
    levels[0] = target
    rounded_levels = ReferenceV4(config, tensors, torch.bfloat16).run(ids)
    rounded_levels[0] = rounded(torch.tensor([ids]), use_cache=False).logits[0]
    errors, agrees = zip(*(distances(level.float(), other.float()) for level, other in zip(levels, rounded_levels)))
    errors, agrees = torch.cat(errors), torch.cat(agrees)
    blocks = [level.float().numpy().astype("<f4").tobytes() for level in levels]
    golden = {
        "maker": "tests/golden/make_v4_golden.py", "torch": torch.__version__.split("+")[0], "transformers": transformers.__version__,
        "seed": SEED, "checkpoint": str(folder.relative_to(ROOT)), "data": f"{name}_model.golden.bin",
        "float_count": sum(level.numel() for level in levels), "vocab_size": config["vocab_size"],
        "agreement": {key: float(f"{value:.1e}") for key, value in agreement.items()}, "closest_choice": float(f"{leads.min().item():.1e}"),
        "bfloat16": {"max_error_over_rms": {"mean": round(errors.mean().item(), 4), "max": round(errors.max().item(), 4)},
                     "argmax_agreement": round(agrees.float().mean().item(), 4)},
        "prompts": [{"name": f"{LENGTH} tokens", "ids": ids, "logits_offset": 0,
                     "mtp": [{"module": 1, "first_position": 1, "offset": levels[0].numel()}],
                     "recycled": [recycled_drafts(reference, ids, position) for position in (1, 17, 127, 300)]}]}
    (HERE / golden["data"]).write_bytes(b"".join(blocks))
    (HERE / f"{name}_model.golden.json").write_text(json.dumps(golden, separators=(",", ":")) + "\n")
    print(f"{name}: {sum(map(len, blocks)):,} bytes of logits, {golden['agreement']}, closest choice {golden['closest_choice']}, bfloat16 {golden['bfloat16']}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--checkpoints", action="store_true", help="write the random checkpoints anew first")
    parser.add_argument("--only", choices=sorted(v4_checkpoint.CONFIGS))
    args = parser.parse_args()
    transformers.utils.logging.disable_progress_bar()
    transformers.utils.logging.set_verbosity_error()
    torch.set_num_threads(1)  # the products are small
    for i, (name, config) in enumerate(v4_checkpoint.CONFIGS.items()):
        if args.only not in (None, name):
            continue
        if args.checkpoints:
            v4_checkpoint.write(HERE / "checkpoints" / name, config, SEED + i, Shape(config))
        make(name)


if __name__ == "__main__":
    main()
