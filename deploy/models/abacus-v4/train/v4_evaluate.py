#!/usr/bin/env python3
"""Measures the exported model: accuracy on held-out questions, and acceptance of both drafters.

Decodes greedily, in float32 with the weights as exported. Acceptance is replayed over each finished reply, as abacus'
evaluate.py explains: a draft is worth comparing only as long as all drafts before it were right, and then its inputs are
committed tokens.

    v4_evaluate.py --model .. --questions ../../abacus/heldout.jsonl ../../abacus/free.jsonl
"""

import argparse
import collections
import json
import pathlib
import time

import torch
from tokenizers import Tokenizer

import abacus_path  # noqa: F401
import v4_checkpoint
from dataset import PAD, prompt_ids
from evaluate import EOS, draft_hits, replay, right

DRAFTS = 5


class LayerCache:
    """One layer's keys of the window, candidates of its compressor and entries, of sequences that stand at one position."""

    def __init__(self, model, layer):
        self.attn, self.tables = layer.attn, model.tables(layer.attn.ratio)
        self.keys, self.entries, self.values, self.gates = ([] for _ in range(4))

    def attention(self, x, position):
        attn, ratio = self.attn, self.attn.ratio
        rope = tuple(part[position:position + 1] for part in self.tables)
        self.keys = [*self.keys, attn.key(x, rope)][-attn.config.sliding_window:]
        if ratio:
            values, gates = attn.compressor.candidates(x, position)
            spans = 2 if ratio == 4 else 1
            self.values = [*self.values, values][-spans * ratio:]
            self.gates = [*self.gates, gates][-spans * ratio:]
            if (position + 1) % ratio == 0:
                first = (position + 1 - len(self.values)) // ratio
                pooled = attn.compressor.pool(torch.cat(self.values, 1), torch.cat(self.gates, 1), self.tables, first)
                self.entries.append(pooled[:, -1:])
        keys = torch.cat(self.keys + self.entries, 1)
        seen = torch.ones(1, keys.shape[1], dtype=torch.bool)
        return attn.output(attn.attend(attn.queries(x, rope), keys, seen), rope)


def decode_row(model, ids, position, caches):
    """Logits after one more token of every sequence, at one common position."""
    ids = ids.unsqueeze(1)
    streams = model.embed_tokens(ids).unsqueeze(-2).expand(-1, -1, model.config.hc_mult, -1)
    for layer, cache in zip(model.layers, caches):
        streams = layer(streams, ids, lambda x, c=cache: c.attention(x, position))
    return model.lm_head(model.head_input(streams))[:, 0]


def generate(model, prompts, max_tokens):
    """Replies; every sequence is fed its own prompt, then its own tokens."""
    rows, caches = [list(prompt) for prompt in prompts], [LayerCache(model, layer) for layer in model.layers]
    for position in range(max(map(len, prompts)) + max_tokens):
        ids = torch.tensor([row[position] if position < len(row) else PAD for row in rows])
        logits = decode_row(model, ids, position, caches)
        for row, prompt, token in zip(rows, prompts, logits.argmax(-1).tolist()):
            open_end = len(row) == position + 1 and position + 1 >= len(prompt)
            if open_end and row[-1] != EOS and len(row) < len(prompt) + max_tokens:
                row.append(token)
        if all(row[-1] == EOS or len(row) >= len(prompt) + max_tokens for row, prompt in zip(rows, prompts)):
            break
    return rows


def mtp_hits(model, ids, streams, first):
    """hits[d][s]: whether the draft of depth d made for position s is ids[s]."""
    levels = model.mtp_levels(torch.tensor([ids]), streams[-1], DRAFTS)
    return draft_hits([model.lm_head(rows[0, :-1]) for rows in levels], ids)


def dspark_hits(model, ids, streams, first):
    """The same by blocks from every place of the reply, each draft after the true tokens before it."""
    tokens, g = torch.tensor([ids]), model.config.dspark_block_size
    main_x = model.dspark.context([streams[layer] for layer in model.config.dspark_target_layer_ids])
    anchors = torch.arange(first, len(ids) - 1)[None]
    hidden = model.dspark(model.embed_tokens, main_x, tokens, anchors, model.tables())[0]
    places = anchors[0].unsqueeze(-1) + torch.arange(g)
    padded = torch.tensor(ids + [PAD] * (g + 1))
    drafts = model.dspark.draft_logits(model.lm_head, hidden, padded[places])[0].argmax(-1)
    right_at = drafts == padded[places + 1]
    hits = torch.zeros(g, len(padded), dtype=torch.bool)
    hits[torch.arange(g), places + 1] = right_at
    return hits[:, :len(ids)].tolist()


