#!/usr/bin/env python3
"""Makes Kimi's goldens: tokens by tiktoken, and prompts of K2.5 and K2.6.

usage: make_kimi_golden.py MILES TINKER   (checkouts of radixark/miles and thinking-machines-lab/tinker-cookbook; Python with tiktoken)

tokenizer_tiktoken/: a small vocabulary in the files of Kimi's checkpoints. Its ranks are in random order and many tokens cannot be
made of two others, so that only tiktoken's own rules give the ids in tiktoken_tokenizer.golden.json (make_tokenizer_golden.py's
layout). kimi_chat.golden.json: random conversations and their prompts by the chat template of K2.6, which is K2.5's where nothing
asks for past thinking, as miles has it; tools declared by the encoder of tool_declaration_ts.py, as tinker-cookbook has it; and
random tools alone, with their declarations, or none where the encoder fails.
"""

import base64
import collections
import importlib.util
import json
import logging
import pathlib
import random
import subprocess
import sys

import jinja2
import tiktoken

from golden_texts import texts, training_corpus
from make_regex_golden import KIMI
from make_tokenizer_golden import REPEATS, SEED, hash_ids, special_cases

HERE = pathlib.Path(__file__).resolve().parent
TEMPLATE = "miles/utils/chat_template_utils/templates/kimi_k25_fixed.jinja"
ENCODER = "tinker_cookbook/renderers/kimi_k2_5_tool_declaration_ts.py"
RANKS, SPECIALS = 3000, 256
NAMES = ["[BOS]", "[EOS]", "<|im_end|>", "<|im_user|>", "<|im_assistant|>", "[EOT]", "<|im_system|>", "<|tool_calls_section_begin|>",
         "<|tool_calls_section_end|>", "<|tool_call_begin|>", "<|tool_call_argument_begin|>", "<|tool_call_end|>", "<|im_middle|>",
         "<think>", "</think>", "[UNK]", "[PAD]"]
# What the template is recognised by.
MARKS = ("<|im_system|>tool_declare<|im_middle|>{{ tools_ts_str }} <|im_user|> <|im_assistant|> <|tool_calls_section_begin|> ## Return of "
         "preserve_thinking | default(false) last_non_tool_call_assistant_msg <think></think> if thinking is defined <think>")


def write_vocabulary(folder):
    """256 bytes and frequent substrings of the corpus, the longer ones seldom with all of their parts, in random order."""
    rng = random.Random(SEED)
    counts = collections.Counter()
    for text in training_corpus(SEED, 4000):
        data = text.encode()
        for length in (2, 2, 3, 4, 5, 7, 9, 12):
            for at in range(0, len(data) - length + 1, 3):
                counts[data[at:at + length]] += 1
    frequent = [token for token, _ in counts.most_common(20000)]
    chosen = frequent[:1200] + rng.sample(frequent[1200:], RANKS - 256 - 1200)
    tokens = [bytes([byte]) for byte in range(256)] + chosen
    rng.shuffle(tokens)
    folder.mkdir(exist_ok=True)
    lines = [f"{base64.b64encode(token).decode()} {rank}" for rank, token in enumerate(tokens)]
    (folder / "tiktoken.model").write_text("\n".join(lines) + "\n")
    ids = sorted(rng.sample(range(RANKS, RANKS + SPECIALS), len(NAMES)))
    added = {str(i): {"content": name, "lstrip": False, "normalized": False, "rstrip": False, "single_word": False,
                      "special": "think" not in name and "tool_call" not in name} for i, name in zip(ids, NAMES)}
    config = {"added_tokens_decoder": added, "bos_token": "[BOS]", "eos_token": "[EOS]", "chat_template": MARKS}
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=1) + "\n")
    names = {int(i): entry["content"] for i, entry in added.items()}
    special = {names.get(i, f"<|reserved_token_{i}|>"): i for i in range(RANKS, RANKS + SPECIALS)}
    encoding = tiktoken.Encoding("kimi", pat_str=KIMI, mergeable_ranks={token: rank for rank, token in enumerate(tokens)},
                                 special_tokens=special)
    skipped = {i for i in range(RANKS, RANKS + SPECIALS) if added.get(str(i), {"special": True})["special"]}
    return encoding, skipped


def decode_cases(encoding, skipped):
    rng = random.Random(SEED)
    decode = lambda ids: encoding.decode_bytes(ids).decode(errors="replace")
    for _ in range(300):
        ids = [rng.choice([rng.randrange(RANKS + SPECIALS), rng.randrange(256)]) for _ in range(rng.randint(1, 12))]
        yield {"ids": ids, "text": decode([i for i in ids if i not in skipped]), "with_special": decode(ids)}


