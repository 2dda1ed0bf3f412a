#!/usr/bin/env python3
"""Writes a training checkpoint in the Hugging Face layout and checks it.

The check loads the result with transformers and compares its logits, in
float32, with those of the training model; a wrong rotary layout, YaRN factor
or routing rule shows up there. The MTP modules are not known to transformers.

    export.py --checkpoint /tmp/abacus/checkpoint.pt --out ..
"""

import argparse
import pathlib

import torch
from tokenizers import Tokenizer

import checkpoint
from dataset import prompt_ids
from model import Config, Model

TOLERANCE = 1e-3
PROMPTS = ["What is 345 + 78?", "Sort 42, 7, 19.", "How many e are in beetle?",
           "Today is Monday. What day is it in 9 days?"]


def verify(folder):
    from transformers import AutoTokenizer, DeepseekV3ForCausalLM
    theirs = DeepseekV3ForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    ours = checkpoint.load(folder)
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    hugging_face_tokenizer = AutoTokenizer.from_pretrained(folder)
    for text in PROMPTS:
        ids = prompt_ids(tokenizer, text)
        rendered = hugging_face_tokenizer.apply_chat_template(
            [{"role": "user", "content": text}], add_generation_prompt=True, return_dict=False)
        if rendered != ids:
            raise SystemExit(f"chat template differs: {rendered} {ids}")
        rows = torch.tensor([ids + [(7 * n) % 600 for n in range(100)]])
        with torch.no_grad():
            difference = (theirs(rows).logits - ours.lm_head(ours(rows))).abs().max().item()
        print(f"largest logit difference {difference:.2e}: {text}")
        if difference > TOLERANCE:
            raise SystemExit("the exported model differs from the trained one")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--checkpoint", type=pathlib.Path, required=True)
    parser.add_argument("--out", type=pathlib.Path, required=True, help="folder that has tokenizer.json")
    args = parser.parse_args()
    state = torch.load(args.checkpoint, weights_only=False)
    model = Model(Config(vocab_size=len(state["model"]["embed_tokens.weight"])))
    model.load_state_dict(state["model"])
    checkpoint.save(model, args.out)
    print(f"step {state['step']}, {state['seconds']:.0f} s of training")
    verify(args.out)


if __name__ == "__main__":
    main()
