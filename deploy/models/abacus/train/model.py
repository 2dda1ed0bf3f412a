"""The DeepSeek-V3 architecture with MTP modules, small enough to train on one core.

Field names are those of config.json, module names map one to one to the tensor
names of DeepSeek's checkpoints (export.py). Expert weights are kept stacked.
"""

import dataclasses
import math

import torch
from torch import nn
from torch.nn import functional as F


@dataclasses.dataclass
class Config:
    vocab_size: int = 640
    hidden_size: int = 128
    num_hidden_layers: int = 8
    num_nextn_predict_layers: int = 3
    first_k_dense_replace: int = 1
    num_attention_heads: int = 4
    q_lora_rank: int = 64
    kv_lora_rank: int = 64
    qk_nope_head_dim: int = 32
    qk_rope_head_dim: int = 16
    v_head_dim: int = 32
    intermediate_size: int = 384
    moe_intermediate_size: int = 64
    n_routed_experts: int = 8
    n_shared_experts: int = 1
    num_experts_per_tok: int = 2
    n_group: int = 4
    topk_group: int = 2
    routed_scaling_factor: float = 2.0
    rms_norm_eps: float = 1e-6
    rope_theta: float = 10000.0
    yarn_factor: float = 4.0
    yarn_original_positions: int = 1024
    yarn_beta_fast: float = 32.0
    yarn_beta_slow: float = 1.0
    yarn_mscale_all_dim: float = 1.0
    max_position_embeddings: int = 4096


