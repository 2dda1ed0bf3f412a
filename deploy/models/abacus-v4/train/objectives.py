"""What is minimised: the next token for the target; the frozen target's distribution for its drafters.

Every function returns (name, loss sum, count, hits) of each of its parts; only tokens of the reply count.
"""

import torch
from torch.nn import functional as F

import abacus_path  # noqa: F401
from dataset import PAD
from train import head_loss

# The paper's weights of DSpark's losses (arXiv 2607.05147).
CROSS_ENTROPY, DISTANCE, CONFIDENCE = 0.1, 0.9, 1.0


def target_losses(model, ids, said, args):
    return [("main", *head_loss(model, model(ids), ids, said, 0))]


def first_said(said):
    """The index of the reply's first token in each row."""
    return said.int().argmax(1)


@torch.no_grad()
def frozen_target(model, ids):
    """The streams after every layer, and the logits of the token after each row."""
    streams = model.streams(ids)
    return streams, model.lm_head(model.head_input(streams[-1])).float()


def mtp_losses(model, ids, said, args):
    """The module on the target's streams, then recycled on its own, as deep as it drafts."""
    first = first_said(said)
    streams, logits = frozen_target(model, ids)
    found = []
    for level, rows in enumerate(model.mtp_levels(ids, streams[-1], args.levels)):
        drafted = torch.arange(2, ids.shape[1])
        counted = ((drafted >= first[:, None] + level + 1) & (ids[:, 2:] != PAD)).flatten().nonzero().squeeze(1)
        ours = model.lm_head(rows[:, :-1].flatten(0, 1)[counted]).float()
        theirs = logits[:, 1:-1].flatten(0, 1)[counted]
        loss = F.cross_entropy(ours, theirs.softmax(-1), reduction="sum")
        found.append((f"mtp{level + 1}", loss, len(counted), (ours.argmax(-1) == theirs.argmax(-1)).sum().item()))
    return found


def dspark_losses(model, ids, said, args):
    """Blocks from random places of each reply; the Markov head sees the tokens of the text."""
    first = first_said(said)
    g = model.config.dspark_block_size
    streams, logits = frozen_target(model, ids)
    lengths = (ids != PAD).sum(1)
    blocks = max(1, round(args.blocks * ids.shape[1]))
    anchors = first[:, None] + (torch.rand(len(ids), blocks) * (lengths - 1 - first)[:, None]).long()
    main_x = model.dspark.context([streams[layer] for layer in model.config.dspark_target_layer_ids])
    hidden = model.dspark(model.embed_tokens, main_x, ids, anchors, model.tables())
    places = anchors.unsqueeze(-1) + torch.arange(g)
    counted = places + 1 < lengths[:, None, None]
    places = places.clamp(max=ids.shape[1] - 2).flatten(1)
    before, after = ids.gather(1, places)[counted.flatten(1)], ids.gather(1, places + 1)[counted.flatten(1)]
    ours, confidence = model.dspark.draft_logits(model.lm_head, hidden[counted], before)
    theirs = logits.gather(1, places.unsqueeze(-1).expand(-1, -1, logits.shape[-1]))[counted.flatten(1)]
    distance = (ours.softmax(-1) - theirs.softmax(-1)).abs().sum(-1)
    agreement = F.binary_cross_entropy_with_logits(confidence, 1 - 0.5 * distance.detach(), reduction="none")
    loss = CROSS_ENTROPY * F.cross_entropy(ours, after, reduction="none") + DISTANCE * distance + CONFIDENCE * agreement
    k = torch.arange(g).expand_as(counted)[counted]
    loss = loss * torch.exp(-k / g)
    hits = ours.argmax(-1) == theirs.argmax(-1)
    return [(f"dspark{n + 1}", loss[k == n].sum(), int((k == n).sum()), int(hits[k == n].sum())) for n in range(g)]


OBJECTIVES = {"target": target_losses, "mtp": mtp_losses, "dspark": dspark_losses}
