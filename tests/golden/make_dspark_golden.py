#!/usr/bin/env python3
"""Makes the goldens of DeepSeek-V4 with DSpark: tests/golden/deepseek_v4_dspark*_model.golden.json.

For each of v4_checkpoint.DSPARK_CONFIGS (written anew with --checkpoints) one prompt of 600 tokens, the target's logits by
transformers' DeepseekV4ForCausalLM in float32, and what DSpark drafts at some positions by reference_dspark in float64.
Before that, these have to agree: transformers and the reference on the target and on blocks, whose stages are transformers'
layers with the context rows in the place of a cache; the reference's matrix form and its form by kept rows and loops over
keys, also where steps were taken with wrong tokens and taken back. The differences are in the JSON ("agreement").

The format is make_model_golden.py's, without modules ("mtp" is empty), and with "blocks", each from ids[0 .. position]:
  position         P: ids[P] is the last committed token; its row is not run by the target
  prompt_len       how many of the ids a test may take as the prompt; the others are given tokens of decode steps
  offset           in floats: [dspark_block_size, vocab_size], the base logits U, without the Markov head's bias
  drafts           the greedy drafts for P + 1, P + 2, ...
  margins          by how much a draft's logit is above the second one's, over the root mean square of U + bias
  confidences      of each draft, given the drafts before it
  closest_choice   by how little any router preferred what it chose in the block's rows
"blocks_bfloat16" is the reference's distance from U when it computes in BF16, from the target's first layer on, and the share
of blocks whose drafts are then the same. Tokens at the positions of blocks are chosen for wide margins and leads, and so
that the Markov head changes two or three of the drafts.
"""

import argparse
import json
import random

import torch
import transformers
from torch.nn.functional import linear
from transformers.models.deepseek_v4.modeling_deepseek_v4 import apply_rotary_pos_emb

import v4_checkpoint
from make_v4_golden import AGREEMENT, CANDIDATES, HERE, LENGTH, ORDER, ROOT, distances, largest, load_transformers
from reference_dspark import BlockSteps, ReferenceDSpark
from reference_v4 import Shape

SEED = 20260731
# P and prompt_len: around the window of 16 tokens, its multiples, blocks of 32 and 128 tokens.
BLOCKS = ((1, 1), (5, 5), (15, 15), (16, 16), (17, 9), (31, 31), (35, 31), (63, 63), (127, 127), (128, 100), (129, 129), (255, 255), (300, 270),
          (511, 511))
WRONG_EVERY, WRONG = 7, 5  # as in a step with 5 drafts, none of which is accepted
MARGIN_WEIGHT = 0.1  # a margin of 0.1 is as good as a lead of 0.01
CHANGED = (2, 3)  # of a block's drafts, by the Markov head
CHANGED_SHARE = (0.3, 0.7)


def block_score(reference, main_x, token, position):
    """The least of the leads and margins of a block that begins with `token`; 0 where the Markov head changes few or most drafts."""
    block = reference.run_block(main_x, token, position)
    drafts = reference.drafts(block, token)
    changed = sum(a != b for a, b in zip(drafts.tokens, drafts.base_tokens))
    return min(block.lead, MARGIN_WEIGHT * min(drafts.margins)) if CHANGED[0] <= changed <= CHANGED[1] else 0


@torch.no_grad()
def calm_prompt(reference, vocab_size, rng):
    """As make_v4_golden's; at the position of a block all tokens are tried, for the block's sake, too."""
    steps, ids, positions = BlockSteps(reference, LENGTH), [], dict(BLOCKS)
    while len(ids) < LENGTH:
        main_x = reference.run_target(ids)[1] if len(ids) in positions else None

        def score(token):
            steps.target.step(token, len(ids))
            lead = reference.lead.item()
            return lead if main_x is None else min(lead, block_score(reference, main_x, token, len(ids)))
        ids.append(max(rng.sample(range(vocab_size), CANDIDATES if main_x is None else vocab_size), key=score))
        steps.target.step(ids[-1], len(ids) - 1)
    return ids


@torch.no_grad()
def blocks_by_steps(reference, ids, rng):
    """U of all blocks by kept rows. Now and then steps run wrong tokens as well, whose rows stay until they are run again."""
    steps, result = BlockSteps(reference, LENGTH + WRONG), []
    for position, token in enumerate(ids[:BLOCKS[-1][0] + 1]):
        if position in dict(BLOCKS):
            result.append(steps.block(token, position).logits)
        steps.step(token, position)
        if position % WRONG_EVERY == 0 or position + 1 in dict(BLOCKS):
            for draft in range(1, WRONG + 1):
                steps.step(rng.randrange(reference.shape.vocab_size), position + draft)
    return torch.stack(result)


