#!/usr/bin/env python3
"""Makes regex_classes.golden.json: where Hugging Face's tokenizers (Oniguruma, Unicode 16) cut text.

"classes": per character class, a hash of the lengths of the pieces into which its regex cuts the text of all Unicode
characters in order. "kimi": the same for Kimi-K2's pre-tokenizer and the tokenizer goldens' texts.
"""

import json
import pathlib

import tokenizers
from tokenizers import Regex, pre_tokenizers

from golden_texts import texts
from make_tokenizer_golden import SEED, hash_ids

HERE = pathlib.Path(__file__).resolve().parent
CLASSES = [r"\p{L}+", r"\p{Lu}+", r"\p{Ll}+", r"\p{Lt}+", r"\p{Lm}+", r"\p{Lo}+", r"\p{M}+", r"\p{N}+", r"\p{P}+", r"\p{S}+", r"\p{Han}+",
           r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+", r"[\p{Lo}&&[\p{Han}]]+"]
LETTERS = r"[^\r\n\p{L}\p{N}]?"
CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
UPPER, LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]"
KIMI = "|".join([r"[\p{Han}]+", f"{LETTERS}{UPPER}*{LOWER}+{CONTRACTIONS}", f"{LETTERS}{UPPER}+{LOWER}*{CONTRACTIONS}", r"\p{N}{1,3}",
                 r" ?[^\s\p{L}\p{N}]+[\r\n]*", r"\s*[\r\n]+", r"\s+(?!\S)", r"\s+"])


def piece_bytes(pattern, text):
    split = pre_tokenizers.Split(Regex(pattern), "isolated")
    return [len(piece.encode()) for piece, _ in split.pre_tokenize_str(text)]


def main():
    every = "".join(chr(c) for c in range(1, 0x110000) if not 0xD800 <= c < 0xE000)
    golden = {
        "maker": "tests/golden/make_regex_golden.py", "tokenizers": tokenizers.__version__, "seed": SEED,
        "classes": {pattern: hash_ids(piece_bytes(pattern, every)) for pattern in CLASSES}, "kimi": KIMI,
        "texts": [[text, piece_bytes(KIMI, text)] for text in texts(SEED)[::8]]}
    (HERE / "regex_classes.golden.json").write_text(json.dumps(golden, ensure_ascii=False, separators=(",", ":")) + "\n")
    print(f"{len(golden['texts'])} texts")


if __name__ == "__main__":
    main()
