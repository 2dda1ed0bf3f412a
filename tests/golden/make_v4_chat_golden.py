#!/usr/bin/env python3
"""Writes tests/golden/deepseek_v4_chat.golden.json: random chat requests with the prompts that DeepSeek's own converter and
encoder of V4 (deepseek-recipe) make of them, marks spelled out.

usage: make_v4_chat_golden.py   (in a Python with deepseek-recipe 0.2.0)

Where foredraft differs on purpose, the prompt is changed here, and nowhere else:
- a system text behind other messages is converted as that of a Messages request, which puts it between tags where it stands;
  as a chat request it would move to the front, and take the cached prefix with it.
- a call without arguments has an empty line, as in the encoding file beside the checkpoints; deepseek-recipe has none.
"""

import json
import pathlib
import random

import deepseek_recipe as recipe

VERSION = "0.2.0"
SEED = 20261129
CASES = 300
MODEL = "DeepSeek-V4-Pro"
EFFORTS = (None, "none", "minimal", "low", "medium", "high", "xhigh", "max", "ultra")
OUT = pathlib.Path(__file__).with_name("deepseek_v4_chat.golden.json")
WORDS = ("Paris", "größer", "日本", "a\nb", " x ", "{\"k\": 1}", "1+2", "", "<b>", "\"q\"")
EMPTY_CALL = "\">\n</｜DSML｜invoke>"


def text(rng: random.Random, may_be_empty: bool = False) -> str:
    words = [rng.choice(WORDS) for _ in range(rng.randint(1, 3))]
    joined = " ".join(words)
    return joined if joined or may_be_empty else "word"


def content(rng: random.Random):
    if rng.random() < 0.7:
        return text(rng)
    return [{"type": "text", "text": text(rng)} for _ in range(rng.randint(1, 3))]


def make_tools(rng: random.Random) -> list:
    schema = {"type": "object", "properties": {"city": {"type": "string", "description": "größe"}, "days": {"type": "integer"}},
              "required": ["city"]}
    names = rng.sample(["get_weather", "now", "search-web", "a_b"], rng.randint(1, 3))
    return [{"type": "function", "function": {"name": name, "description": text(rng), "parameters": schema}} for name in names]


def make_call(rng: random.Random, tools: list, index: int) -> dict:
    arguments = {}
    for name in rng.sample(["city", "days", "more", "deep"], rng.randint(0, 3)):
        arguments[name] = rng.choice(["Paris", 3, 2.5, True, None, [1, "x"], {"k": [None]}])
    return {"id": f"call_{index}", "type": "function",
            "function": {"name": rng.choice(tools)["function"]["name"], "arguments": json.dumps(arguments, ensure_ascii=False)}}


def make_messages(rng: random.Random, tools: list) -> list:
    messages = [{"role": "system", "content": content(rng)} for _ in range(rng.choice((0, 0, 1, 1, 2)))]
    for turn in range(rng.randint(1, 4)):
        for _ in range(rng.choice((1, 1, 2))):
            messages.append({"role": "user", "content": content(rng)})
        if turn > 0 and rng.random() < 0.1:
            messages.append({"role": "latest_reminder", "content": text(rng)})
        answer = {"role": "assistant", "content": text(rng)}
        if rng.random() < 0.6:
            answer["reasoning_content"] = text(rng)
        if tools and rng.random() < 0.5:
            answer["tool_calls"] = [make_call(rng, tools, len(messages) * 10 + i) for i in range(rng.randint(1, 3))]
            messages.append(answer)
            messages += [{"role": "tool", "tool_call_id": call["id"], "content": text(rng)} for call in answer["tool_calls"]]
        else:
            messages.append(answer)
    ending = rng.random()
    if ending < 0.6:
        messages.append({"role": "user", "content": content(rng)})
    elif ending < 0.8 and not tools:  # the converter takes no prefix beside tools
        messages[-1]["prefix"] = True
    return messages


def make_request(rng: random.Random) -> dict:
    tools = make_tools(rng) if rng.random() < 0.5 else []
    request = {"messages": make_messages(rng, tools)}
    if tools:
        request["tools"] = tools
    if effort := rng.choice(EFFORTS):
        request["reasoning_effort"] = effort
    elif rng.random() < 0.3:
        request["thinking"] = {"type": rng.choice(("enabled", "disabled"))}
    if rng.random() < 0.15:
        request["response_format"] = {"type": "json_schema", "json_schema": {
            "name": "n", "schema": {"type": "object", "properties": {"b": {"type": "string"}, "a": {"type": "number"}}}}}
    return request


def make_reminded(rng: random.Random) -> dict:
    """Texts alone, with system texts among them: what a Messages request has, too."""
    messages = [{"role": "system", "content": text(rng)}] if rng.random() < 0.6 else []
    for _ in range(rng.randint(1, 3)):
        messages.append({"role": "user", "content": text(rng)})
        if rng.random() < 0.5:
            messages.append({"role": "system", "content": text(rng)})
        messages.append({"role": "assistant", "content": text(rng)})
        if rng.random() < 0.3:
            messages.append({"role": "system", "content": text(rng)})
    messages.append({"role": rng.choice(("user", "system")), "content": text(rng)})
    return {"messages": messages, "thinking": {"type": "disabled"}}


def render(request) -> str:
    converted = request.convert(recipe.ConversionOptions())
    return recipe.DeepseekV4Encoding().render_conversation(converted.conversation).prompt


def prompt_of(request: dict) -> str:
    leading = 0
    while request["messages"][leading]["role"] == "system":
        leading += 1
    if not any(message["role"] == "system" for message in request["messages"][leading:]):
        prompt = render(recipe.ChatCompletionRequest({"model": MODEL, **request}))
    else:
        body = {"model": MODEL, "max_tokens": 16, "thinking": request["thinking"], "messages": request["messages"][leading:]}
        if leading:
            body["system"] = [{"type": "text", "text": message["content"]} for message in request["messages"][:leading]]
        prompt = render(recipe.MessagesRequest(body))
    return prompt.replace(EMPTY_CALL, EMPTY_CALL.replace("\n", "\n\n"))


def main() -> None:
    assert recipe.__version__ == VERSION, recipe.__version__
    rng = random.Random(SEED)
    cases = []
    while len(cases) < CASES:
        request = make_request(rng) if len(cases) % 4 else make_reminded(rng)
        cases.append({"request": request, "prompt": prompt_of(request)})
    golden = {"maker": pathlib.Path(__file__).name, "versions": {"deepseek-recipe": recipe.__version__}, "seed": SEED, "cases": cases}
    OUT.write_text(json.dumps(golden, ensure_ascii=False, indent=0) + "\n")
    print(f"{OUT.name}: {len(cases)} prompts, {OUT.stat().st_size} bytes")


if __name__ == "__main__":
    main()
