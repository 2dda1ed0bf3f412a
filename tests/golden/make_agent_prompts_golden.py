#!/usr/bin/env python3
"""Writes tests/golden/agent_prompts.golden.json: the prompts that DeepSeek's own converter and encoder of V4 (deepseek-recipe)
make of the requests in tests/server/transcripts, marks spelled out.

usage: make_agent_prompts_golden.py   (in a Python with deepseek-recipe 0.2.0)

Where foredraft differs on purpose, the request is changed here before it is converted, or the prompt behind it, and nowhere
else:
- leading messages of role developer are system texts; deepseek-recipe makes them the user's in Responses.
- a custom tool is a function with one text; deepseek-recipe knows one custom tool alone, with a description of its own.
- a tool with defer_loading is not in the prompt's head, and a reference or tool_addition shows its definition where it stands;
  deepseek-recipe shows all tools in the head, and knows neither tool_removal nor tool_definition.
- `strict` of a function is shown, as the encoding file beside the checkpoints does; deepseek-recipe's converter leaves it out.
- a schema in output_config is told to the model as one in text.format is.
"""

import copy
import json
import pathlib

import deepseek_recipe as recipe

VERSION = "0.2.0"
MODEL = "DeepSeek-V4-Pro"
HERE = pathlib.Path(__file__).parent
OUT = HERE / "agent_prompts.golden.json"
CUSTOM = {"type": "object", "properties": {"input": {"type": "string"}}, "required": ["input"]}
SCHEMA_TEXT = "## Response Format:\n\nYou MUST strictly adhere to the following schema to reply:\n"
TRANSCRIPTS = HERE.parent / "server" / "transcripts"


def developer_as_system(request: dict) -> None:
    texts = []
    while request["input"] and request["input"][0].get("role") == "developer":
        texts += [part["text"] for part in request["input"].pop(0)["content"]]
    if texts:
        request["instructions"] = "\n\n".join(texts)


def custom_as_function(request: dict) -> None:
    for tool in request["tools"]:
        if tool["type"] == "custom":
            tool.pop("format")
            tool |= {"type": "function", "parameters": CUSTOM}
    for item in request["input"]:
        if item["type"] == "custom_tool_call":
            item |= {"type": "function_call", "arguments": json.dumps({"input": item.pop("input")}, ensure_ascii=False)}
        elif item["type"] == "custom_tool_call_output":
            item["type"] = "function_call_output"


def schema_as_text(request: dict) -> None:
    form = request.get("output_config", {}).pop("format", None)
    if form is not None:
        schema = json.dumps(form["schema"], ensure_ascii=False)
        request["system"].append({"type": "text", "text": f"{SCHEMA_TEXT}{schema}"})


def definition(tool: dict) -> str:
    return json.dumps({"name": tool["name"], "description": tool["description"], "parameters": tool["input_schema"]},
                      ensure_ascii=False)


def references_as_texts(request: dict) -> None:
    deferred = {tool["name"]: tool for tool in request["tools"] if tool.get("defer_loading")}
    for message in request["messages"]:
        for block in message["content"] if isinstance(message["content"], list) else []:
            if block["type"] != "tool_result" or isinstance(block["content"], str):
                continue
            block["content"] = [{"type": "text", "text": definition(deferred[part["tool_name"]])}
                                if part["type"] == "tool_reference" else part for part in block["content"]]


def changes_as_texts(request: dict) -> None:
    tools = {tool["name"]: tool for tool in request["tools"]}
    request["tools"] = [tool for tool in request["tools"] if not tool.get("defer_loading")]
    for message in request["messages"]:
        for block in message["content"] if message["role"] == "system" and isinstance(message["content"], list) else []:
            if block["type"] not in ("tool_addition", "tool_removal"):
                continue
            tool = block.pop("tool")
            if tool["type"] == "tool_definition":
                tools[tool["definition"]["name"]] = tool["definition"]
            name = tool["definition"]["name"] if tool["type"] == "tool_definition" else tool["name"]
            removed = block["type"] == "tool_removal"
            block |= {"type": "text", "text": f"The tool {name} can no longer be called." if removed else definition(tools[name])}


def with_strict(prompt: str, tools: list) -> str:
    functions = [(tool, "") for tool in tools if tool["type"] == "function"]
    for space in (tool for tool in tools if tool["type"] == "namespace"):
        functions += [(tool, f"{space['name']}__") for tool in space["tools"]]
    for tool, prefix in functions:
        shown = {"name": prefix + tool["name"], "description": tool["description"], "parameters": tool["parameters"]}
        line = json.dumps(shown, ensure_ascii=False)
        if "strict" in tool:
            assert line in prompt, line
            prompt = prompt.replace(line, json.dumps({**shown, "strict": tool["strict"]}, ensure_ascii=False))
    return prompt


def prompt_of(path: str, request: dict) -> str:
    request = copy.deepcopy(request)
    request["model"] = MODEL
    if path == "/v1/responses":
        developer_as_system(request)
        custom_as_function(request)
        converted = recipe.ResponsesRequest(request)
    else:
        references_as_texts(request)
        changes_as_texts(request)
        schema_as_text(request)
        converted = recipe.MessagesRequest(request)
    conversation = converted.convert(recipe.ConversionOptions()).conversation
    prompt = recipe.DeepseekV4Encoding().render_conversation(conversation).prompt
    return with_strict(prompt, request["tools"]) if path == "/v1/responses" else prompt


def main() -> None:
    assert recipe.__version__ == VERSION, recipe.__version__
    prompts = {}
    for file in sorted(TRANSCRIPTS.glob("*.json")):
        transcript = json.loads(file.read_text())
        prompts[file.stem] = [prompt_of(transcript["path"], turn["request"]) for turn in transcript["turns"]]
    golden = {"maker": pathlib.Path(__file__).name, "versions": {"deepseek-recipe": recipe.__version__}, "prompts": prompts}
    OUT.write_text(json.dumps(golden, ensure_ascii=False, indent=0) + "\n")
    print(f"{OUT.name}: {sum(map(len, prompts.values()))} prompts, {OUT.stat().st_size} bytes")


if __name__ == "__main__":
    main()
