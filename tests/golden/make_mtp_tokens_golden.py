#!/usr/bin/env python3
"""Makes grouped_mtp_tokens.golden.json: what transformers' generate(use_mtp=True) gives for the checkpoint `grouped`.

Greedy, in float32. Prompts are those of many whose choices are clearest, so that rounding does not change a token: the
smallest difference between the two largest logits of any step is in the golden, and transformers gives the same tokens
in BF16.
"""

import json
import pathlib
import tempfile

import torch
import transformers

import make_model_golden

PROMPTS, PROMPT_LEN, OUTPUT_LEN, KEPT = 1500, 6, 12, 4
NAME = "grouped"


@torch.no_grad()
def greedy(model, ids):
    """Tokens [prompts, OUTPUT_LEN] and each prompt's smallest lead of a choice."""
    lead = torch.full((len(ids),), torch.inf)
    for _ in range(OUTPUT_LEN):
        best = model(ids, use_cache=False).logits[:, -1].float().topk(2)
        lead = torch.minimum(lead, best.values[:, 0] - best.values[:, 1])
        ids = torch.cat([ids, best.indices[:, :1]], -1)
    return ids[:, PROMPT_LEN:], lead


def main():
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    checkpoint = make_model_golden.HERE / "checkpoints" / NAME
    config, tensors = make_model_golden.read_float32(checkpoint)
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        exact, _ = make_model_golden.load(folder, config, tensors, torch.float32)
        rounded, _ = make_model_golden.load(folder, config, tensors, torch.bfloat16)
        torch.manual_seed(make_model_golden.SEED)
        prompts = torch.randint(2, config["vocab_size"], (PROMPTS, PROMPT_LEN))
        tokens, lead = greedy(exact, prompts)
        clearest = lead.argsort(descending=True)[:4 * KEPT]
        same = (greedy(rounded, prompts[clearest])[0] == tokens[clearest]).all(-1) & (tokens[clearest] > 1).all(-1)
        cases = []
        for i in clearest[same][:KEPT].tolist():
            output = exact.generate(prompts[i:i + 1], attention_mask=torch.ones(1, PROMPT_LEN, dtype=torch.long), use_mtp=True,
                                    do_sample=False, max_new_tokens=OUTPUT_LEN)[0, PROMPT_LEN:].tolist()
            assert output == tokens[i].tolist(), (output, tokens[i].tolist())
            cases.append({"prompt": prompts[i].tolist(), "tokens": output, "smallest_lead": round(lead[i].item(), 3)})
    assert len(cases) == KEPT, len(cases)
    golden = {"maker": "tests/golden/make_mtp_tokens_golden.py", "torch": torch.__version__.split("+")[0],
              "transformers": transformers.__version__, "seed": make_model_golden.SEED,
              "checkpoint": str(checkpoint.relative_to(make_model_golden.ROOT)), "cases": cases}
    (make_model_golden.HERE / f"{NAME}_mtp_tokens.golden.json").write_text(json.dumps(golden, separators=(",", ":")) + "\n")
    print(f"{len(cases)} prompts, smallest leads {[case['smallest_lead'] for case in cases]}")


if __name__ == "__main__":
    main()
