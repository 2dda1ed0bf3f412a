"""The layers of DeepSeek-V4 (docs/deepseek-v4.md), small enough to train on one core.

Rows are [batch, rows, ...], streams [batch, rows, hc_mult, hidden]. Products run in the autocast type, hyper-connections,
norms, routing and softmax in float32. All experts are evaluated for all rows: at this size that is faster than gathering
the rows of each, and every batch has the same few shapes.
"""

import dataclasses
import math

import torch
from torch import nn
from torch.nn import functional as F

import abacus_path  # noqa: F401
from model import RmsNorm, RmsNormFunction, linear, rotate

FAR = -1e9


@dataclasses.dataclass
class Config:
    vocab_size: int = 640
    hidden_size: int = 128
    num_hidden_layers: int = 6
    num_nextn_predict_layers: int = 1
    compress_ratios: tuple = (0, 4, 128, 4, 0, 4)
    num_hash_layers: int = 1
    num_attention_heads: int = 4
    head_dim: int = 64
    qk_rope_head_dim: int = 16
    q_lora_rank: int = 64
    o_lora_rank: int = 64
    o_groups: int = 2
    sliding_window: int = 64
    index_n_heads: int = 8
    index_head_dim: int = 16
    index_topk: int = 1024
    moe_intermediate_size: int = 64
    n_routed_experts: int = 8
    num_experts_per_tok: int = 2
    routed_scaling_factor: float = 1.5
    swiglu_limit: float = 10.0
    hc_mult: int = 2
    hc_sinkhorn_iters: int = 5
    hc_eps: float = 1e-6
    rms_norm_eps: float = 1e-6
    rope_theta: float = 10000.0
    compress_rope_theta: float = 160000.0
    yarn_factor: float = 4.0
    yarn_original_positions: int = 1024
    yarn_beta_fast: float = 32.0
    yarn_beta_slow: float = 1.0
    max_position_embeddings: int = 4096
    dspark_block_size: int = 5
    dspark_noise_token_id: int = 639
    dspark_target_layer_ids: tuple = (3, 4, 5)
    dspark_markov_rank: int = 32
    dspark_stages: int = 3


