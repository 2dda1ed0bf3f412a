#!/usr/bin/env python3
"""Conversations with a calculator, and answers as JSON.

Four kinds, all with messages and tools as OpenAI's API has them:

    calls     a tool is declared and the question needs it: the reply is a call
    results   the call and its result are there: the reply says the result
    declared  a tool is declared and the question does not need it: the reply is as ever
    json      a question of an old kind that asks for JSON: the answer is {"answer": "..."}

As with the old kinds, a hash of the operands keeps a tenth of the questions for the held-out file:

    tool_talk.py --per-kind 150 --out ../../abacus-tools/heldout.jsonl
"""

import argparse
import json
import random
import sys

import tool_words
from free_choices import carelessly
from generate_data import KINDS, example, split_of
from words import NAMES, THINGS, WORDS

TALK_KINDS = ["calls", "results", "declared", "json"]
OPERATIONS = {"+": lambda a, b: a + b, "-": lambda a, b: a - b, "*": lambda a, b: a * b}


def number(rng, digits=(1, 2, 2, 3)):
    width = rng.choice(digits)
    return rng.randrange(10 ** (width - 1), 10**width)


def product(rng):
    a, b = number(rng, [2, 3]), number(rng, [2, 3])
    return f"{min(a, b)}*{max(a, b)}", "product", {"a": a, "b": b}, f"{a}*{b}", a * b


def quotient(rng):
    b, value = number(rng, [1, 2, 2]), number(rng, [1, 2, 3])
    if b < 2:
        return quotient(rng)
    return f"{b * value}/{b}", "quotient", {"a": b * value, "b": b}, f"{b * value}/{b}", value


def difference(rng):
    b, a = sorted((number(rng, [1, 2, 3, 3, 4]), number(rng, [1, 2, 3, 3, 4])))
    return f"{a}-{b}", "difference", {"a": a, "b": b}, f"{a}-{b}", a - b


def expression(rng):
    """Two operators, at times with brackets around one of them."""
    (a, b, c), (first, second) = [number(rng) for _ in range(3)], rng.choices("++-**", k=2)
    form = rng.choice(["{a}{first}{b}{second}{c}", "({a}{first}{b}){second}{c}", "{a}{first}({b}{second}{c})"])
    text = form.format(a=a, b=b, c=c, first=first, second=second)
    right_first = form.endswith(")") or (form[0] != "(" and second == "*" != first)
    one, two = OPERATIONS[first], OPERATIONS[second]
    value = one(a, two(b, c)) if right_first else two(one(a, b), c)
    if value < 0:
        return expression(rng)
    shown = text
    if rng.random() < 0.5:
        for operator in "+-*":
            shown = shown.replace(operator, f" {operator} ")
    return text, "expression", {"e": shown}, text, value


HARD = [product, product, quotient, difference, expression, expression]


def hard(rng, split):
    """A question that needs the calculator, the expression to call it with, and its value."""
    while True:
        key, kind, fields, text, value = rng.choice(HARD)(rng)
        if split_of("calls", key) == split:
            question = rng.choice(tool_words.HARD[kind]).format(name=rng.choice(NAMES), thing=rng.choice(THINGS), **fields)
            return carelessly(rng, question), text, value


def some_words(rng):
    return " ".join(rng.choice(WORDS) for _ in range(rng.randrange(2, 9))).capitalize() + "."


def described(rng, texts, **fields):
    """The fields of a tool or parameter with one of the descriptions, with words at random, or with none."""
    roll = rng.random()
    if roll < 0.15:
        return fields
    return {"description": some_words(rng) if roll < 0.3 else rng.choice(texts), **fields}


def tool(rng):
    """The declaration of the calculator."""
    parameter = described(rng, tool_words.PARAMETERS)
    parameter = {"type": "string", **parameter} if rng.random() < 0.7 else {**parameter, "type": "string"}
    schema = {"type": "object", "properties": {"expression": parameter}}
    if rng.random() < 0.85:
        schema["required"] = ["expression"]
    if rng.random() < 0.15:
        schema["additionalProperties"] = False
    function = {"name": "calculator", **described(rng, tool_words.DESCRIPTIONS), "parameters": schema}
    return {"type": "function", "function": function}


