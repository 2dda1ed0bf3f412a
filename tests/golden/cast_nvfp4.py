#!/usr/bin/env python3
"""Writes checkpoints/nvfp4 and checkpoints/deepseek_v4_nvfp4: the weights of `fp4` and `deepseek_v4_fp4`, cast to NVFP4.

The cast of a weight in MXFP4 is exact where its exponents span at most 18: the tensor's scale is 2^(largest exponent - 8), a group's
scale a power of two that E4M3 has, two groups of 16 for each of 32, and the codes stay. So transformers' logits of `fp4` and
`deepseek_v4_fp4` (<name>_model.golden.json) are those of these checkpoints, too. In modelopt's spelling, as NVIDIA publishes them: of
DeepSeek-V4 the target's experts alone, so that those of the MTP module stay MXFP4. Needs the standard library alone.
"""

import json
import pathlib
import struct

FOLDER = pathlib.Path(__file__).resolve().parent / "checkpoints"


def read(folder):
    """dtype, shape and bytes of every tensor, by name."""
    data = (folder / "model.safetensors").read_bytes()
    (length,) = struct.unpack_from("<Q", data)
    header = json.loads(data[8:8 + length])
    header.pop("__metadata__", None)
    tensors = {}
    for name, entry in header.items():
        first, end = entry["data_offsets"]
        tensors[name] = (entry["dtype"], entry["shape"], data[8 + length + first:8 + length + end])
    return tensors


def write(folder, config, tensors):
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    header, blocks, size = {"__metadata__": {"format": "pt"}}, [], 0
    for name in sorted(tensors, key=lambda name: (tensors[name][0] != "F32", name)):  # so that wide elements lie aligned
        dtype, shape, data = tensors[name]
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [size, size + len(data)]}
        blocks.append(data)
        size += len(data)
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + b"".join(blocks))


def e4m3(exponent):
    """The code of 2^exponent."""
    assert -9 <= exponent <= 8, exponent
    return exponent + 7 << 3 if exponent >= -6 else 1 << exponent + 9


def cast(tensors, codes, scales, module):
    """Replaces a weight's codes and E8M0 scales."""
    (_, (rows, columns), data), (_, (_, groups), exponents) = tensors.pop(codes), tensors.pop(scales)
    assert columns == 16 * groups
    least = max(exponents) - 127 - 8
    bytes_of = bytes(e4m3(exponent - 127 - least) for exponent in exponents for _ in range(2))
    tensors[module + ".weight"] = ("U8", [rows, columns], data)
    tensors[module + ".weight_scale"] = ("F8_E4M3", [rows, 2 * groups], bytes_of)
    tensors[module + ".weight_scale_2"] = ("F32", [], struct.pack("<f", 2.0 ** least))


def main():
    config, tensors = json.loads((FOLDER / "fp4" / "config.json").read_text()), read(FOLDER / "fp4")
    for name in [name for name in tensors if name.endswith(".weight_packed")]:
        module = name.removesuffix(".weight_packed")
        cast(tensors, name, module + ".weight_scale", module)
    config["quantization_config"] = {"quant_method": "modelopt", "quant_algo": "NVFP4", "producer": {"name": "modelopt"},
                                     "kv_cache_scheme": {"num_bits": 8, "type": "float", "dynamic": False}}
    write(FOLDER / "nvfp4", config, tensors)

    config, tensors = json.loads((FOLDER / "deepseek_v4_fp4" / "config.json").read_text()), read(FOLDER / "deepseek_v4_fp4")
    for name in [name for name in tensors if name.startswith("layers.") and ".experts." in name and name.endswith(".weight")]:
        module = name.removesuffix(".weight")
        cast(tensors, name, module + ".scale", module)
    config["quantization_config"]["moe_quant_algo"] = "NVFP4"
    write(FOLDER / "deepseek_v4_nvfp4", config, tensors)


if __name__ == "__main__":
    main()
