#!/usr/bin/env python3
"""Compares an exported model with the float64 references in tests/golden, on random tokens.

    verify.py --model ../mtp --model ../dspark
"""

import argparse
import json
import pathlib
import sys

import torch

import v4_checkpoint

sys.path.append(str(pathlib.Path(__file__).resolve().parents[4] / "tests" / "golden"))
ROWS = 300
TOLERANCE = 2e-3


def ids_of(model):
    return torch.randint(3, 632, (1, ROWS), generator=torch.Generator().manual_seed(1))


def mtp_difference(model, config, tensors, ids):
    """Of the target's logits, of the module's and of the module's on its own streams."""
    from reference_v4 import ReferenceV4
    reference = ReferenceV4(config, tensors)
    target, module = reference.run(ids[0].tolist())
    streams = model.streams(ids)[-1]
    first, second = model.mtp_levels(ids, streams, 2)
    found = [("target", model.lm_head(model.head_input(streams))[0], target), ("MTP module", model.lm_head(first)[0], module)]
    # Recycled at one position after true rows up to the one before: the reference runs the module over all of them.
    tokens, at = ids[0], 200
    positions = torch.arange(1, at + 1)
    true = reference_streams(reference, tokens)
    reference.lead = torch.full((at,), torch.inf, dtype=torch.float64)
    rows = reference.run_module(true[:at], tokens[1:at + 1], positions)
    mixed = torch.cat([true[:at - 1], rows[-2:-1]])
    recycled = reference.logits(reference.run_module(mixed, tokens[1:at + 1], positions)[-1:], "mtp.0.")
    return found + [("MTP module recycled", model.lm_head(second)[0, at - 1:at], recycled)]


def reference_streams(reference, tokens):
    positions, streams = torch.arange(len(tokens)), reference.seed(tokens)
    reference.lead = torch.full((len(tokens),), torch.inf, dtype=torch.float64)
    for layer in range(reference.shape.layers):
        streams = reference.layer(streams, tokens, layer, positions, reference.attention)
    return streams


def dspark_difference(model, config, tensors, ids):
    """Of the target's logits, of the block's base logits, and of logits and confidences with the Markov head."""
    from reference_dspark import ReferenceDSpark
    reference = ReferenceDSpark(config, tensors)
    tokens = ids[0].tolist()
    target, main_x = reference.run_target(tokens)
    streams = model.streams(ids)
    context = model.dspark.context([streams[layer] for layer in model.config.dspark_target_layer_ids])
    anchors = torch.tensor([[1, 5, 63, 64, 65, 200, ROWS - 1]])
    hidden = model.dspark(model.embed_tokens, context, ids, anchors, model.tables())
    found = [("target", model.lm_head(model.head_input(streams[-1]))[0], target)]
    for n, anchor in enumerate(anchors[0].tolist()):
        block = reference.run_block(main_x, tokens[anchor], anchor)
        drafts = reference.drafts(block, tokens[anchor])
        before = torch.tensor([tokens[anchor], *drafts.tokens[:-1]])
        logits, confidence = model.dspark.draft_logits(model.lm_head, hidden[0, n], before)
        if logits.argmax(-1).tolist() != drafts.tokens and min(drafts.margins) > 1e-3:
            raise SystemExit(f"block at {anchor}: drafts {logits.argmax(-1).tolist()}, the reference's {drafts.tokens}")
        found += [(f"block at {anchor}", model.lm_head(model.dspark.norm(hidden[0, n])), block.logits),
                  (f"confidence at {anchor}", confidence.sigmoid(), torch.tensor(drafts.confidences, dtype=torch.float64))]
    return found


@torch.no_grad()
def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=pathlib.Path, action="append", required=True)
    for folder in parser.parse_args().model:
        model, drafter = v4_checkpoint.load(folder)
        config = json.loads((folder / "config.json").read_text())
        tensors = v4_checkpoint.load_file(folder / "model.safetensors")
        difference = dspark_difference if drafter == "dspark" else mtp_difference
        worst = 0.0
        for what, ours, theirs in difference(model, config, tensors, ids_of(model)):
            distance = (ours.double() - theirs).abs().amax(-1)
            worst = max(worst, distance.max().item())
            print(f"{folder.name}: {what}: largest difference {distance.max().item():.1e}, of values up to {theirs.abs().max().item():.1f}")
        if worst > TOLERANCE:
            raise SystemExit("the exported model differs from the reference")


if __name__ == "__main__":
    main()