def make_tokens(render):
    folder = HERE / "tokenizer_tiktoken"
    encoding, skipped = write_vocabulary(folder)
    plain = lambda text: encoding.encode(text, disallowed_special=())
    parsed = lambda text: encoding.encode(text, allowed_special="all")
    repeats = []
    for text in REPEATS:
        count = (1 << 16) // len(text.encode())
        ids = plain(text * count)
        repeats.append({"repeat": text, "count": count, "id_count": len(ids), "hash": hash_ids(ids)})
    chats = [[("user", "What is 2+3?")], [("system", "Be brief."), ("user", "Größe: 日本")],
             [("user", "a"), ("assistant", "b c"), ("user", " spaced ")]]
    chats = [[{"role": role, "content": content} for role, content in chat] for chat in chats]
    golden = {
        "maker": "tests/golden/make_kimi_golden.py", "tiktoken": tiktoken.__version__, "seed": SEED, "adds_bos": False,
        "tokenizer": "tests/golden/tokenizer_tiktoken/tiktoken.model", "vocab_size": RANKS + SPECIALS, "with_bos": plain("a"),
        "cases": [[text, plain(text)] for text in texts(SEED)], "repeats": repeats,
        "special": list(special_cases(parsed, plain, NAMES + [f"<|reserved_token_{RANKS + 1}|>"])),
        "decodes": list(decode_cases(encoding, skipped)), "chats": [{"messages": chat, "ids": parsed(render(chat))} for chat in chats]}
    out = HERE / "tiktoken_tokenizer.golden.json"
    out.write_text(json.dumps(golden, ensure_ascii=False, separators=(",", ":")) + "\n")
    print(f"{out.name}: {len(golden['cases'])} texts, {out.stat().st_size:,} bytes")


WORDS = ["Paris", "größer", "日本", "a\nb", " x ", "{\"k\": 1}", "<b>", "\"q\"", "x", "// c", "back\\slash", "tab\t"]
NUMBERS = [0, 1, -3, 2.5, 1.0, 1e-7, 1e16, 123456789012345680.0, 1234567890123456.0, 0.0001, 1e100, 3]


def text(rng, most=3):
    return " ".join(rng.choice(WORDS) for _ in range(rng.randint(1, most)))


def value(rng, depth=0):
    kinds = [lambda: text(rng), lambda: rng.choice(NUMBERS), lambda: rng.choice([True, False, None])]
    if depth < 2:
        kinds += [lambda: [value(rng, depth + 1) for _ in range(rng.randint(0, 3))],
                  lambda: {rng.choice("zyab") + "é" * rng.randint(0, 1): value(rng, depth + 1) for _ in range(rng.randint(0, 3))}]
    return rng.choice(kinds)()


def schema(rng, depth, wild):
    """A schema; `wild`: with what declarations lack words for now and then."""
    if rng.random() < 0.05:
        return rng.choice([{}, True, False])
    if wild and rng.random() < 0.06:
        return rng.choice([{"title": "x"}, {"$ref": "other.json"}, {"$ref": "#/$defs/absent"}, None, 3, "string", {"type": ["string", "date"]},
                           {"enum": [1], "type": "string"}, {"enum": ["a"], "type": ["string", "number"]}, {"allOf": [{}]}, {"type": "string", "description": 5}])
    kind = rng.choice(["string", "number", "integer", "boolean", "null", "object", "array", "enum", "anyOf", "list", "ref", "any"])
    if depth >= 3 and kind in ("object", "array", "anyOf"):
        kind = "string"
    if kind == "enum":
        values, name = rng.choice([(["a", "b \"c\""], "string"), ([1, 2, 3], "integer"), ([1.5, 2], "number"), ([True], "boolean"),
                                   (["a", None], ["string", "null"]), (["x", 1, None, False], None), ([True, 2], "integer")])
        made = {"enum": values} | ({"type": name} if name else {})
    elif kind == "anyOf":
        made = {"anyOf": [schema(rng, depth + 1, wild) for _ in range(rng.randint(1, 3))]}
    elif kind == "list":
        made = {"type": rng.sample(["string", "number", "integer", "boolean", "null", "object", "array"], rng.randint(1, 3))}
    elif kind == "ref":
        made = {"$ref": rng.choice(["#", "#/$defs/Node", "#/$defs/Leaf"])}
    elif kind == "object":
        made = obj(rng, depth + 1, wild)
    elif kind == "array":
        made = {"type": "array"}
        if rng.random() < 0.8:
            made["items"] = schema(rng, depth + 1, wild)
        for key in ("minItems", "maxItems"):
            if rng.random() < 0.2:
                made[key] = rng.randint(0, 9)
    else:
        made = {"type": kind}
        for key, give in (("maxLength", lambda: 9), ("minLength", lambda: 1), ("pattern", lambda: "^[a-z]+\\d$"),
                          ("maximum", lambda: rng.choice(NUMBERS)), ("minimum", lambda: rng.choice(NUMBERS))):
            if rng.random() < 0.25:
                made[key] = give()
    if rng.random() < 0.5:
        made["description"] = rng.choice([text(rng), "", "two\nlines", "gap\n\nbelow\n", None])
    if rng.random() < 0.25:
        made["default"] = value(rng)
    return made


