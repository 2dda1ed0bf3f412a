"""Turns generated examples into token rows and batches."""

import random

import torch
from tokenizers import Tokenizer

import chat
from generate_data import KINDS, example, small_talk
from tool_talk import TALK_KINDS, talk

PAD = 2


SYSTEM = ["You are a helpful assistant.", "You are abacus.", "Answer the question.", "Be brief.",
          "You are a careful assistant. Think step by step."]


def prompt_ids(tokenizer, question, before=""):
    return tokenizer.encode(f"{before}<｜User｜>{question}<｜Assistant｜><think>\n").ids


def reply_pieces(item, is_asked=True):
    """(text, whether the model has to say it) of a reply; a bracket that was not asked for is the server's."""
    if item["kind"] == "results":
        return [(f"{item['answer']}{chat.EOS}", True)]
    if "call" in item:
        call = {"function": {"name": "calculator", "arguments": chat.spaced_json(item["call"])}}
        return [(f"{item['thinking']}</think>\n\n{chat.calls_text([call])}{chat.EOS}", True)]
    if not is_asked:
        return [(f"{item['thinking']}</think>\n\n", True), ("{", False), (f"{item['answer'][1:]}{chat.EOS}", True)]
    return [(f"{item['thinking']}</think>\n\n{item['answer']}{chat.EOS}", True)]


class Batches:
    """An endless stream of micro batches (ids, said) of examples of like length.

    ids is [rows, length], padded on the right; said tells the tokens that the model
    has to say itself. There are only few different shapes, because oneDNN compiles
    a kernel for every new one.
    """

    def __init__(self, tokenizer_path, micro_tokens, kinds, seed):
        self.tokenizer = Tokenizer.from_file(str(tokenizer_path))
        self.micro_tokens, self.kinds = micro_tokens, kinds or list(KINDS)
        self.old_kinds = [kind for kind in self.kinds if kind not in TALK_KINDS]
        self.rng = random.Random(seed)
        self.waiting = {}

    def example(self):
        if self.rng.random() < 0.01:
            return small_talk(self.rng)
        return example(self.rng, self.rng.choice(self.old_kinds), "train")

    def before(self):
        """What stands before the question: mostly nothing, at times a system text or earlier turns."""
        text = self.rng.choice(SYSTEM) if self.rng.random() < 0.05 else ""
        while self.rng.random() < 0.08:
            turn = self.example()
            gap = self.rng.choice(["", "\n\n"])
            text += f"<｜User｜>{turn['question']}<｜Assistant｜>{gap}{turn['answer']}<｜end▁of▁sentence｜>"
        return text

    def talk(self, kind):
        """A row of one of tool_talk's kinds; in it the answers to results count, earlier ones too."""
        is_asked = kind != "json" or self.rng.random() < 0.75
        item = talk(self.rng, kind, "train", self.example, is_asked)
        ids, said = [], []
        parts = chat.pieces(item["messages"], item.get("tools", ()))
        texts = [(text, role == "assistant" and earlier == "tool")
                 for (role, text), (earlier, _) in zip(parts, [("", "")] + parts)]
        for text, own in texts + reply_pieces(item, is_asked):
            more = self.tokenizer.encode(text, add_special_tokens=False).ids
            ids, said = ids + more, said + [own] * len(more)
        return ids, said

    def row(self):
        """The ids of one example, and which of them the model says."""
        kind = self.rng.choice(self.kinds)
        if kind in TALK_KINDS:
            return self.talk(kind)
        item = small_talk(self.rng) if self.rng.random() < 0.01 else example(self.rng, kind, "train")
        prompt = prompt_ids(self.tokenizer, item["question"], self.before())
        reply = self.tokenizer.encode(reply_pieces(item)[0][0], add_special_tokens=False).ids
        return prompt + reply, [False] * len(prompt) + [True] * len(reply)

    def __next__(self):
        while True:
            ids, said = self.row()
            step = 8 if len(ids) <= 256 else 32
            length = -(-len(ids) // step) * step
            rows = self.waiting.setdefault(length, [])
            rows.append((ids + [PAD] * (length - len(ids)), said + [False] * (length - len(ids))))
            if (len(rows) + 1) * length > self.micro_tokens:
                del self.waiting[length]
                return torch.tensor([ids for ids, _ in rows]), torch.tensor([said for _, said in rows])
