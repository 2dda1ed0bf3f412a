#!/usr/bin/env python3
"""Trains abacus: the target and its MTP modules together.

The objective is Megatron's: the next-token loss plus mtp_loss_scaling_factor
times the mean of the losses of mtp_num_layers sequential MTP modules. From
--recycle-from on, module 1 is also trained on its own outputs, one and two
applications deep, which is how Eagle drafting uses it. A run stopped at any
time goes on from its last checkpoint when started again.

    train.py --tokenizer ../tokenizer.json --work /tmp/abacus --steps 6000

--begin-from starts a run from an exported model instead of random weights. Under
torchrun the processes share each step, --micro-batches each.
"""

import argparse
import os
import pathlib
import sys
import time

import torch
import torch.distributed as dist
from torch.nn import functional as F

import checkpoint
import optimizer
from dataset import Batches
from model import Config, Model, Moe


def head_loss(model, hidden, ids, said, depth, taught=None):
    """Summed loss, count and hits of predictions made `depth` drafts ahead.

    Row r of `hidden` holds the output for the token at position r + offset, and
    predicts the one after it; only tokens that the model says count, and a draft
    only from the first one of them that can be made. `taught` has a teacher's
    probabilities, and of each row whether they are its targets.
    """
    offset = ids.shape[1] - hidden.shape[1]
    earlier = F.pad(said, (depth, 0))[:, offset + 1:ids.shape[1]]
    counted = said[:, offset + 1:] & earlier
    chosen = counted.flatten().nonzero().squeeze(1)
    # Rounded up with row 0, which is then ignored: few shapes, few compiled kernels.
    extra = -len(chosen) % 128
    rows = F.pad(chosen, (0, extra))
    logits = model.lm_head(hidden[:, :-1].flatten(0, 1).index_select(0, rows)).float()
    wanted = F.pad(ids[:, offset + 1:].flatten()[chosen], (0, extra), value=-100)
    loss = F.cross_entropy(logits, wanted, ignore_index=-100, reduction="none")
    if taught is not None:
        theirs, plain = taught
        theirs = F.pad(theirs.flatten(0, 1).index_select(0, rows), (0, logits.shape[1] - theirs.shape[2]))
        has_teacher = plain[:, None].expand_as(counted).flatten()[rows] & (wanted >= 0)
        loss = torch.where(has_teacher, -(theirs * logits.log_softmax(-1)).sum(-1), loss)
    loss = loss.sum()
    return loss, len(chosen), (logits.detach().argmax(-1) == wanted).sum().item()


@torch.no_grad()
def teaching(teacher, ids, plain):
    """The teacher's probabilities of every next token, and which rows they are for; None where there is none."""
    if teacher is None or not plain.any():
        return None
    return teacher.lm_head(teacher(ids)[:, :-1]).float().softmax(-1), plain


def outputs_before(output, branches):
    """The output of the row before, from the second row on; the trunk's last row is before each branch's first."""
    if branches is None:
        return output[:, :-1]
    begins = branches[:, 1:] != branches[:, :-1]
    last = (branches == 0).sum(1, keepdim=True) - 1
    rows = torch.where(begins, last, torch.arange(output.shape[1] - 1))
    return output.gather(1, rows.unsqueeze(-1).expand(-1, -1, output.shape[2]))


def losses(model, ids, said, branches, taught, mtp_rows, recycle):
    """(name, loss sum, count, hits) of the target, of each module, and of recycling."""
    branches = branches if branches.any() else None
    hidden = model(ids, branches)
    found = [("main", *head_loss(model, hidden, ids, said, 0, taught))]
    if not mtp_rows:
        return found
    ids, said, hidden = ids[:mtp_rows], said[:mtp_rows], hidden[:mtp_rows]
    of = [None if branches is None else branches[:mtp_rows, k:] for k in range(len(model.mtp) + 1)]
    previous, levels, first_output = hidden, [], None
    for k in range(len(model.mtp)):
        own = levels if k == 0 else []
        previous = model.draft(k, ids[:, k + 1:], outputs_before(previous, of[k]), own, of[k + 1])
        found.append((f"mtp{k + 1}", *head_loss(model, previous, ids, said, k + 1)))
        first_output = previous if k == 0 else first_output
    if recycle:
        output = first_output
        for depth in (2, 3):
            # Row 0 and the first of a branch receive junk; they lie in the prompt, where nothing is counted.
            output = model.draft(0, ids[:, 1:], output.roll(1, 1), levels, of[1])
            found.append((f"eagle{depth}", *head_loss(model, output, ids, said, depth)))
    return found


