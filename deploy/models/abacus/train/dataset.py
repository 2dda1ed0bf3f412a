"""Turns generated examples into token rows and batches."""

import random

import torch
from tokenizers import Tokenizer

from generate_data import KINDS, example, small_talk

PAD = 2


SYSTEM = ["You are a helpful assistant.", "You are abacus.", "Answer the question.", "Be brief.",
          "You are a careful assistant. Think step by step."]


def prompt_ids(tokenizer, question, before=""):
    return tokenizer.encode(f"{before}<｜User｜>{question}<｜Assistant｜><think>\n").ids


def reply_ids(tokenizer, item):
    text = f"{item['thinking']}</think>\n\n{item['answer']}<｜end▁of▁sentence｜>"
    return tokenizer.encode(text, add_special_tokens=False).ids


class Batches:
    """An endless stream of micro batches (ids, first) of examples of like length.

    ids is [rows, length], padded on the right; first[r] is the index of the first
    token of row r that the model has to say itself. There are only few different
    shapes, because oneDNN compiles a kernel for every new one.
    """

    def __init__(self, tokenizer_path, micro_tokens, kinds, seed):
        self.tokenizer = Tokenizer.from_file(str(tokenizer_path))
        self.micro_tokens, self.kinds = micro_tokens, kinds or list(KINDS)
        self.rng = random.Random(seed)
        self.waiting = {}

    def example(self):
        if self.rng.random() < 0.01:
            return small_talk(self.rng)
        return example(self.rng, self.rng.choice(self.kinds), "train")

    def before(self):
        """What stands before the question: mostly nothing, at times a system text or earlier turns."""
        text = self.rng.choice(SYSTEM) if self.rng.random() < 0.05 else ""
        while self.rng.random() < 0.08:
            turn = self.example()
            gap = self.rng.choice(["", "\n\n"])
            text += f"<｜User｜>{turn['question']}<｜Assistant｜>{gap}{turn['answer']}<｜end▁of▁sentence｜>"
        return text

    def __next__(self):
        while True:
            item = self.example()
            prompt = prompt_ids(self.tokenizer, item["question"], self.before())
            row = prompt + reply_ids(self.tokenizer, item)
            length = -(-len(row) // 8) * 8
            rows = self.waiting.setdefault(length, [])
            rows.append((row + [PAD] * (length - len(row)), len(prompt)))
            if (len(rows) + 1) * length > self.micro_tokens:
                del self.waiting[length]
                return torch.tensor([ids for ids, _ in rows]), torch.tensor([first for _, first in rows])
