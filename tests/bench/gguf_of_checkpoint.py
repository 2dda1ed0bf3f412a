"""A DeepSeek-V3 checkpoint of BF16 weights as one GGUF file, for compare_llama_cpp: of the same weights, or with the
projections that `foredraft quantize` packs in one of llama.cpp's quantised types.

Written with the gguf package of a llama.cpp checkout and numpy. Only the model: no MTP modules, no vocabulary
(its benchmarks draw token ids). Names, keys and the split of kv_b are those its own converter writes.
"""

import json
import pathlib

import numpy as np

# How llama.cpp stores the projections that foredraft stores in a dtype. The embedding, the head and kv_b stay BF16 in both.
QUANTIZED = {"bf16": "BF16", "fp8": "Q8_0", "int4": "Q4_0"}

# Of a layer: name in the checkpoint, name in the GGUF file, kept in FP32.
LAYER = [
    ("input_layernorm.weight", "attn_norm.weight", True),
    ("self_attn.q_a_proj.weight", "attn_q_a.weight", False),
    ("self_attn.q_a_layernorm.weight", "attn_q_a_norm.weight", True),
    ("self_attn.q_b_proj.weight", "attn_q_b.weight", False),
    ("self_attn.kv_a_proj_with_mqa.weight", "attn_kv_a_mqa.weight", False),
    ("self_attn.kv_a_layernorm.weight", "attn_kv_a_norm.weight", True),
    ("self_attn.o_proj.weight", "attn_output.weight", False),
    ("post_attention_layernorm.weight", "ffn_norm.weight", True),
]
DENSE = [(f"mlp.{part}_proj.weight", f"ffn_{part}.weight", False) for part in ("gate", "up", "down")]
SPARSE = [
    ("mlp.gate.weight", "ffn_gate_inp.weight", True),
    ("mlp.gate.e_score_correction_bias", "exp_probs_b.bias", True),
] + [(f"mlp.shared_experts.{part}_proj.weight", f"ffn_{part}_shexp.weight", False)
     for part in ("gate", "up", "down")]
TOP = [
    ("model.embed_tokens.weight", "token_embd.weight", False),
    ("model.norm.weight", "output_norm.weight", True),
    ("lm_head.weight", "output.weight", False),
]


class Checkpoint:
    """The tensors of all safetensors files of a directory, as raw bits."""

    def __init__(self, directory):
        self.entries = {}
        for path in sorted(pathlib.Path(directory).glob("*.safetensors")):
            with open(path, "rb") as file:
                length = int.from_bytes(file.read(8), "little")
                header = json.loads(file.read(length))
            data = np.memmap(path, np.uint8, "r", offset=8 + length)
            for name, entry in header.items():
                if name != "__metadata__":
                    self.entries[name] = (entry, data)

    def bits(self, name):
        """uint16 of a BF16 tensor, float32 of an F32 one."""
        entry, data = self.entries[name]
        first, end = entry["data_offsets"]
        dtype = {"BF16": np.uint16, "F32": np.float32}.get(entry["dtype"])
        if dtype is None:
            raise ValueError(f"{name}: {entry['dtype']}, allowed BF16, F32")
        return data[first:end].view(dtype).reshape(entry["shape"])

    def floats(self, name):
        bits = self.bits(name)
        if bits.dtype == np.float32:
            return bits
        return (bits.astype(np.uint32) << 16).view(np.float32)


def write_keys(gguf, writer, config, file_type):
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(1)  # absorbed: every head attends the one latent
    writer.add_rope_freq_base(float(config["rope_theta"]))
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_leading_dense_block_count(config["first_k_dense_replace"])
    writer.add_vocab_size(config["vocab_size"])
    writer.add_q_lora_rank(config["q_lora_rank"])
    writer.add_kv_lora_rank(config["kv_lora_rank"])
    writer.add_key_length(config["kv_lora_rank"] + config["qk_rope_head_dim"])
    writer.add_value_length(config["kv_lora_rank"])
    writer.add_key_length_mla(config["qk_nope_head_dim"] + config["qk_rope_head_dim"])
    writer.add_value_length_mla(config["v_head_dim"])
    writer.add_rope_dimension_count(config["qk_rope_head_dim"])
    writer.add_expert_feed_forward_length(config["moe_intermediate_size"])
    writer.add_expert_count(config["n_routed_experts"])
    writer.add_expert_used_count(config["num_experts_per_tok"])
    writer.add_expert_shared_count(config["n_shared_experts"])
    writer.add_expert_group_count(config["n_group"])
    writer.add_expert_group_used_count(config["topk_group"])
    writer.add_expert_weights_scale(config["routed_scaling_factor"])
    writer.add_expert_weights_norm(config["norm_topk_prob"])
    writer.add_expert_gating_func(gguf.ExpertGatingFuncType.SIGMOID)
    writer.add_file_type(gguf.LlamaFileType[f"MOSTLY_{file_type}"])
    writer.add_tokenizer_model("none")


def write_gguf(gguf, checkpoint_dir, out, dtype="bf16"):
    """`gguf`: the imported package; `dtype`: a key of QUANTIZED."""
    config = json.loads((pathlib.Path(checkpoint_dir) / "config.json").read_text())
    if config.get("rope_scaling"):
        raise ValueError("rope_scaling: given, allowed none: both sides would need the same reading of it")
    checkpoint = Checkpoint(checkpoint_dir)
    writer = gguf.GGUFWriter(out, "deepseek2")
    write_keys(gguf, writer, config, QUANTIZED[dtype])
    quantized = gguf.GGMLQuantizationType[QUANTIZED[dtype]]

    def add_bf16(name, bits):
        raw = np.ascontiguousarray(bits).view(np.uint8)
        writer.add_tensor(name, raw, raw_dtype=gguf.GGMLQuantizationType.BF16)

    def add_projection(name, bits):
        if dtype == "bf16":
            add_bf16(name, bits)
        else:
            floats = (np.ascontiguousarray(bits).astype(np.uint32) << 16).view(np.float32)
            writer.add_tensor(name, gguf.quants.quantize(floats, quantized), raw_dtype=quantized)

    def add(source, name, fp32, add_matrix):
        if fp32:
            writer.add_tensor(name, np.ascontiguousarray(checkpoint.floats(source)))
        else:
            add_matrix(name, checkpoint.bits(source))

    for source, name, fp32 in TOP:
        add(source, name, fp32, add_bf16)
    heads, nope, value = (config[key] for key in ("num_attention_heads", "qk_nope_head_dim", "v_head_dim"))
    for layer in range(config["num_hidden_layers"]):
        dense = layer < config["first_k_dense_replace"]
        for source, name, fp32 in LAYER + (DENSE if dense else SPARSE):
            add(f"model.layers.{layer}.{source}", f"blk.{layer}.{name}", fp32, add_projection)
        kv_b = checkpoint.bits(f"model.layers.{layer}.self_attn.kv_b_proj.weight")
        kv_b = kv_b.reshape(heads, nope + value, -1)
        add_bf16(f"blk.{layer}.attn_k_b.weight", kv_b[:, :nope].transpose(0, 2, 1))
        add_bf16(f"blk.{layer}.attn_v_b.weight", kv_b[:, nope:])
        for part in () if dense else ("gate", "up", "down"):
            experts = [checkpoint.bits(f"model.layers.{layer}.mlp.experts.{e}.{part}_proj.weight")
                       for e in range(config["n_routed_experts"])]
            add_projection(f"blk.{layer}.ffn_{part}_exps.weight", np.stack(experts))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