def learning_rate(step, progress, args):
    """Warm-up, a plateau, then a straight line down to zero, which it reaches at progress 1."""
    down = (1 - progress) / args.decay
    return min(1.0, (step + 1) / args.warmup, max(down, 0.0))


def sum_over_processes(tensors):
    """Replaces each tensor by its sum over the processes."""
    if not dist.is_initialized():
        return
    flat = torch.cat([tensor.flatten() for tensor in tensors])
    dist.all_reduce(flat)
    for tensor, part in zip(tensors, flat.split([tensor.numel() for tensor in tensors])):
        tensor.copy_(part.view_as(tensor))


def train_step(model, teacher, optimizers, batches, args, step, progress):
    recycle = step >= args.recycle_from
    fraction = args.mtp_fraction if not recycle else args.recycle_fraction
    totals, micro = {}, [next(batches) for _ in range(args.micro_batches)]
    tokens = torch.tensor([float(sum(int(said.sum()) for _, said, *_ in micro))])
    sum_over_processes([tokens])
    tokens = int(tokens)
    for ids, said, branches, plain in micro:
        rows = max(1, round(fraction * len(ids)))
        with torch.autocast("cpu", torch.bfloat16, enabled=args.bf16):
            taught = teaching(teacher, ids, plain)
            found = losses(model, ids, said, branches, taught, rows if args.mtp_num_layers else 0, recycle)
        factor = args.mtp_loss_scaling_factor / max(len(found) - 1, 1) / fraction
        sum(loss if name == "main" else loss * factor for name, loss, _, _ in found).div(tokens).backward()
        for name, loss, count, hits in found:
            old = totals.get(name, (0.0, 0, 0))
            totals[name] = (old[0] + loss.item(), old[1] + count, old[2] + hits)
    sum_over_processes([p.grad for p in model.parameters() if p.grad is not None])
    moes = [module for module in model.modules() if isinstance(module, Moe)]
    sum_over_processes([moe.load for moe in moes])
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    for each in optimizers:
        for group in each.param_groups:
            group["lr"] = group.setdefault("peak_lr", group["lr"]) * learning_rate(step, progress, args)
        each.step()
        each.zero_grad(set_to_none=True)
    speed = args.bias_speed * learning_rate(step, progress, args)
    for moe in moes:
        moe.e_score_correction_bias += speed * (moe.load.mean() - moe.load).sign()
        moe.load.zero_()
    return totals, tokens


def save(path, model, optimizers, batches, step, seconds):
    state = {"model": model.state_dict(), "optimizers": [each.state_dict() for each in optimizers],
             "rng": batches.rng.getstate(), "waiting": batches.waiting, "step": step, "seconds": seconds}
    torch.save(state, path.with_suffix(".part"))
    path.with_suffix(".part").rename(path)


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokenizer", type=pathlib.Path, required=True)
    parser.add_argument("--work", type=pathlib.Path, required=True, help="folder of the checkpoint and the log")
    parser.add_argument("--begin-from", type=pathlib.Path, help="folder of an exported model to start from")
    parser.add_argument("--teacher", type=pathlib.Path,
                        help="folder of a model whose probabilities are the targets of questions of the old kinds")
    parser.add_argument("--steps", type=int, default=6000)
    parser.add_argument("--seconds", type=float, help="let the rate fall by time, not by steps; stop after so many seconds in all")
    parser.add_argument("--until", type=int, help="stop after this step; default: --steps")
    parser.add_argument("--micro-batches", type=int, default=3, help="micro batches a step")
    parser.add_argument("--micro-tokens", type=int, default=2048)
    parser.add_argument("--kinds", nargs="*", help="default: all; a kind named twice is asked twice as often")
    parser.add_argument("--mtp-num-layers", type=int, default=3)
    parser.add_argument("--mtp-loss-scaling-factor", type=float, default=0.3)
    parser.add_argument("--mtp-fraction", type=float, default=1.0, help="share of the rows the modules see")
    parser.add_argument("--recycle-from", type=int, default=0, help="first step with recycling")
    parser.add_argument("--recycle-fraction", type=float, default=1.0, help="the share from that step on")
    parser.add_argument("--muon-lr", type=float, default=0.02)
    parser.add_argument("--adam-lr", type=float, default=0.004)
    parser.add_argument("--warmup", type=int, default=50)
    parser.add_argument("--decay", type=float, default=0.5, help="share of the steps that the rate falls")
    parser.add_argument("--bias-speed", type=float, default=0.002)
    parser.add_argument("--no-bf16", dest="bf16", action="store_false")
    parser.add_argument("--seed", type=int, default=20)
    parser.add_argument("--save-every", type=float, default=180, help="seconds between checkpoints")
    parser.add_argument("--log-every", type=int, default=20)
    args = parser.parse_args()
    args.until = min(args.until or args.steps, args.steps)
    return args