def asked(question):
    return {"role": "user", "content": question}


def called(rng, text, turn):
    arguments = json.dumps({"expression": text})
    call = {"id": f"call_{turn}", "type": "function", "function": {"name": "calculator", "arguments": arguments}}
    return {"role": "assistant", "content": rng.choice(["", "\n\n"]), "tool_calls": [call]}


def result_of(rng, value, turn, forms=tool_words.RESULTS, text=""):
    return {"role": "tool", "tool_call_id": f"call_{turn}", "content": rng.choice(forms).format(value=value, text=text)}


def exchange(rng, split, turn):
    """A question, the call, a result, at times not the right one, and the answer."""
    question, text, value = hard(rng, split)
    if split == "train" and rng.random() < 0.3:
        value = number(rng, [1, 2, 3, 4, 5, 6]) * rng.choice([1, 1, 1, 1, -1])
    return [asked(question), called(rng, text, turn), result_of(rng, value, turn, text=text),
            {"role": "assistant", "content": f"The answer is {value}."}]


def setting(rng, split, old):
    """What stands before the question: a system text, at times, and earlier turns; and the tools."""
    messages = []
    if rng.random() < 0.25:
        messages.append({"role": "system", "content": some_words(rng) if rng.random() < 0.2 else rng.choice(tool_words.SYSTEM)})
    for turn in range(rng.choice([0, 0, 0, 1, 1, 2])):
        if rng.random() < 0.65:
            messages += exchange(rng, split, turn)
        else:
            item = old()
            messages += [asked(item["question"]), {"role": "assistant", "content": rng.choice(["", "\n\n"]) + item["answer"]}]
    return messages, [tool(rng)]


def as_json(answer):
    prefix, found, rest = answer.partition("The answer is ")
    return json.dumps({"answer": rest.removesuffix(".") if found and not prefix else answer})


def json_talk(rng, old, is_asked):
    """An old question that is to be answered as JSON; without `is_asked` only the server will see to it."""
    item, messages = old(), []
    question, roll = item["question"], rng.random() if is_asked else 1
    if roll < 0.3:
        messages.append({"role": "system", "content": rng.choice(tool_words.JSON_SYSTEM)})
    elif roll < 0.42:
        question = f"{rng.choice(tool_words.JSON)} {question}"
    elif is_asked:
        question += rng.choice([" ", " ", "\n"]) + rng.choice(tool_words.JSON)
    return {"kind": "json", "of": item["kind"], "messages": messages + [asked(question)],
            "thinking": item["thinking"], "answer": as_json(item["answer"])}


def talk(rng, kind, split, old, is_asked=True, of=None):
    """An example, `of` a setting; `old` makes one of an old kind. Calls have `call`, the arguments, instead of an answer."""
    if kind == "json":
        return json_talk(rng, old, is_asked)
    messages, tools = of or setting(rng, split, old)
    item = {"kind": kind, "tools": tools}
    if kind == "declared":
        own = old()
        more = {name: own[name] for name in ("thinking", "answer")} | {"of": own["kind"]}
        return item | {"messages": messages + [asked(own["question"])]} | more
    if kind == "results":
        *question, answer = exchange(rng, split, len(messages))
        return item | {"messages": messages + question, "answer": answer["content"]}
    question, text, _ = hard(rng, split)
    return item | {"messages": messages + [asked(question)], "thinking": f"For the calculator: {text}.\n",
                   "call": {"expression": text}}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--per-kind", type=int, default=150)
    parser.add_argument("--kinds", nargs="*", default=TALK_KINDS)
    parser.add_argument("--seed", type=int, default=8)
    parser.add_argument("--out", type=argparse.FileType("w"), default=sys.stdout)
    args = parser.parse_args()
    rng = random.Random(args.seed)
    for kind in args.kinds:
        seen = set()
        while len(seen) < args.per_kind:
            item = talk(rng, kind, "heldout", lambda: example(rng, rng.choice(list(KINDS)), "heldout"))
            question = [message["content"] for message in item["messages"] if message["role"] == "user"][-1]
            if question not in seen:
                seen.add(question)
                item.pop("thinking", None)
                args.out.write(json.dumps(item) + "\n")


if __name__ == "__main__":
    main()
