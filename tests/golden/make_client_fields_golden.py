#!/usr/bin/env python3
"""Writes tests/golden/client_fields.golden.json: the names of the fields that the request types of the packages openai and
anthropic have, each as a path without indices: messages[].content[].text.

usage: make_client_fields_golden.py   (in a Python with the newest openai and anthropic)

A field of these types without a class fails FieldClasses.EveryFieldOfClientsLibrariesHasAClass, so that a newer version is
a red test when the golden is made again, and never a client's 400.
"""

import importlib
import json
import pathlib
import types
import typing
from collections import abc

import anthropic
import openai
import typing_extensions

OUT = pathlib.Path(__file__).with_name("client_fields.golden.json")
# The wire, and the type of its requests. The wires that foredraft does not have yet are collected, too.
TYPES = {
    "chat": ("openai.types.chat.completion_create_params", "CompletionCreateParamsBase"),
    "completions": ("openai.types.completion_create_params", "CompletionCreateParamsBase"),
    "responses": ("openai.types.responses.response_create_params", "ResponseCreateParamsBase"),
    "input_tokens": ("openai.types.responses.input_token_count_params", "InputTokenCountParams"),
    "messages": ("anthropic.types.message_create_params", "MessageCreateParamsBase"),
    "beta_messages": ("anthropic.types.beta.message_create_params", "MessageCreateParamsBase"),
    "count_tokens": ("anthropic.types.message_count_tokens_params", "MessageCountTokensParams"),
}
MAX_DEPTH = 6  # schemas and filters refer to themselves


def parts(hint) -> list:
    """The members of unions, and what wrappers such as Required and Annotated are around."""
    origin = typing_extensions.get_origin(hint)
    if origin in (typing.Union, types.UnionType):
        return [part for arg in typing_extensions.get_args(hint) for part in parts(arg)]
    if origin in (typing_extensions.Required, typing_extensions.NotRequired, typing_extensions.Annotated):
        return parts(typing_extensions.get_args(hint)[0])
    if isinstance(hint, typing_extensions.TypeAliasType):
        return parts(hint.__value__)
    return [hint]


def walk(hint, path: str, depth: int, fields: set) -> None:
    for part in parts(hint):
        origin = typing_extensions.get_origin(part)
        if typing_extensions.is_typeddict(part):
            if depth == MAX_DEPTH:
                continue
            for name, inner in typing_extensions.get_type_hints(part).items():
                below = f"{path}.{name}" if path else name
                fields.add(below)
                walk(inner, below, depth + 1, fields)
        elif isinstance(origin, type) and issubclass(origin, abc.Iterable) and not issubclass(origin, abc.Mapping):
            walk(typing_extensions.get_args(part)[0], f"{path}[]", depth, fields)


def main() -> None:
    fields = {}
    for wire, (module, name) in TYPES.items():
        found = set()
        walk(getattr(importlib.import_module(module), name), "", 0, found)
        fields[wire] = sorted(found)
        print(f"{wire}: {len(found)} fields, {sum('.' not in field for field in found)} at the top")
    golden = {"maker": pathlib.Path(__file__).name,
              "versions": {"anthropic": anthropic.__version__, "openai": openai.__version__},
              "fields": fields}
    OUT.write_text(json.dumps(golden, indent=1) + "\n")


if __name__ == "__main__":
    main()
