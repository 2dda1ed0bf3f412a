// Each op at DeepSeek-R1's shapes, and those of V4's attention at V4-Flash's: time, bytes and FLOPs per
// second, their share of the device's measured rates, the predicted time (launch_model.h), and the time of
// the vendor's library where it has the op. Calls cycle through copies of the weights, so that none is in a
// cache.
//
// usage: gpu_ops [--backend cuda|cpu|paper] [--gpu NAME] [--only WORD] [--rows 1,4,...] [--small]
//                [--json FILE] [--markdown]
//   --backend  paper: a GPU that does not exist here; only its prediction is printed
//   --gpu      whose prediction, h200 or h100; default: by the device's name, h200 on paper
//   --only     ops with WORD in their name
//   --small    widths divided by 16: shows that the program runs, its times mean nothing
//   --markdown the lines as a table for RESULTS.md
//   --json     also writes the lines to FILE, a JSON object each

#include <cmath>
#include <functional>
#include <iostream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "kernels/device.h"
#include "tests/bench/bench_flags.h"
#include "tests/bench/gpu_ops_bench.h"
#include "tests/bench/library_rates.h"
#include "tests/bench/op_cost.h"
#include "tests/bench/paper_device.h"

namespace foredraft {
namespace {

void Gemms(Bench& bench) {
  const struct {
    const char* name;
    int n, k;
    DType dtype;
  } shapes[] = {
      {"q_a and kv_a", 2112, 7168, DType::kF8E4M3}, {"q_b", 24576, 1536, DType::kF8E4M3},
      {"o", 7168, 16384, DType::kF8E4M3},           {"shared gate and up", 4096, 7168, DType::kF8E4M3},
      {"shared down", 7168, 2048, DType::kF8E4M3},  {"dense gate and up", 36864, 7168, DType::kF8E4M3},
      {"dense down", 7168, 18432, DType::kF8E4M3},  {"router", 256, 7168, DType::kBF16},
      {"q_b in BF16", 24576, 1536, DType::kBF16},   {"head", 129280, 7168, DType::kBF16},
      {"eh_proj", 7168, 14336, DType::kBF16},       {"q_a and kv_a in INT4", 2112, 7168, DType::kInt4},
      {"q_b in INT4", 24576, 1536, DType::kInt4},   {"o in INT4", 7168, 16384, DType::kInt4},
      {"o in FP4", 7168, 16384, DType::kF4E2M1},    {"dense gate and up in INT4", 36864, 7168, DType::kInt4}};
  for (const auto& s : shapes) {
    const std::string name = absl::StrCat("gemm ", s.name);
    if (!bench.Wants(name)) continue;
    const int n = bench.Width(s.n);
    const int k = bench.Width(s.k);
    const std::vector<PackedWeights> weights = bench.ColdWeights(1, n, k, s.dtype);
    for (const int rows : bench.rows()) {
      GemmParams p = {.out = bench.Rows<float>(rows, n), .x = bench.Rows<const bf16>(rows, k)};
      p.weight = weights[0].first;
      if (s.dtype == DType::kF8E4M3)
        p.x_f8 = bench.F8Rows(rows, k);  // in FP8, like the outputs of norms and activations
      bench.Line(
          name, rows, CostOf(p),
          [&bench, &weights, p](int i) mutable {
            p.weight = weights[i % weights.size()].first;
            bench.ops().gemm(bench.stream(), p);
          },
          {},
          [&]() -> std::optional<double> {
            if (s.dtype != DType::kBF16) return std::nullopt;
            return LibraryGemmSeconds(rows, n, k);
          });
    }
  }
}

void HeadGemms(Bench& bench) {
  const struct {
    const char* name;
    int n, k;
  } shapes[] = {{"head_gemm W_UK", 512, 128}, {"head_gemm W_UV", 128, 512}};
  const int heads = bench.Width(128);
  for (const auto& s : shapes) {
    if (!bench.Wants(s.name)) continue;
    const std::vector<PackedWeights> weights = bench.ColdWeights(heads, s.n, s.k, DType::kBF16);
    for (const int rows : bench.rows()) {
      HeadGemmParams p = {.out = bench.Rows<bf16>(rows, heads * s.n),
                          .x = bench.Rows<const bf16>(rows, heads * s.k),
                          .heads = weights[0],
                          .out_head_stride = s.n,
                          .x_head_stride = s.k};
      bench.Line(s.name, rows, CostOf(p), [&bench, &weights, p](int i) mutable {
        p.heads = weights[i % weights.size()];
        bench.ops().head_gemm(bench.stream(), p);
      });
    }
  }
}

// One rank's share of EP8: 32 experts, all with the same number of rows.
void GroupedGemms(Bench& bench) {
  constexpr int kExperts = 32;
  const struct {
    const char* name;
    int n, k;
  } shapes[] = {{"gate and up", 4096, 7168}, {"down", 7168, 2048}};
  const struct {
    DType dtype;
    const char* name;
  } kinds[] = {
      {DType::kF8E4M3, "FP8"}, {DType::kBF16, "BF16"}, {DType::kInt4, "INT4"}, {DType::kF4E2M1, "FP4"}};
  for (const auto& [dtype, kind] : kinds) {
    for (const auto& s : shapes) {
      const std::string name = absl::StrCat("grouped_gemm ", s.name, ", ", kind);
      if (!bench.Wants(name)) continue;
      const int n = bench.Width(s.n);
      const int k = bench.Width(s.k);
      const PackedWeights experts = bench.Random(kExperts, n, k, dtype);
      for (const int rows_per_expert : {1, 4, 16, 64, 256}) {
        const int pairs = kExperts * rows_per_expert;
        std::vector<int32_t> offsets(kExperts + 1);
        for (int e = 0; e <= kExperts; ++e) offsets[e] = e * rows_per_expert;
        const GroupedGemmParams p = {
            .out = bench.Rows<float>(pairs, n),
            .x = bench.Rows<const bf16>(pairs, k),
            .x_f8 = dtype == DType::kF8E4M3 ? bench.F8Rows(pairs, k) : QuantizedRows{},
            .x_rows = nullptr,
            .expert_offsets = bench.Put(offsets),
            .experts = experts};
        const CostContext shape = {.met_experts = kExperts};
        bench.Line(
            name, pairs, CostOf(p, shape), [&bench, p](int) { bench.ops().grouped_gemm(bench.stream(), p); },
            shape);
        if (!p.x_f8 || s.n != 4096 || k % kQuantGroup != 0) continue;
        GroupedGemmParams silu = p;
        silu.out = {};
        silu.silu_f8 = bench.F8Rows(pairs, n / 2);
        bench.Line(
            absl::StrCat(name, ", with SwiGLU"), pairs, CostOf(silu, shape),
            [&bench, silu](int) { bench.ops().grouped_gemm(bench.stream(), silu); }, shape);
      }
    }
  }
}

void Attention(Bench& bench) {
  const int context = bench.Width(4096);
  const int heads = bench.Width(128);
  constexpr int kLatent = 512, kRope = 64, kNope = 128, kTokensPerBlock = 64;
  const int blocks = (context + kTokensPerBlock - 1) / kTokensPerBlock;
  for (const int rows_per_sequence : {1, 4}) {
    const std::string name = absl::StrCat("mla_decode, ", rows_per_sequence, " rows a sequence");
    if (!bench.Wants(name)) continue;
    for (const int rows : bench.rows()) {
      if (rows < rows_per_sequence) continue;
      const int sequences = rows / rows_per_sequence;
      std::vector<int32_t> tables(sequences * blocks), slots(rows), positions(rows, context - 1);
      for (size_t i = 0; i < tables.size(); ++i) tables[i] = static_cast<int32_t>(i) + 1;
      for (int row = 0; row < rows; ++row) slots[row] = row / rows_per_sequence;
      const KvRowLayout layout = {kLatent, kRope};
      const size_t cache_bytes = (tables.size() + 1) * kTokensPerBlock * layout.bytes();
      const MlaDecodeParams p = {.out = bench.Rows<bf16>(rows, heads * kLatent),
                                 .q_lat = bench.Rows<const bf16>(rows, heads * kLatent),
                                 .q = bench.Rows<const bf16>(rows, heads * (kNope + kRope)),
                                 .layer = {.data = bench.Zeros<uint8_t>(cache_bytes),
                                           .block_tables = bench.Put(tables),
                                           .table_stride = blocks,
                                           .block_count = static_cast<int32_t>(tables.size()) + 1,
                                           .tokens_per_block = kTokensPerBlock,
                                           .latent_dim = kLatent,
                                           .rope_dim = kRope},
                                 .index = {bench.Put(slots), bench.Put(positions), rows},
                                 .head_count = heads,
                                 .head_dim = kNope + kRope,
                                 .first_position = 0,
                                 .scale = 0.1f};
      const CostContext shape = {.context = context, .rows_per_sequence = rows_per_sequence};
      bench.Line(
          name, rows, CostOf(p, shape), [&bench, p](int) { bench.ops().mla_decode(bench.stream(), p); },
          shape);
    }
  }
}

void RowOps(Bench& bench) {
  const int hidden = bench.Width(7168);
  for (const int rows : bench.rows()) {
    if (bench.Wants("rms_norm")) {
      const RmsNormParams p = {.out_bf16 = bench.Rows<bf16>(rows, hidden),
                               .x = bench.Rows<const float>(rows, hidden),
                               .weight = bench.Zeros<float>(hidden),
                               .eps = 1e-6f};
      bench.Line("rms_norm", rows, CostOf(p), [&bench, p](int) { bench.ops().rms_norm(bench.stream(), p); });
      RmsNormParams f8 = p;
      f8.out_bf16 = {};
      f8.out_f8 = bench.F8Rows(rows, hidden);
      if (f8.out_f8) {
        bench.Line("rms_norm to FP8", rows, CostOf(f8),
                   [&bench, f8](int) { bench.ops().rms_norm(bench.stream(), f8); });
      }
    }
    if (bench.Wants("silu_mul")) {
      const int width = bench.Width(2048);
      const SiluMulParams p = {.out = bench.Rows<bf16>(8 * rows, width),
                               .gate_up = bench.Rows<const float>(8 * rows, 2 * width)};
      bench.Line("silu_mul", 8 * rows, CostOf(p),
                 [&bench, p](int) { bench.ops().silu_mul(bench.stream(), p); });
      SiluMulParams f8 = p;
      f8.out = {};
      f8.out_f8 = bench.F8Rows(8 * rows, width);
      if (f8.out_f8) {
        bench.Line("silu_mul to FP8", 8 * rows, CostOf(f8),
                   [&bench, f8](int) { bench.ops().silu_mul(bench.stream(), f8); });
      }
    }
  }
}

void Routing(Bench& bench) {
  constexpr int kExperts = 256, kTopK = 8;
  const int hidden = bench.Width(7168);
  for (const int rows : bench.rows()) {
    const RowIndex index = {bench.Zeros<int32_t>(rows), bench.Zeros<int32_t>(rows), rows};
    const RouteExpertsParams route = {.expert_ids = bench.Zeros<int32_t>(rows * kTopK),
                                      .expert_weights = bench.Zeros<float>(rows * kTopK),
                                      .logits = bench.Rows<const float>(rows, kExperts),
                                      .bias = bench.Zeros<float>(kExperts),
                                      .index = index,
                                      .n_group = 8,
                                      .topk_group = 4,
                                      .top_k = kTopK,
                                      .norm_topk_prob = 1,
                                      .routed_scaling_factor = 2.5f};
    const GroupRowsParams group = {.expert_offsets = bench.Zeros<int32_t>(kExperts + 1),
                                   .grouped_rows = bench.Zeros<int32_t>(rows * kTopK),
                                   .grouped_index = bench.Zeros<int32_t>(rows * kTopK),
                                   .expert_ids = route.expert_ids,
                                   .rows = rows,
                                   .top_k = kTopK,
                                   .expert_count = kExperts};
    const CombineExpertsParams combine = {.hidden = bench.Rows<float>(rows, hidden),
                                          .expert_out = bench.Rows<const float>(rows * kTopK, hidden),
                                          .shared = bench.Rows<const float>(rows, hidden),
                                          .grouped_index = group.grouped_index,
                                          .expert_ids = route.expert_ids,
                                          .expert_weights = route.expert_weights,
                                          .top_k = kTopK,
                                          .expert_count = kExperts};
    if (bench.Wants("route_experts")) {
      bench.Line("route_experts", rows, CostOf(route),
                 [&](int) { bench.ops().route_experts(bench.stream(), route); });
    }
    if (bench.Wants("group_rows")) {
      bench.ops().route_experts(bench.stream(), route);
      bench.Line("group_rows", rows, CostOf(group),
                 [&](int) { bench.ops().group_rows(bench.stream(), group); });
    }
    if (bench.Wants("combine_experts")) {
      bench.ops().route_experts(bench.stream(), route);
      bench.ops().group_rows(bench.stream(), group);
      bench.Line("combine_experts", rows, CostOf(combine),
                 [&](int) { bench.ops().combine_experts(bench.stream(), combine); });
    }
  }
}

void Sampling(Bench& bench) {
  const int vocab = bench.Width(129280);
  const struct {
    const char* name;
    float temperature, top_p;
    int32_t top_k;
  } kinds[] = {{"sample greedy", 0, 1, 0},
               {"sample T 1", 1, 1, 0},
               {"sample T 0.6, top-p 0.95", 0.6f, 0.95f, 0},
               {"sample T 1, top-k 40", 1, 1, 40}};
  for (const int rows : bench.rows()) {
    std::vector<float> values(size_t(rows) * vocab);
    uint32_t state = 1;
    for (float& value : values) {  // a sum of four uniforms: a bell curve of a few nats
      value = 0;
      for (int i = 0; i < 4; ++i) {
        state = state * 1664525 + 1013904223;
        value += static_cast<float>(state >> 8) * 0x1p-22f - 2;
      }
    }
    const Matrix<const float> logits = Dense<const float>(bench.Put(values), rows, vocab);
    if (bench.Wants("argmax")) {
      const ArgmaxParams p = {bench.Zeros<int32_t>(rows), logits};
      bench.Line("argmax", rows, CostOf(p), [&](int) { bench.ops().argmax(bench.stream(), p); });
    }
    for (const auto& kind : kinds) {
      if (!bench.Wants(kind.name)) continue;
      std::vector<int32_t> slots(rows), positions(rows, 100);
      for (int row = 0; row < rows; ++row) slots[row] = row;
      std::vector<SlotConstants> constants(rows);
      for (SlotConstants& c : constants) {
        c.temperature = kind.temperature;
        c.top_p = kind.top_p;
        c.top_k = kind.top_k;
        c.repetition_penalty = 1;
        c.logprob_count = -1;
      }
      const SampleParams p = {.out = bench.Zeros<int32_t>(rows),
                              .logits = logits,
                              .index = {bench.Put(slots), bench.Put(positions), rows},
                              .ids = bench.Zeros<int32_t>(rows),
                              .slots = {.constants = bench.Put(constants),
                                        .drafts = bench.Zeros<SlotDrafts>(rows),
                                        .output_counts = bench.Zeros<int32_t>(size_t(rows) * vocab),
                                        .prompt_seen = bench.Zeros<uint8_t>(size_t(rows) * vocab),
                                        .vocab_size = vocab},
                              .scratch = bench.Zeros<float>(size_t(rows) * vocab)};
      bench.Line(kind.name, rows, CostOf(p), [&](int) { bench.ops().sample(bench.stream(), p); },
                 {.sampled = kind.temperature > 0, .filtered = kind.top_p < 1 || kind.top_k > 0});
    }
  }
}

int Main(int argc, char** argv) {
  GpuOpsOptions options;
  ParseBenchFlags(argc, argv,
                  {{"--backend", &options.backend},
                   {"--gpu", &options.gpu},
                   {"--only", &options.only},
                   {"--rows", &options.rows},
                   {"--json", &options.json},
                   {"--markdown", &options.markdown},
                   {"--small", &options.small}});
  const bool paper = options.backend == "paper";
  if (paper && options.gpu.empty()) options.gpu = "h200";
  const GpuModel* gpu = FindGpuModel(options.gpu);
  if (gpu == nullptr && !options.gpu.empty()) {
    std::cerr << "gpu_ops: --gpu " << options.gpu << ": unknown, allowed h200, h100\n";
    return 2;
  }
  absl::StatusOr<std::unique_ptr<Device>> device =
      paper ? std::make_unique<PaperDevice>(*gpu) : CreateDevice(options.backend, {.threads = 2});
  if (!device.ok()) {
    std::cerr << "gpu_ops: " << device.status().message() << "\n";
    return 1;
  }
  if (gpu == nullptr) gpu = FindGpuModel((*device)->name());
  Bench bench(options, *std::move(device), gpu);
  GroupedGemms(bench);
  Gemms(bench);
  HeadGemms(bench);
  Attention(bench);
  RowOps(bench);
  Routing(bench);
  Sampling(bench);
  V4AttentionOps(bench);
  return 0;
}

}  // namespace
}  // namespace foredraft

int main(int argc, char** argv) { return foredraft::Main(argc, argv); }