def obj(rng, depth, wild):
    names = rng.sample(["city", "days", "more", "_x", "Zed", "größe", "a-b"], rng.randint(0, 4))
    made = {"type": "object", "properties": {name: schema(rng, depth, wild) for name in names}}
    if rng.random() < 0.15:
        del made["properties"]
    if rng.random() < 0.7:
        made["required"] = [name for name in names if rng.random() < 0.5]
    if rng.random() < 0.3:
        made["additionalProperties"] = rng.choice([True, False, None, {}, schema(rng, depth, wild)])
    return made


def make_tool(rng, name, wild):
    function = {"name": name}
    if rng.random() < 0.8:
        function["description"] = rng.choice([text(rng), "first\nsecond", "a\n\nb"])
    if rng.random() < 0.9:
        function["parameters"] = obj(rng, 0, wild)
        if rng.random() < 0.7:
            function["parameters"]["$defs"] = {"Node": obj(rng, 1, wild), "Leaf": rng.choice([schema(rng, 2, False), {"type": "string", "description": "leaf"}])}
            if not isinstance(function["parameters"]["$defs"]["Leaf"], dict):
                function["parameters"]["$defs"]["Leaf"] = {"type": "number"}
    return {"type": "function", "function": function}


def deep_sorted(value):
    if isinstance(value, dict):
        return {key: deep_sorted(value[key]) for key in sorted(value)}
    return [deep_sorted(item) for item in value] if isinstance(value, list) else value


def make_request(rng):
    tools = [make_tool(rng, name, rng.random() < 0.15) for name in rng.sample(["get_weather", "now", "search-web", "a_b"], rng.randint(1, 3))]
    request = {"messages": [], "tools": tools if rng.random() < 0.6 else []}
    messages, calls = request["messages"], 0
    if rng.random() < 0.5:
        messages.append({"role": "system", "content": text(rng)})
    for _ in range(rng.randint(1, 4)):
        messages.append({"role": "user", "content": text(rng)})
        for more in range(rng.choice((0, 1, 1, 2))):
            answer = {"role": "assistant", "content": rng.choice([text(rng), ""]) if more else text(rng)}
            if rng.random() < 0.6:
                answer["reasoning_content"] = text(rng)
            messages.append(answer)
            if not request["tools"] or rng.random() < 0.4:
                break
            names = [rng.choice(tools)["function"]["name"] for _ in range(rng.randint(1, 2))]
            answer["tool_calls"] = [{"id": f"functions.{name}:{calls + i}", "type": "function", "function": {
                "name": name, "arguments": json.dumps({"city": text(rng)}, ensure_ascii=False)}} for i, name in enumerate(names)]
            calls += len(names)
            messages += [{"role": "tool", "tool_call_id": call["id"], "content": text(rng)} for call in answer["tool_calls"]]
    if messages[-1]["role"] == "assistant":
        messages.append({"role": "user", "content": text(rng)})
    for key, odds in (("thinking", 0.5), ("preserve_thinking", 0.4)):
        if rng.random() < odds:
            request[key] = rng.random() < 0.5
    return request


def main():
    miles, tinker = (pathlib.Path(path) for path in sys.argv[1:])
    spec = importlib.util.spec_from_file_location("declaration", tinker / ENCODER)
    encoder = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(encoder)
    logging.disable()
    environment = jinja2.Environment(trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"])
    environment.filters["tojson"] = lambda value, separators=None: json.dumps(value, ensure_ascii=False, separators=separators)
    template = environment.from_string((miles / TEMPLATE).read_text())

    def declare(tools):
        try:
            return encoder.encode_tools_to_typescript_style(deep_sorted(tools))
        except Exception:  # as the checkpoint's tokenizer does
            return None

    def render(messages, tools=None, **choices):
        tools = deep_sorted(tools) or None
        declared = {"tools_ts_str": declare(tools)} if tools and declare(tools) is not None else {}
        return template.render(messages=messages, tools=tools, add_generation_prompt=True, **declared, **choices)

    make_tokens(render)
    rng = random.Random(SEED)
    cases = [{"request": request, "prompt": render(**request)} for request in (make_request(rng) for _ in range(150))]
    tools = [make_tool(rng, "f", rng.random() < 0.3) for _ in range(400)]
    commits = {name: subprocess.check_output(["git", "-C", path, "rev-parse", "HEAD"], text=True).strip()[:12] for name, path in
               (("miles", miles), ("tinker-cookbook", tinker))}
    golden = {"maker": pathlib.Path(__file__).name, "versions": commits, "seed": SEED, "cases": cases,
              "tools": [{"tool": tool, "declaration": declare([tool])} for tool in tools]}
    out = HERE / "kimi_chat.golden.json"
    out.write_text(json.dumps(golden, ensure_ascii=False, indent=0) + "\n")
    failed = sum(tool["declaration"] is None for tool in golden["tools"])
    print(f"{out.name}: {len(cases)} prompts, {len(tools)} tools of which {failed} have no declaration, {out.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
