#!/usr/bin/env python3
"""Measures an exported model: accuracy on held-out questions, acceptance of drafts.

Decodes greedily in float32 with the weights as exported. An answer is right if
the text after </think> is the expected sentence. Acceptance follows Eagle (one
module, recycled) and Vanilla (modules in sequence) under the strict greedy rule.

A draft is worth comparing only as long as all drafts before it were right, and
then its inputs are committed tokens: so the drafts of all positions are computed
in one pass over the finished text, and the decode steps are then replayed.

    evaluate.py --model .. --questions ../heldout.jsonl
"""

import argparse
import collections
import json
import pathlib
import time

import torch
from tokenizers import Tokenizer

import checkpoint
from dataset import PAD, prompt_ids

EOS = 1


def decode_row(model, ids, position, caches):
    """Logits after one more token of every sequence, at one common position."""
    rope = tuple(part[position:position + 1] for part in (model.cos, model.sin))
    x = model.embed_tokens(ids).unsqueeze(1)
    for layer, cache in zip(model.layers, caches):
        q, k, v = layer.self_attn.project(layer.input_layernorm(x), rope)
        cache.append((k, v))
        keys, values = (torch.cat(parts, dim=2) for parts in zip(*cache))
        cache[:] = [(keys, values)]
        mixed = (q @ keys.transpose(-1, -2)).softmax(-1) @ values
        x = x + layer.self_attn.o_proj(mixed.transpose(1, 2).flatten(2))
        x = x + layer.mlp(layer.post_attention_layernorm(x))
    return model.lm_head(model.norm(x[:, 0]))


def generate(model, prompts, max_tokens):
    """Greedy replies; every sequence is fed its own prompt, then its own tokens."""
    rows = [list(prompt) for prompt in prompts]
    caches = [[] for _ in model.layers]
    for position in range(min(map(len, prompts)) + max_tokens):
        ids = torch.tensor([row[position] if position < len(row) else PAD for row in rows])
        best = decode_row(model, ids, position, caches).argmax(-1).tolist()
        for row, prompt, token in zip(rows, prompts, best):
            open_end = len(row) == position + 1 and position + 1 >= len(prompt)
            if open_end and row[-1] != EOS and len(row) < len(prompt) + max_tokens:
                row.append(token)
        if all(row[-1] == EOS or len(row) >= len(prompt) + max_tokens for row, prompt in zip(rows, prompts)):
            break
    return rows


def draft_hits(model, ids, vanilla):
    """hits[d][s]: whether the draft of depth d made for position s is ids[s]."""
    tokens = torch.tensor([ids])
    previous, levels, hits = model(tokens), [], []
    for depth in range(model.config.num_nextn_predict_layers):
        if vanilla or depth == 0:
            offset = depth + 1
            previous = model.draft(depth, tokens[:, offset:], previous[:, :-1], [] if vanilla else levels)
        else:
            previous = model.draft(0, tokens[:, 1:], previous.roll(1, 1), levels)
        drafts = model.lm_head(previous[0, :-1]).argmax(-1)
        hits.append([False] * (offset + 1) + (drafts == tokens[0, offset + 1:]).tolist())
    return hits


def replay(hits, first, end, max_drafts):
    """Decode steps and tokens emitted by them; token `first` came with the prefill."""
    steps = emitted = 0
    last = first
    while last + 1 < end:
        accepted = 0
        while accepted < max_drafts and last + 1 + accepted < end and hits[accepted][last + 1 + accepted]:
            accepted += 1
        advance = min(accepted + 1, end - 1 - last)
        steps, emitted, last = steps + 1, emitted + advance, last + advance
    return steps, emitted


@torch.no_grad()
def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=pathlib.Path, required=True)
    parser.add_argument("--questions", type=pathlib.Path, required=True)
    parser.add_argument("--max-tokens", type=int, default=256)
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--limit", type=int, help="questions of each kind at most")
    parser.add_argument("--wrong", type=int, default=0, help="print so many wrong replies of each kind")
    args = parser.parse_args()
    torch.set_num_threads(1)
    started = time.time()
    model = checkpoint.load(args.model)
    tokenizer = Tokenizer.from_file(str(args.model / "tokenizer.json"))
    kinds = collections.defaultdict(list)
    for line in args.questions.read_text().splitlines():
        item = json.loads(line)
        kinds[item["kind"]].append(item)
    totals = collections.Counter()
    for kind, items in kinds.items():
        items = items[:args.limit]
        counts = collections.Counter()
        for start in range(0, len(items), args.batch):
            part = items[start:start + args.batch]
            prompts = [prompt_ids(tokenizer, item["question"]) for item in part]
            for item, prompt, row in zip(part, prompts, generate(model, prompts, args.max_tokens)):
                reply = tokenizer.decode(row[len(prompt):], skip_special_tokens=True)
                right = row[-1] == EOS and reply.split("</think>")[-1].strip() == item["answer"]
                counts += collections.Counter(asked=1, right=right, tokens=len(row) - len(prompt))
                if not right and counts["asked"] - counts["right"] <= args.wrong:
                    print(f"wrong: {item['question']}\n{reply}\nexpected: {item['answer']}\n")
                for mode in ("eagle", "vanilla"):
                    hits = draft_hits(model, row, mode == "vanilla")
                    for k in range(1, len(hits) + 1):
                        steps, emitted = replay(hits, len(prompt), len(row), k)
                        counts += collections.Counter({f"{mode}{k} steps": steps, f"{mode}{k} tokens": emitted})
        report(kind, counts)
        totals += counts
    report("all", totals)
    print(f"{time.time() - started:.0f} s")


def report(kind, counts):
    lengths = " ".join(f"{mode}-K{k} {counts[f'{mode}{k} tokens'] / max(counts[f'{mode}{k} steps'], 1):.3f}"
                       for mode in ("eagle", "vanilla") for k in (1, 2, 3))
    print(f"{kind}: {counts['right']}/{counts['asked']} = {100 * counts['right'] / counts['asked']:.1f}%, "
          f"{counts['tokens'] / counts['asked']:.1f} tokens a reply, {lengths}", flush=True)


if __name__ == "__main__":
    main()
