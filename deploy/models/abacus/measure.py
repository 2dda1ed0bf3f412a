#!/usr/bin/env python3
"""Measures abacus through the daemon and writes the tables of the model card (README.md).

usage: deploy/models/abacus/measure.py [--binary build/cpu/bin/foredraft] [--only drafts|relaxed|sampled|dtypes|cache]
                                       [--questions N] [--dry-run]

Starts a daemon per setting, asks it all held-out questions (or the first N of each kind), and replaces the text in the card
between the marks of each part. "drafts" compares draft lengths and drafters, "relaxed" the settings of relaxed acceptance,
"sampled" temperatures, "dtypes" abacus quantised, "cache" the dtypes of the KV cache; all but "sampled" are greedy. --dry-run
prints only. Standard library alone; takes about twenty minutes on two cores.
"""

import argparse
import concurrent.futures
import json
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request

HERE = pathlib.Path(__file__).parent
ROOT = HERE.parent.parent.parent
sys.path.insert(0, str(HERE / "train"))

import free_choices  # noqa: E402: train/ is no package

ADDRESS = "127.0.0.1:50871"
METRICS = "127.0.0.1:50872"
GROUPS = ["seven kinds", "stories", "lists"]


class Daemon:
    """`foredraft serve` with the given speculative_config (None = no drafts), dtype of the KV cache and keys of `server`."""

    def __init__(self, binary, speculative, model=HERE, cache="bf16", **server):
        self.binary = binary
        config = {"model": str(model), "max_batch_size": 16,
                  "server": {"grpc_address": ADDRESS, "metrics_address": METRICS, **server}, "speculative_config": speculative,
                  "kv_cache_config": {"dtype": cache}}
        self.file = tempfile.NamedTemporaryFile("w", suffix=".yaml")
        self.file.write(json.dumps(config))
        self.file.flush()
        self.log = tempfile.TemporaryFile("w+")
        self.process = subprocess.Popen([binary, "serve", "--config", self.file.name], stderr=self.log, cwd=ROOT)

    def __enter__(self):
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline and self.process.poll() is None:
            self.log.seek(0)
            if "serving  grpc" in self.log.read():
                return self
            time.sleep(0.1)
        self.log.seek(0)
        raise SystemExit(f"the daemon did not start:\n{self.log.read()}")

    def __exit__(self, *_):
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(60)

    def ask(self, question, temperature, seed):
        command = [self.binary, "generate", "--server", ADDRESS, "--chat", question, "--temperature", str(temperature),
                   "--seed", str(seed), "--max-tokens", "400", "--json"]
        return json.loads(subprocess.run(command, capture_output=True, check=True, text=True).stdout)

    def metric(self, name):
        """The samples of a metric, by their labels as they are served."""
        with urllib.request.urlopen(f"http://{METRICS}/metrics", timeout=10) as answer:
            return {labels: float(value) for labels, value in
                    re.findall(rf"^{name}(?:{{(.*)}})? (\S+)$", answer.read().decode(), flags=re.M)}


def is_right(question, text):
    if question["kind"] in free_choices.FREE_KINDS:
        return free_choices.is_right(question, text)
    return text.split("</think>")[-1].strip() == question["answer"]


def run(binary, speculative, questions, model=HERE, cache="bf16", temperature=0, at_end=lambda daemon: None):
    """One record per question: kind, right, completion tokens, steps, accepted, relaxed. The daemon is still there at_end."""
    def one(numbered):
        seed, question = numbered
        reply = daemon.ask(question["question"], temperature, seed)
        speculation = reply["speculation"]
        return {"kind": question["kind"], "right": is_right(question, f"{reply['thinking']}</think>{reply['text']}"), "steps": speculation["steps"],
                "tokens": reply["usage"]["completion_tokens"], "accepted": speculation["accepted_tokens"],
                "relaxed": speculation["relaxed_tokens"], "ids": reply["token_ids"]}

    with Daemon(binary, speculative, model, cache) as daemon, concurrent.futures.ThreadPoolExecutor(4) as pool:
        records = list(pool.map(one, enumerate(questions)))
        at_end(daemon)
        return records


