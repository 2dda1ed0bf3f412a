"""DeepSeek-V4 with both of its drafters: the MTP module (docs/deepseek-v4.md) and the stages of DSpark.

The drafters are trained on the finished target and written to two checkpoints, which differ in what is under mtp.*.
"""

import torch
from torch import nn
from torch.nn import functional as F

import abacus_path  # noqa: F401
from model import RmsNorm, linear
from v4_layers import HyperHead, Layer, rope_tables


class MtpModule(nn.Module):
    """Section 6. One module, recycled: its own streams are the next draft's input."""

    def __init__(self, config):
        super().__init__()
        hidden, eps = config.hidden_size, config.rms_norm_eps
        self.window = config.sliding_window
        self.enorm, self.hnorm, self.norm = (RmsNorm(hidden, eps) for _ in range(3))
        self.e_proj, self.h_proj = linear(hidden, hidden, gain=1.4), linear(hidden, hidden, gain=1.4)
        self.block = Layer(config, 0, False, 0)
        self.hc_head = HyperHead(config)

    def attention(self, x, rope, levels):
        """A row of recycling level n at position s sees the true rows s - window < t <= s - n, then one row of each later
        level, the last being itself. The row's own keys are appended to `levels`."""
        attn, rows = self.block.attn, x.shape[1]
        q, keys = attn.queries(x, rope), attn.key(x, rope)
        levels.append(keys)
        depth, at = len(levels) - 1, torch.arange(rows)
        distance = at[:, None] - at
        allowed = (distance >= depth) & (distance < self.window)
        if depth == 0:
            return attn.output(attn.attend(q, keys, allowed), rope)
        # The recycled rows as keys of the whole sequence, each visible to one row.
        near = [level.roll(depth - n, 1) for n, level in enumerate(levels) if n]
        allowed = torch.cat([allowed] + [distance == 0] * depth, 1)
        return attn.output(attn.attend(q, torch.cat([levels[0], *near], 1), allowed), rope)

    def forward(self, embedded, ids, previous, tables, levels):
        """Rows of positions 1 .. rows; previous: the streams one position earlier."""
        rope = tuple(part[1:ids.shape[1] + 1] for part in tables)
        # The embedding counts as zero at position 1.
        embedded = F.pad(embedded[:, 1:], (0, 0, 1, 0))
        streams = self.h_proj(self.hnorm(previous)) + self.e_proj(self.enorm(embedded)).unsqueeze(-2)
        return self.block(streams.float(), ids, lambda x: self.attention(x, rope, levels))

    def head_input(self, streams):
        return self.norm(self.hc_head(streams))


