#!/usr/bin/env python3
"""Trains the byte-level BPE tokenizer and writes tokenizer.json and tokenizer_config.json.

Training splits digits one by one, so that no merge of digits can be learned; the
tokenizer that is written has DeepSeek's own pre-tokenizer, whose pieces of up to
three digits then always fall apart into single digits.
"""

import argparse
import json
import pathlib
import random

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

from generate_data import KINDS, example, small_talk

BOS, EOS, PAD = "<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>", "<｜▁pad▁｜>"
USER, ASSISTANT = "<｜User｜>", "<｜Assistant｜>"
THINK, END_THINK = "<think>", "</think>"

NUMBERS = r"\p{N}{1,3}"
CJK = "[一-龥぀-ゟ゠-ヿ]+"
TEXT = ("[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+"
        "| ?[\\p{P}\\p{S}]+[\r\n]*|\\s*[\r\n]+|\\s+(?!\\S)|\\s+")

CHAT_TEMPLATE = (
    "{{ bos_token }}"
    "{% for m in messages if m['role'] == 'system' %}"
    "{{ m['content'] }}{% if not loop.last %}{{ '\\n\\n' }}{% endif %}{% endfor %}"
    "{% for m in messages %}"
    "{% if m['role'] == 'user' %}{{ '<｜User｜>' + m['content'] }}"
    "{% elif m['role'] == 'assistant' %}"
    "{{ '<｜Assistant｜>' + m['content'].split('</think>')[-1] + eos_token }}{% endif %}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<｜Assistant｜><think>\\n' }}{% endif %}")


def pre_tokenizer(numbers):
    splits = [pre_tokenizers.Split(Regex(regex), "isolated") for regex in (numbers, CJK, TEXT)]
    return pre_tokenizers.Sequence(splits + [pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


def spelled_word(item):
    return item["thinking"].split(".")[0].removeprefix("Spell: ").replace(" ", "")


def corpus(count, seed):
    rng = random.Random(seed)
    for _ in range(count):
        for kind in KINDS:
            item = example(rng, kind, "train")
            # Words to be counted stay out: their letters are easier to learn one by one.
            yield item["question"].replace(spelled_word(item), "") if kind == "counting" else item["question"]
            yield item["thinking"]
            yield "\n\n" + item["answer"]
        item = small_talk(rng)
        yield item["answer"]


def train(vocab_size, count, seed):
    tokenizer = Tokenizer(models.BPE(ignore_merges=False))
    tokenizer.normalizer = normalizers.Sequence([])
    tokenizer.pre_tokenizer = pre_tokenizer(r"\p{N}")
    added = [THINK, END_THINK, USER, ASSISTANT]
    tokenizer.train_from_iterator(corpus(count, seed), trainers.BpeTrainer(
        vocab_size=vocab_size - len(added), special_tokens=[BOS, EOS, PAD], show_progress=False,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet())))
    tokenizer.pre_tokenizer = pre_tokenizer(NUMBERS)
    tokenizer.decoder = decoders.ByteLevel()
    # As in R1 the think marks are ordinary text to a decoder that skips special tokens.
    tokenizer.add_tokens([AddedToken(token, normalized=False, special=False) for token in added[:2]])
    tokenizer.add_special_tokens([AddedToken(token, normalized=False, special=True) for token in added[2:]])
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{BOS} $A", pair=f"{BOS} $A {BOS}:1 $B:1", special_tokens=[(BOS, 0)])
    return tokenizer


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=pathlib.Path, required=True, help="folder to write to")
    parser.add_argument("--vocab-size", type=int, default=632, help="tokens, the added ones included")
    parser.add_argument("--per-kind", type=int, default=4000)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    tokenizer = train(args.vocab_size, args.per_kind, args.seed)
    tokenizer.save(str(args.out / "tokenizer.json"))
    config = {
        "add_bos_token": True, "add_eos_token": False, "bos_token": BOS, "eos_token": EOS, "pad_token": PAD,
        "clean_up_tokenization_spaces": False, "model_max_length": 4096, "legacy": True, "unk_token": None,
        "tokenizer_class": "LlamaTokenizerFast", "chat_template": CHAT_TEMPLATE}
    (args.out / "tokenizer_config.json").write_text(json.dumps(config, indent=2, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
