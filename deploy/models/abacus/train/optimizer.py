"""Muon for the matrices and AdamW for everything else."""

import torch


def orthogonalize(update):
    """The nearest orthogonal matrix to each one of a stack, by Newton-Schulz steps."""
    x = update.bfloat16()
    tall = x.shape[-2] > x.shape[-1]
    if tall:
        x = x.mT
    x = x / (x.float().norm(dim=(-2, -1), keepdim=True) + 1e-7).bfloat16()
    for _ in range(5):
        gram = x @ x.mT
        x = 3.4445 * x + (-4.7750 * gram + 2.0315 * gram @ gram) @ x
    return (x.mT if tall else x).float()


class Muon(torch.optim.Optimizer):
    """Momentum with orthogonal updates; matrices of one shape are updated as one stack."""

    def __init__(self, parameters, lr, momentum=0.95, weight_decay=0.01):
        shapes = {}
        for parameter in parameters:
            shapes.setdefault(parameter.shape[-2:], []).append(parameter)
        super().__init__([{"params": same} for same in shapes.values()],
                         {"lr": lr, "momentum": momentum, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            active = [p for p in group["params"] if p.grad is not None]
            if not active:
                continue
            updates = []
            for p in active:
                state = self.state[p]
                if "momentum" not in state:
                    state["momentum"] = torch.zeros_like(p)
                state["momentum"].lerp_(p.grad, 1 - group["momentum"])
                updates.append(p.grad.lerp(state["momentum"], group["momentum"]).view(-1, *p.shape[-2:]))
            scale = max(1.0, active[0].shape[-2] / active[0].shape[-1]) ** 0.5
            stacked = orthogonalize(torch.cat(updates)).split([len(u) for u in updates])
            for p, update in zip(active, stacked):
                p.mul_(1 - group["lr"] * group["weight_decay"])
                p.add_(update.view_as(p), alpha=-group["lr"] * scale)


def build(model, muon_lr, adam_lr):
    """Both optimizers, each with its share of the model's parameters."""
    matrices, rest = [], []
    for name, parameter in model.named_parameters():
        is_matrix = parameter.ndim >= 2 and not name.endswith(("embed_tokens.weight", "lm_head.weight", "mlp.gate"))
        (matrices if is_matrix else rest).append(parameter)
    return [Muon(matrices, muon_lr), torch.optim.AdamW(rest, adam_lr, betas=(0.9, 0.95), weight_decay=0.0)]
