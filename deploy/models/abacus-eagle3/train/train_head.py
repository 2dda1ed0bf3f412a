#!/usr/bin/env python3
"""Trains an Eagle3 head for abacus, which stays as it is.

Every row learns the target's own distribution (soft cross entropy). The head is rolled out over
its own outputs --depth times, each draft with --depth-weight of the one before it, and attends as
it does when it serves: true rows up to where the drafts begin, then its own.

    train_head.py --target ../../abacus --out .. --seconds 2400
"""

import argparse
import pathlib
import sys
import time

import torch
from torch.nn import functional

TRAIN = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(TRAIN), str(TRAIN.parent.parent / "abacus" / "train")]

import checkpoint  # noqa: E402
import optimizer  # noqa: E402
from dataset import Batches  # noqa: E402
from eagle3 import Head, save, target_rows  # noqa: E402
from train import learning_rate  # noqa: E402

# The mix of stage four of abacus' own training.
KINDS = ["addition", "multiplication", "sorting", "sorting", "counting", "counting", "comparing", "dates", "units", "stories",
         "stories", "lists", "lists"]


def draft_loss(head, output, target_logits, said, depth):
    """Summed soft cross entropy, count and hits of drafts `depth` deep; row r is the token at r + 1."""
    # A draft counts from the first one that can be made of a reply.
    counted = said[:, 2:] & functional.pad(said, (depth, 0))[:, 2:said.shape[1]]
    chosen = counted.flatten().nonzero().squeeze(1)
    # Rounded up with row 0, which has weight 0: few shapes, few compiled kernels.
    rows = functional.pad(chosen, (0, -len(chosen) % 128))
    weight = (torch.arange(len(rows)) < len(chosen)).float()
    logits = head.logits(output[:, :-1].flatten(0, 1).index_select(0, rows))
    theirs = target_logits[:, 1:-1].flatten(0, 1).index_select(0, rows)
    loss = -((theirs.softmax(-1) * logits.log_softmax(-1)).sum(-1) * weight).sum()
    hits = ((logits.detach().argmax(-1) == theirs.argmax(-1)) * weight).sum().item()
    return loss, len(chosen), hits


def losses(target, head, ids, said, depth):
    with torch.no_grad():
        taps, target_logits = target_rows(target, ids)
        embedded = target.embed_tokens(ids[:, 1:])
    rope, levels, found = target.rope(ids.shape[1] - 1), [], []
    previous = head.fc(taps[:, :-1].float())
    for k in range(1, depth + 1):
        output = head(embedded, previous, rope, levels)
        found.append(draft_loss(head, output, target_logits, said, k))
        # The first row receives junk; it lies in the prompt, where nothing is counted.
        previous = output.roll(1, 1)
    return found


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", type=pathlib.Path, required=True, help="folder of abacus")
    parser.add_argument("--out", type=pathlib.Path, required=True, help="folder of the head; train.log is written there, too")
    parser.add_argument("--seconds", type=float, default=2400)
    parser.add_argument("--micro-tokens", type=int, default=2048)
    parser.add_argument("--micro-batches", type=int, default=2)
    parser.add_argument("--depth", type=int, default=5)
    parser.add_argument("--depth-weight", type=float, default=0.8)
    parser.add_argument("--muon-lr", type=float, default=0.02)
    parser.add_argument("--adam-lr", type=float, default=0.003)
    parser.add_argument("--warmup", type=int, default=50)
    parser.add_argument("--decay", type=float, default=0.6, help="share of the time that the rate falls")
    parser.add_argument("--bf16", action="store_true", help="where the processor multiplies BF16")
    parser.add_argument("--seed", type=int, default=31)
    parser.add_argument("--log-every", type=int, default=20)
    return parser.parse_args()


def main():
    args = parse_arguments()
    torch.manual_seed(args.seed)
    torch.set_num_threads(1)
    target = checkpoint.load(args.target).requires_grad_(False)
    head = Head(target.config)
    head.lm_head.load_state_dict(target.lm_head.state_dict())
    optimizers = optimizer.build(head, args.muon_lr, args.adam_lr)
    batches = Batches(args.target / "tokenizer.json", args.micro_tokens, KINDS, args.seed)
    (args.out / "train").mkdir(parents=True, exist_ok=True)
    log = open(args.out / "train" / "train.log", "w", buffering=1)
    print("command: train_head.py", *sys.argv[1:], file=log)
    print("parameters:", sum(p.numel() for p in head.parameters()), file=log)
    started, step, tokens, window = time.time(), 0, 0, {}
    while (progress := (time.time() - started) / args.seconds) < 1:
        for _ in range(args.micro_batches):
            ids, said, _, _ = next(batches)
            tokens += int(said.sum())
            with torch.autocast("cpu", torch.bfloat16, enabled=args.bf16):
                found = losses(target, head, ids, said, args.depth)
            weighted = sum(loss / max(count, 1) * args.depth_weight**k for k, (loss, count, _) in enumerate(found))
            (weighted / args.micro_batches).backward()
            for k, (loss, count, hits) in enumerate(found):
                window[k] = [a + b for a, b in zip(window.get(k, (0, 0, 0)), (loss.item(), count, hits))]
        torch.nn.utils.clip_grad_norm_(head.parameters(), 1.0)
        for each in optimizers:
            for group in each.param_groups:
                group["lr"] = group.setdefault("peak_lr", group["lr"]) * learning_rate(step, progress, args)
            each.step()
            each.zero_grad(set_to_none=True)
        step += 1
        if step % args.log_every == 0:
            drafts = " ".join(f"draft{k + 1} {loss / count:.4f} {100 * hits / count:.1f}%"
                              for k, (loss, count, hits) in window.items())
            print(f"step {step} s {time.time() - started:.0f} reply tokens {tokens} {drafts}", file=log)
            window = {}
            if step % (10 * args.log_every) == 0:
                save(head, args.target, args.out)
    save(head, args.target, args.out)


if __name__ == "__main__":
    main()
