"""Small random checkpoints of every family in the Hugging Face layout, MTP modules included: the same bytes on every run.

Weights are scaled so that activations stay around 1, logits spread by 2 to 3, and the last experts that a router
takes weigh little: rounding then moves logits a little where it swaps two of them, not a lot.
"""

import json
import pathlib
import re

import numpy as np
import torch
from safetensors.torch import save_file

import pack_quantized

COMMON = {
    "architectures": ["DeepseekV3ForCausalLM"], "model_type": "deepseek_v3", "vocab_size": 256, "moe_layer_freq": 1,
    "topk_method": "noaux_tc", "scoring_func": "sigmoid", "hidden_act": "silu", "attention_bias": False,
    "tie_word_embeddings": False, "rope_theta": 10000.0, "rope_interleave": True, "bos_token_id": 0, "eos_token_id": 1,
    "torch_dtype": "bfloat16", "num_nextn_predict_layers": 1, "n_shared_experts": 1, "first_k_dense_replace": 1}

# Routing in groups, low-rank queries, YaRN with both mscales beyond its original length, two shards.
GROUPED = COMMON | {
    "hidden_size": 64, "num_hidden_layers": 3, "intermediate_size": 128, "moe_intermediate_size": 12, "n_routed_experts": 64,
    "num_experts_per_tok": 8, "n_group": 8, "topk_group": 4, "norm_topk_prob": True, "routed_scaling_factor": 2.5,
    "num_attention_heads": 4, "num_key_value_heads": 4, "q_lora_rank": 32, "kv_lora_rank": 32, "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 8, "v_head_dim": 16, "rms_norm_eps": 1e-6, "max_position_embeddings": 256,
    "rope_scaling": {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64, "beta_fast": 32.0,
                     "beta_slow": 1.0, "mscale": 0.707, "mscale_all_dim": 1.0}}

