"""Small random checkpoints of DeepSeek-V4 under DeepSeek's tensor names and dtypes (docs/deepseek-v4.md sections 7, 8).

Every kind of layer is in each: window attention alone, CSA with fewer indexer entries kept than visible, HCA that fires,
experts chosen by hash and by score, hyper-connections, an MTP module or the stages of DSpark. The window is short, so that
entries matter.
"""

import json
import pathlib

import numpy as np
import torch
from safetensors.torch import load_file, save_file

TINY = {
    "architectures": ["DeepseekV4ForCausalLM"], "model_type": "deepseek_v4", "vocab_size": 64, "hidden_size": 64, "num_nextn_predict_layers": 1,
    "num_attention_heads": 4, "num_key_value_heads": 1, "head_dim": 32, "q_lora_rank": 32, "o_lora_rank": 16, "o_groups": 2,
    "sliding_window": 16, "index_n_heads": 16, "index_head_dim": 16, "index_topk": 12, "moe_intermediate_size": 32, "n_routed_experts": 8,
    "num_experts_per_tok": 3, "n_shared_experts": 1, "scoring_func": "sqrtsoftplus", "norm_topk_prob": True, "routed_scaling_factor": 1.5,
    "swiglu_limit": 1.5, "hc_sinkhorn_iters": 20, "hc_eps": 1e-6, "rms_norm_eps": 1e-6, "hidden_act": "silu", "max_position_embeddings": 2048,
    "bos_token_id": 0, "eos_token_id": 1, "tie_word_embeddings": False, "attention_bias": False}
# As DeepSeek ships it, fields without meaning included.
SHIPPED = {
    "topk_method": "noaux_tc", "n_group": 8, "topk_group": 4, "qk_rope_head_dim": 8, "hc_mult": 4, "rope_theta": 10000,
    "compress_rope_theta": 160000, "rope_scaling": {"type": "yarn", "factor": 16, "original_max_position_embeddings": 64, "beta_fast": 32,
                                                   "beta_slow": 1}}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64, "beta_fast": 32.0, "beta_slow": 1.0, "attention_factor": 1.0,
        "rope_theta": 160000.0, "partial_rotary_factor": 0.25}
CONFIGS = {
    "deepseek_v4": TINY | SHIPPED | {"num_hidden_layers": 4, "compress_ratios": [0, 4, 128, 4, 0], "num_hash_layers": 1, "torch_dtype": "bfloat16"},
    "deepseek_v4_fp4": TINY | SHIPPED | {
        "num_hidden_layers": 3, "compress_ratios": [4, 128, 4, 0], "num_hash_layers": 2, "hc_mult": 2, "torch_dtype": "bfloat16",
        "expert_dtype": "fp4", "hidden_size": 160, "quantization_config": {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic", "scale_fmt": "ue8m0",
                                                    "weight_block_size": [128, 128]}},
    # transformers' spelling of the config, another HCA rate, two streams, all weights in F32.
    "deepseek_v4_f32": TINY | {
        "num_hidden_layers": 3, "hc_mult": 2, "moe_intermediate_size": 16, "layer_types": ["heavily_compressed_attention", "compressed_sparse_attention", "sliding_attention"],
        "compress_rates": {"compressed_sparse_attention": 4, "heavily_compressed_attention": 8}, "mlp_layer_types": ["moe", "hash_moe", "moe"],
        "partial_rotary_factor": 0.25, "rope_parameters": {"main": {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.25},
                                                           "compress": YARN}, "torch_dtype": "float32"}}

# The four fields, a ratio of 0 per stage, and num_nextn_predict_layers 1 although there is no module.
DSPARK = {"num_hidden_layers": 4, "torch_dtype": "bfloat16", "dspark_block_size": 5, "dspark_noise_token_id": TINY["vocab_size"] - 1,
          "dspark_markov_rank": 8}
DSPARK_CONFIGS = {
    "deepseek_v4_dspark": CONFIGS["deepseek_v4"] | DSPARK | {"compress_ratios": [0, 4, 128, 4, 0, 0, 0], "dspark_target_layer_ids": [0, 2, 3]},
    "deepseek_v4_dspark_fp4": CONFIGS["deepseek_v4_fp4"] | DSPARK | {"compress_ratios": [4, 128, 0, 4, 0, 0, 0], "dspark_target_layer_ids": [1, 2, 3]}}

FP4_VALUES = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6])
FP8_MAX = 448.0
MARKOV_GAIN = 1.4


def power_of_two(values):
    """[...] -> the byte of the smallest power of two that is at least the value: E8M0."""
    return torch.ceil(torch.log2(values.clamp(min=2.0 ** -100))).clamp(-127, 127).add(127).to(torch.uint8)


def scale_of(byte):
    return torch.exp2(byte.to(torch.float32) - 127)


