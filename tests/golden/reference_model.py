"""The forward of docs/deepseek-v3.md in plain torch: target, MTP modules, and how close each router's choice was.

Independent of transformers and of foredraft. In float64 it is the reference for what transformers cannot compute; in
bfloat16, with FP32 norms, softmax and routing as transformers has them, it measures what rounding alone changes.
"""

import math

import torch

LATENT_EPS = 1e-6  # of q_a_layernorm and kv_a_layernorm, whatever rms_norm_eps is


class ReferenceModel:
    def __init__(self, config, tensors, dtype=torch.float64):
        self.config = config
        self.dtype = dtype
        self.exact = torch.float64 if dtype == torch.float64 else torch.float32
        self.weights = {name: values.to(dtype) for name, values in tensors.items()}
        self.dense_mtp = config["model_type"] == "joyai_llm_flash"
        self.lead = None  # [positions], while a run collects it
        self.selected = None  # [positions, positions] of the last layer with an indexer

    def weight(self, name):
        return self.weights[name + ".weight"]

    def linear(self, x, name):
        return x @ self.weight(name).T

    def norm(self, x, name, eps):
        wide = x.to(self.exact)
        return self.weight(name) * (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + eps)).to(self.dtype)

    def rope(self):
        """Inverse frequencies, the factor on cos and sin, the factor on the softmax scale."""
        c = self.config
        dim = c["qk_rope_head_dim"]
        rope = c.get("rope_scaling") or c.get("rope_parameters") or {}
        theta = rope.get("rope_theta", c.get("rope_theta", 10000.0))
        frequencies = theta ** (-torch.arange(0, dim, 2, dtype=torch.float64) / dim)
        if rope.get("type", rope.get("rope_type", "default")) == "default":
            return frequencies, 1.0, 1.0
        mscale = lambda m: 0.1 * m * math.log(rope["factor"]) + 1.0
        turns = lambda n: dim * math.log(rope["original_max_position_embeddings"] / (2 * math.pi * n)) / (2 * math.log(theta))
        low = max(math.floor(turns(rope["beta_fast"])), 0)
        high = min(math.ceil(turns(rope["beta_slow"])), dim - 1)
        ramp = ((torch.arange(dim // 2, dtype=torch.float64) - low) / max(high - low, 0.001)).clamp(0, 1)
        frequencies = frequencies / rope["factor"] * ramp + frequencies * (1 - ramp)
        return frequencies, mscale(rope["mscale"]) / mscale(rope["mscale_all_dim"]), mscale(rope["mscale_all_dim"]) ** 2

    def rotate(self, x, positions):
        """x [positions, heads, rope], rotation pairs (2i, 2i + 1)."""
        frequencies, factor, _ = self.rope()
        angles = positions.to(torch.float64)[:, None] * frequencies
        cos, sin = (factor * angles.cos()).to(self.dtype)[:, None], (factor * angles.sin()).to(self.dtype)[:, None]
        even, odd = x[..., 0::2], x[..., 1::2]
        return torch.stack([even * cos - odd * sin, odd * cos + even * sin], -1).flatten(-2)

    def rotate_leading(self, x, positions):
        """x [positions, heads, width], the first rope values of which are rotated: halves (DeepSeek-V3.2) or pairs (GLM-5)."""
        rope = self.config["qk_rope_head_dim"]
        frequencies, factor, _ = self.rope()
        angles = positions.to(torch.float64)[:, None] * frequencies
        cos, sin = (factor * angles.cos()).to(self.exact)[:, None], (factor * angles.sin()).to(self.exact)[:, None]
        rotated, kept = x.split([rope, x.shape[-1] - rope], -1)
        if self.config["model_type"] == "glm_moe_dsa":
            low, high = rotated[..., 0::2], rotated[..., 1::2]
            rotated = torch.stack([low * cos - high * sin, high * cos + low * sin], -1).flatten(-2)
        else:
            low, high = rotated.chunk(2, -1)
            rotated = torch.cat([low * cos - high * sin, high * cos + low * sin], -1)
        return torch.cat([rotated, kept], -1)

    def select(self, x, latent, name, positions):
        """Which positions each row attends, where it sees more than index_topk: those with the highest scores, of equal ones the lowest."""
        c, rows = self.config, len(x)
        heads, width, top = c["index_n_heads"], c["index_head_dim"], c["index_topk"]
        q = self.linear(latent, f"{name}.wq_b").view(rows, heads, width).to(self.exact)
        k = self.linear(x, f"{name}.wk").to(self.exact)
        k = torch.nn.functional.layer_norm(k, (width,), self.weight(f"{name}.k_norm").to(self.exact),
                                           self.weights[f"{name}.k_norm.bias"].to(self.exact), LATENT_EPS)
        q = self.rotate_leading(q, positions).to(self.dtype).to(self.exact)
        k = self.rotate_leading(k[:, None], positions)[:, 0].to(self.dtype).to(self.exact)
        weights = x.to(self.exact) @ self.weight(f"{name}.weights_proj").to(self.exact).T * (heads * width) ** -0.5
        scores = (torch.einsum("phd,td->pht", q, k).relu() * weights[..., None]).sum(1)
        scores = scores.masked_fill(torch.ones(rows, rows, dtype=torch.bool).triu(1), -torch.inf)
        best = scores.sort(dim=-1, descending=True, stable=True)
        return torch.zeros_like(scores, dtype=torch.bool).scatter(-1, best.indices[:, :top], True)

    def attention(self, x, name, positions):
        c = self.config
        heads, nope, rope, value = (c[key] for key in ("num_attention_heads", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim"))
        rows = len(x)
        if c["q_lora_rank"] is None:
            q = self.linear(x, f"{name}.q_proj")
        else:
            q_latent = self.norm(self.linear(x, f"{name}.q_a_proj"), f"{name}.q_a_layernorm", LATENT_EPS)
            q = self.linear(q_latent, f"{name}.q_b_proj")
        q_nope, q_pe = q.view(rows, heads, nope + rope).split([nope, rope], -1)
        latent, k_pe = self.linear(x, f"{name}.kv_a_proj_with_mqa").split([c["kv_lora_rank"], rope], -1)
        kv = self.linear(self.norm(latent, f"{name}.kv_a_layernorm", LATENT_EPS), f"{name}.kv_b_proj").view(rows, heads, nope + value)
        k_nope, v = kv.split([nope, value], -1)
        q = torch.cat([q_nope, self.rotate(q_pe, positions)], -1).transpose(0, 1)
        k = torch.cat([k_nope, self.rotate(k_pe[:, None], positions).expand(-1, heads, -1)], -1).transpose(0, 1)
        scores = (q @ k.transpose(1, 2)) * ((nope + rope) ** -0.5 * self.rope()[2])
        scores = scores.masked_fill(torch.ones(rows, rows, dtype=torch.bool).triu(1), -torch.inf)
        if f"{name}.indexer.wq_b.weight" in self.weights:
            self.selected = self.select(x, q_latent, f"{name}.indexer", positions)
        if "index_topk" in c:
            scores = scores.masked_fill(~self.selected, -torch.inf)
        shares = scores.to(self.exact).softmax(-1).to(self.dtype)
        return self.linear((shares @ v.transpose(0, 1)).transpose(0, 1).reshape(rows, heads * value), f"{name}.o_proj")

    def mlp(self, x, name):
        return self.linear(torch.nn.functional.silu(self.linear(x, f"{name}.gate_proj")) * self.linear(x, f"{name}.up_proj"), f"{name}.down_proj")

    def note_lead(self, lead):
        self.lead[-len(lead):] = torch.minimum(self.lead[-len(lead):], lead.double())

    def route(self, x, name):
        """[positions, experts]: the weight of each expert, 0 for those that are not chosen."""
        c = self.config
        scores = (x.to(self.exact) @ self.weight(name).to(self.exact).T).sigmoid()
        choice = scores + self.weights[f"{name}.e_score_correction_bias"].to(self.exact)
        groups = choice.unflatten(-1, (c["n_group"], -1))
        group_scores = groups.topk(2).values.sum(-1).sort(-1, descending=True)
        if c["topk_group"] < c["n_group"]:
            self.note_lead(group_scores.values[:, c["topk_group"] - 1] - group_scores.values[:, c["topk_group"]])
        kept = torch.zeros_like(group_scores.values, dtype=torch.bool).scatter(-1, group_scores.indices[:, :c["topk_group"]], True)
        choice = groups.masked_fill(~kept[..., None], -torch.inf).flatten(-2)
        best = choice.sort(-1, descending=True)
        top = c["num_experts_per_tok"]
        self.note_lead(best.values[:, top - 1] - best.values[:, top])
        weights = scores.gather(-1, best.indices[:, :top])
        if c["norm_topk_prob"]:
            weights = weights / (weights.sum(-1, keepdim=True) + 1e-20)
        return torch.zeros_like(scores).scatter(-1, best.indices[:, :top], weights * c["routed_scaling_factor"])

    def experts(self, x, name):
        weights = self.route(x, f"{name}.gate")
        routed = sum(weights[:, e, None] * self.mlp(x, f"{name}.experts.{e}").to(self.exact) for e in range(weights.shape[-1]))
        return routed.to(self.dtype) + self.mlp(x, f"{name}.shared_experts")

    def layer(self, x, index, positions):
        c, name = self.config, f"model.layers.{index}"
        x = x + self.attention(self.norm(x, f"{name}.input_layernorm", c["rms_norm_eps"]), f"{name}.self_attn", positions)
        normed = self.norm(x, f"{name}.post_attention_layernorm", c["rms_norm_eps"])
        dense = index < c["first_k_dense_replace"] or (self.dense_mtp and index >= c["num_hidden_layers"])
        return x + (self.mlp if dense else self.experts)(normed, f"{name}.mlp")

    def run(self, ids):
        """Logits [positions, vocab] of the target, then of each MTP module from position i on for module i."""
        c, ids = self.config, torch.tensor(ids)
        length = len(ids)
        positions = torch.arange(length)
        self.lead = torch.full((length,), torch.inf, dtype=torch.float64)
        embedded = self.weight("model.embed_tokens")[ids]
        x = embedded
        for index in range(c["num_hidden_layers"]):
            x = self.layer(x, index, positions)
        output = self.norm(x, "model.norm", c["rms_norm_eps"])
        logits = [self.linear(output, "lm_head")]
        for module in range(min(c.get("num_nextn_predict_layers", 0), length - 1)):
            first = module + 1
            name = f"model.layers.{c['num_hidden_layers'] + module}"
            both = torch.cat([self.norm(embedded[first:], f"{name}.enorm", c["rms_norm_eps"]),
                              self.norm(output[:-1], f"{name}.hnorm", c["rms_norm_eps"])], -1)
            z = self.layer(self.linear(both, f"{name}.eh_proj"), c["num_hidden_layers"] + module, positions[first:])
            output = self.norm(z, f"{name}.shared_head.norm", c["rms_norm_eps"])
            logits.append(self.linear(output, "lm_head"))
        return logits
