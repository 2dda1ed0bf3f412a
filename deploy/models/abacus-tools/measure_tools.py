#!/usr/bin/env python3
"""Measures a model with tools through the daemon and writes the table of its card (README.md).

usage: deploy/models/abacus-tools/measure_tools.py [--model DIR] [--binary build/cpu/bin/foredraft] [--port 50873]
                                                   [--questions N] [--wrong N] [--dry-run]

Asks all held-out questions, those of abacus included (or the first N of each kind), over HTTP, without drafts and with
Eagle's K=3 drafts, and replaces the text in the card between its marks. A call is right if it is the only one, its name is
that of the tool, and its arguments are the expected ones as text. Standard library alone.
"""

import argparse
import collections
import concurrent.futures
import json
import pathlib
import re
import sys
import urllib.request

HERE = pathlib.Path(__file__).parent
ROOT = HERE.parent.parent.parent
ABACUS = HERE.parent / "abacus"
sys.path[:0] = [str(ABACUS), str(ABACUS / "train")]

import free_choices  # noqa: E402: train/ is no package
from measure import Daemon, table  # noqa: E402

KINDS = ["calls", "results", "declared", "json"]
CONSTRAINED = "json, constrained"
MOST_TOKENS = 400


class HttpDaemon(Daemon):
    """With three MTP modules and HTTP on `port`; the two ports behind it are the other listeners'."""

    def __init__(self, binary, model, port):
        self.url = f"http://127.0.0.1:{port}"
        self.name = model.resolve().name
        super().__init__(binary, {"decoding_type": "MTP", "max_draft_len": 3}, model.resolve(), http_address=f"127.0.0.1:{port}",
                         grpc_address=f"127.0.0.1:{port + 1}", metrics_address=f"127.0.0.1:{port + 2}")

    def ask(self, **fields):
        fields = {"model": self.name, "temperature": 0, "max_tokens": MOST_TOKENS, "return_token_ids": True, **fields}
        request = urllib.request.Request(self.url + "/v1/chat/completions", json.dumps(fields).encode(),
                                         {"Content-Type": "application/json"})
        with urllib.request.urlopen(request) as answer:
            return json.load(answer)


def questions_of(limit):
    """The held-out questions of this folder and of abacus; the old ones as conversations, too."""
    found, counts = [], collections.Counter()
    for file in (HERE / "heldout.jsonl", ABACUS / "heldout.jsonl", ABACUS / "free.jsonl"):
        for line in file.read_text().splitlines():
            item = json.loads(line)
            item.setdefault("messages", [{"role": "user", "content": item.get("question", "")}])
            if limit and counts[item["kind"]] >= limit:
                continue
            counts[item["kind"]] += 1
            found.append(item)
    constrained = [{**item, "kind": CONSTRAINED, "format": {"type": "json_object"}} for item in found if item["kind"] == "json"]
    return found + constrained


def is_right(item, choice):
    message, reason = choice["message"], choice["finish_reason"]
    calls = message.get("tool_calls") or []
    if item["kind"] == "calls":
        return reason == "tool_calls" and [(call["function"]["name"], call["function"]["arguments"]) for call in calls] == [
            ("calculator", json.dumps(item["call"]))]
    if calls or reason != "stop":
        return False
    text = message["content"] or ""
    if item["kind"] in free_choices.FREE_KINDS:
        return free_choices.is_right(item, f"{message.get('reasoning_content') or ''}</think>{text}")
    return text.strip() == item["answer"]


def record(daemon, item, drafts):
    fields = {"messages": item["messages"]}
    if "tools" in item:
        fields |= {"tools": item["tools"], "tool_choice": "auto"}
    if "format" in item:
        fields["response_format"] = item["format"]
    reply = daemon.ask(**fields, max_draft_tokens=drafts)
    choice = reply["choices"][0]
    return {"item": item, "right": is_right(item, choice), "called": bool(choice["message"].get("tool_calls")),
            "ids": choice["token_ids"], "steps": choice["speculation"]["steps"], "message": choice["message"],
            "accepted": choice["speculation"]["accepted_tokens"], "prompt": reply["usage"]["prompt_tokens"]}


def measured(records, plain):
    """The row of some questions, without their name."""
    count, right = len(records), sum(r["right"] for r in plain)
    steps = sum(r["steps"] for r in records)
    return [f"{right} of {count}", f"{right / count:.1%}", str(sum(r["called"] for r in plain)),
            f"{sum(r['prompt'] for r in plain) / count:.0f}", f"{sum(len(r['ids']) for r in plain) / count:.0f}",
            f"{1 + sum(r['accepted'] for r in records) / steps:.2f}"]


def show_wrong(plain, most):
    counts = collections.Counter()
    for r in plain:
        counts[r["item"]["kind"]] += not r["right"]
        if not r["right"] and counts[r["item"]["kind"]] <= most:
            wanted = {name: r["item"].get(name) for name in ("kind", "of", "call", "answer", "asked") if name in r["item"]}
            print(f"wrong: {r['item']['messages'][-1]['content']!r}, wanted {wanted}\n  {r['message']}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=pathlib.Path, default=HERE)
    parser.add_argument("--binary", default=str(ROOT / "build/cpu/bin/foredraft"))
    parser.add_argument("--port", type=int, default=50873)
    parser.add_argument("--questions", type=int, default=0, help="of each kind; 0 = all")
    parser.add_argument("--wrong", type=int, default=0, help="print so many wrong replies of each kind")
    parser.add_argument("--dry-run", action="store_true")
    args = parser.parse_args()
    questions = questions_of(args.questions)
    with HttpDaemon(args.binary, args.model, args.port) as daemon, concurrent.futures.ThreadPoolExecutor(4) as pool:
        plain, drafted = (list(pool.map(lambda item: record(daemon, item, drafts), questions)) for drafts in (0, 3))
    show_wrong(plain, args.wrong)
    if [r["ids"] for r in plain] != [r["ids"] for r in drafted]:
        raise SystemExit("drafts changed tokens")
    groups = collections.defaultdict(list)
    for pair in zip(drafted, plain):
        groups[pair[0]["item"]["kind"]].append(pair)
    new, free = [*KINDS, CONSTRAINED], list(free_choices.FREE_KINDS)
    old = [kind for kind in groups if kind not in new + free]
    groups["the seven"] = [pair for kind in old for pair in groups[kind]]
    rows = [[kind, *measured(*zip(*groups[kind]))] for kind in new + old + ["the seven"] + free]
    text = (f"Greedy, {len(questions)} held-out questions, by `measure_tools.py`. The token ids of every reply were the same with "
            f"drafts as without.\n\n"
            + table(["kind", "right", "accuracy", "replies with calls", "prompt tokens", "tokens a reply", "Eagle K=3"], rows) + "\n")
    print(text)
    if not args.dry_run:
        card = HERE / "README.md"
        marks = "<!-- tools: begin -->\n", "<!-- tools: end -->"
        card.write_text(re.sub(f"{marks[0]}.*{marks[1]}", lambda _: f"{marks[0]}{text}{marks[1]}", card.read_text(), flags=re.S))


if __name__ == "__main__":
    main()