def main():
    args = parse_arguments()
    torch.manual_seed(args.seed)
    torch.set_num_threads(1)
    rank = int(os.environ.get("RANK", 0))
    if "RANK" in os.environ:
        dist.init_process_group("gloo")
    args.work.mkdir(parents=True, exist_ok=True)
    if args.begin_from:
        model = checkpoint.load(args.begin_from).train()
    else:
        model = Model(Config(num_nextn_predict_layers=args.mtp_num_layers))
    teacher = checkpoint.load(args.teacher) if args.teacher else None
    optimizers = optimizer.build(model, args.muon_lr, args.adam_lr)
    batches = Batches(args.tokenizer, args.micro_tokens, args.kinds, args.seed + rank)
    saved_path, step, before = args.work / "checkpoint.pt", 0, 0.0
    log = open(args.work / "train.log" if rank == 0 else os.devnull, "a", buffering=1)
    if saved_path.exists():
        state = torch.load(saved_path, weights_only=False)
        model.load_state_dict(state["model"])
        for each, saved in zip(optimizers, state["optimizers"]):
            rates = [group["lr"] for group in each.param_groups]
            each.load_state_dict(saved)
            for group, rate in zip(each.param_groups, rates):
                group["peak_lr"] = rate
        if rank == 0:
            batches.rng.setstate(state["rng"])
            batches.waiting = state["waiting"]
        else:
            batches.rng.seed(f"{args.seed} {rank} {state['step']}")
        step, before = state["step"], state["seconds"]
    print("command: train.py", *sys.argv[1:], f"from step {step}", file=log)
    if not step:
        print("parameters:", sum(p.numel() for p in model.parameters()), file=log)
    started = saved_at = time.time()
    window = {}
    tokens_seen, window_start = 0, time.time()
    while step < args.until:
        progress = torch.tensor([0.0])
        if rank == 0:
            seconds = before + time.time() - started
            progress += seconds / args.seconds if args.seconds else step / args.steps
        sum_over_processes([progress])
        if progress >= 1:
            break
        totals, tokens = train_step(model, teacher, optimizers, batches, args, step, progress.item())
        step += 1
        tokens_seen += tokens
        for name, numbers in totals.items():
            window[name] = [a + b for a, b in zip(window.get(name, (0, 0, 0)), numbers)]
        now = time.time()
        if step % args.log_every == 0 or step == args.until:
            heads = " ".join(f"{name} {loss / count:.4f} {100 * hits / count:.1f}%"
                             for name, (loss, count, hits) in window.items())
            rate = tokens_seen / (now - window_start)
            print(f"step {step} s {before + now - started:.0f} reply-tok/s {rate:.0f} {heads}", file=log)
            window, tokens_seen, window_start = {}, 0, now
        if rank == 0 and now - saved_at > args.save_every:
            save(saved_path, model, optimizers, batches, step, before + now - started)
            saved_at = now
    if rank == 0:
        save(saved_path, model, optimizers, batches, step, before + time.time() - started)


if __name__ == "__main__":
    main()
