"""Reads and writes the model under DeepSeek's tensor names and dtypes (docs/deepseek-v4.md section 7)."""

import json
import pathlib
import re

import torch
from safetensors.torch import load_file, save_file

from v4_layers import Config
from v4_model import Model

DRAFTERS = ("mtp", "dspark")
F32_PARTS = ("hc_", "attn_sink", "gate.bias", ".ape")
DSPARK_NAMES = {"norm.weight": "{last}.norm.weight", "main_proj.weight": "mtp.0.main_proj.weight", "main_norm.weight": "mtp.0.main_norm.weight",
                "markov_w1": "{last}.markov_head.markov_w1.weight", "markov_w2": "{last}.markov_head.markov_w2.weight",
                "confidence": "{last}.confidence_head.proj.weight"}


def config_fields(c, drafter):
    """config.json as DeepSeek writes it."""
    own = {field: getattr(c, field) for field in Config.__dataclass_fields__ if not field.startswith(("yarn_", "dspark_", "compress_ratios"))}
    tail = [0] * (c.dspark_stages if drafter == "dspark" else c.num_nextn_predict_layers)
    fields = {"architectures": ["DeepseekV4ForCausalLM"], "model_type": "deepseek_v4", **own,
              "compress_ratios": [*c.compress_ratios[:c.num_hidden_layers], *tail], "num_key_value_heads": 1, "n_shared_experts": 1,
              "scoring_func": "sqrtsoftplus", "topk_method": "noaux_tc", "norm_topk_prob": True, "hidden_act": "silu",
              "rope_scaling": {"type": "yarn", "factor": c.yarn_factor, "original_max_position_embeddings": c.yarn_original_positions,
                               "beta_fast": c.yarn_beta_fast, "beta_slow": c.yarn_beta_slow},
              "attention_bias": False, "tie_word_embeddings": False, "bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 2,
              "torch_dtype": "bfloat16"}
    if drafter == "dspark":
        fields |= {"dspark_block_size": c.dspark_block_size, "dspark_noise_token_id": c.dspark_noise_token_id,
                   "dspark_target_layer_ids": list(c.dspark_target_layer_ids), "dspark_markov_rank": c.dspark_markov_rank}
    return fields


def config_of(fields):
    known = {field: fields[field] for field in Config.__dataclass_fields__ if field in fields}
    yarn = fields["rope_scaling"]
    known |= {"yarn_factor": yarn["factor"], "yarn_original_positions": yarn["original_max_position_embeddings"],
              "yarn_beta_fast": yarn["beta_fast"], "yarn_beta_slow": yarn["beta_slow"]}
    known["compress_ratios"] = tuple(fields["compress_ratios"][:fields["num_hidden_layers"]])
    if "dspark_target_layer_ids" in fields:
        known["dspark_target_layer_ids"] = tuple(fields["dspark_target_layer_ids"])
        known["dspark_stages"] = len(fields["compress_ratios"]) - fields["num_hidden_layers"]
    return Config(**known)


def drafter_of(name):
    """Which drafter a tensor of the model belongs to; None: the target."""
    return next((drafter for drafter in DRAFTERS if name.startswith(f"{drafter}.")), None)


def checkpoint_name(name, c):
    """DeepSeek's name of one of the model's tensors, stacked experts aside."""
    if name.startswith("dspark."):
        last, rest = f"mtp.{c.dspark_stages - 1}", name.removeprefix("dspark.")
        name = DSPARK_NAMES.get(rest, "{last}." + rest if rest.startswith("hc_head") else rest).format(last=last).replace("stages.", "mtp.")
    elif name.startswith("mtp."):
        name = "mtp.0." + name.removeprefix("mtp.").removeprefix("block.")
    name = name.replace("embed_tokens.", "embed.").replace("lm_head.", "head.")
    name = re.sub(r"(hc_attn|hc_ffn|hc_head)\.", r"\1_", name)
    name = re.sub(r"ffn\.(bias|tid2eid)$", r"ffn.gate.\1", name)
    return re.sub(r"(ffn\.gate|attn\.wo_a)$", r"\1.weight", name)


def parts(name, tensor, c):
    """(name in the checkpoint, tensor) of everything a tensor of the model is stored as."""
    name = checkpoint_name(name, c)
    stacked = re.fullmatch(r"(.*\.ffn)\.(w[123])", name)
    if stacked:
        prefix, matrix = stacked.groups()
        owners = [*(f"experts.{e}" for e in range(len(tensor) - 1)), "shared_experts"]
        return [(f"{prefix}.{owner}.{matrix}.weight", one) for owner, one in zip(owners, tensor)]
    return [(name, tensor.flatten(0, 1) if name.endswith("wo_a.weight") else tensor)]


def stored(name, tensor):
    if name.endswith("tid2eid"):
        return tensor.clone()
    exact = any(part in name for part in F32_PARTS)
    return tensor.detach().to(torch.float32 if exact else torch.bfloat16).contiguous().clone()


def save(model, drafter, folder):
    """Writes config.json, generation_config.json and model.safetensors: the target and one drafter."""
    tensors = {}
    for name, tensor in model.state_dict().items():
        if drafter_of(name) in (None, drafter):
            tensors |= {part: stored(part, one) for part, one in parts(name, tensor, model.config)}
    folder = pathlib.Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "model.safetensors").chmod(0o644)
    generation = {"bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 2, "do_sample": False}
    for file, fields in (("config.json", config_fields(model.config, drafter)), ("generation_config.json", generation)):
        (folder / file).write_text(json.dumps(fields, indent=2) + "\n")


def load_into(model, folder, drafter):
    """Takes the tensors that a checkpoint has, in float32 with the values as rounded in the file."""
    tensors = {name: tensor if tensor.dtype == torch.int64 else tensor.float()
               for name, tensor in load_file(pathlib.Path(folder) / "model.safetensors").items()}
    state = model.state_dict()
    for name, tensor in state.items():
        if drafter_of(name) in (None, drafter):
            found = [tensors[part] for part, _ in parts(name, tensor, model.config)]
            state[name] = (torch.stack(found) if len(found) > 1 else found[0]).view(tensor.shape)
    model.load_state_dict(state)


def load(folder):
    """The model of a checkpoint, and the name of its drafter; the other drafter is left as initialised."""
    fields = json.loads((pathlib.Path(folder) / "config.json").read_text())
    drafter = "dspark" if "dspark_block_size" in fields else "mtp"
    model = Model(config_of(fields))
    load_into(model, folder, drafter)
    return model.eval(), drafter