class ContextRows:
    """In the place of a cache of transformers: what a layer attends before its own keys."""

    def __init__(self, keys):
        self.keys = keys  # [1, 1, rows, head_dim]

    def update(self, keys, values, layer):
        keys = torch.cat([self.keys, keys], 2)
        return keys, keys


class TransformersBlocks:
    """DSpark of transformers' modules: the stages are a model of window layers."""

    def __init__(self, config, tensors, target):
        stages, last = Shape(config).stages, f"mtp.{Shape(config).stages - 1}."
        self.config, self.target = config, target
        self.extras = {name: tensors[name + ".weight"] for name in ("mtp.0.main_proj", "mtp.0.main_norm")}
        moved = {"embed.weight": tensors["embed.weight"], "head.weight": tensors["head.weight"]}
        for name, values in tensors.items():
            if name.startswith((last + "norm", last + "hc_head")):
                moved[name.removeprefix(last)] = values
            elif name.startswith("mtp.") and not any(part in name for part in ("main_", "markov_head", "confidence_head")):
                moved[name.replace("mtp.", "layers.", 1)] = values
        plain = {key: value for key, value in config.items() if not key.startswith("dspark_")}
        self.stages = load_transformers(plain | {"num_hidden_layers": stages, "compress_ratios": [0] * stages, "num_hash_layers": 0}, moved, torch.float32)

    def main_x(self, ids):
        taps = {}
        hooks = [self.target.model.layers[layer].register_forward_hook(lambda _, inputs, output, layer=layer: taps.update({layer: output[0].mean(1)}))
                 for layer in self.config["dspark_target_layer_ids"]]
        self.target(torch.tensor([ids]), use_cache=False)
        for hook in hooks:
            hook.remove()
        x = linear(torch.cat([taps[layer] for layer in self.config["dspark_target_layer_ids"]], -1), self.extras["mtp.0.main_proj"])
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.config["rms_norm_eps"]) * self.extras["mtp.0.main_norm"]

    def rope(self, positions):
        return self.stages.model.rotary_emb(torch.zeros(1), position_ids=positions[None], layer_type="main")

    def run(self, main_x, token, position):
        """U [g, V]"""
        size, model = self.config["dspark_block_size"], self.stages.model
        ids = torch.tensor([[token] + [self.config["dspark_noise_token_id"]] * (size - 1)])
        seen = torch.arange(max(0, position - self.config["sliding_window"]), position)
        positions = position + torch.arange(size)
        streams = model.embed_tokens(ids).unsqueeze(2).expand(-1, -1, self.config["hc_mult"], -1).contiguous()
        for layer in model.layers:
            keys = layer.self_attn.kv_norm(layer.self_attn.kv_proj(main_x[None, seen]))[:, None]
            context = ContextRows(apply_rotary_pos_emb(keys, *self.rope(seen)))
            streams = layer(streams, input_ids=ids, position_embeddings={"main": self.rope(positions)}, position_ids=positions[None],
                            attention_mask=None, past_key_values=context)
        return self.stages.lm_head(model.norm(model.hc_head(streams)))[0]


def describe(reference, block, ids, position, prompt_len, offset):
    drafts = reference.drafts(block, ids[position])
    short = lambda values: [float(f"{value:.4g}") for value in values]
    return {"position": position, "prompt_len": prompt_len, "offset": offset, "drafts": drafts.tokens, "margins": short(drafts.margins),
            "confidences": [round(value, 6) for value in drafts.confidences], "closest_choice": float(f"{block.lead:.2g}")}


def markov_changes(reference, blocks, ids):
    """The share of the greedy drafts, and of the choices after any token, that the Markov head's bias changes."""
    drafts = [reference.drafts(block, ids[position]) for block, (position, _) in zip(blocks, BLOCKS)]
    greedy = torch.tensor([[a != b for a, b in zip(each.tokens, each.base_tokens)] for each in drafts]).double().mean().item()
    w1, w2 = (reference.weights[f"{reference.last}.markov_head.markov_w{i}.weight"] for i in (1, 2))
    base = torch.cat([block.logits for block in blocks])
    biased = (base[:, None] + (w1 @ w2.T)[None]).argmax(-1)
    return greedy, (biased != base.argmax(-1, keepdim=True)).double().mean().item()


def rounded_blocks(config, tensors, ids):
    """Blocks and drafts of the reference in BF16."""
    rounded = ReferenceDSpark(config, tensors, torch.bfloat16)
    main_x = rounded.run_target(ids)[1]
    blocks = [rounded.run_block(main_x, ids[position], position) for position, _ in BLOCKS]
    return torch.stack([block.logits.float() for block in blocks]), [rounded.drafts(block, ids[position]).tokens for block, (position, _) in zip(blocks, BLOCKS)]


