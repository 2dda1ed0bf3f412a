// Single ops of one backend: time, traffic, products, and the time over its bound. Calls cycle through copies
// of the weights, so that a large model's weights are not in a cache. A small model's are, as in a real step.
//
// clang-format off
// usage: ops_bench [--backend cpu] [--model CONFIG_JSON] [--rows 1,4,8] [--dtype bf16,fp8,int4,fp4,nvfp4] [--context N]
//                  [--threads N] [--only WORD] [--buffer-mb N] [--markdown]
//        ops_bench --backend cuda|paper [--gpu NAME] [--only WORD] [--rows 1,4,...] [--small] [--json FILE] [--markdown]
//   --only      ops with WORD in their name
//   --markdown  the lines as a table for RESULTS.md
// Backend cpu: the ops that read weights and keys, at a model's shapes. The bound is the longer of traffic and
// products at the machine's rates, which are measured before and after every line.
//   --model     default deploy/configs/yardstick.json
//   --dtype     of the projections, one line each; default bf16
// A GPU: each op at DeepSeek-R1's shapes, and those of V4's attention at V4-Flash's, the share of the device's
// measured rates, the predicted time (launch_model.h), and the time of the vendor's library where it has the op.
//   --backend   paper: a GPU that does not exist here; only its prediction is printed
//   --gpu       whose prediction, h200 or h100; default: by the device's name, h200 on paper
//   --small     widths divided by 16: shows that the program runs, its times mean nothing
//   --json      also writes the lines to FILE, a JSON object each
// clang-format on

#include "tests/bench/ops_bench.h"

#include "absl/strings/str_cat.h"
#include "tests/bench/bench_flags.h"

namespace foredraft {
namespace {

std::string ShapeName(int n, int k) { return absl::StrCat(n, " x ", k); }

}  // namespace

void GemmLines(OpsBench& bench, const std::string& name,
               const std::vector<std::vector<PackedWeights>>& weights) {
  for (const int rows : bench.rows()) {
    for (const std::vector<PackedWeights>& copies : weights) {
      const PackedWeight& first = copies[0].first;
      GemmParams p = {.out = bench.Rows<float>(rows, first.n), .x = bench.Rows<const bf16>(rows, first.k)};
      p.weight = first;
      // In FP8, like the outputs of norms and activations.
      if (first.format.code == DType::kF8E4M3) p.x_f8 = bench.F8Rows(rows, first.k);
      OpLine line = {.name = name,
                     .shape = ShapeName(first.n, first.k),
                     .dtype = KindOf(first.format),
                     .rows = rows,
                     .cost = CostOf(p)};
      if (first.format.code == DType::kBF16) line.library = GemmSize{rows, first.n, first.k};
      bench.Line(line, [&bench, &copies, p](int i) mutable {
        p.weight = copies[i % copies.size()].first;
        bench.ops().gemm(bench.stream(), p);
      });
    }
  }
}

void HeadGemmLines(OpsBench& bench, const HeadGemmShape& shape, int heads,
                   const std::vector<PackedWeights>& weights) {
  for (const int rows : bench.rows()) {
    HeadGemmParams p = {.out = bench.Rows<bf16>(rows, heads * shape.n),
                        .x = bench.Rows<const bf16>(rows, heads * shape.k),
                        .heads = weights[0],
                        .out_head_stride = shape.n,
                        .x_head_stride = shape.k};
    bench.Line({.name = shape.name,
                .shape = absl::StrCat(heads, " x ", ShapeName(shape.n, shape.k)),
                .rows = rows,
                .cost = CostOf(p)},
               [&bench, &weights, p](int i) mutable {
                 p.heads = weights[i % weights.size()];
                 bench.ops().head_gemm(bench.stream(), p);
               });
  }
}

void MlaDecodeLine(OpsBench& bench, const DecodeShape& shape, int rows, int rows_per_sequence) {
  const int blocks = (shape.context + shape.tokens_per_block - 1) / shape.tokens_per_block;
  const int sequences = rows / rows_per_sequence;
  std::vector<int32_t> tables(sequences * blocks), slots(rows), positions(rows, shape.context - 1);
  for (size_t i = 0; i < tables.size(); ++i) tables[i] = static_cast<int32_t>(i) + 1;
  for (int row = 0; row < rows; ++row) slots[row] = row / rows_per_sequence;
  const int block_count = static_cast<int>(tables.size()) + 1;
  MlaDecodeParams p = {.out = bench.Rows<bf16>(rows, shape.heads * shape.latent),
                       .q_lat = bench.Rows<const bf16>(rows, shape.heads * shape.latent),
                       .q = bench.Rows<const bf16>(rows, shape.heads * (shape.nope + shape.rope)),
                       .layer = {.block_tables = bench.Put(tables),
                                 .table_stride = blocks,
                                 .block_count = block_count,
                                 .tokens_per_block = shape.tokens_per_block,
                                 .latent_dim = shape.latent,
                                 .rope_dim = shape.rope,
                                 .dtype = shape.format.dtype,
                                 .fp8_products = shape.format.fp8_products},
                       .index = {bench.Put(slots), bench.Put(positions), rows},
                       .head_count = shape.heads,
                       .head_dim = shape.nope + shape.rope,
                       .first_position = 0,
                       .scale = 0.1f};
  if (shape.list_len > 0) {
    std::vector<int32_t> selected(size_t(rows) * shape.list_len);
    const int step = shape.context / shape.list_len;
    for (size_t i = 0; i < selected.size(); ++i)
      selected[i] = static_cast<int32_t>(i % shape.list_len) * step;
    p.selected = bench.Put(selected);
    p.selected_count = shape.list_len;
  }
  const size_t bytes = size_t(block_count) * shape.tokens_per_block * p.layer.row_bytes();
  const int layers = std::min(shape.layers, std::max(1, static_cast<int>(kColdBytes / bytes)));
  std::vector<uint8_t*> caches;
  for (int layer = 0; layer < layers; ++layer) caches.push_back(bench.KvMemory(bytes));
  const CostContext context = {.context = shape.context, .rows_per_sequence = rows_per_sequence};
  bench.Line({.name = shape.name,
              .shape = absl::StrCat(shape.context, " positions"),
              .dtype = DTypeName(shape.format.dtype),
              .rows = rows,
              .cost = CostOf(p, context),
              .context = context},
             [&bench, &caches, p](int i) mutable {
               p.layer.data = caches[i % caches.size()];
               bench.ops().mla_decode(bench.stream(), p);
             });
}

}  // namespace foredraft

int main(int argc, char** argv) {
  foredraft::OpsOptions options;
  options.command = foredraft::ParseBenchFlags(argc, argv,
                                               {{"--backend", &options.backend},
                                                {"--model", &options.model},
                                                {"--rows", &options.rows},
                                                {"--dtype", &options.dtypes},
                                                {"--context", &options.context},
                                                {"--threads", &options.threads},
                                                {"--only", &options.only},
                                                {"--buffer-mb", &options.buffer_mb},
                                                {"--gpu", &options.gpu},
                                                {"--json", &options.json},
                                                {"--small", &options.small},
                                                {"--markdown", &options.markdown}});
  return options.backend == "cpu" ? foredraft::RunCpuOps(options) : foredraft::RunGpuOps(options);
}