def same_ids(records, plain):
    if [r["ids"] for r in records] != [r["ids"] for r in plain]:
        raise SystemExit("drafts changed tokens")


def length(records):
    return 1 + sum(r["accepted"] for r in records) / sum(r["steps"] for r in records)


def accuracy(records):
    return sum(r["right"] for r in records) / len(records)


def table(head, rows):
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    return "\n".join(lines + ["| " + " | ".join(row) + " |" for row in rows])


def of_kind(records, kind):
    """The records of a kind or of a group of kinds."""
    if kind == "seven kinds":
        return [r for r in records if r["kind"] not in free_choices.FREE_KINDS]
    return [r for r in records if r["kind"] == kind]


def kinds_of(questions):
    kinds = list(dict.fromkeys(q["kind"] for q in questions))
    return [k for k in kinds if k not in free_choices.FREE_KINDS] + GROUPS


def eagle(draft_len, **more):
    return {"decoding_type": "MTP", "max_draft_len": draft_len, **more}


def measure_drafts(binary, questions):
    plain = run(binary, None, questions)
    drafted = {}
    for vanilla in (False, True):
        for draft_len in range(1, 4 if vanilla else 6):
            records = run(binary, eagle(draft_len, use_mtp_vanilla=vanilla), questions)
            same_ids(records, plain)
            drafted[vanilla, draft_len] = records
            print(f"{'Vanilla' if vanilla else 'Eagle'} K={draft_len}: length {length(records):.2f}", flush=True)
    head = ["kind", "right", "accuracy", "tokens a reply"]
    head += [f"{'Vanilla' if v else 'Eagle'} K={k}" for v, k in drafted]
    rows = []
    for kind in kinds_of(questions):
        own = of_kind(plain, kind)
        row = [kind, f"{sum(r['right'] for r in own)} of {len(own)}", f"{accuracy(own):.1%}",
               f"{sum(r['tokens'] for r in own) / len(own):.0f}"]
        rows.append(row + [f"{length(of_kind(records, kind)):.2f}" for records in drafted.values()])
    return f"""Greedy, {len(questions)} held-out questions, by `measure.py`. The acceptance length is the mean number of tokens a decode step emits.
The token ids of every reply were the same with each drafter and K as without drafts.

{table(head, rows)}
"""


def measure_relaxed(binary, questions):
    settings = {("strict", ""): {}}
    settings |= {(str(topk), str(delta)): {"relaxed_topk": topk, "relaxed_delta": delta, "use_relaxed_acceptance_for_thinking": True}
                 for topk in (2, 5, 10) for delta in (0.1, 0.3, 0.6)}
    rows = []
    for name, more in settings.items():
        groups = [of_kind(records, group) for records in [run(binary, eagle(3, **more), questions)] for group in GROUPS]
        rows.append([*name, *(f"{accuracy(own):.1%}" for own in groups), *(f"{length(own):.3f}" for own in groups),
                     *(f"{sum(r['relaxed'] for r in own)} of {sum(r['tokens'] for r in own)}" for own in groups)])
        print(f"relaxed {rows[-1]}", flush=True)
    head = ["top-k", "delta", *GROUPS, *(f"length, {group}" for group in GROUPS), *(f"relaxed, {group}" for group in GROUPS)]
    return f"""Greedy, {len(questions)} held-out questions, Eagle K=3: accuracy, acceptance length, and the tokens that only relaxation accepted.

{table(head, rows)}
"""


def measure_sampled(binary, questions):
    free = [q for q in questions if q["kind"] in free_choices.FREE_KINDS]
    rows = []
    for temperature in (0, 0.6, 1.0, 1.5):
        records = run(binary, eagle(3), free, temperature=temperature)
        row = [f"{temperature:g}"]
        for kind in free_choices.FREE_KINDS:
            own = of_kind(records, kind)
            row += [f"{accuracy(own):.1%}", f"{length(own):.3f}"]
        rows.append(row)
        print(f"temperature {row}", flush=True)
    head = ["temperature"] + [f"{kind}, {what}" for kind in free_choices.FREE_KINDS for what in ("accuracy", "length")]
    return f"""{len(free)} held-out questions, a seed for each, no filters, Eagle K=3: accuracy and acceptance length.

{table(head, rows)}
"""


