#!/usr/bin/env python3
"""Adds the marks of tool calls to a model: nine tokens, and rows for them in the embedding and the head.

A new row is the mean of the old ones plus noise of a tenth of their spread. The MTP modules share both matrices.

    add_tokens.py --model .. --out /tmp/abacus-tools/start
"""

import argparse
import dataclasses
import pathlib
import shutil

import torch
from tokenizers import AddedToken, Tokenizer

import chat
import checkpoint
from model import Model

NOISE = 0.1
ROWS = ("embed_tokens.weight", "lm_head.weight")


def grown(weight, tokens, rows):
    """The rows of the known tokens, then new ones up to `rows`."""
    known = weight[:tokens]
    noise = torch.randn(rows - tokens, weight.shape[1]) * known.std(0) * NOISE
    return torch.cat([known, known.mean(0) + noise])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=pathlib.Path, required=True)
    parser.add_argument("--out", type=pathlib.Path, required=True)
    parser.add_argument("--seed", type=int, default=20)
    args = parser.parse_args()
    torch.manual_seed(args.seed)
    args.out.mkdir(parents=True, exist_ok=True)
    tokenizer = Tokenizer.from_file(str(args.model / "tokenizer.json"))
    before = tokenizer.get_vocab_size()
    tokenizer.add_special_tokens([AddedToken(token, normalized=False, special=True) for token in chat.TOOL_MARKS])
    tokenizer.save(str(args.out / "tokenizer.json"))
    shutil.copy(args.model / "tokenizer_config.json", args.out)

    old = checkpoint.load(args.model)
    rows = -(-tokenizer.get_vocab_size() // 8) * 8
    model = Model(dataclasses.replace(old.config, vocab_size=rows))
    state = old.state_dict()
    model.load_state_dict(state | {name: grown(state[name], before, rows) for name in ROWS})
    checkpoint.save(model, args.out)
    print(f"{tokenizer.get_vocab_size()} tokens, {rows} rows")


if __name__ == "__main__":
    main()
