"""4-bit weights by compressed-tensors' own functions, for the goldens: quantise, pack, unpack.

A format is "int4" (pack-quantized) or "fp4" (mxfp4-pack-quantized).
"""

import torch
from compressed_tensors.compressors import BaseCompressor
from compressed_tensors.quantization import QuantizationArgs, QuantizationConfig, QuantizationScheme, QuantizationStatus

FORMATS = {"int4": "pack-quantized", "fp4": "mxfp4-pack-quantized"}
LARGEST = {"int4": 7.5, "fp4": 6.0}


def scheme(kind, group):
    args = {"num_bits": 4, "type": "int" if kind == "int4" else "float", "strategy": "group", "symmetric": True,
            "dynamic": False, "group_size": group}
    if kind == "fp4":
        args |= {"scale_dtype": torch.uint8, "zp_dtype": torch.uint8}
    return QuantizationScheme(targets=["Linear"], weights=QuantizationArgs(**args))


def quantization_config(kind, group, ignore):
    """As compressed-tensors writes it into config.json."""
    config = QuantizationConfig(config_groups={"group_0": scheme(kind, group)}, format=FORMATS[kind], ignore=ignore,
                                quantization_status=QuantizationStatus.COMPRESSED)
    return config.model_dump(mode="json", exclude_none=True)


def pack(kind, group, weight, rng):
    """The tensors of a packed module, by name ending, of a float32 weight [n, k]."""
    groups = weight.unflatten(-1, (-1, group))
    scale = groups.abs().amax(-1) / LARGEST[kind]
    if kind == "fp4":
        scale = torch.exp2(torch.ceil(torch.log2(scale)))
    else:
        scale = scale * torch.from_numpy(rng.uniform(0.8, 1.1, scale.shape)).to(torch.float32)  # some values clip
    state = {"weight": weight.to(torch.bfloat16), "weight_scale": scale.to(torch.bfloat16)}
    packed = BaseCompressor.get_value_from_registry(FORMATS[kind]).compress(state, scheme(kind, group))
    return {name: tensor.contiguous() for name, tensor in packed.items()}


def unpack(kind, group, tensors):
    """The weight [n, k] in BF16 of pack's tensors."""
    return BaseCompressor.get_value_from_registry(FORMATS[kind]).decompress(dict(tensors), scheme(kind, group))["weight"]


def kind_and_group(config):
    """Of a model's config."""
    quantization = config["quantization_config"]
    kind = next(kind for kind, name in FORMATS.items() if name == quantization["format"])
    return kind, quantization["config_groups"]["group_0"]["weights"]["group_size"]


def read_float32(config, tensors):
    """All tensors of a checkpoint as float32; of packed modules the weight, which float32 holds exactly."""
    kind, group = kind_and_group(config)
    result = {}
    for name, tensor in tensors.items():
        if name.endswith("weight_packed"):
            module = name.removesuffix("weight_packed")
            parts = {part: tensors[module + part] for part in ("weight_packed", "weight_scale", "weight_shape") if module + part in tensors}
            scale = parts["weight_scale"]
            unit = dict(parts, weight_scale=torch.full_like(scale, 127 if kind == "fp4" else 1))  # the codes' values
            scale = torch.exp2(scale.float() - 127) if kind == "fp4" else scale.float()
            result[module + "weight"] = unpack(kind, group, unit).float() * scale.repeat_interleave(group, -1)
        elif not name.endswith(("weight_scale", "weight_shape")):
            result[name] = tensor.float()
    return result
