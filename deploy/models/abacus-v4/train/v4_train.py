#!/usr/bin/env python3
"""Trains one part of abacus-v4: the target, or one of its drafters on the frozen target.

    v4_train.py --part target --work /tmp/abacus-v4 --seconds 2700
    v4_train.py --part mtp    --work /tmp/abacus-v4 --seconds 480
    v4_train.py --part dspark --work /tmp/abacus-v4 --seconds 900

Each part has its own checkpoint in --work. A run that was stopped goes on from it when started again; the rate falls by
time, to zero at --seconds. A file named `stop` in --work ends a run after its step. Under torchrun the processes share
each step, --micro-batches each.
"""

import argparse
import os
import pathlib
import sys
import time

import torch
import torch.distributed as dist

import abacus_path
from dataset import Batches
from objectives import OBJECTIVES
from optimizer import Muon
from train import learning_rate, sum_over_processes
from v4_layers import Config, Experts
from v4_model import Model

KINDS = (["addition"] * 2 + ["multiplication"] * 2 + ["sorting"] * 4 + ["counting"] * 3 + ["counting_shuffled"] + ["comparing"] * 3
         + ["dates"] * 2 + ["units"] * 4 + ["stories"] * 2 + ["lists"] * 3)
ADAM_NAMES = ("embed_tokens.weight", "lm_head.weight", "gate", "ape", "markov_w1", "markov_w2", "confidence")


def part_of(model, part):
    """(name, parameter) of what a part trains."""
    if part != "target":
        return [(f"{part}.{name}", p) for name, p in getattr(model, part).named_parameters()]
    return [(name, p) for name, p in model.named_parameters() if not name.startswith(("mtp.", "dspark."))]


def build_optimizers(named, muon_lr, adam_lr):
    """Muon for matrices, AdamW for the rest. Hyper-connections read all streams at once, so small steps move them far."""
    groups = {"muon": [], "adam": [], "hyper": []}
    for name, parameter in named:
        group = "hyper" if name.endswith(".fn") else "adam" if parameter.ndim < 2 or name.endswith(ADAM_NAMES) else "muon"
        groups[group].append(parameter)
    adam = [{"params": groups["adam"], "lr": adam_lr}, {"params": groups["hyper"], "lr": 0.1 * adam_lr}]
    return [Muon(groups["muon"], muon_lr), torch.optim.AdamW(adam, betas=(0.9, 0.95), weight_decay=0.0)]


def train_step(model, named, optimizers, batches, args, step, progress):
    micro = [next(batches) for _ in range(args.micro_batches)]
    totals = {}
    for ids, said, *_ in micro:
        with torch.autocast("cpu", torch.bfloat16):
            found = OBJECTIVES[args.part](model, ids, said, args)
        count = max(1, sum(part[2] for part in found))
        sum(part[1] for part in found).div(count * len(micro)).backward()
        for name, loss, count, hits in found:
            old = totals.get(name, (0.0, 0, 0))
            totals[name] = (old[0] + loss.item(), old[1] + count, old[2] + hits)
    average_over_processes(named)
    torch.nn.utils.clip_grad_norm_([p for _, p in named], 1.0)
    rate = learning_rate(step, progress, args)
    for each in optimizers:
        for group in each.param_groups:
            group["lr"] = group.setdefault("peak_lr", group["lr"]) * rate
        each.step()
        each.zero_grad(set_to_none=True)
    balance(model, args.bias_speed * rate)
    return totals, sum(ids.numel() for ids, *_ in micro)


def average_over_processes(named):
    gradients = [p.grad for _, p in named if p.grad is not None]
    sum_over_processes(gradients)
    if dist.is_initialized():
        torch._foreach_div_(gradients, dist.get_world_size())


def balance(model, speed):
    """The routing bias follows the load, without an auxiliary loss."""
    balanced = [module for module in model.modules() if isinstance(module, Experts) and module.training and not module.hashed]
    if balanced:
        sum_over_processes([module.load for module in balanced])
        for module in balanced:
            module.bias += speed * (module.load.mean() - module.load).sign()
            module.load.zero_()


def progress_of(args, seconds):
    """The share of the time that is over, by the first process's clock; at least 1 ends the run."""
    progress = torch.zeros(1)
    if args.rank == 0:
        progress += 1.0 if (args.work / "stop").exists() else seconds / args.seconds
    sum_over_processes([progress])
    return progress.item()


def save(path, model, optimizers, batches, step, seconds):
    state = {"model": model.state_dict(), "optimizers": [each.state_dict() for each in optimizers],
             "rng": batches.rng.getstate(), "waiting": batches.waiting, "step": step, "seconds": seconds}
    torch.save(state, path.with_suffix(".part"))
    path.with_suffix(".part").rename(path)


