#!/usr/bin/env python3
"""Makes pack_quantized.safetensors: small 4-bit weights, packed and unpacked again by compressed-tensors.

For each case C: C.weight_packed, C.weight_scale, C.weight_shape where the format has it, and C.unpacked in BF16.
"""

import pathlib

import numpy as np
import torch
from safetensors.torch import save_file

import pack_quantized

CASES = {"int4_32": ("int4", 32, (6, 96)), "int4_128": ("int4", 128, (5, 256)), "fp4_32": ("fp4", 32, (7, 64))}


def main():
    rng = np.random.Generator(np.random.PCG64(20240229))
    tensors = {}
    for case, (kind, group, shape) in CASES.items():
        weight = torch.from_numpy(rng.standard_normal(shape) * np.exp(rng.standard_normal((shape[0], 1)))).to(torch.float32)
        packed = pack_quantized.pack(kind, group, weight, rng)
        tensors |= {f"{case}.{name}": tensor for name, tensor in packed.items()}
        tensors[f"{case}.unpacked"] = pack_quantized.unpack(kind, group, packed)
    save_file(tensors, pathlib.Path(__file__).resolve().parent / "pack_quantized.safetensors")


if __name__ == "__main__":
    main()