def rope_tables(c, compressed):
    """cos and sin [positions, rotated / 2]: YaRN only in layers with a compressor (section 3.2)."""
    dim, theta = c.qk_rope_head_dim, c.compress_rope_theta if compressed else c.rope_theta
    inverse = theta ** (-torch.arange(0, dim, 2, dtype=torch.float64) / dim)
    if compressed:
        def pair(turns):
            return dim * math.log(c.yarn_original_positions / (2 * math.pi * turns)) / (2 * math.log(theta))
        low, high = max(math.floor(pair(c.yarn_beta_fast)), 0), min(math.ceil(pair(c.yarn_beta_slow)), dim - 1)
        ramp = ((torch.arange(dim // 2) - low) / max(high - low, 0.001)).clamp(0, 1)
        inverse = inverse / c.yarn_factor * ramp + inverse * (1 - ramp)
    angles = torch.arange(c.max_position_embeddings)[:, None] * inverse
    return angles.cos().float(), angles.sin().float()


def rotate_end(x, cos, sin):
    """Rotates the last values of x; cos and sin broadcast over the rest."""
    kept, turned = x.split([x.shape[-1] - 2 * cos.shape[-1], 2 * cos.shape[-1]], -1)
    return torch.cat([kept, rotate(turned, cos, sin)], -1)


class HyperConnection(nn.Module):
    """Section 2.1. `favourite` breaks the symmetry of the streams, which all start equal."""

    def __init__(self, config, favourite):
        super().__init__()
        self.config = config
        hc = config.hc_mult
        self.fn = nn.Parameter(torch.randn((2 + hc) * hc, hc * config.hidden_size) * 0.01)
        lean = torch.full((hc,), -0.7)
        lean[favourite % hc] = 0.7
        self.base = nn.Parameter(torch.cat([lean, lean.roll(1), (3.0 * torch.eye(hc)).flatten()]))
        self.scale = nn.Parameter(torch.ones(3))

    def pre(self, streams):
        """The collapsed input, and what post needs."""
        c, hc = self.config, self.config.hc_mult
        flat = streams.flatten(-2)
        m = (flat @ self.fn.T) * flat.pow(2).mean(-1, keepdim=True).add(c.rms_norm_eps).rsqrt()
        m = m * self.scale.repeat_interleave(torch.tensor([hc, hc, hc * hc])) + self.base
        pre, post, comb = m.split([hc, hc, hc * hc], -1)
        comb = comb.unflatten(-1, (hc, hc)).softmax(-1) + c.hc_eps
        comb = comb / (comb.sum(-2, keepdim=True) + c.hc_eps)
        for _ in range(c.hc_sinkhorn_iters - 1):
            comb = comb / (comb.sum(-1, keepdim=True) + c.hc_eps)
            comb = comb / (comb.sum(-2, keepdim=True) + c.hc_eps)
        return weighted(pre.sigmoid() + c.hc_eps, streams), (2 * post.sigmoid(), comb)

    @staticmethod
    def post(y, streams, weights):
        # unbind, because the gradient of indexing fills a tensor of zeros for every index.
        post, comb = weights
        rows, out = streams.unbind(-2), []
        for share, column in zip(post.unsqueeze(-1).unbind(-2), comb.unsqueeze(-1).unbind(-2)):
            out.append(sum((part * row for part, row in zip(column.unbind(-2), rows)), share * y))
        return torch.stack(out, -2)


def weighted(weights, streams):
    parts = [weight * row for weight, row in zip(weights.unsqueeze(-1).unbind(-2), streams.unbind(-2))]
    return sum(parts[1:], parts[0])


class HyperHead(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.config = config
        self.fn = nn.Parameter(torch.randn(config.hc_mult, config.hc_mult * config.hidden_size) * 0.01)
        self.base = nn.Parameter(torch.zeros(config.hc_mult))
        self.scale = nn.Parameter(torch.ones(1))

    def forward(self, streams):
        with torch.autocast("cpu", enabled=False):
            flat = streams.flatten(-2)
            m = (flat @ self.fn.T) * flat.pow(2).mean(-1, keepdim=True).add(self.config.rms_norm_eps).rsqrt()
            return weighted((m * self.scale + self.base).sigmoid() + self.config.hc_eps, streams)


class Compressor(nn.Module):
    """Section 4.1: entries of `ratio` tokens each; ratio 4 also reads the span before."""

    def __init__(self, config, ratio, width):
        super().__init__()
        channels = 2 * width if ratio == 4 else width
        self.ratio = ratio
        self.wkv = linear(config.hidden_size, channels)
        self.wgate = linear(config.hidden_size, channels)
        self.ape = nn.Parameter(torch.randn(ratio, channels) * 0.5)
        self.norm = RmsNorm(width, config.rms_norm_eps)

    def candidates(self, x, first=0):
        places = (first + torch.arange(x.shape[1])) % self.ratio
        return self.wkv(x).float(), self.wgate(x).float() + self.ape[places]

    def pool(self, values, gates, rope, first=0):
        """Entries [batch, windows, width] of all complete spans, of which the first one is span `first` of the sequence."""
        count = values.shape[1] // self.ratio
        values, gates = (part[:, :count * self.ratio].unflatten(1, (count, self.ratio)) for part in (values, gates))
        if self.ratio == 4:
            (before, values), (gates_before, gates) = values.chunk(2, -1), gates.chunk(2, -1)
            values = torch.cat([F.pad(before[:, :-1], (0, 0, 0, 0, 1, 0)), values], 2)
            gates = torch.cat([F.pad(gates_before[:, :-1], (0, 0, 0, 0, 1, 0), value=FAR), gates], 2)
        pooled = self.norm((gates.softmax(2) * values).sum(2))
        cos, sin = (part[first * self.ratio:(first + count) * self.ratio:self.ratio] for part in rope)
        return rotate_end(pooled, cos, sin)

    def forward(self, x, rope):
        return self.pool(*self.candidates(x), rope)


class Indexer(nn.Module):
    """Section 4.3. index_topk is as large as the number of entries can be: all are attended, and nothing here is trained."""

    def __init__(self, config):
        super().__init__()
        self.wq_b = linear(config.q_lora_rank, config.index_n_heads * config.index_head_dim)
        self.weights_proj = linear(config.hidden_size, config.index_n_heads)
        self.compressor = Compressor(config, 4, config.index_head_dim)


class Attention(nn.Module):
    def __init__(self, config, ratio):
        super().__init__()
        c = self.config = config
        self.ratio = ratio
        wide = c.num_attention_heads * c.head_dim
        self.wq_a = linear(c.hidden_size, c.q_lora_rank)
        self.q_norm = RmsNorm(c.q_lora_rank, c.rms_norm_eps)
        self.wq_b = linear(c.q_lora_rank, wide)
        self.wkv = linear(c.hidden_size, c.head_dim)
        self.kv_norm = RmsNorm(c.head_dim, c.rms_norm_eps)
        self.wo_a = nn.Parameter(torch.randn(c.o_groups, c.o_lora_rank, wide // c.o_groups) * 0.5 * (wide // c.o_groups) ** -0.5)
        self.wo_b = linear(c.o_groups * c.o_lora_rank, c.hidden_size, gain=0.25)
        self.attn_sink = nn.Parameter(torch.zeros(c.num_attention_heads))
        self.register_buffer("ones", torch.ones(c.head_dim), persistent=False)
        if ratio:
            self.compressor = Compressor(c, ratio, c.head_dim)
        if ratio == 4:
            self.indexer = Indexer(c)

    def queries(self, x, rope):
        """[batch, rows, heads, head_dim], scaled for the scores."""
        c = self.config
        q = self.wq_b(self.q_norm(self.wq_a(x))).unflatten(-1, (c.num_attention_heads, c.head_dim))
        q = RmsNormFunction.apply(q.float(), self.ones, c.rms_norm_eps) * c.head_dim ** -0.5
        return rotate_end(q, *(part.unsqueeze(-2) for part in rope))

    def key(self, x, rope):
        return rotate_end(self.kv_norm(self.wkv(x)), *rope)

    def output(self, heads, rope):
        """heads [batch, rows, heads, head_dim]"""
        cos, sin = (part.unsqueeze(-2) for part in rope)
        groups = rotate_end(heads.float(), cos, -sin).flatten(-2).unflatten(-1, (self.config.o_groups, -1))
        return self.wo_b(torch.cat([F.linear(groups[..., g, :], self.wo_a[g]) for g in range(self.config.o_groups)], -1))

    def attend(self, q, keys, allowed):
        """q [batch, rows, heads, d] over keys [batch, keys, d], which are the values too; allowed [.., rows, keys].

        The sink is a key of zeros whose score is the learned one, so that it adds nothing to the sum of values.
        """
        batch, rows, heads, _ = q.shape
        bias = torch.zeros(allowed.shape).masked_fill(~allowed, FAR).unsqueeze(-2).expand(*allowed.shape[:-1], heads, -1)
        bias = torch.cat([bias, self.attn_sink[:, None].expand(*bias.shape[:-1], 1)], -1)
        keys = F.pad(keys, (0, 0, 0, 1))
        scores = (q.flatten(1, 2) @ keys.mT).float().unflatten(1, (rows, heads)) + bias
        return (scores.softmax(-1).flatten(1, 2) @ keys).unflatten(1, (rows, heads))

    def forward(self, x, tables):
        """All rows of sequences that begin at position 0."""
        rows = x.shape[1]
        rope = tuple(part[:rows] for part in tables)
        keys = self.key(x, rope)
        at = torch.arange(rows)
        distance = at[:, None] - at
        allowed = (distance >= 0) & (distance < self.config.sliding_window)
        if self.ratio:
            entries = self.compressor(x, tables)
            keys = torch.cat([keys, entries], 1)
            complete = (at + 1)[:, None] // self.ratio
            allowed = torch.cat([allowed, torch.arange(entries.shape[1]) < complete], 1)
        return self.output(self.attend(self.queries(x, rope), keys, allowed), rope)


class ClampedSwiglu(torch.autograd.Function):
    """silu(min(gate, limit)) * clamp(up, -limit, limit) * weight, with fewer passes over memory than autograd makes."""

    @staticmethod
    def forward(ctx, gate, up, weight, limit):
        activated, up_clamped = F.silu(gate.clamp(max=limit)), up.clamp(-limit, limit)
        ctx.save_for_backward(gate, up, weight, activated)
        ctx.limit = limit
        # Nearly always nothing is clamped, and the masks can be left out.
        ctx.clamped = bool(gate.max() > limit) or bool(up.abs().max() > limit)
        return activated * up_clamped * weight

    @staticmethod
    def backward(ctx, gradient):
        gate, up, weight, activated = ctx.saved_tensors
        limit = ctx.limit
        bounded = up.clamp(-limit, limit) if ctx.clamped else up
        weight_gradient = (gradient * activated).mul_(bounded).sum(-1, keepdim=True)
        gradient = gradient * weight
        up_gradient = gradient * activated
        gate_gradient = torch.ops.aten.silu_backward(gradient.mul_(bounded), gate)
        if ctx.clamped:
            up_gradient, gate_gradient = up_gradient * (up.abs() <= limit), gate_gradient * (gate <= limit)
        return gate_gradient, up_gradient, weight_gradient, None


class Experts(nn.Module):
    """Section 5. The shared expert is the last of the stacked ones."""

    def __init__(self, config, hashed):
        super().__init__()
        c = self.config = config
        self.hashed = hashed
        count, width, hidden = c.n_routed_experts, c.moe_intermediate_size, c.hidden_size
        self.gate = nn.Parameter(torch.randn(count, hidden) * 0.5 * hidden**-0.5)
        if hashed:
            table = torch.stack([torch.randperm(count)[:c.num_experts_per_tok] for _ in range(c.vocab_size)])
            self.register_buffer("tid2eid", table)
        else:
            self.register_buffer("bias", torch.zeros(count))
        self.register_buffer("load", torch.zeros(count), persistent=False)
        shape = (count + 1, width, hidden)
        self.w1 = nn.Parameter(torch.randn(shape) * 0.5 * hidden**-0.5)
        self.w3 = nn.Parameter(torch.randn(shape) * 0.5 * hidden**-0.5)
        self.w2 = nn.Parameter(torch.randn(count + 1, hidden, width) * 0.125 * width**-0.5)

    def route(self, x, ids):
        """The weight of every expert for every row, 0 where it is not chosen; 1 for the shared one."""
        c = self.config
        with torch.autocast("cpu", enabled=False):
            scores = F.softplus(x.float() @ self.gate.T).sqrt()
        chosen = self.tid2eid[ids] if self.hashed else (scores.detach() + self.bias).topk(c.num_experts_per_tok, dim=-1).indices
        kept = scores * torch.zeros_like(scores).scatter(-1, chosen, 1.0)
        if self.training:
            self.load += chosen.flatten().bincount(minlength=c.n_routed_experts)
        weights = kept / (kept.sum(-1, keepdim=True) + 1e-20) * c.routed_scaling_factor
        return F.pad(weights, (0, 1), value=1.0)

    def forward(self, x, ids):
        weights = self.route(x, ids)
        gate, up = (F.linear(x, w.flatten(0, 1)).unflatten(-1, (len(w), -1)) for w in (self.w1, self.w3))
        inner = ClampedSwiglu.apply(gate, up, weights.to(gate.dtype).unsqueeze(-1), self.config.swiglu_limit)
        return F.linear(inner.flatten(-2), self.w2.transpose(0, 1).flatten(1))


class Layer(nn.Module):
    def __init__(self, config, ratio, hashed, number):
        super().__init__()
        self.attn_norm = RmsNorm(config.hidden_size, config.rms_norm_eps)
        self.ffn_norm = RmsNorm(config.hidden_size, config.rms_norm_eps)
        self.hc_attn = HyperConnection(config, 2 * number)
        self.hc_ffn = HyperConnection(config, 2 * number + 1)
        self.attn = Attention(config, ratio)
        self.ffn = Experts(config, hashed)

    def forward(self, streams, ids, attention):
        """attention: from the normed input to the output of self.attn, whichever rows it sees."""
        with torch.autocast("cpu", enabled=False):
            x, weights = self.hc_attn.pre(streams)
        y = attention(self.attn_norm(x))
        with torch.autocast("cpu", enabled=False):
            streams = self.hc_attn.post(y.float(), streams, weights)
            x, weights = self.hc_ffn.pre(streams)
        y = self.ffn(self.ffn_norm(x), ids)
        with torch.autocast("cpu", enabled=False):
            return self.hc_ffn.post(y.float(), streams, weights)