def load_state(args, model, optimizers, batches):
    """Step and seconds of an earlier run of this part; a drafter starts from the target's checkpoint."""
    path = args.work / f"{args.part}.pt"
    if not path.exists():
        if args.part != "target":
            trained = torch.load(args.work / "target.pt", weights_only=False)["model"]
            model.load_state_dict({name: tensor for name, tensor in trained.items()
                                   if not name.startswith(("mtp.", "dspark."))}, strict=False)
        return 0, 0.0
    state = torch.load(path, weights_only=False)
    model.load_state_dict(state["model"])
    for each, saved in zip(optimizers, state["optimizers"]):
        each.load_state_dict(saved)
    if args.rank == 0:
        batches.rng.setstate(state["rng"])
        batches.waiting = state["waiting"]
    else:
        batches.rng.seed(f"{args.seed} {args.rank} {state['step']}")
    return state["step"], state["seconds"]


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--part", choices=OBJECTIVES, required=True)
    parser.add_argument("--work", type=pathlib.Path, required=True, help="folder of the checkpoints and the logs")
    parser.add_argument("--seconds", type=float, default=2700)
    parser.add_argument("--micro-batches", type=int, default=2)
    parser.add_argument("--micro-tokens", type=int, default=1536)
    parser.add_argument("--kinds", nargs="*", default=KINDS)
    parser.add_argument("--levels", type=int, default=4, help="applications of the MTP module that are trained")
    parser.add_argument("--blocks", type=float, default=0.25, help="DSpark: blocks per row of the text")
    parser.add_argument("--muon-lr", type=float, default=0.02)
    parser.add_argument("--adam-lr", type=float, default=0.004)
    parser.add_argument("--warmup", type=int, default=40)
    parser.add_argument("--decay", type=float, default=0.7, help="share of the time that the rate falls")
    parser.add_argument("--bias-speed", type=float, default=0.002)
    parser.add_argument("--seed", type=int, default=4)
    parser.add_argument("--save-every", type=float, default=90, help="seconds between checkpoints")
    parser.add_argument("--log-every", type=int, default=20)
    args = parser.parse_args()
    args.rank = int(os.environ.get("RANK", 0))
    return args


def run(args, model, named, optimizers, batches, log):
    step, before = load_state(args, model, optimizers, batches)
    print("command: v4_train.py", *sys.argv[1:], f"from step {step},", sum(p.numel() for _, p in named), "parameters", file=log)
    path, started = args.work / f"{args.part}.pt", time.time()
    saved_at = window_start = started
    window, tokens = {}, 0
    while (progress := progress_of(args, before + time.time() - started)) < 1:
        totals, count = train_step(model, named, optimizers, batches, args, step, progress)
        step, tokens = step + 1, tokens + count
        for name, numbers in totals.items():
            window[name] = [a + b for a, b in zip(window.get(name, (0, 0, 0)), numbers)]
        now = time.time()
        if step % args.log_every == 0:
            heads = " ".join(f"{name} {loss / max(n, 1):.4f} {100 * hits / max(n, 1):.1f}%" for name, (loss, n, hits) in window.items())
            print(f"step {step} s {before + now - started:.0f} tok/s {tokens / (now - window_start):.0f} {heads}", file=log)
            window, tokens, window_start = {}, 0, now
        if args.rank == 0 and now - saved_at > args.save_every:
            save(path, model, optimizers, batches, step, before + now - started)
            saved_at = now
    if args.rank == 0:
        save(path, model, optimizers, batches, step, before + time.time() - started)


def main():
    args = parse_arguments()
    torch.manual_seed(args.seed)
    torch.set_num_threads(1)
    if "RANK" in os.environ:
        dist.init_process_group("gloo")
    args.work.mkdir(parents=True, exist_ok=True)
    model = Model(Config())
    model.requires_grad_(False).eval()
    named = part_of(model, args.part)
    for _, parameter in named:
        parameter.requires_grad_(True)
    (model if args.part == "target" else getattr(model, args.part)).train()
    optimizers = build_optimizers(named, args.muon_lr, args.adam_lr)
    batches = Batches(abacus_path.ABACUS / "tokenizer.json", args.micro_tokens, args.kinds, f"{args.seed} {args.part} {args.rank}")
    with open(args.work / "train.log" if args.rank == 0 else os.devnull, "a", buffering=1) as log:
        run(args, model, named, optimizers, batches, log)


if __name__ == "__main__":
    main()
