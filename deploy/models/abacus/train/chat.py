"""Conversations as text, as the server renders them for the family of DeepSeek-R1 (server/text/families/deepseek_chat.cc).

Messages and tools have the form of OpenAI's API. Standard library alone.
"""

import json

BOS, EOS = "<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>"
USER, ASSISTANT = "<｜User｜>", "<｜Assistant｜>"
OPENING = ASSISTANT + "<think>\n"
CALLS_BEGIN, CALLS_END = "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"
CALL_BEGIN, CALL_END = "<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>"
SEPARATOR = "<｜tool▁sep｜>"
OUTPUTS_BEGIN, OUTPUTS_END = "<｜tool▁outputs▁begin｜>", "<｜tool▁outputs▁end｜>"
OUTPUT_BEGIN, OUTPUT_END = "<｜tool▁output▁begin｜>", "<｜tool▁output▁end｜>"
TOOL_MARKS = [CALLS_BEGIN, CALLS_END, CALL_BEGIN, CALL_END, SEPARATOR, OUTPUTS_BEGIN, OUTPUTS_END, OUTPUT_BEGIN, OUTPUT_END]

DECLARATION = (
    "\n\nYou are a helpful assistant with tool calling capabilities. When a tool call is needed, you MUST use the following "
    f"format to issue the call:\n{CALLS_BEGIN}{CALL_BEGIN}function{SEPARATOR}FUNCTION_NAME\n```json\n"
    f'{{"param1": "value1", "param2": "value2"}}\n```{CALL_END}{CALLS_END}\n\nMake sure the JSON is valid.## Tools\n\n'
    "### Function\n\nYou have the following functions available:\n\n")


def spaced_json(value):
    return json.dumps(value, ensure_ascii=False)


def declared(tools):
    """The text that tells the model its tools."""
    if not tools:
        return ""
    return DECLARATION + "".join(f"\n```json\n{spaced_json(tool)}\n```\n" for tool in tools)


def calls_text(calls):
    """The calls of an answer; `calls` is what OpenAI's API has in tool_calls."""
    if not calls:
        return ""
    texts = [f"{CALL_BEGIN}function{SEPARATOR}{call['function']['name']}\n```json\n"
             f"{spaced_json(json.loads(call['function']['arguments']))}\n```{CALL_END}" for call in calls]
    return CALLS_BEGIN + "\n".join(texts) + CALLS_END


def pieces(messages, tools=(), opens=True):
    """(role, text) of each part of a prompt; each begins at a token of its own. The last one opens the reply."""
    systems = [message["content"] for message in messages if message["role"] == "system"]
    found = [("system", BOS + "\n\n".join(systems) + declared(tools))]
    roles = [message["role"] for message in messages] + [""]
    for at, message in enumerate(messages):
        role, content = message["role"], message.get("content") or ""
        before, after = roles[at - 1], roles[at + 1]
        if role == "user":
            found.append((role, USER + content))
        elif role == "assistant":
            answer = content.split("</think>")[-1] + calls_text(message.get("tool_calls")) + EOS
            found.append((role, answer if before == "tool" else ASSISTANT + answer))
        elif role == "tool":
            begin, end = "\n" if before == "tool" else OUTPUTS_BEGIN, "" if after == "tool" else OUTPUTS_END
            found.append((role, begin + OUTPUT_BEGIN + content + OUTPUT_END + end))
    if opens and messages[-1]["role"] != "tool":
        found.append(("opening", OPENING))
    return found


def prompt(messages, tools=()):
    return "".join(text for _, text in pieces(messages, tools))


def quoted(text):
    """As a string of Jinja."""
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'").replace("\n", "\\n") + "'"


def template():
    """The same for `chat_template` of tokenizer_config.json, by which gateways and transformers render."""
    return "".join((
        "{{ bos_token }}{% for m in messages if m['role'] == 'system' %}{{ m['content'] }}",
        "{% if not loop.last %}{{ '\\n\\n' }}{% endif %}{% endfor %}",
        "{% if tools %}{{ ", quoted(DECLARATION), " }}",
        "{% for tool in tools %}{{ '\\n```json\\n' + tool | tojson + '\\n```\\n' }}{% endfor %}{% endif %}",
        "{% for m in messages %}{% if m['role'] == 'user' %}{{ ", quoted(USER), " + m['content'] }}",
        "{% elif m['role'] == 'assistant' %}",
        "{% if not (loop.previtem and loop.previtem['role'] == 'tool') %}{{ ", quoted(ASSISTANT), " }}{% endif %}",
        "{{ (m['content'] or '').split('</think>')[-1] }}{% if m['tool_calls'] %}{{ ", quoted(CALLS_BEGIN), " }}",
        "{% for call in m['tool_calls'] %}{% if not loop.first %}{{ '\\n' }}{% endif %}",
        "{{ ", quoted(CALL_BEGIN + "function" + SEPARATOR), " + call['function']['name'] + '\\n```json\\n' }}",
        "{% if call['function']['arguments'] is string %}{{ call['function']['arguments'] }}",
        "{% else %}{{ call['function']['arguments'] | tojson }}{% endif %}",
        "{{ ", quoted("\n```" + CALL_END), " }}{% endfor %}{{ ", quoted(CALLS_END), " }}{% endif %}{{ eos_token }}",
        "{% elif m['role'] == 'tool' %}{% if loop.previtem and loop.previtem['role'] == 'tool' %}{{ '\\n' }}",
        "{% else %}{{ ", quoted(OUTPUTS_BEGIN), " }}{% endif %}",
        "{{ ", quoted(OUTPUT_BEGIN), " + m['content'] + ", quoted(OUTPUT_END), " }}",
        "{% if not (loop.nextitem and loop.nextitem['role'] == 'tool') %}{{ ", quoted(OUTPUTS_END), " }}{% endif %}",
        "{% endif %}{% endfor %}",
        "{% if add_generation_prompt and messages[-1]['role'] != 'tool' %}{{ ", quoted(OPENING), " }}{% endif %}"))
