#!/usr/bin/env python3
"""Checks that chat.py renders conversations as a running daemon does, and as the model's chat template does.

Asks the daemon to answer each conversation, and to go on from the ids that chat.py makes of it: the number of prompt
tokens and the log probabilities of the reply have to be the same.

    check_chat.py --url http://127.0.0.1:8000 --tokenizer ../../abacus-tools/tokenizer.json
"""

import argparse
import json
import pathlib
import urllib.request

import jinja2
from tokenizers import Tokenizer

import chat

TOOL = {"type": "function", "function": {
    "name": "calculator", "description": "Evaluates an \"expression\" é.",
    "parameters": {"type": "object", "properties": {"expression": {"type": "string", "description": "Like 2*(3+4)"}},
                   "required": ["expression"], "additionalProperties": False}}}
BARE = {"type": "function", "function": {"name": "other", "parameters": {"type": "object", "properties": {}}}}


def call(number, expression):
    return {"id": f"call_{number}", "type": "function",
            "function": {"name": "calculator", "arguments": json.dumps({"expression": expression}, separators=(",", ":"))}}


SYSTEM = {"role": "system", "content": "Be brief."}
ASK = {"role": "user", "content": "What is 472 times 683?"}
CALLED = {"role": "assistant", "content": None, "tool_calls": [call(1, "472*683")]}
RESULT = {"role": "tool", "tool_call_id": "call_1", "content": "322376"}
ANSWER = {"role": "assistant", "content": "The answer is 322376."}
TWICE = [ASK, {"role": "assistant", "content": "\n\n", "tool_calls": [call(1, "472*683"), call(2, "(1+2)*3")]}, RESULT,
         {"role": "tool", "tool_call_id": "call_2", "content": "9"}]
CONVERSATIONS = {
    "plain": ([ASK], []),
    "system": ([SYSTEM, ASK], []),
    "tool": ([ASK], [TOOL]),
    "tool, system": ([SYSTEM, ASK], [TOOL]),
    "two tools": ([ASK], [TOOL, BARE]),
    "result": ([ASK, CALLED, RESULT], [TOOL]),
    "result, system": ([SYSTEM, ASK, CALLED, RESULT], [TOOL]),
    "two results": (TWICE, [TOOL]),
    "after a result": ([ASK, CALLED, RESULT, ANSWER, {"role": "user", "content": "Compute 5+81."}], [TOOL]),
    "history": ([SYSTEM, {"role": "user", "content": "Hi"}, {"role": "assistant", "content": "\n\nHello!"}, ASK], [TOOL])}


def post(url, path, **fields):
    request = urllib.request.Request(url + path, json.dumps(fields).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request) as answer:
        return json.load(answer)


def rendered(template, messages, tools):
    """By Jinja, with arguments as objects, as transformers has them."""
    environment = jinja2.Environment(trim_blocks=True, lstrip_blocks=True)
    environment.filters["tojson"] = chat.spaced_json
    messages = [dict(message) for message in messages]
    for message in messages:
        message["tool_calls"] = [
            {"function": call["function"] | {"arguments": json.loads(call["function"]["arguments"])}}
            for call in message.get("tool_calls") or []]
    return environment.from_string(template).render(
        messages=messages, tools=tools, bos_token=chat.BOS, eos_token=chat.EOS, add_generation_prompt=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", required=True)
    parser.add_argument("--tokenizer", type=pathlib.Path, required=True)
    args = parser.parse_args()
    tokenizer = Tokenizer.from_file(str(args.tokenizer))
    with urllib.request.urlopen(args.url + "/v1/models") as answer:
        model = json.load(answer)["data"][0]["id"]
    template = json.loads((args.tokenizer.parent / "tokenizer_config.json").read_text())["chat_template"]
    common = {"model": model, "temperature": 0, "max_tokens": 8, "ignore_eos": True}
    for name, (messages, tools) in CONVERSATIONS.items():
        prompt = chat.prompt(messages, tools)
        if rendered(template, messages, tools) != prompt:
            raise SystemExit(f"DIFFERENT by its template: {name}\n{rendered(template, messages, tools)!r}\n{prompt!r}")
        ids = tokenizer.encode(prompt, add_special_tokens=False).ids
        ours = post(args.url, "/v1/completions", prompt=ids, logprobs=5, return_token_ids=True, **common)
        theirs = post(args.url, "/v1/chat/completions", messages=messages, logprobs=True, top_logprobs=5, return_token_ids=True,
                      **common, **({"tools": tools} if tools else {}))
        same = (theirs["usage"]["prompt_tokens"] == len(ids)
                and theirs["choices"][0]["token_ids"] == ours["choices"][0]["token_ids"]
                and [entry["logprob"] for entry in theirs["choices"][0]["logprobs"]["content"]]
                == ours["choices"][0]["logprobs"]["token_logprobs"])
        print(f"{'same' if same else 'DIFFERENT'}: {name}, {len(ids)} tokens, the daemon {theirs['usage']['prompt_tokens']}")
        if not same:
            raise SystemExit(f"{ours}\n{theirs}")


if __name__ == "__main__":
    main()
