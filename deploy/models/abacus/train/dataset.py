"""Turns generated examples into token rows and batches."""

import random

import torch
from tokenizers import Tokenizer

import chat
from generate_data import KINDS, example, small_talk
from tool_talk import TALK_KINDS, setting, talk

PAD = 2
BRANCHES = 4
JSON_DATES = 0.3


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
    """An endless stream of micro batches (ids, said, branches, plain) of examples of like length.

    ids is [rows, length], padded on the right; said tells the tokens that the model
    has to say itself. Branches above 0 continue the row's trunk, each as if the
    others were not there. plain tells the rows of the old kinds. There are only few
    different shapes, because oneDNN compiles a kernel for every new one.
    """

    def __init__(self, tokenizer_path, micro_tokens, kinds, seed):
        self.tokenizer = Tokenizer.from_file(str(tokenizer_path))
        self.micro_tokens, self.kinds = micro_tokens, kinds or list(KINDS)
        # In conversations every old kind is as likely as any other, however often it is named.
        self.old_kinds = list(dict.fromkeys(kind for kind in self.kinds if kind not in TALK_KINDS))
        self.tool_kinds = [kind for kind in self.kinds if kind in TALK_KINDS and kind != "json"]
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

    def pieces(self, parts):
        """The ids of (text, whether the model says it), and the latter for each of them."""
        ids, said = [], []
        for text, own in parts:
            more = self.tokenizer.encode(text, add_special_tokens=False).ids
            ids, said = ids + more, said + [own] * len(more)
        return ids, said

    def json_row(self):
        is_asked = self.rng.random() < 0.75
        # Behind a quotation mark days and months are spelled with other tokens, which takes practice.
        dates = self.rng.random() < JSON_DATES
        old = (lambda: example(self.rng, "dates", "train")) if dates else self.example
        item = talk(self.rng, "json", "train", old, is_asked)
        ids, said = self.pieces([(text, False) for _, text in chat.pieces(item["messages"])] + reply_pieces(item, is_asked))
        return ids, said, [0] * len(ids)

    def tool_row(self):
        """The declaration and earlier turns, then several questions, each of which follows them."""
        messages, tools = setting(self.rng, "train", self.example)
        # Answers to results are said in earlier turns, too.
        trunk = chat.pieces(messages, tools, opens=False)
        ids, said = self.pieces([(text, role == "assistant" and earlier == "tool")
                                 for (role, text), (earlier, _) in zip(trunk, [("", "")] + trunk)])
        branches = [0] * len(ids)
        for branch in range(1, BRANCHES + 1):
            item = talk(self.rng, self.rng.choice(self.tool_kinds), "train", self.example, of=(messages, tools))
            parts = chat.pieces(item["messages"], tools)[len(trunk):]
            more, own = self.pieces([(text, False) for _, text in parts] + reply_pieces(item))
            ids, said, branches = ids + more, said + own, branches + [branch] * len(more)
        return ids, said, branches

    def row(self):
        """The ids of an example, which of them the model says, the branch of each one, and whether the kind is old."""
        kind = self.rng.choice(self.kinds)
        if kind in TALK_KINDS:
            return *(self.json_row() if kind == "json" else self.tool_row()), False
        item = small_talk(self.rng) if self.rng.random() < 0.01 else example(self.rng, kind, "train")
        prompt = prompt_ids(self.tokenizer, item["question"], self.before())
        reply = self.tokenizer.encode(reply_pieces(item)[0][0], add_special_tokens=False).ids
        return prompt + reply, [False] * len(prompt) + [True] * len(reply), [0] * (len(prompt) + len(reply)), True

    def __next__(self):
        while True:
            ids, said, branches, plain = self.row()
            step = 8 if len(ids) <= 256 else 64
            length = -(-len(ids) // step) * step
            extra = length - len(ids)
            rows = self.waiting.setdefault(length, [])
            rows.append((ids + [PAD] * extra, said + [False] * extra, branches + branches[-1:] * extra, plain))
            if (len(rows) + 1) * length > self.micro_tokens:
                del self.waiting[length]
                return tuple(torch.tensor(part) for part in zip(*rows))
