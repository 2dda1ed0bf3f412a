#!/usr/bin/env python3
"""Writes questions with worked answers, one JSON object a line.

Every example has a kind, a question, the thinking that leads to the answer, and
the answer itself. The operands of an example decide, by a hash, whether it
belongs to the training split or to the held-out split, so that no held-out
question was ever asked in training in any wording.

    generate_data.py --split heldout --per-kind 150 --seed 7 --out ../heldout.jsonl
    generate_data.py --split heldout --per-kind 150 --seed 7 --kinds stories lists --out ../free.jsonl
"""

import argparse
import json
import random
import sys
import zlib

from free_choices import FREE_KINDS
from questions import QUESTIONS, SMALL_TALK
from words import DAYS, MONTHS, NAMES, SYLLABLES, THINGS, WORDS

HELDOUT_PERCENT = 10


def split_of(kind, key):
    """The split that an example belongs to; a function of its operands alone."""
    return "heldout" if zlib.crc32(f"{kind}:{key}".encode()) % 100 < HELDOUT_PERCENT else "train"


def ask(rng, kind, **fields):
    """One wording of a question, sometimes carelessly typed."""
    text = rng.choice(QUESTIONS[kind]).format(
        name=rng.choice(NAMES), thing=rng.choice(THINGS), **fields)
    roll = rng.random()
    if roll < 0.08:
        text = text[0].lower() + text[1:]
    elif roll < 0.16:
        text = text.rstrip("?.")
    return text


def counted(count, name):
    """The count with its unit, which loses its plural s after a 1."""
    return f"{count} {name[:-1] if count == 1 and len(name) > 3 and name.endswith('s') else name}"


def reversed_digits(number, width):
    return ",".join(reversed(str(number).zfill(width)))


def addition(rng):
    a = rng.randrange(1, 10 ** rng.choice([1, 2, 2, 3, 3, 4]))
    b = rng.randrange(1, 10 ** rng.choice([1, 2, 2, 3, 3, 4]))
    width = len(str(max(a, b)))
    lines = [f"{a} reversed: {reversed_digits(a, width)}.", f"{b} reversed: {reversed_digits(b, width)}."]
    carry = 0
    for place in range(width):
        x, y = a // 10**place % 10, b // 10**place % 10
        total = x + y + carry
        lines.append(f"{x}+{y}+{carry}={total}, write {total % 10}, carry {total // 10}.")
        carry = total // 10
    if carry:
        lines.append(f"Last, write {carry}.")
    lines.append(f"Read up: {a + b}.")
    return f"{min(a, b)},{max(a, b)}", ask(rng, "addition", a=a, b=b), lines, a + b


def multiplication(rng):
    a = rng.randrange(2, 10 ** rng.choice([1, 2, 2, 3]))
    b = rng.randrange(2, 10)
    width = len(str(a))
    lines = [f"{a} reversed: {reversed_digits(a, width)}."]
    carry = 0
    for place in range(width):
        x = a // 10**place % 10
        total = x * b + carry
        lines.append(f"{x}*{b}={x * b}, {x * b}+{carry}={total}, write {total % 10}, carry {total // 10}.")
        carry = total // 10
    if carry:
        lines.append(f"Last, write {carry}.")
    lines.append(f"Read up: {a * b}.")
    # Two single digits are not swapped: the thinking starts from the first one.
    x, y = (a, b) if rng.random() < 0.7 or a < 10 else (b, a)
    return f"{min(a, b)},{max(a, b)}", ask(rng, "multiplication", a=x, b=y), lines, a * b


def sorting(rng):
    numbers = rng.sample(range(1, rng.choice([10, 50, 100, 100])), rng.choice([3, 4, 4, 5, 5, 6]))
    down = rng.random() < 0.4
    pick, word = (max, "largest") if down else (min, "smallest")
    key = ",".join(map(str, sorted(numbers)))
    kind = "sorting_down" if down else "sorting_up"
    question = ask(rng, kind, numbers=rng.choice([", ", ", ", " "]).join(map(str, numbers)))
    lines, rest = [], list(numbers)
    while rest:
        best = pick(rest)
        lines.append(f"Left: {' '.join(f'{n:02}' for n in rest)}, {word}: {best:02}.")
        rest.remove(best)
    answer = ", ".join(map(str, sorted(numbers, reverse=down)))
    return key, question, lines, answer


def counting_in(rng, word):
    letter = rng.choice(word) if rng.random() < 0.8 else rng.choice("abcdefghijklmnopqrstuvwxyz")
    lines = [f"Spell: {' '.join(word)}."]
    count, steps = 0, []
    for each in word:
        count += each == letter
        steps.append(f"{each}:{count}")
    lines.append(f"Count {letter}: {' '.join(steps)}.")
    return word, ask(rng, "counting", word=word, letter=letter), lines, count


def counting(rng):
    if rng.random() < 0.5:
        return counting_in(rng, rng.choice(WORDS))
    return counting_in(rng, "".join(rng.choice(SYLLABLES) for _ in range(rng.choice([2, 2, 3, 3, 4])))[:9])


def counting_shuffled(rng):
    """Counting in words that cannot be known by heart; training only."""
    word = rng.choice(WORDS)
    return counting_in(rng, "".join(rng.sample(word, len(word))))