def measure_dtypes(binary, questions):
    kinds = kinds_of(questions)
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for name, options in {"BF16": None, "FP8": ["fp8"], "INT4, groups of 32": ["int4"],
                              "INT4, groups of 64": ["int4", "--group", "64"],
                              "NVFP4": ["nvfp4"]}.items():
            model = HERE
            if options:
                model = pathlib.Path(folder) / name.replace(" ", "-")
                subprocess.run([binary, "quantize", HERE, model, "--dtype", *options], check=True, capture_output=True)
            plain = run(binary, None, questions, model)
            lengths = []
            for draft_len in (1, 3):
                records = run(binary, eagle(draft_len), questions, model)
                same_ids(records, plain)
                lengths += [f"{length(of_kind(records, group)):.3f}" for group in GROUPS]
            size = sum(file.stat().st_size for file in model.glob("*.safetensors"))
            rows.append([name, f"{size / 1e6:.1f}"] + [f"{accuracy(of_kind(plain, kind)):.1%}" for kind in kinds] + lengths)
            print(f"{name}: {rows[-1]}", flush=True)
    return f"""Greedy, {len(questions)} held-out questions, each dtype written by `foredraft quantize`: accuracy, and acceptance length with Eagle.
The token ids of every reply were the same with drafts as without.

{table(["dtype", "MB"] + kinds + [f"K={k}, {group}" for k in (1, 3) for group in GROUPS], rows)}
"""


def measure_cache(binary, questions):
    kinds = kinds_of(questions)
    rows, replies = [], {}
    for cache in ("bf16", "fp8"):
        plain = run(binary, None, questions, cache=cache)
        records = run(binary, eagle(3), questions, cache=cache)
        same_ids(records, plain)
        replies[cache] = [r["ids"] for r in plain]
        rows.append([cache] + [f"{accuracy(of_kind(plain, kind)):.1%}" for kind in kinds]
                    + [f"{length(of_kind(records, group)):.3f}" for group in GROUPS])
        print(f"{cache}: {rows[-1]}", flush=True)
    same = sum(a == b for a, b in zip(replies["bf16"], replies["fp8"]))
    return f"""Greedy, {len(questions)} held-out questions, by dtype of the KV cache: accuracy, and acceptance length with Eagle. {same} replies are the same
token by token. Within a dtype, the token ids of every reply were the same with drafts as without.

{table(["cache"] + kinds + [f"K=3, {group}" for group in GROUPS], rows)}
"""


PARTS = {"drafts": measure_drafts, "relaxed": measure_relaxed, "sampled": measure_sampled, "dtypes": measure_dtypes,
         "cache": measure_cache}


def write(part, text):
    begin, end = f"<!-- {part}: begin -->", f"<!-- {part}: end -->"
    card = HERE / "README.md"
    replaced, count = re.subn(f"{begin}.*{end}", lambda _: f"{begin}\n{text}{end}", card.read_text(), flags=re.S)
    if count != 1:
        raise SystemExit(f"{card}: the marks {begin} and {end} are missing")
    card.write_text(replaced)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", default=str(ROOT / "build/cpu/bin/foredraft"))
    parser.add_argument("--only", choices=list(PARTS), help="one part of the card")
    parser.add_argument("--questions", type=int, default=0, help="of each kind; 0 = all")
    parser.add_argument("--dry-run", action="store_true")
    arguments = parser.parse_args()
    questions = [json.loads(line) for file in ("heldout.jsonl", "free.jsonl") for line in (HERE / file).read_text().splitlines()]
    if arguments.questions:
        seen = {}
        questions = [q for q in questions if seen.setdefault(q["kind"], []).append(q) or
                     len(seen[q["kind"]]) <= arguments.questions]
    for part, make in PARTS.items():
        if arguments.only in (None, part):
            text = make(arguments.binary, questions)
            print(text)
            if not arguments.dry_run:
                write(part, text)


if __name__ == "__main__":
    main()