def yarn_frequencies(config):
    """Inverse frequencies of the rotary pairs: slow ones stretched, fast ones kept."""
    dim, theta = config.qk_rope_head_dim, config.rope_theta

    def pair_with_rotations(rotations):
        return dim * math.log(config.yarn_original_positions / (2 * math.pi * rotations)) / (2 * math.log(theta))

    low = max(math.floor(pair_with_rotations(config.yarn_beta_fast)), 0)
    high = min(math.ceil(pair_with_rotations(config.yarn_beta_slow)), dim - 1)
    inverse = theta ** (-torch.arange(0, dim, 2, dtype=torch.float64) / dim)
    ramp = ((torch.arange(dim // 2) - low) / (max(high - low, 0.001))).clamp(0, 1)
    return (inverse / config.yarn_factor * ramp + inverse * (1 - ramp)).float()


def softmax_scale(config):
    mscale = 0.1 * config.yarn_mscale_all_dim * math.log(config.yarn_factor) + 1
    return (config.qk_nope_head_dim + config.qk_rope_head_dim) ** -0.5 * mscale**2


class RmsNormFunction(torch.autograd.Function):
    """Root mean square norm; several times faster on a CPU than autograd's own."""

    @staticmethod
    def forward(ctx, x, weight, eps):
        scale = (x * x).mean(-1, keepdim=True).add_(eps).rsqrt_()
        normed = x * scale
        ctx.save_for_backward(normed, scale, weight)
        return normed * weight

    @staticmethod
    def backward(ctx, gradient):
        normed, scale, weight = ctx.saved_tensors
        product = gradient * normed
        weight_gradient = product.flatten(0, -2).sum(0)
        mean = product.mul_(weight).mean(-1, keepdim=True)
        return (gradient * weight).addcmul_(normed, mean, value=-1).mul_(scale), weight_gradient, None


class RmsNorm(nn.Module):
    def __init__(self, size, eps):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x):
        return RmsNormFunction.apply(x.float(), self.weight, self.eps)


def linear(inputs, outputs, gain=1.0):
    layer = nn.Linear(inputs, outputs, bias=False)
    nn.init.normal_(layer.weight, std=0.5 * gain * inputs**-0.5)
    return layer


def rotate(x, cos, sin):
    """Rotates adjacent pairs, as DeepSeek's checkpoints lay them out."""
    even, odd = x[..., 0::2], x[..., 1::2]
    return torch.stack([even * cos - odd * sin, even * sin + odd * cos], dim=-1).flatten(-2)


class Attention(nn.Module):
    def __init__(self, config):
        super().__init__()
        c = self.config = config
        heads = c.num_attention_heads
        self.scale = softmax_scale(c)
        self.q_a_proj = linear(c.hidden_size, c.q_lora_rank)
        self.q_a_layernorm = RmsNorm(c.q_lora_rank, 1e-6)
        self.q_b_proj = linear(c.q_lora_rank, heads * (c.qk_nope_head_dim + c.qk_rope_head_dim))
        self.kv_a_proj_with_mqa = linear(c.hidden_size, c.kv_lora_rank + c.qk_rope_head_dim)
        self.kv_a_layernorm = RmsNorm(c.kv_lora_rank, 1e-6)
        self.kv_b_proj = linear(c.kv_lora_rank, heads * (c.qk_nope_head_dim + c.v_head_dim))
        self.o_proj = linear(heads * c.v_head_dim, c.hidden_size, gain=0.25)

    def project(self, x, rope):
        """Queries, keys and values of every row, [batch, head, row, dim]."""
        c, heads = self.config, self.config.num_attention_heads
        batch, rows, _ = x.shape
        q = self.q_b_proj(self.q_a_layernorm(self.q_a_proj(x))).view(batch, rows, heads, -1).transpose(1, 2)
        q_nope, q_pe = q.split([c.qk_nope_head_dim, c.qk_rope_head_dim], dim=-1)
        latent, k_pe = self.kv_a_proj_with_mqa(x).split([c.kv_lora_rank, c.qk_rope_head_dim], dim=-1)
        kv = self.kv_b_proj(self.kv_a_layernorm(latent)).view(batch, rows, heads, -1).transpose(1, 2)
        k_nope, v = kv.split([c.qk_nope_head_dim, c.v_head_dim], dim=-1)
        q_pe, k_pe = rotate(q_pe, *rope), rotate(k_pe.unsqueeze(1), *rope)
        q = torch.cat([q_nope, q_pe.to(q_nope.dtype)], dim=-1) * self.scale
        k_pe = k_pe.to(k_nope.dtype).expand(-1, heads, -1, -1)
        return q, torch.cat([k_nope, k_pe], dim=-1), v

    def forward(self, x, rope, levels, branches=None):
        """Attends to `levels`: the keys and values of earlier recycling levels.

        A row of recycling level n at position s sees the true rows up to s-n,
        then one row of each later level, the last being itself. The row's own
        keys and values are appended to `levels`. With `branches` it sees of those
        only the trunk's, branch 0, and its own branch's.
        """
        q, k, v = self.project(x, rope)
        levels.append((k, v))
        depth = len(levels) - 1
        rows = x.shape[1]
        hidden = torch.ones(rows, rows, dtype=torch.bool).triu(1 - depth)
        if branches is not None:
            of_key = branches[:, None, None, :]
            hidden = hidden | ((of_key != 0) & (of_key != branches[:, None, :, None]))
        scores = (q @ levels[0][0].transpose(-1, -2)).float().masked_fill(hidden, -1e9)
        if depth:
            near = [(q * keys.roll(depth - n, 2)).sum(-1, keepdim=True).float()
                    for n, (keys, _) in enumerate(levels) if n]
            scores = torch.cat([scores, *near], dim=-1)
        weights = scores.softmax(-1).to(v.dtype)
        out = weights[..., :rows] @ levels[0][1]
        for n in range(1, depth + 1):
            out = out + weights[..., rows + n - 1, None] * levels[n][1].roll(depth - n, 2)
        return self.o_proj(out.transpose(1, 2).flatten(2))


class Mlp(nn.Module):
    def __init__(self, hidden, inner):
        super().__init__()
        self.gate_proj = linear(hidden, inner)
        self.up_proj = linear(hidden, inner)
        self.down_proj = linear(inner, hidden, gain=0.25)

    def forward(self, x):
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Moe(nn.Module):
    def __init__(self, config):
        super().__init__()
        c = self.config = config
        self.gate = nn.Parameter(torch.randn(c.n_routed_experts, c.hidden_size) * 0.5 * c.hidden_size**-0.5)
        self.register_buffer("e_score_correction_bias", torch.zeros(c.n_routed_experts))
        self.register_buffer("load", torch.zeros(c.n_routed_experts), persistent=False)
        shape = (c.n_routed_experts, c.moe_intermediate_size, c.hidden_size)
        self.gate_proj = nn.Parameter(torch.randn(shape) * 0.5 * c.hidden_size**-0.5)
        self.up_proj = nn.Parameter(torch.randn(shape) * 0.5 * c.hidden_size**-0.5)
        self.down_proj = nn.Parameter(torch.randn(shape).mT.contiguous() * 0.125 * c.moe_intermediate_size**-0.5)
        self.shared_experts = Mlp(c.hidden_size, c.n_shared_experts * c.moe_intermediate_size)

    def route(self, x):
        """The chosen experts of every row and their weights."""
        c = self.config
        with torch.autocast("cpu", enabled=False):
            scores = (x.float() @ self.gate.T).sigmoid()
        biased = (scores + self.e_score_correction_bias).detach()
        groups = biased.view(len(x), c.n_group, -1)
        kept = groups.topk(2, dim=-1).values.sum(-1).topk(c.topk_group, dim=-1).indices
        dropped = torch.ones(groups.shape[:2], dtype=torch.bool).scatter(1, kept, False)
        biased = groups.masked_fill(dropped.unsqueeze(-1), -math.inf).flatten(1)
        chosen = biased.topk(c.num_experts_per_tok, dim=-1).indices
        weights = scores.gather(1, chosen)
        return chosen, weights / (weights.sum(-1, keepdim=True) + 1e-20) * c.routed_scaling_factor

    def forward(self, x):
        shape, x = x.shape, x.flatten(0, -2)
        experts, each = self.config.n_routed_experts, self.config.num_experts_per_tok
        chosen, weights = self.route(x)
        chosen = chosen.flatten()
        counts = chosen.bincount(minlength=experts)
        self.load += counts
        # Every expert gets equally many rows, rounded up, because oneDNN compiles
        # a kernel for every new shape; the rows too many read zeros.
        room = -(-int(counts.max()) // 64) * 64
        order = chosen.argsort()
        starts = torch.arange(experts) * room - (counts.cumsum(0) - counts)
        slots = torch.arange(len(chosen)) + starts[chosen[order]]
        source = torch.full((experts * room,), len(x)).index_put((slots,), order // each)
        rows = torch.cat([x, x.new_zeros(1, x.shape[1])]).index_select(0, source).view(experts, room, -1)
        inner = F.silu(rows @ self.gate_proj.mT) * (rows @ self.up_proj.mT)
        out = (inner @ self.down_proj.mT).flatten(0, 1)
        slot_of = torch.empty_like(slots).index_put((order,), slots)
        out = out.index_select(0, slot_of).view(len(x), each, -1)
        routed = (out * weights.unsqueeze(-1)).sum(1)
        return (routed + self.shared_experts(x)).view(shape)


class DecoderLayer(nn.Module):
    def __init__(self, config, dense):
        super().__init__()
        self.input_layernorm = RmsNorm(config.hidden_size, config.rms_norm_eps)
        self.self_attn = Attention(config)
        self.post_attention_layernorm = RmsNorm(config.hidden_size, config.rms_norm_eps)
        self.mlp = Mlp(config.hidden_size, config.intermediate_size) if dense else Moe(config)

    def forward(self, x, rope, levels, branches=None):
        x = x + self.self_attn(self.input_layernorm(x), rope, levels, branches)
        return x + self.mlp(self.post_attention_layernorm(x))


class MtpModule(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.enorm = RmsNorm(config.hidden_size, config.rms_norm_eps)
        self.hnorm = RmsNorm(config.hidden_size, config.rms_norm_eps)
        self.eh_proj = linear(2 * config.hidden_size, config.hidden_size, gain=2.0)
        self.block = DecoderLayer(config, dense=False)
        self.norm = RmsNorm(config.hidden_size, config.rms_norm_eps)

    def forward(self, embedded, previous, rope, levels, branches=None):
        x = self.eh_proj(torch.cat([self.enorm(embedded), self.hnorm(previous)], dim=-1))
        return self.norm(self.block(x.float(), rope, levels, branches))


class Model(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.config = config
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        nn.init.normal_(self.embed_tokens.weight, std=0.3)
        self.layers = nn.ModuleList(
            DecoderLayer(config, dense=n < config.first_k_dense_replace) for n in range(config.num_hidden_layers))
        self.norm = RmsNorm(config.hidden_size, config.rms_norm_eps)
        self.lm_head = linear(config.hidden_size, config.vocab_size, gain=0.5)
        self.mtp = nn.ModuleList(MtpModule(config) for _ in range(config.num_nextn_predict_layers))
        angles = torch.arange(config.max_position_embeddings)[:, None] * yarn_frequencies(config)
        self.register_buffer("cos", angles.cos(), persistent=False)
        self.register_buffer("sin", angles.sin(), persistent=False)

    def rope(self, rows, branches=None):
        """Cosines and sines of the rows; every branch goes on where the trunk ends."""
        if branches is None:
            return self.cos[:rows], self.sin[:rows]
        begins = F.pad(branches[:, 1:] != branches[:, :-1], (1, 0))
        counts = torch.arange(rows).expand_as(branches)
        since = counts - torch.where(begins, counts, 0).cummax(1).values
        positions = since + torch.where(branches == 0, 0, (branches == 0).sum(1, keepdim=True))
        return self.cos[positions].unsqueeze(1), self.sin[positions].unsqueeze(1)

    def forward(self, ids, branches=None):
        """The hidden of every row after the final norm: what the head and MTP take.

        `branches` tells of each token which of several continuations of one trunk it belongs to.
        """
        x, rope = self.embed_tokens(ids), self.rope(ids.shape[1], branches)
        for layer in self.layers:
            x = layer(x, rope, [], branches)
        return self.norm(x)

    def draft(self, module, ids, previous, levels, branches=None):
        """One module over tokens ids[t] and the previous depth's outputs at t-1, row by row."""
        return self.mtp[module](self.embed_tokens(ids), previous, self.rope(ids.shape[1], branches), levels, branches)
