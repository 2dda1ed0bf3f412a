"""Makes the training code of abacus importable: data, tokenizer, batches, optimizer and losses are the same."""

import pathlib
import sys

ABACUS = pathlib.Path(__file__).resolve().parents[2] / "abacus"
sys.path.append(str(ABACUS / "train"))
