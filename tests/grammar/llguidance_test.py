#!/usr/bin/env python3
"""Masks beside those of llguidance, another implementation, for the same constraint and tokens.

usage: tests/grammar/llguidance_test.py PRINT_MASKS   (the binary)

Random walks through its masks, over bytes and made-up tokens; after each token the two masks must be equal but for the
differences that EXPLAINED lists. Installs llguidance from PyPI into build/llguidance-venv. Where PyPI cannot be reached the
test says so and passes without a check.
"""

import json
import os
import pathlib
import random
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
VENV = ROOT / "build" / "llguidance-venv"
PACKAGE = "llguidance==1.9.1"
WALKS = 12
LONGEST_WALK = 60
PIECES = ["ab", "true", "false", "null", '{"', '":', '","', "12", "123", "00", "0.", "-1", "e+", "}}", "]}", "the ", "tion", "é", "ü",
          "日本", "\\u", "\\n", '\\"', "http://", "@", "2024-", "T10", ':{"', "[[", "],["]

CLOSED = {"additionalProperties": False}


def closed(properties: dict, required: list[str] | None = None) -> dict:
    return {"type": "object", "properties": properties, "required": list(properties) if required is None else required, **CLOSED}


REGEXES = ["[a-c]{2,5}|[0-9]+x?", "(foo|bar)*[^a-z]+", "(a|ab)(c|bcd)*(d*)", "x{3}y{0,2}z?", "[^é]+é", "([ab]{1,3}c){2,4}",
           "(0|[1-9][0-9]*)([.][0-9]{1,3})?", "[A-Fa-f0-9]{8}(-[A-Fa-f0-9]{4}){3}"]
SCHEMAS = [
    closed({"a": {"type": "integer"}, "b": {"type": "string"}}),
    closed({"a": {"enum": ["x", "yy", "yyz", "é", 5, None]}, "b": {"type": "boolean"}}, required=[]),
    closed({"a": {"type": "null"}, "b": {"const": {"k": [1, "x"]}}, "c": {"type": "array", "items": {"type": "boolean"}}}, ["b"]),
    {"type": "array", "items": {"type": "number"}, "minItems": 1, "maxItems": 3},
    {"type": "array", "prefixItems": [{"type": "integer"}, {"type": "null"}], "items": False},
    *({"type": "integer", "minimum": low, "maximum": high} for low, high in ((3, 421), (-17, 8), (-1005, -999), (0, 0))),
    {"type": "integer", "exclusiveMinimum": 99},
    {"type": "number", "minimum": -1.5, "exclusiveMaximum": 10},
    {"type": "string", "minLength": 2, "maxLength": 6},
    {"type": "string", "maxLength": 40},
    {"type": "string", "pattern": "^[a-z]+@[a-z.]+$"},
    {"type": "string", "pattern": "^(ab|cd)*\\\\x$"},
    *({"type": "string", "format": name} for name in ("date", "uuid", "ipv4")),
    {"anyOf": [{"type": "null"}, closed({"k": {"const": 5}}), {"type": "string", "maxLength": 3}]},
    {"allOf": [closed({"a": {"type": "integer"}}), {"properties": {"a": {"minimum": 5, "maximum": 19}}}]},
    {"$ref": "#/$defs/n", "$defs": {"n": closed({"v": {"type": "integer"}, "c": {"type": "array", "items": {"$ref": "#/$defs/n"}}}, ["v"])}},
]

# What a token that only one of the two allows may have in it, and who allows it.
EXPLAINED = [
    ("ours", "JSON's strings may have DEL", lambda before, token: b"\x7f" in token),
    ("ours", "JSON may escape a slash", lambda before, token: b"\\/" in before[-1:] + token),
    ("theirs", "numbers end: 19 digits, a fraction of 20, an exponent of 3",
     lambda before, token: re.search(rb"[0-9]{20}|\.[0-9]{21}|[eE][+-]?[0-9]{4}", before + token) is not None),
    ("ours", "JSON may escape any character by its number, llguidance the control characters",
     lambda before, token: re.search(rb"\\u", before[-5:] + token) is not None),
    ("ours", "-0 is 0", lambda before, token: token.startswith(b"-") or re.search(rb"-0?$", before) is not None),
]


def enter_venv() -> None:
    """Runs this script again inside the environment."""
    stamp = VENV / "ready"
    if not stamp.exists() or stamp.read_text() != PACKAGE:
        subprocess.run([sys.executable, "-m", "venv", VENV], check=True)
        if subprocess.run([VENV / "bin" / "pip", "install", "--quiet", "--disable-pip-version-check", PACKAGE]).returncode != 0:
            print("NOT CHECKED: PyPI cannot be reached, so there is no llguidance")
            sys.exit(0)
        stamp.write_text(PACKAGE)
    python = str(VENV / "bin" / "python")
    os.execv(python, [python, __file__, *sys.argv[1:], "--inside"])


