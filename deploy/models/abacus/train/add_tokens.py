#!/usr/bin/env python3
"""Adds tools to a model: the marks of their calls, nine tokens, rows for these in the embedding and the head, and a chat
template that declares tools.

A new row is the mean of the old ones plus noise of a tenth of their spread. The MTP modules share both matrices.

    add_tokens.py --model .. --out /tmp/abacus-tools/start
"""

import argparse
import dataclasses
import json
import pathlib

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
    config = json.loads((args.model / "tokenizer_config.json").read_text()) | {"chat_template": chat.template()}
    (args.out / "tokenizer_config.json").write_text(json.dumps(config, indent=2, ensure_ascii=False) + "\n")

    old = checkpoint.load(args.model)
    rows = -(-tokenizer.get_vocab_size() // 8) * 8
    model = Model(dataclasses.replace(old.config, vocab_size=rows))
    state = old.state_dict()
    model.load_state_dict(state | {name: grown(state[name], before, rows) for name in ROWS})
    checkpoint.save(model, args.out)
    print(f"{tokenizer.get_vocab_size()} tokens, {rows} rows")


if __name__ == "__main__":
    main()
