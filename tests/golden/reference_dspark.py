"""DSpark, the block drafter of DeepSeek-V4's later checkpoints, in plain torch (the target: reference_v4.py).

g = dspark_block_size, W = sliding_window, P = position of the last committed token t_P, whose row the target has not run.

    main_x[s] = rms( main_proj . concat over l in dspark_target_layer_ids of mean over n of H_l[s, n] ; main_norm )
                H_l: the streams after layer l of the target
    block       g rows at P .. P + g - 1: the embeddings of t_P and of g - 1 noise tokens, in all streams
    stage i     a whole layer of ratio 0 (mtp.i), but every row of the block attends the same keys:
                rope( rms( wkv . main_x[s] ; kv_norm ), s ) for max(0, P - W) <= s < P, and those of all g rows
    h_k       = hc_head( row k - 1 of the last stage )            k = 1 .. g
    U_k       = head . rms( h_k ; norm )
    x_k       = choice( U_k + W2 . W1[x_(k-1)] )                  x_0 = t_P; the draft for position P + k
    c_k       = sigmoid( w . [ h_k ; W1[x_(k-1)] ] )              an estimate that x_k is accepted

hc_head, norm, W1, W2 and w are those of the last stage, embedding and head the target's. BlockSteps computes the same with
rows that are kept by position, and with plain loops over keys.
"""

import dataclasses

import torch

from reference_v4 import ReferenceV4, Steps


@dataclasses.dataclass
class Block:
    """What a block forward gives: h [g, D], U [g, V], and the smallest lead of a router."""
    hidden: torch.Tensor
    logits: torch.Tensor
    lead: float


@dataclasses.dataclass
class Drafts:
    tokens: list  # x_1 .. x_g
    margins: list  # how far the first choice was ahead of the second, over the root mean square of U_k + bias
    confidences: list
    base_tokens: list  # the choices of U_k alone


class ReferenceDSpark(ReferenceV4):
    def __init__(self, config, tensors, dtype=torch.float64):
        super().__init__(config, tensors, dtype)
        self.block_size, self.noise = config["dspark_block_size"], config["dspark_noise_token_id"]
        self.target_layers = config["dspark_target_layer_ids"]
        self.last = f"mtp.{self.shape.stages - 1}"

    # ---- single rows ----

    def tap(self, streams):
        """[rows, hc, D] -> [rows, D]"""
        return streams.to(self.exact).mean(1).to(self.dtype)

    def context_key(self, main_x, stage, positions):
        return self.key(main_x, f"mtp.{stage}.attn", positions, self.shape.layers + stage)

    def markov_row(self, token):
        return self.weights[f"{self.last}.markov_head.markov_w1.weight"][token].to(self.exact)

    def block_rows(self, token, position):
        """ids and positions [g]"""
        return torch.tensor([token] + [self.noise] * (self.block_size - 1)), position + torch.arange(self.block_size)

    def block_output(self, streams):
        """The streams [g, hc, D] of the last stage -> Block."""
        hidden = self.hyper_head(streams, f"{self.last}.hc_head")
        return Block(hidden, self.linear(self.norm(hidden, f"{self.last}.norm"), "head"), self.lead.min().item())

    # ---- whole matrices ----

    def run_target(self, ids):
        """The target's logits [rows, V] and main_x [rows, D]."""
        outputs = self.run_layers(torch.tensor(ids))
        taps = torch.cat([self.tap(outputs[layer]) for layer in self.target_layers], -1)
        return self.logits(outputs[-1]), self.norm(self.linear(taps, "mtp.0.main_proj"), "mtp.0.main_norm")

    def run_block(self, main_x, token, position):
        """main_x: rows 0 .. position - 1 at least."""
        c = self.shape
        ids, positions = self.block_rows(token, position)
        seen = torch.arange(max(0, position - c.sliding_window), position)
        self.lead = torch.full((len(ids),), torch.inf, dtype=torch.float64)

        def attention(x, name, positions, layer):
            _, q = self.queries(x, name, positions, layer)
            keys = torch.cat([self.context_key(main_x[seen], layer - c.layers, seen), self.key(x, name, positions, layer)])
            scores = torch.einsum("thd,kd->htk", q, keys).to(self.exact) * c.head_dim ** -0.5
            sink = self.weights[f"{name}.attn_sink"][:, None, None].expand(-1, len(x), 1)
            shares = torch.cat([scores, sink], -1).softmax(-1)[..., :-1].to(self.dtype)
            return self.output(torch.einsum("htk,kd->thd", shares, keys), name, positions, layer)

        streams = self.seed(ids)
        for stage in range(c.stages):
            streams = self.layer(streams, ids, c.layers + stage, positions, attention)
        return self.block_output(streams)

    def drafts(self, block, token):
        """The greedy drafts after `token`."""
        head, proj = (self.weights[f"{self.last}.{name}.weight"].to(self.exact) for name in ("markov_head.markov_w2", "confidence_head.proj"))
        drafts = Drafts([], [], [], block.logits.argmax(-1).tolist())
        for hidden, base in zip(block.hidden.to(self.exact), block.logits.to(self.exact)):
            row = self.markov_row(drafts.tokens[-1] if drafts.tokens else token)
            logits = base + head @ row
            first, second = logits.topk(2).values
            drafts.tokens.append(logits.argmax().item())
            drafts.margins.append(((first - second) / logits.pow(2).mean().sqrt()).item())
            drafts.confidences.append(torch.sigmoid(proj[0] @ torch.cat([hidden, row])).item())
        return drafts


