"""An Eagle3 head with MLA for abacus: its forward, and its checkpoint.

One decoder layer over the embedding of a row's token beside what the row before hands on:
three layers of the target fused into one vector, or the head's own output. Tensor names
are those of published heads.
"""

import json

import torch
from safetensors.torch import load_file, save_file
from torch import nn

from model import Attention, Mlp, RmsNorm, linear

TAPS = (1, 4, 7)  # the target's layers, by their outputs


class Head(nn.Module):
    def __init__(self, config):
        super().__init__()
        width, eps = config.hidden_size, config.rms_norm_eps
        self.config = config
        self.fc = linear(len(TAPS) * width, width, gain=2.0)
        self.input_layernorm = RmsNorm(width, eps)
        self.hidden_norm = RmsNorm(width, eps)
        self.self_attn = Attention(config)
        self.self_attn.q_a_proj = linear(2 * width, config.q_lora_rank)
        self.self_attn.kv_a_proj_with_mqa = linear(2 * width, config.kv_lora_rank + config.qk_rope_head_dim)
        self.post_attention_layernorm = RmsNorm(width, eps)
        self.mlp = Mlp(width, config.intermediate_size)
        self.norm = RmsNorm(width, eps)
        self.lm_head = linear(width, config.vocab_size)

    def forward(self, embedded, previous, rope, levels):
        """What the rows hand on; `previous` came from the row before each one. `levels`: as Attention's."""
        x = torch.cat([self.input_layernorm(embedded), self.hidden_norm(previous)], dim=-1)
        x = previous.float() + self.self_attn(x, rope, levels)
        return x + self.mlp(self.post_attention_layernorm(x))

    def logits(self, output):
        return self.lm_head(self.norm(output)).float()


def target_rows(target, ids):
    """The tapped layers' outputs side by side, and the logits, of every row."""
    x, rope, taps = target.embed_tokens(ids), target.rope(ids.shape[1]), []
    for index, layer in enumerate(target.layers):
        x = layer(x, rope, [])
        if index in TAPS:
            taps.append(x)
    return torch.cat(taps, dim=-1), target.lm_head(target.norm(x)).float()


def tensor_name(name):
    """As published heads have it."""
    own = name.split(".")[0]
    return name if own in ("fc", "norm", "lm_head") else f"layers.0.{name}"


def config_json(target):
    """`target`: the fields of the target's config.json."""
    copied = ("vocab_size", "hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads", "q_lora_rank",
              "kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim", "hidden_act", "rms_norm_eps", "rope_theta",
              "rope_scaling", "max_position_embeddings", "torch_dtype")
    return {"architectures": ["Eagle3DeepseekV2ForCausalLM"], "model_type": "deepseek_v3", "num_hidden_layers": 1,
            **{field: target[field] for field in copied}, "draft_vocab_size": target["vocab_size"],
            "target_hidden_size": target["hidden_size"],
            "eagle_config": {"eagle_aux_hidden_state_layer_ids": list(TAPS), "use_aux_hidden_state": True},
            "tie_word_embeddings": False}


def save(head, target_folder, folder):
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {tensor_name(name): tensor.bfloat16().contiguous() for name, tensor in head.state_dict().items()}
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    fields = config_json(json.loads((target_folder / "config.json").read_text()))
    (folder / "config.json").write_text(json.dumps(fields, indent=2) + "\n")


def load(config, folder):
    """The head in float32, its weights as rounded in the file."""
    head, tensors = Head(config), load_file(folder / "model.safetensors")
    head.load_state_dict({name: tensors[tensor_name(name)].float() for name in head.state_dict()})
    return head.eval()
