"""The forward of docs/deepseek-v4.md in plain torch: target and MTP module, in the prefill and in the step form.

Independent of transformers and of foredraft. In float64 it is the reference for what transformers does not compute
(the MTP module) and for the ops; in bfloat16, with FP32 norms, softmax, routing and hyper-connections, it measures
what rounding alone changes. Section numbers below are those of docs/deepseek-v4.md.

The prefill form computes all rows of a layer at once from whole matrices. The step form computes one row from rows that
earlier steps left by position (Steps). They share formulas for single rows only, so that each checks the other.
"""

import math

import torch

LAYER_RATIOS = {"sliding_attention": 0, "compressed_sparse_attention": 4, "heavily_compressed_attention": 128}
HEAD_NAMES = ("fn", "scale", "base")


class Shape:
    """What both spellings of config.json say (section 1), under DeepSeek's names."""

    def __init__(self, config):
        self.layers = config["num_hidden_layers"]
        # DSpark's stages are in the place of MTP modules (reference_dspark.py).
        self.stages = len(config["compress_ratios"]) - self.layers if "dspark_block_size" in config else 0
        self.modules = 0 if self.stages else config.get("num_nextn_predict_layers", 1)
        if "layer_types" in config:
            rates = LAYER_RATIOS | config.get("compress_rates", {})
            self.overlap = rates["compressed_sparse_attention"]
            self.ratios = [rates[kind] for kind in config["layer_types"]]
            self.overlapping = [kind == "compressed_sparse_attention" for kind in config["layer_types"]]
            self.hashed = [kind == "hash_moe" for kind in config["mlp_layer_types"]]
            self.rope = round(config["head_dim"] * config["partial_rotary_factor"])
            main, compress = config["rope_parameters"]["main"], config["rope_parameters"]["compress"]
        else:
            self.ratios = config["compress_ratios"][:self.layers]
            self.overlapping = [ratio == 4 for ratio in self.ratios]
            self.hashed = [layer < config["num_hash_layers"] for layer in range(self.layers)]
            self.rope = config["qk_rope_head_dim"]
            main = {"rope_theta": config["rope_theta"]}
            compress = (config.get("rope_scaling") or {}) | {"rope_theta": config["compress_rope_theta"]}
        # The MTP modules or stages: window attention, routed by score.
        self.ratios += [0] * (self.modules + self.stages)
        self.overlapping += [False] * (self.modules + self.stages)
        self.hashed += [False] * (self.modules + self.stages)
        self.main_frequencies = frequencies(self.rope, main)
        self.compress_frequencies = frequencies(self.rope, compress)
        for name in ("vocab_size", "hidden_size", "num_attention_heads", "head_dim", "o_groups", "sliding_window", "index_n_heads", "index_head_dim",
                     "index_topk", "n_routed_experts", "num_experts_per_tok", "routed_scaling_factor", "swiglu_limit", "hc_mult",
                     "hc_sinkhorn_iters", "hc_eps", "rms_norm_eps"):
            setattr(self, name, config[name])


