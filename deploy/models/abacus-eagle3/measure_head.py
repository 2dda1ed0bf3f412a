#!/usr/bin/env python3
"""Measures abacus-eagle3 beside abacus' own MTP module through the daemon, and writes the table of the model card (README.md).

usage: deploy/models/abacus-eagle3/measure_head.py [--binary build/cpu/bin/foredraft] [--head DIR] [--questions N] [--dry-run]

All held-out questions (or the first N of each kind), greedy, K from 1 to 5: the acceptance length; at K = 5 the share of
steps that accept the draft at each position; and whether every token is the one without drafts. Standard library alone.
"""

import argparse
import json
import pathlib
import re
import sys

HERE = pathlib.Path(__file__).resolve().parent
ABACUS = HERE.parent / "abacus"
sys.path.insert(0, str(ABACUS))

import measure  # noqa: E402: the folder beside is no package

DRAFT_LENS = range(1, 6)


def shares_by_position(daemon):
    """The share of steps that accept the draft at each position."""
    accepted = daemon.metric("foredraft_spec_decode_accepted_tokens_per_position_total")
    steps = sum(daemon.metric("foredraft_spec_decode_drafts_total").values())
    by_position = [sum(count for labels, count in accepted.items() if f'position="{position}"' in labels)
                   for position in DRAFT_LENS]
    return [f"{count / steps:.1%}" for count in by_position]


def compare(binary, questions, head):
    """The rows of the table of lengths, and those of the shares by position."""
    plain = measure.run(binary, None, questions)
    lengths, shares = [], []
    for name, more in {"MTP module, recycled": {"decoding_type": "MTP"},
                       "abacus-eagle3": {"decoding_type": "Eagle3", "speculative_model": str(head)}}.items():
        by_group = {group: [name if group == measure.GROUPS[0] else "", group] for group in measure.GROUPS}
        for draft_len in DRAFT_LENS:
            at_last = []
            records = measure.run(binary, {"max_draft_len": draft_len, **more}, questions,
                                  at_end=lambda daemon: at_last.extend(shares_by_position(daemon)))
            measure.same_ids(records, plain)
            for group, row in by_group.items():
                row.append(f"{measure.length(measure.of_kind(records, group)):.2f}")
            print(name, draft_len, {group: row[-1] for group, row in by_group.items()}, at_last, flush=True)
        lengths += by_group.values()
        shares.append([name, *at_last])
    return lengths, shares


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", default=str(measure.ROOT / "build/cpu/bin/foredraft"))
    parser.add_argument("--head", type=pathlib.Path, default=HERE)
    parser.add_argument("--questions", type=int, default=0, help="of each kind; 0 = all")
    parser.add_argument("--dry-run", action="store_true")
    arguments = parser.parse_args()
    questions = [json.loads(line) for file in ("heldout.jsonl", "free.jsonl") for line in (ABACUS / file).read_text().splitlines()]
    if arguments.questions:
        seen = {}
        questions = [q for q in questions if seen.setdefault(q["kind"], []).append(q) or
                     len(seen[q["kind"]]) <= arguments.questions]
    lengths, shares = compare(arguments.binary, questions, arguments.head)
    text = (f"Greedy, {len(questions)} held-out questions, by `measure_head.py`: tokens that a decode step emits. The token ids of every\n"
            "reply were the same with each drafter and K as without drafts.\n\n"
            + measure.table(["drafter", "questions"] + [f"K={k}" for k in DRAFT_LENS], lengths)
            + f"\n\nShare of the steps with K = {DRAFT_LENS[-1]} that accept the draft at a position, all questions:\n\n"
            + measure.table(["drafter"] + [str(position) for position in DRAFT_LENS], shares) + "\n")
    print(text)
    if not arguments.dry_run:
        card = HERE / "README.md"
        begin, end = "<!-- lengths: begin -->", "<!-- lengths: end -->"
        card.write_text(re.sub(f"{begin}.*{end}", lambda _: f"{begin}\n{text}{end}", card.read_text(), flags=re.S))


if __name__ == "__main__":
    main()