HITS = {"mtp": mtp_hits, "dspark": dspark_hits}


def acceptance(name, hits, first, end):
    """Steps and tokens by number of drafts; and of all places of a reply that have all drafts, how many have the first k right."""
    counts = collections.Counter()
    for k in range(1, DRAFTS + 1):
        steps, emitted = replay(hits, first, end, k)
        counts += collections.Counter({f"{name}-K{k} steps": steps, f"{name}-K{k} tokens": emitted})
    for place in range(first, end - DRAFTS):
        counts[f"{name} places"] += 1
        for k in range(DRAFTS):
            if not hits[k][place + 1 + k]:
                break
            counts[f"{name} {k + 1} right"] += 1
    return counts


def evaluate(model, tokenizer, items, args):
    counts = collections.Counter()
    prompts = [prompt_ids(tokenizer, item["question"]) for item in items]
    for item, prompt, row in zip(items, prompts, generate(model, prompts, args.max_tokens)):
        reply = tokenizer.decode(row[len(prompt):], skip_special_tokens=True)
        good = right(item, row, reply)
        counts += collections.Counter(asked=1, right=good, tokens=len(row) - len(prompt))
        if not good and counts["asked"] - counts["right"] <= args.wrong:
            print(f"wrong: {item['question']}\n{reply}\nexpected: {item.get('answer', item.get('asked'))}\n")
        streams = model.streams(torch.tensor([row])) if args.drafters else None
        for name in args.drafters:
            counts += acceptance(name, HITS[name](model, row, streams, len(prompt)), len(prompt), len(row))
    return counts


def report(kind, counts, drafters):
    asked = max(counts["asked"], 1)
    cells = [kind, f"{counts['right']} of {asked}", f"{100 * counts['right'] / asked:.1f}%", f"{counts['tokens'] / asked:.0f}"]
    for name in drafters:
        cells += [f"{counts[f'{name}-K{k} tokens'] / max(counts[f'{name}-K{k} steps'], 1):.2f}" for k in range(1, DRAFTS + 1)]
    for name in drafters:
        shares = [f"{100 * counts[f'{name} {k} right'] / max(counts[f'{name} places'], 1):.1f}" for k in range(1, DRAFTS + 1)]
        cells.append(f"{name} first k right, %: {' '.join(shares)}")
    print("| " + " | ".join(cells) + " |", flush=True)


@torch.no_grad()
def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=pathlib.Path, required=True, help="folder of the checkpoints mtp and dspark")
    parser.add_argument("--questions", type=pathlib.Path, nargs="+", required=True)
    parser.add_argument("--drafters", nargs="*", default=list(HITS), choices=HITS)
    parser.add_argument("--max-tokens", type=int, default=256)
    parser.add_argument("--limit", type=int, help="questions of each kind at most")
    parser.add_argument("--wrong", type=int, default=0, help="print so many wrong replies of each kind")
    args = parser.parse_args()
    torch.set_num_threads(1)
    started = time.time()
    model, _ = v4_checkpoint.load(args.model / "mtp")
    v4_checkpoint.load_into(model, args.model / "dspark", "dspark")
    tokenizer = Tokenizer.from_file(str(args.model / "mtp" / "tokenizer.json"))
    totals = collections.Counter()
    for path in args.questions:
        kinds = collections.defaultdict(list)
        for line in path.read_text().splitlines():
            item = json.loads(line)
            kinds[item["kind"]].append(item)
        together = collections.Counter()
        for kind, items in kinds.items():
            counts = evaluate(model, tokenizer, items[:args.limit], args)
            report(kind, counts, args.drafters)
            together += counts
        report(path.stem, together, args.drafters)
        totals += together
    report("all", totals, args.drafters)
    print(f"{time.time() - started:.0f} s")


if __name__ == "__main__":
    main()