class DSpark(nn.Module):
    """The block drafter: stages over one committed token and noise, with context rows made of the target's streams."""

    def __init__(self, config):
        super().__init__()
        c = self.config = config
        hidden, layers = c.hidden_size, c.num_hidden_layers
        self.main_proj = linear(len(c.dspark_target_layer_ids) * hidden, hidden)
        self.main_norm, self.norm = RmsNorm(hidden, c.rms_norm_eps), RmsNorm(hidden, c.rms_norm_eps)
        self.stages = nn.ModuleList(Layer(c, 0, False, layers + n) for n in range(c.dspark_stages))
        self.hc_head = HyperHead(c)
        self.markov_w1 = nn.Parameter(torch.randn(c.vocab_size, c.dspark_markov_rank) * 0.5)
        self.markov_w2 = nn.Parameter(torch.randn(c.vocab_size, c.dspark_markov_rank) * 0.02)
        self.confidence = nn.Parameter(torch.zeros(1, hidden + c.dspark_markov_rank))

    def context(self, taps):
        """main_x [batch, rows, hidden] of the streams after the tapped layers."""
        return self.main_norm(self.main_proj(torch.cat([tap.float().mean(-2) for tap in taps], -1)))

    def block_attention(self, attn, x, context_keys, allowed, rope):
        """x [batch, blocks * g, hidden]: every row sees its block's window of context keys and all rows of its block.

        Blocks of one sequence are attended together: the keys of all blocks stand behind the context, and `allowed`
        leaves each row its own.
        """
        keys = torch.cat([context_keys, attn.key(x, rope)], 1)
        return attn.output(attn.attend(attn.queries(x, rope), keys, allowed), rope)

    def forward(self, embed, main_x, ids, anchors, tables):
        """h [batch, blocks, g, hidden] for blocks that begin at the positions `anchors` [batch, blocks] of ids."""
        c, g = self.config, self.config.dspark_block_size
        batch, blocks = anchors.shape
        block_ids = torch.full((batch, blocks, g), c.dspark_noise_token_id)
        block_ids[..., 0] = ids.gather(1, anchors)
        block_ids = block_ids.flatten(1)
        positions = (anchors.unsqueeze(-1) + torch.arange(g)).flatten(1)
        rope = tuple(part[positions] for part in tables)
        context_rope = tuple(part[:main_x.shape[1]] for part in tables)
        distance = anchors.repeat_interleave(g, 1).unsqueeze(-1) - torch.arange(main_x.shape[1])
        owner = torch.arange(blocks).repeat_interleave(g)
        own = (owner[:, None] == owner).expand(batch, -1, -1)
        allowed = torch.cat([(distance >= 1) & (distance <= c.sliding_window), own], -1)
        streams = embed(block_ids).unsqueeze(-2).expand(-1, -1, c.hc_mult, -1)
        for stage in self.stages:
            keys = stage.attn.key(main_x, context_rope)
            streams = stage(streams, block_ids,
                            lambda x, a=stage.attn, k=keys: self.block_attention(a, x, k, allowed, rope))
        return self.hc_head(streams).unflatten(1, (blocks, g))

    def draft_logits(self, head, hidden, before):
        """Logits and confidence logits; before [..., g]: the tokens one position before those drafted."""
        row = self.markov_w1[before]
        with torch.autocast("cpu", enabled=False):
            confidence = F.linear(torch.cat([hidden, row], -1), self.confidence).squeeze(-1)
        return head(self.norm(hidden)).float() + F.linear(row, self.markov_w2).float(), confidence


class Model(nn.Module):
    def __init__(self, config):
        super().__init__()
        c = self.config = config
        self.embed_tokens = nn.Embedding(c.vocab_size, c.hidden_size)
        nn.init.normal_(self.embed_tokens.weight, std=0.3)
        self.layers = nn.ModuleList(
            Layer(c, ratio, n < c.num_hash_layers, n) for n, ratio in enumerate(c.compress_ratios[:c.num_hidden_layers]))
        self.hc_head = HyperHead(c)
        self.norm = RmsNorm(c.hidden_size, c.rms_norm_eps)
        self.lm_head = linear(c.hidden_size, c.vocab_size, gain=0.5)
        self.mtp = MtpModule(c)
        self.dspark = DSpark(c)
        for name, compressed in (("main", False), ("compress", True)):
            for part, table in zip(("cos", "sin"), rope_tables(c, compressed)):
                self.register_buffer(f"{name}_{part}", table, persistent=False)

    def tables(self, ratio=0):
        return (self.compress_cos, self.compress_sin) if ratio else (self.main_cos, self.main_sin)

    def target_parameters(self):
        return [p for name, p in self.named_parameters() if not name.startswith(("mtp.", "dspark."))]

    def streams(self, ids):
        """The streams after every layer."""
        streams = self.embed_tokens(ids).unsqueeze(-2).expand(-1, -1, self.config.hc_mult, -1)
        outputs = []
        for layer in self.layers:
            attn, tables = layer.attn, self.tables(layer.attn.ratio)
            streams = layer(streams, ids, lambda x, a=attn, t=tables: a(x, t))
            outputs.append(streams)
        return outputs

    def head_input(self, streams):
        return self.norm(self.hc_head(streams))

    def forward(self, ids):
        """What the head takes, of every row."""
        return self.head_input(self.streams(ids)[-1])

    def mtp_levels(self, ids, streams, count):
        """What the head takes for 1 .. count applications of the module: rows are positions 1 .. of ids."""
        embedded, previous, levels, found = self.embed_tokens(ids[:, 1:]), streams[:, :-1], [], []
        for level in range(count):
            if level:
                previous = previous.roll(1, 1)
            previous = self.mtp(embedded, ids[:, 1:], previous, self.tables(), levels)
            found.append(self.mtp.head_input(previous))
        return found