def pack_fp8(values):
    """values [N, K] -> F8_E4M3 [N, K] and E8M0 scales [ceil(N / 128), ceil(K / 128)]."""
    rows, columns = values.shape
    padded = torch.zeros(-(-rows // 128) * 128, -(-columns // 128) * 128)
    padded[:rows, :columns] = values
    blocks = padded.view(padded.shape[0] // 128, 128, -1, 128)
    bytes_ = power_of_two(blocks.abs().amax((1, 3)) / FP8_MAX)
    codes = (blocks / scale_of(bytes_)[:, None, :, None]).view(padded.shape)[:rows, :columns].to(torch.float8_e4m3fn)
    return codes.contiguous(), bytes_.view(torch.float8_e8m0fnu)


def pack_fp4(values):
    """values [N, K] -> I8 [N, K / 2], element 2i in the low nibble, and E8M0 scales [N, K / 32]."""
    groups = values.view(len(values), -1, 32)
    bytes_ = power_of_two(groups.abs().amax(-1) / 6.0)
    scaled = (groups / scale_of(bytes_)[..., None]).flatten(1)
    codes = (scaled.abs()[..., None] - FP4_VALUES).abs().argmin(-1) + 8 * (scaled < 0)
    return (codes[:, 0::2] | codes[:, 1::2] << 4).to(torch.uint8).view(torch.int8), bytes_.view(torch.float8_e8m0fnu)


def read_float32(folder):
    """config.json and the tensors as float32, without scales: what the codes mean (section 8)."""
    config = json.loads((folder / "config.json").read_text())
    tensors, result = load_file(folder / "model.safetensors"), {}
    for name, tensor in tensors.items():
        if name.endswith(".scale"):
            continue
        scale = tensors.get(name.removesuffix(".weight") + ".scale")
        if scale is None:
            result[name] = tensor if tensor.dtype == torch.int64 else tensor.float()
        elif tensor.dtype == torch.int8:
            codes = tensor.view(torch.uint8).long()
            codes = torch.stack([codes & 15, codes >> 4], -1).flatten(1)
            values = FP4_VALUES[codes & 7] * (1 - 2 * (codes >> 3))
            result[name] = values * scale_of(scale.view(torch.uint8)).repeat_interleave(32, 1)
        else:
            wide = scale_of(scale.view(torch.uint8)).repeat_interleave(128, 0).repeat_interleave(128, 1)
            result[name] = tensor.float() * wide[:tensor.shape[0], :tensor.shape[1]]
    config.pop("quantization_config", None)
    config.pop("expert_dtype", None)
    return config, result


class Writer:
    def __init__(self, config, seed):
        self.config = config
        self.rng = np.random.Generator(np.random.PCG64(seed))
        self.tensors = {}
        self.half = torch.float32 if config["torch_dtype"] == "float32" else torch.bfloat16

    def normal(self, *shape, gain=1.0):
        return torch.from_numpy(gain * self.rng.standard_normal(shape)).float()

    def plain(self, name, values, dtype=None):
        self.tensors[name] = values.to(dtype or self.half)

    def exact(self, name, values):
        self.plain(name, values, torch.float32)

    def norm(self, name, size):
        self.plain(f"{name}.weight", 1 + self.normal(size, gain=0.1))

    def linear(self, name, rows, columns, gain=1.0, expert=False):
        values = self.normal(rows, columns, gain=gain / columns ** 0.5)
        if "quantization_config" not in self.config:
            return self.plain(f"{name}.weight", values)
        pack = pack_fp4 if expert else pack_fp8
        self.tensors[f"{name}.weight"], self.tensors[f"{name}.scale"] = pack(values)

    def plain_linear(self, name, rows, columns, gain=1.0):
        self.plain(f"{name}.weight", self.normal(rows, columns, gain=gain / columns ** 0.5))

    def hyper(self, name, outputs, scales):
        width = self.config["hc_mult"] * self.config["hidden_size"]
        self.exact(f"{name}_fn", self.normal(outputs, width, gain=width ** -0.5))
        self.exact(f"{name}_base", self.normal(outputs, gain=0.5))
        self.exact(f"{name}_scale", 1 + self.normal(scales, gain=0.2))

    def compressor(self, name, ratio, width):
        channels = 2 * width if ratio == 4 else width
        for part in ("wkv", "wgate"):
            self.plain_linear(f"{name}.{part}", channels, self.config["hidden_size"])
        self.exact(f"{name}.ape", self.normal(ratio, channels, gain=0.5))
        self.norm(f"{name}.norm", width)

    def attention(self, name, ratio):
        c = self.config
        hidden, heads, width, groups = c["hidden_size"], c["num_attention_heads"], c["head_dim"], c["o_groups"]
        self.linear(f"{name}.wq_a", c["q_lora_rank"], hidden)
        self.norm(f"{name}.q_norm", c["q_lora_rank"])
        self.linear(f"{name}.wq_b", heads * width, c["q_lora_rank"])
        self.linear(f"{name}.wkv", width, hidden)
        self.norm(f"{name}.kv_norm", width)
        self.linear(f"{name}.wo_a", groups * c["o_lora_rank"], heads * width // groups, 2.0)
        self.linear(f"{name}.wo_b", hidden, groups * c["o_lora_rank"])
        self.exact(f"{name}.attn_sink", self.normal(heads))
        if ratio:
            self.compressor(f"{name}.compressor", ratio, width)
        if ratio == 4:
            self.linear(f"{name}.indexer.wq_b", c["index_n_heads"] * c["index_head_dim"], c["q_lora_rank"])
            self.plain_linear(f"{name}.indexer.weights_proj", c["index_n_heads"], hidden)
            self.compressor(f"{name}.indexer.compressor", ratio, c["index_head_dim"])

    def mlp(self, name, expert):
        hidden, width = self.config["hidden_size"], self.config["moe_intermediate_size"]
        self.linear(f"{name}.w1", width, hidden, 1.5, expert)
        self.linear(f"{name}.w2", hidden, width, 1.5, expert)
        self.linear(f"{name}.w3", width, hidden, 1.5, expert)

    def experts(self, name, hashed):
        c = self.config
        count, chosen = c["n_routed_experts"], c["num_experts_per_tok"]
        self.plain_linear(f"{name}.gate", count, c["hidden_size"], 2.5)
        if hashed:
            table = np.stack([self.rng.permutation(count)[:chosen] for _ in range(c["vocab_size"])])
            self.plain(f"{name}.gate.tid2eid", torch.from_numpy(table), torch.int64)
        else:
            self.exact(f"{name}.gate.bias", self.normal(count, gain=0.1))
        for expert in range(count):
            self.mlp(f"{name}.experts.{expert}", True)
        self.mlp(f"{name}.shared_experts", False)

    def layer(self, name, ratio, hashed):
        hc, hidden = self.config["hc_mult"], self.config["hidden_size"]
        for part in ("attn", "ffn"):
            self.norm(f"{name}.{part}_norm", hidden)
            self.hyper(f"{name}.hc_{part}", (2 + hc) * hc, 3)
        self.attention(f"{name}.attn", ratio)
        self.experts(f"{name}.ffn", hashed)

    def model(self, shape):
        c = self.config
        hidden, hc = c["hidden_size"], c["hc_mult"]
        self.plain("embed.weight", self.normal(c["vocab_size"], hidden))
        for layer in range(c["num_hidden_layers"]):
            self.layer(f"layers.{layer}", shape.ratios[layer], shape.hashed[layer])
        self.norm("norm", hidden)
        self.hyper("hc_head", hc, 1)
        self.plain_linear("head", c["vocab_size"], hidden, 2.5)
        for module in range(shape.modules):
            name = f"mtp.{module}"
            self.layer(name, 0, False)
            self.linear(f"{name}.e_proj", hidden, hidden)
            self.linear(f"{name}.h_proj", hidden, hidden)
            for part in ("enorm", "hnorm", "norm"):
                self.norm(f"{name}.{part}", hidden)
            self.hyper(f"{name}.hc_head", hc, 1)
        if shape.stages:
            self.dspark(shape)
        return self.tensors

    def dspark(self, shape):
        """The stages, what is before the first one, and what is behind the last one."""
        c = self.config
        hidden, rank = c["hidden_size"], c["dspark_markov_rank"]
        self.linear("mtp.0.main_proj", hidden, len(c["dspark_target_layer_ids"]) * hidden)
        # Far from 1: the rows that are made of it are normed again, so only differences between its values show.
        self.plain("mtp.0.main_norm.weight", self.normal(hidden, gain=2.0))
        for stage in range(shape.stages):
            self.layer(f"mtp.{stage}", 0, False)
            # Larger than a layer's, so that it decides more choices.
            self.exact(f"mtp.{stage}.ffn.gate.bias", self.normal(c["n_routed_experts"], gain=0.4))
        last = f"mtp.{shape.stages - 1}"
        self.norm(f"{last}.norm", hidden)
        self.hyper(f"{last}.hc_head", c["hc_mult"], 1)
        # The target's weighs all streams nearly alike; this one every second stream.
        self.exact(f"{last}.hc_head_base", 4.0 * (-1) ** torch.arange(c["hc_mult"]))
        # Their product changes about half of the choices. One that is left out would pass otherwise.
        self.plain(f"{last}.markov_head.markov_w1.weight", self.normal(c["vocab_size"], rank))
        self.plain_linear(f"{last}.markov_head.markov_w2", c["vocab_size"], rank, MARKOV_GAIN)
        # Hidden states are larger than rows of markov_w1; both have a part in the confidence.
        parts = self.normal(1, hidden, gain=0.25 / hidden ** 0.5), self.normal(1, rank, gain=rank ** -0.5)
        self.plain(f"{last}.confidence_head.proj.weight", torch.cat(parts, 1))


def write(folder: pathlib.Path, config, seed, shape):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    save_file(Writer(config, seed).model(shape), folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "model.safetensors").chmod(0o644)