class BlockSteps:
    """The target one row at a time (reference_v4.Steps). Context rows are kept by position: that of a rejected token stays until
    the target runs its position again."""

    def __init__(self, model, capacity):
        self.model = model
        self.target = Steps(model, capacity)
        self.context = torch.full((model.shape.stages, capacity, model.shape.head_dim), torch.nan, dtype=model.dtype)

    def step(self, token, position):
        """The target's row and its context rows."""
        m, hidden = self.model, self.model.shape.hidden_size
        self.target.step(token, position)
        weight = m.weights["mtp.0.main_proj.weight"]
        parts = [m.tap(self.target.outputs[layer]) @ weight[:, i * hidden:(i + 1) * hidden].T for i, layer in enumerate(m.target_layers)]
        main_x = m.norm(sum(parts), "mtp.0.main_norm")
        for stage in range(m.shape.stages):
            self.context[stage, position] = m.context_key(main_x, stage, torch.tensor([position]))[0]

    def attend(self, query, keys, sink):
        """One head of one row, key after key: [head_dim]"""
        largest, total, out = sink, torch.ones_like(sink), torch.zeros_like(query)
        for key in keys:
            score = (query * key).sum() * self.model.shape.head_dim ** -0.5
            grown = torch.maximum(largest, score)
            total = total * torch.exp(largest - grown) + torch.exp(score - grown)
            out = out * torch.exp(largest - grown) + torch.exp(score - grown) * key
            largest = grown
        return out / total

    def attention(self, x, name, positions, layer):
        m, first = self.model, positions[0].item()
        _, q = m.queries(x, name, positions, layer)
        keys = list(self.context[layer - m.shape.layers, max(0, first - m.shape.sliding_window):first])
        keys += [m.key(x[i:i + 1], name, positions[i:i + 1], layer)[0] for i in range(len(x))]
        sinks = m.weights[f"{name}.attn_sink"]
        return m.output(torch.stack([torch.stack([self.attend(q[i, h], keys, sinks[h]) for h in range(len(sinks))]) for i in range(len(x))]),
                        name, positions, layer)

    def block(self, token, position):
        m = self.model
        ids, positions = m.block_rows(token, position)
        m.lead = torch.full((len(ids),), torch.inf, dtype=torch.float64)
        streams = m.seed(ids)
        for stage in range(m.shape.stages):
            streams = m.layer(streams, ids, m.shape.layers + stage, positions, self.attention)
        return m.block_output(streams)
