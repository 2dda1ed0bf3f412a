#!/usr/bin/env python3
"""Makes mtp_module.golden.json: MTP modules alone, in float64, by reference_v4.py and reference_model.py.

For each checkpoint a sequence of random tokens with a previous output from a formula, so that the golden is small:
previous[row, i] = 1.5 cos(0.7391 (row * width + i)) for the rows at positions 1, 2, ... Kept are the last row's
projection and output and the logits of some rows. tools/validate_mtp has to give the same.
"""

import json
import pathlib
import random

import torch

import make_model_golden
import v4_checkpoint
from reference_model import ReferenceModel
from reference_v4 import ReferenceV4

HERE = pathlib.Path(__file__).resolve().parent
SEED = 20261122
ROWS = 24  # more than the window of the V4 checkpoints, and than the sparse ones select
V4 = ("deepseek_v4", "deepseek_v4_fp4", "deepseek_v4_f32")
V3 = ("grouped", "fp8", "int4", "fp4", "joyai_llm_flash", "deepseek_v32_long", "glm_moe_dsa_long")


def previous_of(width):
    return 1.5 * torch.cos(0.7391 * torch.arange(ROWS * width, dtype=torch.float64)).view(ROWS, width)


def run_v4(folder, ids):
    config, tensors = v4_checkpoint.read_float32(folder)
    model = ReferenceV4(config, tensors)
    positions = torch.arange(1, ROWS + 1)
    streams = previous_of(config["hc_mult"] * config["hidden_size"]).view(ROWS, config["hc_mult"], -1)
    model.lead = torch.full((ROWS,), torch.inf, dtype=torch.float64)
    projection = model.mtp_projection(streams, ids, positions)
    output = model.run_module(streams, ids, positions)
    return projection.flatten(1), output.flatten(1), model.logits(output, "mtp.0.")


def run_v3(folder, ids):
    config, tensors = make_model_golden.read_float32(folder)
    model = ReferenceModel(config, tensors)
    model.lead = torch.full((ROWS,), torch.inf, dtype=torch.float64)
    layer, eps = config["num_hidden_layers"], config["rms_norm_eps"]
    name = f"model.layers.{layer}"
    embedded = model.norm(model.weight("model.embed_tokens")[ids], f"{name}.enorm", eps)
    projection = model.linear(torch.cat([embedded, model.norm(previous_of(config["hidden_size"]), f"{name}.hnorm", eps)], -1), f"{name}.eh_proj")
    output = model.norm(model.layer(projection, layer, torch.arange(1, ROWS + 1)), f"{name}.shared_head.norm", eps)
    return projection, output, model.linear(output, "lm_head")


@torch.no_grad()
def main():
    cases = []
    for name in V4 + V3:
        folder = HERE / "checkpoints" / name
        vocab = json.loads((folder / "config.json").read_text())["vocab_size"]
        rng = random.Random(SEED)
        ids = [rng.randrange(vocab) for _ in range(ROWS)]
        projection, output, logits = (run_v4 if name in V4 else run_v3)(folder, torch.tensor(ids))
        kept = lambda values: [float(f"{value:.12g}") for value in values.tolist()]
        rows = [0, 1, ROWS - 1]
        cases.append({"checkpoint": str(folder.relative_to(HERE.parent.parent)), "ids": ids, "projection": kept(projection[-1]),
                      "output": kept(output[-1]), "logits": [{"row": row, "values": kept(logits[row])} for row in rows]})
    golden = {"maker": "tests/golden/make_mtp_module_golden.py", "torch": torch.__version__.split("+")[0], "seed": SEED, "cases": cases}
    (HERE / "mtp_module.golden.json").write_text(json.dumps(golden, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main()