def comparing(rng):
    largest = rng.random() < 0.5
    kind = "comparing_larger" if largest else "comparing_smaller"
    decimals = rng.random() < 0.5
    if decimals:
        whole = rng.randrange(0, rng.choice([10, 100]))
        other = whole if rng.random() < 0.6 else rng.randrange(0, 100)
        a, b = ([w, *(rng.randrange(10) for _ in range(rng.choice([1, 2])))] for w in (whole, other))
        if len(a) == 3 and len(b) == 3 and rng.random() < 0.5:
            b[1] = a[1]
        left, right = (f"{n[0]}." + "".join(map(str, n[1:])) for n in (a, b))
        places = list(zip(["Whole", "Tenths", "Hundredths"], a + [0] * (3 - len(a)), b + [0] * (3 - len(b))))
    else:
        left = rng.randrange(1, 10 ** rng.choice([2, 3, 4]))
        near = rng.random() < 0.6
        right = rng.randrange(10 ** (len(str(left)) - 1), 10 ** len(str(left))) if near else rng.randrange(1, 10000)
        if near and rng.random() < 0.5:
            right = left // 10 * 10 + rng.randrange(10)
        left, right = str(left), str(right)
        places = [("Length", len(left), len(right))]
        if len(left) == len(right):
            places += [("Digits", int(x), int(y)) for x, y in zip(left, right)]
    if float(left) == float(right):
        return comparing(rng)
    lines = [f"Compare {left} and {right}."]
    for label, x, y in places:
        lines.append(f"{label}: {x} and {y}, {'same' if x == y else 'less' if x < y else 'more'}.")
        if x != y:
            break
    small, large = sorted([left, right], key=float)
    lines.append(f"So {large} is larger and {small} is smaller.")
    key = ",".join(sorted([left, right]))
    return key, ask(rng, kind, a=left, b=right), lines, large if largest else small


def dates(rng):
    names, cycle, unit = (DAYS, 7, "day") if rng.random() < 0.6 else (MONTHS, 12, "month")
    forward = rng.random() < 0.6
    start = rng.randrange(cycle)
    count = rng.randrange(1, 61 if cycle == 7 else 37)
    rest = count % cycle
    plural = "s" if count > 1 else ""
    whole = count - rest
    lines = [f"{counted(count, unit + 's')}: {count // cycle}*{cycle}={whole}, {count}-{whole}={rest}."]
    steps, index = [f"{names[start]} 0"], start
    for number in range(1, rest + 1):
        index = (index + (1 if forward else -1)) % cycle
        steps.append(f"{names[index]} {number}")
    lines.append(f"{'Forward' if forward else 'Back'}: {', '.join(steps)}.")
    kind = f"dates_{unit}_{'forward' if forward else 'back'}"
    question = ask(rng, kind, start=names[start], count=count, s=plural)
    return f"{names[start]},{count},{forward}", question, lines, names[index]


# Large unit, its short name, small unit, its short name, how many, largest count.
UNITS = [("metres", "m", "centimetres", "cm", 100, 20), ("kilometres", "km", "metres", "m", 1000, 9),
         ("kilograms", "kg", "grams", "g", 1000, 9), ("hours", "h", "minutes", "min", 60, 9),
         ("minutes", "min", "seconds", "s", 60, 9), ("weeks", "weeks", "days", "days", 7, 9)]


def units(rng):
    large, large_short, small, small_short, factor, most = rng.choice(UNITS)
    a = rng.randrange(1, most + 1)
    step = 10 if factor == 1000 and rng.random() < 0.5 else 1
    b = rng.randrange(0, factor, step)
    total = a * factor + b
    spell = rng.random() < 0.5
    big, little = (large, small) if spell else (large_short, small_short)
    key = f"{large},{a},{b}"
    lines = [f"{counted(1, large_short)} = {factor} {small_short}.", f"{a}*{factor}={a * factor}."]
    if b and rng.random() < 0.4:
        lines.append(f"{total}-{a * factor}={b}.")
        answer = f"{counted(a, large_short)} {counted(b, small_short)}"
        return key, ask(rng, "units_up", total=total, big=big, little=little), lines, answer
    lines.append(f"{a * factor}+{b}={total}.")
    amount = f"{counted(a, big)} {counted(b, little)}" if b else counted(a, big)
    return key, ask(rng, "units_down", amount=amount, little=small), lines, counted(total, small_short)


KINDS = {f.__name__: f for f in (addition, multiplication, sorting, counting, comparing, dates, units)}
TRAINING_KINDS = {**KINDS, "counting_shuffled": counting_shuffled}


def small_talk(rng):
    question, thinking, answer = rng.choice(SMALL_TALK)
    return {"kind": "small_talk", "question": question, "thinking": thinking + "\n", "answer": answer}


def example(rng, kind, split):
    """A random example of one kind that belongs to the split."""
    while True:
        base, asked = kind.split("_")[0], None
        if kind in FREE_KINDS:
            key, question, lines, answer, asked = FREE_KINDS[kind](rng)
        else:
            key, question, lines, result = TRAINING_KINDS[kind](rng)
            answer = f"The answer is {result}."
        if split_of(base, key) == split:
            item = {"kind": base, "question": question, "thinking": "".join(f"{line}\n" for line in lines), "answer": answer}
            return item if asked is None else item | {"asked": asked}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--split", choices=["train", "heldout"], default="heldout")
    parser.add_argument("--per-kind", type=int, default=150)
    parser.add_argument("--kinds", nargs="*", default=list(KINDS))
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--out", type=argparse.FileType("w"), default=sys.stdout)
    parser.add_argument("--thinking", action="store_true", help="write the thinking too")
    args = parser.parse_args()
    rng = random.Random(args.seed)
    for kind in args.kinds:
        seen = set()
        while len(seen) < args.per_kind:
            item = example(rng, kind, args.split)
            if item["question"] in seen:
                continue
            seen.add(item["question"])
            if not args.thinking:
                del item["thinking"]
                if item["kind"] in FREE_KINDS:
                    del item["answer"]  # one of many; free_choices.is_right judges
            args.out.write(json.dumps(item) + "\n")


if __name__ == "__main__":
    main()