def frequencies(dim, rope):
    """Section 3.2. No multiplier on cos and sin, also with YaRN."""
    theta = rope["rope_theta"]
    inverse = theta ** (-torch.arange(0, dim, 2, dtype=torch.float64) / dim)
    if rope.get("type", rope.get("rope_type", "default")) == "default":
        return inverse
    turns = lambda n: dim * math.log(rope["original_max_position_embeddings"] / (2 * math.pi * n)) / (2 * math.log(theta))
    low, high = max(math.floor(turns(rope["beta_fast"])), 0), min(math.ceil(turns(rope["beta_slow"])), dim - 1)
    ramp = ((torch.arange(dim // 2, dtype=torch.float64) - low) / max(high - low, 0.001)).clamp(0, 1)
    return inverse / rope["factor"] * ramp + inverse * (1 - ramp)


def softplus(x):
    return x.clamp(min=0) + torch.log1p(torch.exp(-x.abs()))


class ReferenceV4:
    def __init__(self, config, tensors, dtype=torch.float64):
        self.shape = Shape(config)
        self.dtype = dtype
        self.exact = torch.float64 if dtype == torch.float64 else torch.float32
        # Hyper-connections, sinks, biases and ape are F32 in checkpoints; they are used as they are.
        keep = ("hc_", "attn_sink", "gate.bias", "ape", "tid2eid")
        self.weights = {name: values if name.endswith("tid2eid") else values.to(self.exact if any(part in name for part in keep) else dtype)
                        for name, values in tensors.items()}
        self.lead = None  # [rows] of the last forward: how far the closest choice of a router or an indexer was from a tie

    # ---- single rows; every x is [rows, width] ----

    def linear(self, x, name):
        return x @ self.weights[name + ".weight"].T

    def unweighted_norm(self, x):
        wide = x.to(self.exact)
        return wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self.shape.rms_norm_eps)

    def norm(self, x, name):
        return (self.weights[name + ".weight"].to(self.exact) * self.unweighted_norm(x)).to(self.dtype)

    def rotate(self, x, positions, layer, sign=1):
        """Section 3.2: pairs (2i, 2i + 1) of the last values of x [rows, ..., width]; sign -1 is the inverse."""
        angles = positions.to(torch.float64)[:, None] * (self.shape.compress_frequencies if self.shape.ratios[layer] else self.shape.main_frequencies)
        shape = [len(x)] + [1] * (x.dim() - 2) + [angles.shape[-1]]
        cos, sin = angles.cos().to(self.exact).view(shape), sign * angles.sin().to(self.exact).view(shape)
        kept, turned = x.split([x.shape[-1] - self.shape.rope, self.shape.rope], -1)
        even, odd = turned[..., 0::2].to(self.exact), turned[..., 1::2].to(self.exact)
        return torch.cat([kept, torch.stack([even * cos - odd * sin, odd * cos + even * sin], -1).flatten(-2).to(self.dtype)], -1)

    def hyper_weights(self, streams, name):
        """m of section 2.1: [rows, outputs]."""
        flat = streams.flatten(1).to(self.exact)
        factor = torch.rsqrt(flat.pow(2).mean(-1, keepdim=True) + self.shape.rms_norm_eps)
        return (flat @ self.weights[f"{name}_fn"].T) * factor

    def hyper_pre(self, streams, name):
        """Section 2.1: the collapsed input [rows, D], post [rows, hc] and comb [rows, hc, hc]."""
        hc, eps = self.shape.hc_mult, self.shape.hc_eps
        m = self.hyper_weights(streams, name)
        scale, base = self.weights[f"{name}_scale"], self.weights[f"{name}_base"]
        pre = torch.sigmoid(m[:, :hc] * scale[0] + base[:hc]) + eps
        post = 2 * torch.sigmoid(m[:, hc:2 * hc] * scale[1] + base[hc:2 * hc])
        comb = torch.softmax((m[:, 2 * hc:] * scale[2] + base[2 * hc:]).view(-1, hc, hc), -1) + eps
        comb = comb / (comb.sum(1, keepdim=True) + eps)
        for _ in range(self.shape.hc_sinkhorn_iters - 1):
            comb = comb / (comb.sum(2, keepdim=True) + eps)
            comb = comb / (comb.sum(1, keepdim=True) + eps)
        return torch.einsum("ti,tid->td", pre, streams.to(self.exact)).to(self.dtype), post, comb

    def hyper_post(self, x, residual, post, comb):
        """Section 2.1: the new streams [rows, hc, D]."""
        mixed = torch.einsum("tjk,tjd->tkd", comb, residual.to(self.exact))
        return (post[:, :, None] * x.to(self.exact)[:, None] + mixed).to(self.dtype)

    def hyper_head(self, streams, prefix):
        pre = torch.sigmoid(self.hyper_weights(streams, prefix) * self.weights[f"{prefix}_scale"] + self.weights[f"{prefix}_base"]) + self.shape.hc_eps
        return torch.einsum("ti,tid->td", pre, streams.to(self.exact)).to(self.dtype)

    def queries(self, x, name, positions, layer):
        """Section 3.1: the latent [rows, q_lora_rank] and the rotated queries [rows, H, head_dim]."""
        latent = self.norm(self.linear(x, f"{name}.wq_a"), f"{name}.q_norm")
        heads = self.linear(latent, f"{name}.wq_b").view(len(x), self.shape.num_attention_heads, self.shape.head_dim)
        return latent, self.rotate(self.unweighted_norm(heads).to(self.dtype), positions, layer)

    def key(self, x, name, positions, layer):
        return self.rotate(self.norm(self.linear(x, f"{name}.wkv"), f"{name}.kv_norm"), positions, layer)

    def output(self, heads, name, positions, layer):
        """Section 3.3: inverse rotation, grouped projection; heads [rows, H, head_dim]."""
        groups = self.rotate(heads, positions, layer, -1).reshape(len(heads), self.shape.o_groups, -1)
        first = self.weights[f"{name}.wo_a.weight"].view(self.shape.o_groups, -1, groups.shape[-1])
        return self.linear(torch.einsum("tgi,goi->tgo", groups, first).flatten(1), f"{name}.wo_b")

    def candidates(self, x, name, positions, ratio):
        """Section 4.1: values and gates of every token, [rows, channels]; the gates with ape."""
        gates = self.linear(x, f"{name}.wgate").to(self.exact) + self.weights[f"{name}.ape"][positions % ratio]
        return self.linear(x, f"{name}.wkv"), gates

    def index_queries(self, latent, x, name, positions, layer):
        """Section 4.3: [rows, heads, index_head_dim] and the heads' weights [rows, heads]."""
        c = self.shape
        q = self.linear(latent, f"{name}.wq_b").view(len(x), c.index_n_heads, c.index_head_dim)
        weights = self.linear(x, f"{name}.weights_proj").to(self.exact) * c.index_head_dim ** -0.5 * c.index_n_heads ** -0.5
        return self.rotate(q, positions, layer).to(self.exact), weights

    def note_lead(self, values, count):
        """The distance between the last value chosen and the first one left, of rows that have such a choice."""
        if values.shape[-1] <= count:
            return
        ordered = values.sort(-1, descending=True).values
        lead = (ordered[:, count - 1] - ordered[:, count]).nan_to_num(torch.inf)
        self.lead = torch.minimum(self.lead, lead.double())

    def experts(self, x, name, ids, hashed):
        """Section 5."""
        c = self.shape
        scores = softplus((x.to(self.exact) @ self.weights[f"{name}.gate.weight"].to(self.exact).T)).sqrt()
        if hashed:
            chosen = self.weights[f"{name}.gate.tid2eid"][ids]
        else:
            choice = scores + self.weights[f"{name}.gate.bias"]
            self.note_lead(choice, c.num_experts_per_tok)
            chosen = choice.sort(dim=-1, descending=True, stable=True).indices[:, :c.num_experts_per_tok]
        weights = scores.gather(1, chosen)
        weights = weights / (weights.sum(-1, keepdim=True) + 1e-20) * c.routed_scaling_factor
        routed = torch.zeros_like(x, dtype=self.exact)
        for expert in chosen.unique().tolist():
            rows, place = torch.where(chosen == expert)
            routed[rows] += self.mlp(x[rows], f"{name}.experts.{expert}", weights[rows, place, None]).to(self.exact)
        return (routed + self.mlp(x, f"{name}.shared_experts").to(self.exact)).to(self.dtype)

    def mlp(self, x, name, weight=1.0):
        """The clamped expert of section 5; the routing weight comes in before the last product."""
        limit = self.shape.swiglu_limit
        gate = self.linear(x, f"{name}.w1").to(self.exact).clamp(max=limit)
        up = self.linear(x, f"{name}.w3").to(self.exact).clamp(-limit, limit)
        return self.linear((weight * torch.nn.functional.silu(gate) * up).to(self.dtype), f"{name}.w2")

    def seed(self, ids):
        """Section 2: all streams start as the embedding."""
        return self.weights["embed.weight"][ids][:, None].repeat(1, self.shape.hc_mult, 1)

    def logits(self, streams, prefix=""):
        """Of the target, or of the MTP module with its prefix "mtp.0." (sections 2 and 6)."""
        return self.linear(self.norm(self.hyper_head(streams, f"{prefix}hc_head"), f"{prefix}norm"), "head")

    def mtp_projection(self, previous, ids, positions, module=0):
        """Section 6: previous [rows, hc, D] at position - 1 of the token ids [rows] -> [rows, hc, D]."""
        name = f"mtp.{module}"
        embedded = self.weights["embed.weight"][ids] * (positions > 1)[:, None].to(self.dtype)
        e = self.linear(self.norm(embedded, f"{name}.enorm"), f"{name}.e_proj")
        u = self.linear(self.norm(previous, f"{name}.hnorm"), f"{name}.h_proj")
        return u + e[:, None]

    def name(self, layer):
        return f"layers.{layer}" if layer < self.shape.layers else f"mtp.{layer - self.shape.layers}"

    # ---- prefill form: whole matrices ----

    def window_pool(self, values, gates, norm, ratio, overlapping, layer):
        """Section 4.1, 4.2: the entries [windows, d] of all complete windows."""
        count = len(values) // ratio
        values, gates = (part[:count * ratio].view(count, ratio, part.shape[-1]) for part in (values, gates))
        if overlapping:
            width = values.shape[-1] // 2
            before = torch.cat([torch.zeros_like(values[:1, :, :width]), values[:-1, :, :width]])
            gates_before = torch.cat([torch.full_like(gates[:1, :, :width], -torch.inf), gates[:-1, :, :width]])
            values = torch.cat([before[:count], values[..., width:]], 1)
            gates = torch.cat([gates_before[:count], gates[..., width:]], 1)
        pooled = (gates.softmax(1) * values.to(self.exact)).sum(1).to(self.dtype)
        return self.rotate(self.norm(pooled, norm), ratio * torch.arange(count), layer)

    def selection(self, latent, x, name, positions, layer):
        """Section 4.3: [rows, windows], True where a row attends the entry."""
        c, ratio = self.shape, self.shape.ratios[layer]
        visible = torch.arange(len(x) // ratio)[None] < ((positions + 1) // ratio)[:, None]
        if not c.overlapping[layer]:
            return visible
        keys = self.window_pool(*self.candidates(x, f"{name}.indexer.compressor", positions, ratio), f"{name}.indexer.compressor.norm", ratio, True, layer)
        q, weights = self.index_queries(latent, x, f"{name}.indexer", positions, layer)
        scores = (torch.relu(torch.einsum("thd,wd->thw", q, keys.to(self.exact))) * weights[..., None]).sum(1)
        scores = scores.masked_fill(~visible, -torch.inf)
        self.note_lead(scores, c.index_topk)
        best = scores.sort(dim=-1, descending=True, stable=True).indices[:, :c.index_topk]
        return torch.zeros_like(visible).scatter(1, best, True) & visible

    def attention(self, x, name, positions, layer):
        c = self.shape
        latent, q = self.queries(x, name, positions, layer)
        keys = self.key(x, name, positions, layer)
        distance = positions[:, None] - positions[None]
        allowed = (distance >= 0) & (distance < c.sliding_window)
        ratio = c.ratios[layer]
        if ratio:
            pooled = self.window_pool(*self.candidates(x, f"{name}.compressor", positions, ratio), f"{name}.compressor.norm", ratio, c.overlapping[layer], layer)
            keys = torch.cat([keys, pooled])
            allowed = torch.cat([allowed, self.selection(latent, x, name, positions, layer)], 1)
        scores = torch.einsum("thd,kd->htk", q, keys).to(self.exact) * c.head_dim ** -0.5
        scores = scores.masked_fill(~allowed[None], -torch.inf)
        sink = self.weights[f"{name}.attn_sink"][:, None, None].expand(-1, len(x), 1)
        shares = torch.cat([scores, sink], -1).softmax(-1)[..., :-1].to(self.dtype)
        return self.output(torch.einsum("htk,kd->thd", shares, keys), name, positions, layer)

    def layer(self, streams, ids, layer, positions, attention):
        name = self.name(layer)
        x, post, comb = self.hyper_pre(streams, f"{name}.hc_attn")
        streams = self.hyper_post(attention(self.norm(x, f"{name}.attn_norm"), f"{name}.attn", positions, layer), streams, post, comb)
        x, post, comb = self.hyper_pre(streams, f"{name}.hc_ffn")
        x = self.experts(self.norm(x, f"{name}.ffn_norm"), f"{name}.ffn", ids, self.shape.hashed[layer])
        return self.hyper_post(x, streams, post, comb)

    def run_layers(self, ids):
        """The target's streams [rows, hc, D] after each layer."""
        positions, outputs = torch.arange(len(ids)), []
        self.lead = torch.full((len(ids),), torch.inf, dtype=torch.float64)
        for layer in range(self.shape.layers):
            outputs.append(self.layer(outputs[-1] if outputs else self.seed(ids), ids, layer, positions, self.attention))
        return outputs

    def run(self, ids):
        """Logits [rows, V] of the target, then of the MTP module for positions 1.. if there is one."""
        ids = torch.tensor(ids)
        positions = torch.arange(len(ids))
        streams = self.run_layers(ids)[-1]
        levels = [self.logits(streams)]
        if self.shape.modules and len(ids) > 1:
            levels.append(self.logits(self.run_module(streams[:-1], ids[1:], positions[1:]), "mtp.0."))
        return levels

    def run_module(self, previous, ids, positions):
        """Section 6: the streams [rows, hc, D] of the module at `positions`, which are adjacent."""
        lead, self.lead = self.lead, torch.full((len(ids),), torch.inf, dtype=torch.float64)
        streams = self.layer(self.mtp_projection(previous, ids, positions), ids, self.shape.layers, positions, self.attention)
        self.lead = torch.cat([lead[:1], torch.minimum(lead[1:], self.lead)]) if len(lead) > len(ids) else lead
        return streams


class Steps:
    """The step form: one row at a time over rows kept by position (section 4.4). Going back to an earlier position only
    means stepping from there again: nothing behind the position of a step is read."""

    def __init__(self, model, capacity):
        self.model = model
        self.capacity = capacity
        self.rows = {}  # (layer, what): [capacity, width]
        self.outputs = []  # of the last step: the target's streams [1, hc, D] after each layer

    def keep(self, layer, what, position, values):
        rows = self.rows.setdefault((layer, what), torch.full((self.capacity, values.shape[-1]), torch.nan, dtype=values.dtype))
        rows[position] = values[0]
        return rows

    def entry(self, layer, what, x, name, position, overlapping):
        """Keeps the candidates of `position`, writes the entry of the window that it completes, returns all entries."""
        m, ratio = self.model, self.model.shape.ratios[layer]
        at = torch.tensor([position])
        values, gates = m.candidates(x, name, at, ratio)
        all_values = self.keep(layer, f"{what} values", position, values)
        all_gates = self.keep(layer, f"{what} gates", position, gates)
        if (position + 1) % ratio == 0:
            first = position + 1 - ratio
            values, gates = all_values[first:position + 1], all_gates[first:position + 1]
            if overlapping:
                width = values.shape[-1] // 2
                values, gates = values[:, width:], gates[:, width:]
                if first > 0:
                    values = torch.cat([all_values[first - ratio:first, :width], values])
                    gates = torch.cat([all_gates[first - ratio:first, :width], gates])
            pooled = (gates.softmax(0) * values.to(m.exact)).sum(0, keepdim=True).to(m.dtype)
            pooled = m.rotate(m.norm(pooled, f"{name}.norm"), torch.tensor([first]), layer)
            self.keep(layer, what, position // ratio, pooled)
        return self.rows.get((layer, what))

    def chosen(self, latent, x, name, position, layer, count):
        """Indices of the entries that the row attends, of `count` visible ones."""
        m = self.model
        keys = self.entry(layer, "index", x, f"{name}.indexer.compressor", position, True)
        if count == 0:
            return torch.arange(0)
        q, weights = m.index_queries(latent, x, f"{name}.indexer", torch.tensor([position]), layer)
        scores = (torch.relu(q[0] @ keys[:count].to(m.exact).T) * weights[0][:, None]).sum(0)
        m.note_lead(scores[None], m.shape.index_topk)
        ranked = sorted(range(count), key=lambda w: (-scores[w].item(), w))
        return torch.tensor(sorted(ranked[:m.shape.index_topk]))

    def attention(self, x, name, positions, layer):
        m, c = self.model, self.model.shape
        position, ratio = positions.item(), c.ratios[layer]
        latent, q = m.queries(x, name, positions, layer)
        raw = self.keep(layer, "raw", position, m.key(x, name, positions, layer))
        first = self.first if layer >= c.layers else 0
        keys = raw[max(first, position - c.sliding_window + 1):position + 1]
        if ratio:
            entries = self.entry(layer, "main", x, f"{name}.compressor", position, c.overlapping[layer])
            count = (position + 1) // ratio
            chosen = self.chosen(latent, x, name, position, layer, count) if c.overlapping[layer] else torch.arange(count)
            if count:
                keys = torch.cat([keys, entries[chosen]])
        scores = (q[0] @ keys.T).to(m.exact) * c.head_dim ** -0.5
        largest = scores.max(-1, keepdim=True).values
        shares = torch.exp(scores - largest)
        sink = torch.exp(m.weights[f"{name}.attn_sink"][:, None] - largest)
        out = (shares / (shares.sum(-1, keepdim=True) + sink)).to(m.dtype) @ keys
        return m.output(out[None], name, positions, layer)

    first = 1  # the first position of the MTP module

    def step(self, token, position):
        """The target's row: its logits [V] and streams [hc, D]."""
        m = self.model
        ids, at = torch.tensor([token]), torch.tensor([position])
        m.lead = torch.full((1,), torch.inf, dtype=torch.float64)
        streams, self.outputs = m.seed(ids), []
        for layer in range(m.shape.layers):
            streams = m.layer(streams, ids, layer, at, self.attention)
            self.outputs.append(streams)
        return m.logits(streams)[0], streams[0]

    def step_module(self, previous, token, position):
        """The module's row of `token` at `position`, with the streams [hc, D] of position - 1: its logits and streams."""
        m = self.model
        ids, at = torch.tensor([token]), torch.tensor([position])
        m.lead = torch.full((1,), torch.inf, dtype=torch.float64)
        streams = m.layer(m.mtp_projection(previous[None], ids, at), ids, m.shape.layers, at, self.attention)
        return m.logits(streams, "mtp.0.")[0], streams[0]