def make_tokens(rng: random.Random) -> list[bytes]:
    alphabet = 'abcdxyz0123456789 {}[]":,.-\\eE+/'
    made = ["".join(rng.choice(alphabet) for _ in range(rng.randint(2, 5))) for _ in range(700)]
    tokens = [bytes([byte]) for byte in range(256)] + [text.encode() for text in PIECES + made if len(text.encode()) > 1]
    return [*dict.fromkeys(tokens), b"<end>"]


class Judge:
    def __init__(self, binary: str, rng: random.Random) -> None:
        from llguidance import LLTokenizer
        from llguidance._tokenizer import TokenizerWrapper
        self.rng = rng
        self.tokens = make_tokens(rng)
        self.end = len(self.tokens) - 1

        class Greedy:
            eos_token_id, bos_token_id, tokens, special_token_ids = self.end, None, self.tokens, [self.end]

            def __call__(self, text):
                return list(text.encode() if isinstance(text, str) else text)

        self.tokenizer = LLTokenizer(TokenizerWrapper(Greedy()))
        self.process = subprocess.Popen([binary], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.ask({"tokens": [token.hex() for token in self.tokens]}, answered=False)
        self.masks = self.faults = 0
        self.seen: dict[str, int] = {}

    def ask(self, message: dict, answered: bool = True) -> dict:
        self.process.stdin.write(json.dumps(message) + "\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline()) if answered else {}

    def matcher(self, kind: str, source: str):
        from llguidance import LLMatcher
        if kind == "regex":
            grammar = LLMatcher.grammar_from_regex(source)
        else:
            compact = {"whitespace_flexible": False, "item_separator": ",", "key_separator": ":"}
            grammar = LLMatcher.grammar_from_json_schema(source, overrides=compact)
        matcher = LLMatcher(self.tokenizer, grammar)
        assert not matcher.is_error(), f"{source}: {matcher.get_error()}"
        return matcher

    def allowed(self, mask: bytes) -> set[int]:
        return {id for id in range(len(self.tokens)) if mask[id // 8] >> (id % 8) & 1}

    def walk(self, kind: str, source: str) -> None:
        """A walk through the masks of llguidance, which tend to close what is open after a while."""
        matcher, ids, theirs = self.matcher(kind, source), [], []
        while True:
            theirs.append((self.allowed(matcher.compute_bitmask()), matcher.compute_ff_bytes()))
            choices = theirs[-1][0] - {self.end}
            if not choices or len(ids) == LONGEST_WALK or (self.end in theirs[-1][0] and self.rng.random() < 0.1):
                break
            closing = [id for id in choices if self.tokens[id] in (b'"', b"}", b"]")]
            ids.append(self.rng.choice(closing if closing and len(ids) > LONGEST_WALK // 2 else sorted(choices)))
            assert matcher.consume_token(ids[-1])
        answer = self.ask({"kind": kind, "source": source, "ids": ids})
        assert "refused" not in answer, f"{source}: {answer['refused']}"
        for place, mask in enumerate(answer["masks"]):
            before = b"".join(self.tokens[id] for id in ids[:place])
            self.compare(source, before, self.allowed(bytes.fromhex(mask)), *theirs[place])
        if answer["taken"] != len(ids):
            before = b"".join(self.tokens[id] for id in ids[: answer["taken"]])
            if not self.explanation("theirs", before, self.tokens[ids[answer["taken"]]]):
                self.fault(source, before, f"takes {answer['taken']} of {len(ids)} tokens")

    def explanation(self, who: str, before: bytes, token: bytes) -> str:
        return next((why for side, why, holds in EXPLAINED if side == who and holds(before, token)), "")

    def compare(self, source: str, before: bytes, ours: set[int], theirs: set[int], forced: bytes) -> None:
        self.masks += 1
        for id in sorted(ours ^ theirs):
            who, token = ("ours" if id in ours else "theirs"), self.tokens[id]
            why = self.explanation(who, before, token)
            if who == "ours" and len(theirs) == 1 and forced.startswith(token):
                why = "where the text is certain llguidance chooses one of its tokenizations"
            if not why:
                self.fault(source, before, f"{token!r} is {who} alone")
            self.seen[why] = self.seen.get(why, 0) + 1

    def fault(self, source: str, before: bytes, what: str) -> None:
        self.faults += 1
        if self.faults <= 20:
            print(f"{source}: behind {before[-60:]!r}: {what}")


def main() -> None:
    if "--inside" not in sys.argv:
        enter_venv()
    judge = Judge(sys.argv[1], random.Random(5))
    for _ in range(WALKS):
        for source in REGEXES:
            judge.walk("regex", source)
        for schema in SCHEMAS:
            judge.walk("json_schema", json.dumps(schema))
    for why, count in sorted(judge.seen.items()):
        print(f"{count:6} tokens: {why or 'NOT EXPLAINED'}")
    print(f"{judge.masks} masks of {len(REGEXES) + len(SCHEMAS)} constraints over {len(judge.tokens)} tokens, {judge.faults} faults")
    assert judge.masks > 1000 and judge.faults == 0


if __name__ == "__main__":
    main()