def error_summary(errors, agrees):
    return {"max_error_over_rms": {"mean": round(errors.mean().item(), 4), "max": round(errors.max().item(), 4)},
            "argmax_agreement": round(agrees.float().mean().item(), 4)}


@torch.no_grad()
def make(name):
    folder = HERE / "checkpoints" / name
    config, tensors = v4_checkpoint.read_float32(folder)
    reference = ReferenceDSpark(config, tensors)
    rng = random.Random(SEED)
    ids = calm_prompt(reference, config["vocab_size"], rng)
    exact, rounded = (load_transformers(config, tensors, dtype) for dtype in (torch.float32, torch.bfloat16))
    target = exact(torch.tensor([ids]), use_cache=False).logits[0].float()
    logits, main_x = reference.run_target(ids)
    closest = reference.lead.min().item()
    blocks = [reference.run_block(main_x, ids[position], position) for position, _ in BLOCKS]
    base = torch.stack([block.logits for block in blocks])
    by_modules = TransformersBlocks(config, tensors, exact)
    their_main_x = by_modules.main_x(ids)
    theirs = torch.stack([by_modules.run(their_main_x, ids[position], position) for position, _ in BLOCKS])
    agreement = {"transformers_and_reference": largest(target, logits.float()), "transformers_and_reference_main_x": largest(their_main_x, main_x.float()),
                 "transformers_and_reference_blocks": largest(theirs, base.float()),
                 "reference_steps_and_matrices_blocks": largest(blocks_by_steps(reference, ids, rng), base)}
    for key, value in agreement.items():
        assert value < (AGREEMENT if key.startswith("transformers") else ORDER), agreement
    greedy, any_token = markov_changes(reference, blocks, ids)
    print(f"{name}: the Markov head changes {greedy:.0%} of the drafts and {any_token:.0%} of the choices after any token")
    assert all(CHANGED_SHARE[0] < share < CHANGED_SHARE[1] for share in (greedy, any_token))
    errors, agrees = distances(target, rounded(torch.tensor([ids]), use_cache=False).logits[0].float())
    rounded_base, rounded_drafts = rounded_blocks(config, tensors, ids)
    described = [describe(reference, block, ids, position, prompt_len, target.numel() + i * block.logits.numel())
                 for i, (block, (position, prompt_len)) in enumerate(zip(blocks, BLOCKS))]
    same = sum(block["drafts"] == other for block, other in zip(described, rounded_drafts))
    golden = {
        "maker": "tests/golden/make_dspark_golden.py", "torch": torch.__version__.split("+")[0], "transformers": transformers.__version__,
        "seed": SEED, "checkpoint": str(folder.relative_to(ROOT)), "data": f"{name}_model.golden.bin", "float_count": target.numel() + base.numel(),
        "vocab_size": config["vocab_size"], "agreement": {key: float(f"{value:.1e}") for key, value in agreement.items()},
        "closest_choice": float(f"{closest:.1e}"), "bfloat16": error_summary(errors, agrees),
        "blocks_bfloat16": error_summary(*distances(base.float(), rounded_base)) | {"same_drafts": round(same / len(blocks), 4)},
        "prompts": [{"name": f"{LENGTH} tokens", "ids": ids, "logits_offset": 0, "mtp": [], "blocks": described}]}
    (HERE / golden["data"]).write_bytes(b"".join(values.float().numpy().astype("<f4").tobytes() for values in (target, base)))
    (HERE / f"{name}_model.golden.json").write_text(json.dumps(golden, separators=(",", ":")) + "\n")
    print(f"{name}: {4 * golden['float_count']:,} bytes of logits, {golden['agreement']}, closest choice {golden['closest_choice']}, "
          f"bfloat16 {golden['bfloat16']}, of blocks {golden['blocks_bfloat16']}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--checkpoints", action="store_true", help="write the random checkpoints anew first")
    parser.add_argument("--only", choices=sorted(v4_checkpoint.DSPARK_CONFIGS))
    args = parser.parse_args()
    transformers.utils.logging.disable_progress_bar()
    transformers.utils.logging.set_verbosity_error()
    torch.set_num_threads(1)  # the products are small
    for i, (name, config) in enumerate(v4_checkpoint.DSPARK_CONFIGS.items()):
        if args.only not in (None, name):
            continue
        if args.checkpoints:
            v4_checkpoint.write(HERE / "checkpoints" / name, config, SEED + i, Shape(config))
        make(name)


if __name__ == "__main__":
    main()
