"""vLLM's side of compare_llama_cpp, run by an interpreter that has vLLM for CPUs: loads a checkpoint, prints "ready", then
measures for each line on standard input and prints one JSON object.

{"decode": {"1": ..., "8": ...}, "prefill": ...} in tokens per second; with drafts {"steps": {"1": ..., "8": ...}}, the
steps per second of which each verifies the drafts of every sequence.
"""

import argparse
import json
import os
import random
import sys

BATCHES = (1, 8)


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkpoint")
    for name in ("threads", "drafts", "context", "generated", "prompt"):
        parser.add_argument(f"--{name}", type=int, required=True)
    return parser.parse_args()


def set_environment(args):
    """vLLM reads these while it is imported."""
    cores = sorted(os.sched_getaffinity(0))[:args.threads]
    os.environ["VLLM_CPU_OMP_THREADS_BIND"] = ",".join(str(core) for core in cores)
    os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")  # GiB
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "WARNING")
    os.environ["HF_HUB_OFFLINE"] = "1"


class Rates:
    def __init__(self, args):
        from vllm import LLM, SamplingParams
        self.args = args
        self.params = SamplingParams
        drafting = {"method": "mtp", "num_speculative_tokens": args.drafts} if args.drafts else None
        self.llm = LLM(model=args.checkpoint, skip_tokenizer_init=True, dtype="bfloat16", max_num_seqs=max(BATCHES),
                       max_model_len=2 * (args.prompt + args.context), enable_prefix_caching=False,
                       disable_log_stats=False, speculative_config=drafting)
        self.random = random.Random(1)
        self.run(1, args.context, 4)  # the first run allocates

    def run(self, batch, length, generated):
        """Seconds of the prompts, of the tokens after the first ones."""
        prompts = [{"prompt_token_ids": [self.random.randrange(2, 30000) for _ in range(length)]}
                   for _ in range(batch)]
        params = self.params(temperature=0, max_tokens=generated, ignore_eos=True, detokenize=False)
        metrics = [output.metrics for output in self.llm.generate(prompts, params, use_tqdm=False)]
        first = max(each.first_token_ts for each in metrics)
        return first - min(each.queued_ts for each in metrics), max(each.last_token_ts for each in metrics) - first

    def drafted_steps(self):
        """Of all sequences together."""
        return sum(metric.value for metric in self.llm.get_metrics()
                   if metric.name == "vllm:spec_decode_num_drafts")

    def decode(self, batch):
        """Seconds of the tokens after the first, and the steps of one sequence."""
        before = self.drafted_steps()
        _, seconds = self.run(batch, self.args.context, 1 + self.args.generated)
        return seconds, (self.drafted_steps() - before) / batch

    def measure(self):
        if self.args.drafts:
            runs = {batch: self.decode(batch) for batch in BATCHES}
            return {"steps": {batch: steps / seconds for batch, (seconds, steps) in runs.items()}}
        return {"decode": {batch: batch * self.args.generated / self.decode(batch)[0] for batch in BATCHES},
                "prefill": self.args.prompt / min(self.run(1, self.args.prompt, 1)[0] for _ in range(3))}


def main():
    args = parse_arguments()
    set_environment(args)
    answers = os.fdopen(os.dup(1), "w")  # vLLM and its processes print to standard output
    os.dup2(2, 1)
    rates = Rates(args)
    print("ready", file=answers, flush=True)
    for _ in sys.stdin:
        print(json.dumps(rates.measure()), file=answers, flush=True)


if __name__ == "__main__":
    main()
