#!/usr/bin/env python3
"""Writes a trained model as two checkpoints, each the target with one drafter.

A drafter without a training checkpoint yet is left as initialised.

    v4_export.py --work /tmp/abacus-v4 --out ..
"""

import argparse
import pathlib
import shutil

import torch

import abacus_path
import v4_checkpoint
from v4_layers import Config
from v4_model import Model

TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json")


def read(work):
    """The target and both drafters, each from its own training checkpoint."""
    torch.manual_seed(0)
    model = Model(Config())
    for part in ("target", *v4_checkpoint.DRAFTERS):
        path = work / f"{part}.pt"
        if not path.exists():
            continue
        state = torch.load(path, weights_only=False)
        print(f"{part}: step {state['step']}, {state['seconds']:.0f} s of training")
        own = {name: tensor for name, tensor in state["model"].items()
               if (v4_checkpoint.drafter_of(name) or "target") == part}
        model.load_state_dict(own, strict=False)
    return model


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=pathlib.Path, required=True)
    parser.add_argument("--out", type=pathlib.Path, required=True)
    args = parser.parse_args()
    model = read(args.work)
    for drafter in v4_checkpoint.DRAFTERS:
        v4_checkpoint.save(model, drafter, args.out / drafter)
        for file in TOKENIZER_FILES:
            shutil.copy(abacus_path.ABACUS / file, args.out / drafter / file)


if __name__ == "__main__":
    main()