# FP8 blocks of which many are ragged, one query projection, one group, no YaRN.
FP8 = COMMON | {
    "hidden_size": 160, "num_hidden_layers": 2, "intermediate_size": 200, "moe_intermediate_size": 48, "n_routed_experts": 16,
    "num_experts_per_tok": 4, "n_group": 1, "topk_group": 1, "norm_topk_prob": True, "routed_scaling_factor": 1.5,
    "num_attention_heads": 4, "num_key_value_heads": 4, "q_lora_rank": None, "kv_lora_rank": 40, "qk_nope_head_dim": 24,
    "qk_rope_head_dim": 16, "v_head_dim": 24, "rms_norm_eps": 1e-5, "max_position_embeddings": 512, "rope_scaling": None,
    "quantization_config": {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic", "weight_block_size": [128, 128]}}

# 4-bit codes in groups. Some modules stay in BF16: kv_b, and one of the two projections that are fused.
PACKED_COMMON = COMMON | {
    "hidden_size": 128, "num_hidden_layers": 2, "intermediate_size": 256, "moe_intermediate_size": 32, "n_routed_experts": 16,
    "num_experts_per_tok": 4, "n_group": 4, "topk_group": 2, "norm_topk_prob": True, "routed_scaling_factor": 1.5,
    "num_attention_heads": 4, "num_key_value_heads": 4, "q_lora_rank": 64, "kv_lora_rank": 64, "qk_nope_head_dim": 32,
    "qk_rope_head_dim": 16, "v_head_dim": 32, "rms_norm_eps": 1e-6, "max_position_embeddings": 512, "rope_scaling": None}
UNPACKED = re.compile(r"lm_head|.*kv_b_proj|.*eh_proj|.*layers\.1\.self_attn\.q_a_proj")
PACKED = {kind: PACKED_COMMON | {"quantization_config": pack_quantized.quantization_config(kind, 32, ["lm_head", "re:" + UNPACKED.pattern])}
          for kind in pack_quantized.FORMATS}

# The smallest shape with everything: a dense layer, a layer with experts, an MTP module.
TINY = {
    "vocab_size": 128, "hidden_size": 48, "num_hidden_layers": 2, "num_nextn_predict_layers": 1, "first_k_dense_replace": 1,
    "intermediate_size": 64, "moe_intermediate_size": 12, "n_routed_experts": 8, "num_experts_per_tok": 2, "n_shared_experts": 1,
    "n_group": 1, "topk_group": 1, "norm_topk_prob": True, "num_attention_heads": 4, "num_key_value_heads": 4, "q_lora_rank": 24,
    "kv_lora_rank": 24, "qk_nope_head_dim": 12, "qk_rope_head_dim": 8, "v_head_dim": 12, "hidden_act": "silu", "attention_bias": False,
    "tie_word_embeddings": False, "rms_norm_eps": 1e-6, "rope_scaling": None, "max_position_embeddings": 256, "torch_dtype": "bfloat16"}
V3_ROUTING = {"moe_layer_freq": 1, "topk_method": "noaux_tc", "scoring_func": "sigmoid"}
R1_YARN = {"type": "yarn", "factor": 40.0, "original_max_position_embeddings": 64, "beta_fast": 32, "beta_slow": 1, "mscale": 1.0,
           "mscale_all_dim": 1.0}
INDEXER = {"index_topk": 32, "index_n_heads": 2, "index_head_dim": 16}
LONG_INDEXER = {"index_topk": 16, "index_n_heads": 16, "index_head_dim": 32, "max_position_embeddings": 1024}

# Per family: its config.json, as its vendor writes the fields.
FAMILIES = {
    # Latents are so small that their norms' eps decides.
    "glm4_moe_lite": TINY | {
        "architectures": ["Glm4MoeLiteForCausalLM"], "model_type": "glm4_moe_lite", "routed_scaling_factor": 1.8, "rms_norm_eps": 1e-5,
        "topk_method": "noaux_tc", "rope_theta": 1000000, "partial_rotary_factor": 1.0, "pad_token_id": 1, "eos_token_id": [1, 2, 3]},
    "kimi_k2": TINY | V3_ROUTING | {
        "architectures": ["DeepseekV3ForCausalLM"], "model_type": "kimi_k2", "num_nextn_predict_layers": 0, "n_routed_experts": 12,
        "num_experts_per_tok": 3, "routed_scaling_factor": 2.827, "rope_theta": 50000.0, "max_position_embeddings": 2048,
        "rope_scaling": R1_YARN | {"factor": 32.0, "beta_fast": 1.0, "beta_slow": 1.0}, "bos_token_id": 0, "eos_token_id": 1},
    "deepseek_v32": TINY | V3_ROUTING | INDEXER | {
        "architectures": ["DeepseekV32ForCausalLM"], "model_type": "deepseek_v32", "n_group": 4, "topk_group": 2,
        "routed_scaling_factor": 2.5, "rope_theta": 10000, "rope_scaling": R1_YARN, "bos_token_id": 0, "eos_token_id": 1},
    # The second layer shares the first one's selection, recycled drafts the module's.
    "glm_moe_dsa": {key: value for key, value in TINY.items() if key != "rope_scaling"} | V3_ROUTING | INDEXER | {
        "architectures": ["GlmMoeDsaForCausalLM"], "model_type": "glm_moe_dsa", "routed_scaling_factor": 2.5, "rms_norm_eps": 1e-5,
        "rope_parameters": {"rope_type": "default", "rope_theta": 1000000}, "indexer_types": ["full", "shared"],
        "index_share_for_mtp_iteration": True, "eos_token_id": [1, 2, 3]},
    "joyai_llm_flash": TINY | V3_ROUTING | {
        "architectures": ["DeepseekV3ForCausalLM"], "model_type": "joyai_llm_flash", "routed_scaling_factor": 2.5, "rope_theta": 32000000.0,
        "bos_token_id": 0, "eos_token_id": 1}}
# Prompts many times as long as the selection. With 16 heads no two scores are equal; two leave ties in most rows.
FAMILIES["deepseek_v32_long"] = FAMILIES["deepseek_v32"] | LONG_INDEXER
FAMILIES["glm_moe_dsa_long"] = FAMILIES["glm_moe_dsa"] | LONG_INDEXER | {
    "num_hidden_layers": 6, "index_topk_freq": 4, "index_skip_topk_offset": 3,
    "indexer_types": ["full", "full", "full", "shared", "shared", "shared"]}
MTP_FILE = {"joyai_llm_flash": "mtp-1-of-1.safetensors"}
LATENT_GAIN = {"glm4_moe_lite": 0.003}

FP8_MAX = 448.0


class Writer:
    def __init__(self, config, seed):
        self.config = config
        self.rng = np.random.Generator(np.random.PCG64(seed))
        self.tensors = {}
        # A direction that every hidden state keeps; routers look against it, so that most experts score low.
        self.common = self.rng.choice([-1.0, 1.0], config["hidden_size"])

    def normal(self, *shape):
        return self.rng.standard_normal(shape)

    def plain(self, name, values, dtype=torch.bfloat16):
        self.tensors[name] = torch.from_numpy(values.astype(np.float32)).to(dtype)

    def norm(self, name, size):
        self.plain(f"{name}.weight", 1 + 0.1 * self.normal(size))

    def linear(self, name, rows, columns, gain=1.0):
        values = gain / columns ** 0.5 * self.normal(rows, columns)
        if "quantization_config" not in self.config:
            self.plain(f"{name}.weight", values)
            return
        if self.config["quantization_config"]["quant_method"] == "compressed-tensors":
            self.packed_linear(name, values)
            return
        height, width = self.config["quantization_config"]["weight_block_size"]
        scales = np.zeros((-(-rows // height), -(-columns // width)), np.float32)
        for i in range(scales.shape[0]):
            for j in range(scales.shape[1]):
                block = values[i * height:(i + 1) * height, j * width:(j + 1) * width]
                block *= self.rng.uniform(0.7, 1.4)  # so that no two scales are alike
                scales[i, j] = np.abs(block).max() / FP8_MAX
                block /= scales[i, j]
        self.plain(f"{name}.weight", values, torch.float8_e4m3fn)
        self.plain(f"{name}.weight_scale_inv", scales, torch.float32)

    def packed_linear(self, name, values):
        if UNPACKED.match(name):
            self.plain(f"{name}.weight", values)
            return
        kind, group = pack_quantized.kind_and_group(self.config)
        packed = pack_quantized.pack(kind, group, torch.from_numpy(values.astype(np.float32)), self.rng)
        self.tensors |= {f"{name}.{part}": tensor for part, tensor in packed.items()}

    def mlp(self, name, size):
        hidden = self.config["hidden_size"]
        self.linear(f"{name}.gate_proj", size, hidden)
        self.linear(f"{name}.up_proj", size, hidden)
        self.linear(f"{name}.down_proj", hidden, size)

    def attention(self, name):
        c = self.config
        heads, nope, rope = c["num_attention_heads"], c["qk_nope_head_dim"], c["qk_rope_head_dim"]
        query_rows = heads * (nope + rope)
        if c["q_lora_rank"] is None:
            self.linear(f"{name}.q_proj", query_rows, c["hidden_size"], 1.5)
        else:
            self.linear(f"{name}.q_a_proj", c["q_lora_rank"], c["hidden_size"])
            self.norm(f"{name}.q_a_layernorm", c["q_lora_rank"])
            self.linear(f"{name}.q_b_proj", query_rows, c["q_lora_rank"], 1.5)
        self.linear(f"{name}.kv_a_proj_with_mqa", c["kv_lora_rank"] + rope, c["hidden_size"])
        gain = LATENT_GAIN.get(c["model_type"])
        if gain is not None:
            self.tensors[f"{name}.q_a_proj.weight"] *= gain
            self.tensors[f"{name}.kv_a_proj_with_mqa.weight"][:c["kv_lora_rank"]] *= gain
        self.norm(f"{name}.kv_a_layernorm", c["kv_lora_rank"])
        self.linear(f"{name}.kv_b_proj", heads * (nope + c["v_head_dim"]), c["kv_lora_rank"])
        self.linear(f"{name}.o_proj", c["hidden_size"], heads * c["v_head_dim"])

    def indexer(self, name):
        c = self.config
        gain = 0.5 * c["hidden_size"] ** 0.5 if c["index_n_heads"] == LONG_INDEXER["index_n_heads"] else 1.0
        self.linear(f"{name}.wq_b", c["index_n_heads"] * c["index_head_dim"], c["q_lora_rank"], gain)
        self.linear(f"{name}.wk", c["index_head_dim"], c["hidden_size"], gain)
        self.linear(f"{name}.weights_proj", c["index_n_heads"], c["hidden_size"], gain)
        self.norm(f"{name}.k_norm", c["index_head_dim"])
        self.plain(f"{name}.k_norm.bias", 0.1 * self.normal(c["index_head_dim"]))

    def router(self, name):
        experts, hidden = self.config["n_routed_experts"], self.config["hidden_size"]
        self.plain(f"{name}.weight", 2.5 / hidden ** 0.5 * self.normal(experts, hidden) - 5.0 / hidden * self.common)
        self.plain(f"{name}.e_score_correction_bias", 0.1 * self.normal(experts), torch.float32)

    def layer(self, index):
        c, name = self.config, f"model.layers.{index}"
        self.norm(f"{name}.input_layernorm", c["hidden_size"])
        self.attention(f"{name}.self_attn")
        if "index_topk" in c and c.get("indexer_types", [])[index:index + 1] != ["shared"]:
            self.indexer(f"{name}.self_attn.indexer")
        self.norm(f"{name}.post_attention_layernorm", c["hidden_size"])
        dense_mtp = c["model_type"] == "joyai_llm_flash" and index >= c["num_hidden_layers"]
        if index < c["first_k_dense_replace"] or dense_mtp:
            self.mlp(f"{name}.mlp", c["intermediate_size"])
            return
        self.router(f"{name}.mlp.gate")
        for expert in range(c["n_routed_experts"]):
            self.mlp(f"{name}.mlp.experts.{expert}", c["moe_intermediate_size"])
        self.mlp(f"{name}.mlp.shared_experts", c["n_shared_experts"] * c["moe_intermediate_size"])

    def mtp_module(self, index, with_copies):
        hidden, name = self.config["hidden_size"], f"model.layers.{index}"
        self.layer(index)
        self.norm(f"{name}.enorm", hidden)
        self.norm(f"{name}.hnorm", hidden)
        self.plain(f"{name}.eh_proj.weight", (2 * hidden) ** -0.5 * self.normal(hidden, 2 * hidden))
        self.norm(f"{name}.shared_head.norm", hidden)
        if with_copies:
            self.tensors[f"{name}.embed_tokens.weight"] = self.tensors["model.embed_tokens.weight"].clone()
            self.tensors[f"{name}.shared_head.head.weight"] = self.tensors["lm_head.weight"].clone()

    def model(self, with_copies):
        c = self.config
        self.plain("model.embed_tokens.weight", self.normal(c["vocab_size"], c["hidden_size"]) + self.common)
        self.plain("lm_head.weight", 2.5 / c["hidden_size"] ** 0.5 * self.normal(c["vocab_size"], c["hidden_size"]))
        for index in range(c["num_hidden_layers"]):
            self.layer(index)
        for module in range(c["num_nextn_predict_layers"]):
            self.mtp_module(c["num_hidden_layers"] + module, with_copies)
        self.norm("model.norm", c["hidden_size"])
        return self.tensors


def save(tensors, path):
    save_file(tensors, path, metadata={"format": "pt"})
    path.chmod(0o644)


def write(folder: pathlib.Path, config, seed, shards, with_copies):
    folder.mkdir(parents=True, exist_ok=True)
    tensors = Writer(config, seed).model(with_copies)
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    names = list(tensors)
    if shards == 1:
        save(tensors, folder / "model.safetensors")
        return
    weight_map = {}
    for shard in range(shards):
        part = names[shard * len(names) // shards:(shard + 1) * len(names) // shards]
        file = f"model-{shard + 1:05}-of-{shards:05}.safetensors"
        save({name: tensors[name] for name in part}, folder / file)
        weight_map |= dict.fromkeys(part, file)
    total = sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())
    index = {"metadata": {"total_size": total}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index, separators=(",", ":")) + "\n")


def write_family(folder: pathlib.Path, name, seed):
    """The whole checkpoint in one file, but for the MTP modules of a family that has a file of its own for them."""
    config = FAMILIES[name]
    folder.mkdir(parents=True, exist_ok=True)
    tensors = Writer(config, seed).model(with_copies=False)
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    module = f"model.layers.{config['num_hidden_layers']}."
    apart = {key: value for key, value in tensors.items() if name in MTP_FILE and key.startswith(module)}
    save({key: value for key, value in tensors.items() if key not in apart}, folder / "model.safetensors")
    if apart:
        save(apart, folder / MTP_FILE[name])
