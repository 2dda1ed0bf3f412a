#!/usr/bin/env python3
"""deploy/models/abacus and abacus-tools: the held-out questions are what their generators write, stories and lists are
judged by what was asked, and the calculator's results are those of the expressions.

usage: tests/deploy/abacus_questions_test.py
"""

import contextlib
import io
import json
import pathlib
import random
import sys
import unittest
from unittest import mock

MODEL = pathlib.Path(__file__).resolve().parents[2] / "deploy" / "models" / "abacus"
TOOLS = MODEL.parent / "abacus-tools"
sys.path.insert(0, str(MODEL / "train"))

import free_choices  # noqa: E402: train/ is no package
import generate_data  # noqa: E402
import tool_talk  # noqa: E402

STORY = {"kind": "stories", "asked": {"animal": "owl", "friend": "fox"}}
PLAN = "Plan: friend fox, name Sam, thing hat, place mill.\n"
TOLD = "The owl was wise. Sam went to the mill. A fox came. They saw a hat. Then they sat."
LIST = {"kind": "lists", "asked": {"of": "even numbers", "count": 3, "below": 20}}


def story(plan=PLAN, told=TOLD):
    return free_choices.is_right(STORY, f"{plan}</think>\n\n{told}")


def items(text, asked=LIST["asked"]):
    return free_choices.is_right({"kind": "lists", "asked": asked}, f"Pick 3.\n</think>\n\nThe answer is {text}.")


class AbacusQuestions(unittest.TestCase):
    def test_held_out_files_are_generated(self):
        for file, kinds in (("heldout.jsonl", list(generate_data.KINDS)), ("free.jsonl", ["stories", "lists"])):
            out = io.StringIO()
            with mock.patch.object(sys, "argv", ["", "--kinds", *kinds]), contextlib.redirect_stdout(out):
                generate_data.main()
            self.assertEqual(out.getvalue(), (MODEL / file).read_text(), file)

    def test_held_out_conversations_are_generated(self):
        out = io.StringIO()
        with mock.patch.object(sys, "argv", [""]), contextlib.redirect_stdout(out):
            tool_talk.main()
        self.assertEqual(out.getvalue(), (TOOLS / "heldout.jsonl").read_text())

    def test_expressions_have_the_values_told(self):
        rng = random.Random(3)
        for _ in range(500):
            question, expression, value = tool_talk.hard(rng, "train")
            self.assertEqual(eval(expression), value, question)

    def test_every_generated_reply_is_right(self):
        rng = random.Random(3)
        for kind in free_choices.FREE_KINDS:
            for split in ("train", "heldout"):
                for _ in range(500):
                    item = generate_data.example(rng, kind, split)
                    self.assertTrue(free_choices.is_right(item, f"{item['thinking']}</think>\n\n{item['answer']}"), item)

    def test_choices_are_free(self):
        asked = [json.loads(line) for line in (MODEL / "free.jsonl").read_text().splitlines()]
        self.assertEqual(len({item["question"] for item in asked}), 300)
        rng = random.Random(3)
        replies = {tuple(generate_data.FREE_KINDS["stories"](rng)[2]) for _ in range(100)}
        self.assertGreater(len(replies), 90)

    def test_stories(self):
        self.assertTrue(story())
        self.assertTrue(story(told=TOLD.replace("The owl was wise. Sam went to the mill.", "Sam went to the mill. The owl was wise.")))
        wrong = {"another animal": ("owl", "cat"), "another friend": ("fox came", "cat came"), "not the plan's place": ("mill", "sea"),
                 "not the plan's name": ("Sam", "Tom"), "not the plan's thing": ("hat", "map"), "no such word": ("wise", "wide"),
                 "article": ("A fox", "An fox"), "a sentence twice": ("A fox came.", "A fox came. A fox came."),
                 "a sentence less": (" A fox came.", ""), "cut short": (" Then they sat.", "")}
        for name, (old, new) in wrong.items():
            self.assertFalse(story(told=TOLD.replace(old, new)), name)
        for name, (old, new) in {"a plan against the question": ("fox", "hen"), "a plan without a place": (", place mill", ""),
                                 "no such name": ("Sam", "Same")}.items():
            self.assertFalse(story(plan=PLAN.replace(old, new), told=TOLD.replace(old, new)), name)
        self.assertFalse(free_choices.is_right(STORY, TOLD), "no thinking")

    def test_lists(self):
        self.assertTrue(items("4, 18, 2"))
        for name, text in {"one less": "4, 18", "one more": "4, 18, 2, 6", "a repeat": "4, 18, 4", "odd": "4, 18, 3",
                           "too large": "4, 18, 20", "another form": "4 18 2", "leading zero": "4, 18, 02"}.items():
            self.assertFalse(items(text), name)
        asked = {"of": "days", "count": 2, "not": "Friday"}
        self.assertTrue(items("Sunday, Monday", asked))
        self.assertFalse(items("Sunday, Friday", asked), "excluded")


if __name__ == "__main__":
    unittest.main()
