"""Reads and writes the model in DeepSeek's checkpoint layout."""

import json
import pathlib

import torch
from safetensors.torch import load_file, save_file

from model import Config, Model

EXPERT_PARTS = ("gate_proj", "up_proj", "down_proj")


def hugging_face_config(c):
    return {
        "architectures": ["DeepseekV3ForCausalLM"], "model_type": "deepseek_v3",
        "vocab_size": c.vocab_size, "hidden_size": c.hidden_size, "num_hidden_layers": c.num_hidden_layers,
        "num_nextn_predict_layers": c.num_nextn_predict_layers, "first_k_dense_replace": c.first_k_dense_replace,
        "moe_layer_freq": 1, "num_attention_heads": c.num_attention_heads,
        "num_key_value_heads": c.num_attention_heads, "q_lora_rank": c.q_lora_rank, "kv_lora_rank": c.kv_lora_rank,
        "qk_nope_head_dim": c.qk_nope_head_dim, "qk_rope_head_dim": c.qk_rope_head_dim, "v_head_dim": c.v_head_dim,
        "intermediate_size": c.intermediate_size, "moe_intermediate_size": c.moe_intermediate_size,
        "n_routed_experts": c.n_routed_experts, "n_shared_experts": c.n_shared_experts,
        "num_experts_per_tok": c.num_experts_per_tok, "n_group": c.n_group, "topk_group": c.topk_group,
        "topk_method": "noaux_tc", "scoring_func": "sigmoid", "norm_topk_prob": True,
        "routed_scaling_factor": c.routed_scaling_factor, "hidden_act": "silu", "attention_bias": False,
        "attention_dropout": 0.0, "rms_norm_eps": c.rms_norm_eps, "rope_theta": c.rope_theta, "rope_interleave": True,
        "rope_scaling": {
            "type": "yarn", "factor": c.yarn_factor, "original_max_position_embeddings": c.yarn_original_positions,
            "beta_fast": c.yarn_beta_fast, "beta_slow": c.yarn_beta_slow,
            "mscale": c.yarn_mscale_all_dim, "mscale_all_dim": c.yarn_mscale_all_dim},
        "max_position_embeddings": c.max_position_embeddings, "tie_word_embeddings": False,
        "bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 2, "initializer_range": 0.02,
        "use_cache": True, "torch_dtype": "bfloat16"}


def from_hugging_face_config(fields):
    yarn = fields["rope_scaling"]
    known = {field: fields[field] for field in Config.__dataclass_fields__ if field in fields}
    return Config(**known, yarn_factor=yarn["factor"], yarn_beta_fast=yarn["beta_fast"],
                  yarn_beta_slow=yarn["beta_slow"], yarn_mscale_all_dim=yarn["mscale_all_dim"],
                  yarn_original_positions=yarn["original_max_position_embeddings"])


def checkpoint_name(name, layers):
    """DeepSeek's name of one of the model's tensors, stacked experts aside."""
    if name.startswith("lm_head"):
        return name
    if name.startswith("mtp."):
        _, index, rest = name.split(".", 2)
        rest = "shared_head.norm.weight" if rest == "norm.weight" else rest.removeprefix("block.")
        name = f"layers.{layers + int(index)}.{rest}"
    name = name.replace("mlp.e_score_correction_bias", "mlp.gate.e_score_correction_bias")
    return "model." + (name + ".weight" if name.endswith("mlp.gate") else name)


def expert_name(name, expert):
    prefix, part = name.rsplit(".", 1)
    return f"{prefix}.experts.{expert}.{part}.weight"


def is_stacked(name, tensor):
    return tensor.ndim == 3 and name.endswith(EXPERT_PARTS)


def save(model, folder):
    """Writes config.json, generation_config.json and model.safetensors."""
    layers, tensors = model.config.num_hidden_layers, {}
    for name, tensor in model.state_dict().items():
        target = checkpoint_name(name, layers)
        if is_stacked(name, tensor):
            tensors |= {expert_name(target, e): one.bfloat16().contiguous() for e, one in enumerate(tensor)}
        else:
            tensors[target] = tensor.float() if name.endswith("correction_bias") else tensor.bfloat16()
    folder = pathlib.Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    generation = {"bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 2, "do_sample": False}
    for file, fields in (("config.json", hugging_face_config(model.config)), ("generation_config.json", generation)):
        (folder / file).write_text(json.dumps(fields, indent=2) + "\n")


def load(folder):
    """The model in float32, its weights as rounded in the files."""
    folder = pathlib.Path(folder)
    model = Model(from_hugging_face_config(json.loads((folder / "config.json").read_text())))
    tensors, state = load_file(folder / "model.safetensors"), {}
    for name, tensor in model.state_dict().items():
        target = checkpoint_name(name, model.config.num_hidden_layers)
        if is_stacked(name, tensor):
            state[name] = torch.stack([tensors[expert_name(target, e)].float() for e in range(len(tensor))])
        else:
            state[name] = tensors[target].float()
    model.load_state_dict(state)
    return model.eval()
