#!/usr/bin/env python3
"""Measures abacus through the daemon and writes the tables of the model card (README.md).

usage: deploy/models/abacus/measure.py [--binary build/cpu/bin/foredraft] [--only drafts|dtypes|cache] [--questions N] [--dry-run]

Starts a daemon per setting, asks it all held-out questions (or the first N of each kind), greedy, and replaces the text in
the card between the marks of each part. "dtypes" quantises abacus first, "cache" compares the dtypes of the KV cache. --dry-run
prints only. Standard library alone; takes about fourteen minutes on two cores.
"""

import argparse
import concurrent.futures
import json
import pathlib
import re
import signal
import subprocess
import tempfile
import time

HERE = pathlib.Path(__file__).parent
ROOT = HERE.parent.parent.parent
ADDRESS = "127.0.0.1:50871"
METRICS = "127.0.0.1:50872"
MARKS = {"drafts": ("<!-- measured: begin -->", "<!-- measured: end -->"),
         "dtypes": ("<!-- dtypes: begin -->", "<!-- dtypes: end -->"),
         "cache": ("<!-- cache: begin -->", "<!-- cache: end -->")}


class Daemon:
    """`foredraft serve` with the given speculative_config (None = no drafts) and dtype of the KV cache."""

    def __init__(self, binary, speculative, model=HERE, cache="bf16"):
        self.binary = binary
        config = {"model": str(model), "max_batch_size": 16,
                  "server": {"grpc_address": ADDRESS, "metrics_address": METRICS}, "speculative_config": speculative,
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

    def ask(self, question):
        command = [self.binary, "generate", "--server", ADDRESS, "--chat", question, "--temperature", "0", "--max-tokens",
                   "400", "--json"]
        return json.loads(subprocess.run(command, capture_output=True, check=True, text=True).stdout)


def run(binary, speculative, questions, model=HERE, cache="bf16"):
    """One record per question: kind, right, completion tokens, steps, accepted, relaxed."""
    def one(question):
        reply = daemon.ask(question["question"])
        said = reply["text"].split("</think>")[-1].strip()
        speculation = reply["speculation"]
        return {"kind": question["kind"], "right": said == question["answer"], "steps": speculation["steps"],
                "tokens": reply["usage"]["completion_tokens"], "accepted": speculation["accepted_tokens"],
                "relaxed": speculation["relaxed_tokens"], "ids": reply["token_ids"]}

    with Daemon(binary, speculative, model, cache) as daemon, concurrent.futures.ThreadPoolExecutor(4) as pool:
        return list(pool.map(one, questions))


def length(records):
    return 1 + sum(r["accepted"] for r in records) / sum(r["steps"] for r in records)


def accuracy(records):
    return sum(r["right"] for r in records) / len(records)


def table(head, rows):
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    return "\n".join(lines + ["| " + " | ".join(row) + " |" for row in rows])


def of_kind(records, kind):
    return records if kind == "all" else [r for r in records if r["kind"] == kind]


def measure(binary, questions):
    kinds = list(dict.fromkeys(q["kind"] for q in questions)) + ["all"]
    plain = run(binary, None, questions)
    drafted = {}
    for vanilla in (False, True):
        for draft_len in range(1, 4 if vanilla else 6):
            speculative = {"decoding_type": "MTP", "max_draft_len": draft_len, "use_mtp_vanilla": vanilla}
            records = run(binary, speculative, questions)
            assert [r["ids"] for r in records] == [r["ids"] for r in plain], "drafts changed tokens"
            drafted[vanilla, draft_len] = records
            print(f"{'Vanilla' if vanilla else 'Eagle'} K={draft_len}: length {length(records):.2f}", flush=True)
    head = ["kind", "right", "accuracy", "tokens a reply"]
    head += [f"{'Vanilla' if v else 'Eagle'} K={k}" for v, k in drafted]
    rows = []
    for kind in kinds:
        own = of_kind(plain, kind)
        row = [kind, f"{sum(r['right'] for r in own)} of {len(own)}", f"{accuracy(own):.1%}",
               f"{sum(r['tokens'] for r in own) / len(own):.0f}"]
        rows.append(row + [f"{length(of_kind(records, kind)):.2f}" for records in drafted.values()])

    strict = drafted[False, 3]
    relaxed_rows = [["strict", "", f"{accuracy(strict):.1%}"] + [f"{accuracy(of_kind(strict, k)):.1%}" for k in kinds[:-1]]
                    + [f"{length(strict):.3f}", "0"]]
    for topk in (2, 5, 10):
        for delta in (0.1, 0.3, 0.6):
            records = run(binary, {"decoding_type": "MTP", "max_draft_len": 3, "relaxed_topk": topk, "relaxed_delta": delta,
                                   "use_relaxed_acceptance_for_thinking": True}, questions)
            relaxed_rows.append([str(topk), str(delta), f"{accuracy(records):.1%}"]
                                + [f"{accuracy(of_kind(records, k)):.1%}" for k in kinds[:-1]]
                                + [f"{length(records):.3f}", str(sum(r["relaxed"] for r in records))])
            print(f"relaxed top-k {topk}, delta {delta}: {accuracy(records):.1%}, length {length(records):.3f}", flush=True)
    return f"""Greedy, {len(questions)} held-out questions, by `measure.py`. The acceptance length is the mean number of tokens a decode step emits.
The token ids of every reply were the same with each drafter and K as without drafts.

{table(head, rows)}

Relaxed acceptance while thinking, Eagle K=3: accuracy and acceptance length against the strict rule. `relaxed` counts the tokens that only
relaxation accepted.

{table(["top-k", "delta", "all"] + kinds[:-1] + ["length", "relaxed"], relaxed_rows)}
"""


def measure_dtypes(binary, questions):
    kinds = list(dict.fromkeys(q["kind"] for q in questions)) + ["all"]
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for name in ("BF16", "FP8", "INT4"):
            model = HERE
            if name != "BF16":
                model = pathlib.Path(folder) / name
                subprocess.run([binary, "quantize", HERE, model, "--dtype", name.lower()], check=True, capture_output=True)
            plain = run(binary, None, questions, model)
            lengths = []
            for draft_len in (1, 3):
                records = run(binary, {"decoding_type": "MTP", "max_draft_len": draft_len}, questions, model)
                assert [r["ids"] for r in records] == [r["ids"] for r in plain], "drafts changed tokens"
                lengths.append(f"{length(records):.3f}")
            size = sum(file.stat().st_size for file in model.glob("*.safetensors"))
            rows.append([name, f"{size / 1e6:.1f}"] + [f"{accuracy(of_kind(plain, kind)):.1%}" for kind in kinds] + lengths)
            print(f"{name}: {rows[-1]}", flush=True)
    return f"""Greedy, {len(questions)} held-out questions, each dtype written by `foredraft quantize`: accuracy, and acceptance length with Eagle.
The token ids of every reply were the same with drafts as without.

{table(["dtype", "MB"] + kinds + ["K=1", "K=3"], rows)}
"""


def measure_cache(binary, questions):
    kinds = list(dict.fromkeys(q["kind"] for q in questions)) + ["all"]
    rows, replies = [], {}
    for cache in ("bf16", "fp8"):
        plain = run(binary, None, questions, cache=cache)
        records = run(binary, {"decoding_type": "MTP", "max_draft_len": 3}, questions, cache=cache)
        assert [r["ids"] for r in records] == [r["ids"] for r in plain], "drafts changed tokens"
        replies[cache] = [r["ids"] for r in plain]
        rows.append([cache] + [f"{accuracy(of_kind(plain, kind)):.1%}" for kind in kinds] + [f"{length(records):.3f}"])
        print(f"{cache}: {rows[-1]}", flush=True)
    same = sum(a == b for a, b in zip(replies["bf16"], replies["fp8"]))
    return f"""Greedy, {len(questions)} held-out questions, by dtype of the KV cache: accuracy, and acceptance length with Eagle. {same} replies are the same
token by token. Within a dtype, the token ids of every reply were the same with drafts as without.

{table(["cache"] + kinds + ["K=3"], rows)}
"""


def write(part, text):
    begin, end = MARKS[part]
    card = HERE / "README.md"
    replaced, count = re.subn(f"{begin}.*{end}", lambda _: f"{begin}\n{text}{end}", card.read_text(), flags=re.S)
    if count != 1:
        raise SystemExit(f"{card}: the marks {begin} and {end} are missing")
    card.write_text(replaced)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", default=str(ROOT / "build/cpu/bin/foredraft"))
    parser.add_argument("--only", choices=sorted(MARKS), help="one part of the card")
    parser.add_argument("--questions", type=int, default=0, help="of each kind; 0 = all")
    parser.add_argument("--dry-run", action="store_true")
    arguments = parser.parse_args()
    questions = [json.loads(line) for line in (HERE / "heldout.jsonl").read_text().splitlines()]
    if arguments.questions:
        seen = {}
        questions = [q for q in questions if seen.setdefault(q["kind"], []).append(q) or
                     len(seen[q["kind"]]) <= arguments.questions]
    for part, make in (("drafts", measure), ("dtypes", measure_dtypes), ("cache", measure_cache)):
        if arguments.only in (None, part):
            text = make(arguments.binary, questions)
            print(text)
            if not arguments.dry_run:
                write(part, text)


if __name__ == "__main__":
    main()
