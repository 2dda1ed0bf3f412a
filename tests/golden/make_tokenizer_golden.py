#!/usr/bin/env python3
"""Makes the tokenizer goldens: what Hugging Face's `tokenizers` gives for some 2,300 texts.

Two tokenizers: tokenizer_big/tokenizer.json, trained here on generated text of all scripts with DeepSeek's
pre-tokenizer (only with --train), and the one of the shipped model. Writes <name>_tokenizer.golden.json.
Layout: "cases" [text, ids]; "repeats" {repeat, count, id_count, hash}; "special" {text, parsed, plain};
"decodes" {ids, text, with_special}; "chats" {messages, ids} where the tokenizer has a chat template.
"""

import argparse
import functools
import json
import pathlib
import random

import jinja2
import tokenizers
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

from golden_texts import texts, training_corpus

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
SEED = 20240229
BOS, EOS, PAD = "<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>", "<｜▁pad▁｜>"
REGEXES = [
    r"\p{N}{1,3}", "[一-龥぀-ゟ゠-ヿ]+",
    "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+"
    "| ?[\\p{P}\\p{S}]+[\r\n]*|\\s*[\r\n]+|\\s+(?!\\S)|\\s+"]
# Added tokens of both passes (normalized or not), special or not, one the beginning of another.
ADDED = [("<think>", False, False), ("</think>", False, False), ("<｜User｜>", False, False), ("<｜Assistant｜>", False, False),
         ("<|EOT|>", True, False), ("<｜tool▁sep｜>", False, True), ("<｜tool", False, True), ("été", False, True), ("hold <think", False, True)]
REPEATS = ["a", " ", "\n", "1", "é", "ab", "a ", "中", "!", "<", "🫨", " \n", "\r\n "]


def train():
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.Sequence([])
    splits = [pre_tokenizers.Split(Regex(regex), "isolated") for regex in REGEXES]
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        splits + [pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.train_from_iterator(training_corpus(SEED, 40000), trainers.BpeTrainer(
        vocab_size=6000, special_tokens=[BOS, EOS, PAD], show_progress=False,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet())))
    for content, special, normalized in ADDED:
        token = AddedToken(content, normalized=normalized, special=special)
        (tokenizer.add_special_tokens if special else tokenizer.add_tokens)([token])
    tokenizer.post_processor = processors.TemplateProcessing(single=f"{BOS} $A", special_tokens=[(BOS, 0)])
    folder = HERE / "tokenizer_big"
    folder.mkdir(exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"), pretty=False)


def hash_ids(ids):
    """FNV-1a, a 64-bit word at a time."""
    value = 0xCBF29CE484222325
    for token in ids:
        value = (value ^ token) * 0x100000001B3 & 0xFFFFFFFFFFFFFFFF
    return f"{value:016x}"


def special_cases(encode, encode_plain, added):
    rng = random.Random(SEED)
    for i in range(120):
        parts = [rng.choice(added + ["a", " ", "\n", "x y", "<", "｜", "</think", "été", "1", " <think", "hold "]) for _ in range(rng.randint(1, 6))]
        text = "".join(parts)
        yield {"text": text, "parsed": encode(text), "plain": encode_plain(text)}


def decode_cases(tokenizer):
    rng = random.Random(SEED)
    size = tokenizer.get_vocab_size()
    byte_ids = [tokenizer.token_to_id(letter) for letter in pre_tokenizers.ByteLevel.alphabet()]
    byte_ids.sort()
    for i in range(300):
        ids = [rng.choice([rng.randrange(size), rng.choice(byte_ids), rng.randrange(20)]) for _ in range(rng.randint(1, 12))]
        yield {"ids": ids, "text": tokenizer.decode(ids, skip_special_tokens=True),
               "with_special": tokenizer.decode(ids, skip_special_tokens=False)}


def message(role, content):
    return {"role": role, "content": content}


def chat_cases(folder, encode):
    path = folder / "tokenizer_config.json"
    config = json.loads(path.read_text()) if path.exists() else {}
    if "chat_template" not in config:
        return
    template = jinja2.Environment(trim_blocks=True, lstrip_blocks=True).from_string(config["chat_template"])
    system, user, assistant = (functools.partial(message, role) for role in ("system", "user", "assistant"))
    for messages in (
            [user("What is 2+3?")], [system("Be brief."), user("Hi")], [system("One."), user("a"), system("Two."), user("b")],
            [user("q1"), assistant("<think>\nhm</think>\n\n5"), user("and 7?")], [user("q"), assistant("no thinking"), user(" spaced ")],
            [user(""), assistant("a</think>b</think>c"), user("\n")]):
        text = template.render(messages=messages, add_generation_prompt=True, bos_token=config["bos_token"],
                               eos_token=config["eos_token"])
        yield {"messages": messages, "ids": encode(text)}


def make(name, path):
    tokenizer = Tokenizer.from_file(str(path))
    without_added = json.loads(path.read_text())
    added = [token["content"] for token in without_added["added_tokens"]]
    without_added |= {"added_tokens": [], "post_processor": None}
    plain = Tokenizer.from_str(json.dumps(without_added))
    encode = lambda text: tokenizer.encode(text, add_special_tokens=False).ids
    encode_plain = lambda text: plain.encode(text, add_special_tokens=False).ids
    cases = [[text, encode(text)] for text in texts(SEED)]
    repeats = []
    for text in REPEATS:
        count = (1 << 20) // len(text.encode())
        ids = encode(text * count)
        repeats.append({"repeat": text, "count": count, "id_count": len(ids), "hash": hash_ids(ids)})
    golden = {
        "maker": "tests/golden/make_tokenizer_golden.py", "tokenizers": tokenizers.__version__, "seed": SEED,
        "tokenizer": str(path.relative_to(ROOT)), "vocab_size": tokenizer.get_vocab_size(),
        "with_bos": tokenizer.encode("a").ids, "cases": cases, "repeats": repeats, "special": list(special_cases(encode, encode_plain, added)), "decodes": list(decode_cases(tokenizer)),
        "chats": list(chat_cases(path.parent, encode))}
    out = HERE / f"{name}_tokenizer.golden.json"
    out.write_text(json.dumps(golden, ensure_ascii=False, separators=(",", ":")) + "\n")
    print(f"{out.name}: {len(cases)} texts, {out.stat().st_size:,} bytes")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--train", action="store_true", help="train tokenizer_big anew first")
    args = parser.parse_args()
    if args.train:
        train()
    make("big", HERE / "tokenizer_big" / "tokenizer.json")
    make("abacus", ROOT / "deploy" / "models" / "abacus" / "tokenizer.json")


if __name__ == "__main__":
    main()
