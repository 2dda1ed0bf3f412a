#!/usr/bin/env python3
"""Measures an exported model: accuracy on held-out questions, acceptance of drafts.

Decodes in float32 with the weights as exported. An answer is right if the text
after </think> is the expected sentence, or, for stories and lists, if
free_choices.is_right. Acceptance follows Eagle (one module, recycled) and Vanilla
(modules in sequence) under the strict rule.

With --temperatures the replies are sampled, and Eagle's drafts are made in three
ways: with the noise that chose the target's tokens (what the server does), as the
most probable token, and with noise of their own.

A draft is worth comparing only as long as all drafts before it were right, and
then its inputs are committed tokens: so the drafts of all positions are computed
in one pass over the finished text, and the decode steps are then replayed.

    evaluate.py --model .. --questions ../heldout.jsonl
    evaluate.py --model .. --questions ../free.jsonl --temperatures 0.6 1.0 1.5
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
from free_choices import FREE_KINDS, is_right

EOS = 1
OTHER_SEED = 1_000_000  # added to a reply's seed for noise that its tokens did not use


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


def gumbel_noise(seed, rows, vocab_size):
    """[rows, vocab_size], a function of the seed: the maximum of log q + noise is a sample of q."""
    uniform = torch.rand(rows, vocab_size, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return -(-uniform.clamp_min(1e-300).log()).log().float()


def choose(logits, temperature, noise):
    """The token of each row: the most probable one at temperature 0, else a sample."""
    return (logits / temperature + noise if temperature else logits).argmax(-1)


def generate(model, prompts, max_tokens, temperature=0.0, seeds=()):
    """Replies; every sequence is fed its own prompt, then its own tokens."""
    rows = [list(prompt) for prompt in prompts]
    caches = [[] for _ in model.layers]
    length = max(map(len, prompts)) + max_tokens
    noise = [gumbel_noise(seed, length, model.config.vocab_size) for seed in seeds] if temperature else None
    for position in range(min(map(len, prompts)) + max_tokens):
        ids = torch.tensor([row[position] if position < len(row) else PAD for row in rows])
        logits = decode_row(model, ids, position, caches)
        own = torch.stack([each[position + 1] for each in noise]) if temperature else None
        for row, prompt, token in zip(rows, prompts, choose(logits, temperature, own).tolist()):
            open_end = len(row) == position + 1 and position + 1 >= len(prompt)
            if open_end and row[-1] != EOS and len(row) < len(prompt) + max_tokens:
                row.append(token)
        if all(row[-1] == EOS or len(row) >= len(prompt) + max_tokens for row, prompt in zip(rows, prompts)):
            break
    return rows


def draft_logits(model, ids, vanilla):
    """logits[d][r] of the draft of depth d for position d + 2 + r with Vanilla, 2 + r with Eagle."""
    tokens = torch.tensor([ids])
    previous, levels, found = model(tokens), [], []
    for depth in range(model.config.num_nextn_predict_layers):
        if vanilla or depth == 0:
            previous = model.draft(depth, tokens[:, depth + 1:], previous[:, :-1], [] if vanilla else levels)
        else:
            previous = model.draft(0, tokens[:, 1:], previous.roll(1, 1), levels)
        found.append(model.lm_head(previous[0, :-1]))
    return found


def draft_hits(logits, ids, temperature=0.0, noise=None):
    """hits[d][s]: whether the draft of depth d made for position s is ids[s]."""
    hits = []
    for each in logits:
        offset = len(ids) - len(each)
        drafts = choose(each, temperature, noise[offset:len(ids)] if temperature else None)
        hits.append([False] * offset + (drafts == torch.tensor(ids[offset:])).tolist())
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


def counted_hits(name, hits, prompt, row):
    """Steps and tokens for each number of drafts."""
    counts = collections.Counter()
    for k in range(1, len(hits) + 1):
        steps, emitted = replay(hits, len(prompt), len(row), k)
        counts += collections.Counter({f"{name}-K{k} steps": steps, f"{name}-K{k} tokens": emitted})
    return counts


def drafted(model, prompt, row, temperature, seed):
    """What each way of drafting gains over one finished reply."""
    eagle = draft_logits(model, row, vanilla=False)
    if not temperature:
        vanilla = draft_logits(model, row, vanilla=True)
        return (counted_hits("eagle", draft_hits(eagle, row), prompt, row)
                + counted_hits("vanilla", draft_hits(vanilla, row), prompt, row))
    same, other = (gumbel_noise(s, len(row), model.config.vocab_size) for s in (seed, OTHER_SEED + seed))
    return (counted_hits("same-noise", draft_hits(eagle, row, temperature, same), prompt, row)
            + counted_hits("greedy", draft_hits(eagle, row), prompt, row)
            + counted_hits("independent", draft_hits(eagle, row, temperature, other), prompt, row))


def right(item, row, reply):
    if row[-1] != EOS:
        return False
    return is_right(item, reply) if item["kind"] in FREE_KINDS else reply.split("</think>")[-1].strip() == item["answer"]


def evaluate(model, tokenizer, items, args, temperature):
    counts = collections.Counter()
    for start in range(0, len(items), args.batch):
        part = items[start:start + args.batch]
        prompts = [prompt_ids(tokenizer, item["question"]) for item in part]
        seeds = range(start, start + len(part))
        rows = generate(model, prompts, args.max_tokens, temperature, seeds)
        for item, prompt, row, seed in zip(part, prompts, rows, seeds):
            reply = tokenizer.decode(row[len(prompt):], skip_special_tokens=True)
            good = right(item, row, reply)
            counts += collections.Counter(asked=1, right=good, tokens=len(row) - len(prompt))
            if not good and counts["asked"] - counts["right"] <= args.wrong:
                print(f"wrong: {item['question']}\n{reply}\nexpected: {item.get('answer', item.get('asked'))}\n")
            counts += drafted(model, prompt, row, temperature, seed)
    return counts


@torch.no_grad()
def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=pathlib.Path, required=True)
    parser.add_argument("--questions", type=pathlib.Path, required=True)
    parser.add_argument("--temperatures", type=float, nargs="*", default=[0.0])
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
    for temperature in args.temperatures:
        print(f"temperature {temperature:g}")
        totals = collections.Counter()
        for kind, items in kinds.items():
            counts = evaluate(model, tokenizer, items[:args.limit], args, temperature)
            report(kind, counts)
            totals += counts
        report("all", totals)
    print(f"{time.time() - started:.0f} s")


def report(kind, counts):
    ways = [name.removesuffix(" steps") for name in counts if name.endswith(" steps")]
    lengths = " ".join(f"{way} {counts[f'{way} tokens'] / max(counts[f'{way} steps'], 1):.3f}" for way in ways)
    print(f"{kind}: {counts['right']}/{counts['asked']} = {100 * counts['right'] / counts['asked']:.1f}%, "
          f"{counts['tokens'] / counts['asked']:.1f} tokens a reply, {lengths}", flush=True)


if __name__ == "__main__":
    main()
