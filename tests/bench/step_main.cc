// step_bench: decode steps of a whole model on one backend, against the bounds of the machine.
//
// clang-format off
// usage: step_bench [--backend cpu] [--model DIR|CONFIG_JSON] [--rows 1,4,8] [--context N] [--threads N] [--rounds N]
//                   [--only table,plain,dense,ops,prefill] [--prompts 512,4000] [--kv FORMAT] [--isa PATH]
//                   [--inputs TYPE] [--buffer-mb N] [--markdown]
//        step_bench --backend cuda|paper [--gpu NAME] [--measured FILE] [--model CONFIG_JSON] [--ranks N] [--context N]
//                   [--rows 1,4,...] [--how eager,graph,unforked] [--only prefill [--prompts 1024,8192]]
//                   [--nccl|--windows] [--kernels] [--json FILE] [--markdown] [--quick]
//   --markdown   the lines as tables for RESULTS.md
// Backend cpu (step_cpu.cc): steps and prefills with drafts, their bytes and products.
//   --model      a checkpoint, or the config.json of one: random weights then; default deploy/configs/yardstick.json;
//                MODEL+HEAD: with an Eagle3 head, likewise
//   --only       sections; default all but plain, which is the table without drafts. DeepSeek-V4 has no dense layers
//                and skips dense
//   --context    positions each sequence has at the start, computed from random prompts; default 128
//   --prompts    lengths of the prompts of section prefill; default 512,4000
//   --kv         of the cache that the steps of table, plain and ops read: bf16 (default), fp8, or fp8-products, which are
//                of FP8 codes, too
//   --isa        instructions of the kernels (cpu.isa): auto (default), amx, avx512, avx2 or portable
//   --inputs     what products with 4-bit weights read (cpu.inputs): bf16 (default) or int8. Bounds are of
//                BF16 products all the same
// A GPU (step_gpu.cc): steps of a model of random weights, eager and as graphs, beside the predicted time.
//   --backend    paper: a GPU that does not exist here; only its prediction is printed
//   --gpu        whose prediction, h200 or h100; default: by the device's name, h200 on paper
//   --measured   what tests/gpu/run measured instead of the prediction's constants (launch_model.h, WithMeasured)
//   --model      default deploy/configs/r1-shape-61x32.json: one rank's share of DeepSeek-R1
//   --ranks      1, 2, 4 or 8: the model has one rank's share of the experts, and copies of the same size replace
//                the exchange with the other ranks (copy_communicator.h); default 8 with the default model, else 1.
//                It meets as many experts as the slowest of the ranks (slowest_rank.h); on a card with --attention-tp
//                its rows choose freely among all, and it meets the mean
//   --attention-tp  1, or as many as ranks: these share each request, and rank 0's part of the model is run
//   --moe-tp     with it: ranks that share an expert's columns; default 1
//   --context    positions each sequence attends, default 4096: zeros in the cache, no prompt is computed
//   --rows       sequences, ascending, default 1,4,8,32,128
//   --how        ways to submit a step, default eager,graph,unforked; unforked: a graph without side branches
//   --only       prefill: not steps but chunks of --prompts tokens on every rank, eager, without a context before them
//   --nccl       paper: with the exchange as NCCL is predicted to take it, not a copy (paper_communicator.h)
//   --windows    paper: the same, but exchanges of few rows go through the ranks' windows (push_exchange.h)
//   --kernels    also prints the predicted time by kernel, of graphs
//   --quick      K 3, one step each: shows that the program runs, its times mean nothing
//   --json       also writes the lines to FILE, a JSON object each
// clang-format on

#include "tests/bench/bench_flags.h"
#include "tests/bench/step_options.h"

int main(int argc, char** argv) {
  foredraft::StepOptions options;
  options.command = foredraft::ParseBenchFlags(
      argc, argv, {{"--backend", &options.backend}, {"--model", &options.model},
                   {"--rows", &options.rows},       {"--context", &options.context},
                   {"--threads", &options.threads}, {"--rounds", &options.rounds},
                   {"--only", &options.only},       {"--prompts", &options.prompts},
                   {"--kv", &options.kv},           {"--isa", &options.isa},
                   {"--inputs", &options.inputs},   {"--buffer-mb", &options.buffer_mb},
                   {"--gpu", &options.gpu},         {"--measured", &options.measured},
                   {"--ranks", &options.ranks},     {"--attention-tp", &options.attention_tp},
                   {"--moe-tp", &options.moe_tp},   {"--how", &options.how},
                   {"--nccl", &options.nccl},       {"--windows", &options.windows},
                   {"--kernels", &options.kernels}, {"--json", &options.json},
                   {"--quick", &options.quick},     {"--markdown", &options.markdown}});
  return options.backend == "cpu" ? foredraft::RunCpuSteps(options) : foredraft::RunGpuSteps(options);
}
