// ops_bench on backend cpu: the ops that read weights and keys, at a model's shapes.

#include <algorithm>
#include <functional>
#include <iostream>
#include <numeric>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/measure/table.h"
#include "engine/kinds/read_model_config.h"
#include "engine/model/model_config.h"
#include "tests/bench/cpu_rates.h"
#include "tests/bench/device_timer.h"
#include "tests/bench/ops_bench.h"

namespace foredraft {
namespace {

constexpr int kMaxCopies = 2048;
constexpr SampleLength kSample = {.seconds = 10e-3, .max_calls = kMaxCopies};  // reads all copies
constexpr int kTokensPerBlock = 32;

class Bench : public OpsBench {
 public:
  Bench(const OpsOptions& options, std::unique_ptr<Device> device)
      : OpsBench(options, std::move(device)),
        rates_({.threads = options.threads, .pin = true}, size_t(options.buffer_mb) << 20),
        table_({"op", "n x k", "dtype", "rows", "us", "GB/s", "of read bandwidth", "GFLOPS",
                "over the bound"}) {}

  std::vector<WeightFormat> formats() const {
    std::vector<WeightFormat> formats;
    for (const std::string& name : options_.dtypes) formats.push_back(FindFormat(name)->format);
    return formats;
  }

  std::vector<PackedWeights> Weights(int count, int n, int k, const WeightFormat& format) {
    return ColdWeights(count, n, k, format, std::min(kColdBytes, options_.buffer_mb * 0.5e6), kMaxCopies);
  }
  // Written, so that every page has memory of its own.
  uint8_t* KvMemory(size_t bytes) override { return Put(std::vector<uint8_t>(bytes)); }

  void Line(const OpLine& line, const std::function<void(int)>& submit) override {
    const DeviceRates before = rates_.Measure();
    const double seconds = MedianSeconds(device(), stream(), submit, kSample);
    const DeviceRates rates = CpuRates::Mean(before, rates_.Measure());
    OpCost stored = line.cost;
    stored.bytes = stored.stored_bytes;
    const double flops = stored.bf16_flops + stored.fp8_flops;
    table_.Add({line.name, line.shape, line.dtype, absl::StrCat(line.rows),
                absl::StrFormat("%.1f", seconds * 1e6), absl::StrFormat("%.1f", stored.bytes / seconds / 1e9),
                absl::StrFormat("%.0f%%", 100 * stored.bytes / seconds / rates.bytes_per_second),
                absl::StrFormat("%.0f", flops / seconds / 1e9),
                absl::StrFormat("%.2f", seconds / RooflineSeconds(stored, rates))});
  }

  void Print() {
    if (options_.markdown) {
      std::cout << "### Single ops\n\n`" << options_.command
                << "`: medians of captured sequences of calls; GB/s of weights and keys.\n\n";
    }
    table_.Print(options_.markdown);
  }

 private:
  CpuRates rates_;
  Table table_;
};

void Gemms(Bench& bench, const ModelConfig& c) {
  const std::vector<WeightFormat> bf16_only = {kBf16Format};
  const int q_rows = c.num_attention_heads * c.qk_head_dim();
  const int q_rank = c.q_lora_rank > 0 ? c.q_lora_rank : q_rows;
  const struct {
    const char* name;
    int n, k;
    std::vector<WeightFormat> formats;
  } shapes[] = {
      {"q_a and kv_a", q_rank + c.kv_lora_rank + c.qk_rope_head_dim, c.hidden_size, bench.formats()},
      {"q_b", q_rows, c.q_lora_rank, bench.formats()},
      {"o", c.hidden_size, c.num_attention_heads * c.v_head_dim, bench.formats()},
      {"router", c.n_routed_experts, c.hidden_size, bf16_only},
      {"shared gate and up", 2 * c.n_shared_experts * c.moe_intermediate_size, c.hidden_size,
       bench.formats()},
      {"shared down", c.hidden_size, c.n_shared_experts * c.moe_intermediate_size, bench.formats()},
      {"dense gate and up", 2 * c.intermediate_size, c.hidden_size, bench.formats()},
      {"dense down", c.hidden_size, c.intermediate_size, bench.formats()},
      {"eh_proj", c.hidden_size, 2 * c.hidden_size, bf16_only},
      {"head", c.vocab_size, c.hidden_size, bf16_only}};
  for (const auto& s : shapes) {
    const std::string name = absl::StrCat("gemm ", s.name);
    if (s.n == 0 || s.k == 0 || !bench.Wants(name)) continue;
    std::vector<std::vector<PackedWeights>> weights;
    for (const WeightFormat& format : s.formats) weights.push_back(bench.Weights(1, s.n, s.k, format));
    GemmLines(bench, name, weights);
  }
}

// Offsets of the rows of each expert if `pairs` choices take experts in turn, beginning with `first`.
std::vector<int32_t> Offsets(int experts, int pairs, int first) {
  std::vector<int32_t> offsets(experts + 1);
  for (int pair = 0; pair < pairs; ++pair) ++offsets[(first + pair) % experts + 1];
  for (int e = 0; e < experts; ++e) offsets[e + 1] += offsets[e];
  return offsets;
}

// Each row takes top_k experts that no earlier row took, until all are taken. Each call continues with the
// next expert, so that calls with few rows reach all experts of all copies too.
void GroupedGemmLines(Bench& bench, const ModelConfig& c, const char* name, int n, int k) {
  const int experts = c.n_routed_experts;
  std::vector<std::vector<PackedWeights>> weights;
  for (const WeightFormat& format : bench.formats()) {
    weights.push_back(bench.Weights(experts, n, k, format));
  }
  for (const int rows : bench.rows()) {
    const int pairs = rows * c.num_experts_per_tok;
    std::vector<const int32_t*> offsets;
    for (int i = 0; i < experts; ++i) {
      offsets.push_back(bench.Put(Offsets(experts, pairs, i * pairs % experts)));
    }
    for (const std::vector<PackedWeights>& copies : weights) {
      GroupedGemmParams p = {.out = bench.Rows<float>(pairs, n),
                             .x = bench.Rows<const bf16>(pairs, k),
                             .expert_offsets = offsets[0],
                             .experts = copies[0]};
      bench.Line({.name = name,
                  .shape = absl::StrCat(n, " x ", k),
                  .dtype = KindOf(p.experts.first.format),
                  .rows = rows,
                  .cost = CostOf(p, {.host_arrays = true})},
                 [&bench, &copies, &offsets, p](int i) mutable {
                   p.expert_offsets = offsets[i % offsets.size()];
                   p.experts = copies[i % copies.size()];
                   bench.ops().grouped_gemm(bench.stream(), p);
                 });
    }
  }
}

void GroupedGemms(Bench& bench, const ModelConfig& c) {
  if (c.n_routed_experts == 0) return;
  const struct {
    const char* name;
    int n, k;
  } shapes[] = {{"grouped_gemm gate and up", 2 * c.moe_intermediate_size, c.hidden_size},
                {"grouped_gemm down", c.hidden_size, c.moe_intermediate_size}};
  for (const auto& s : shapes) {
    if (bench.Wants(s.name)) GroupedGemmLines(bench, c, s.name, s.n, s.k);
  }
}

void HeadGemms(Bench& bench, const ModelConfig& c) {
  const HeadGemmShape shapes[] = {{"head_gemm W_UK", c.kv_lora_rank, c.qk_nope_head_dim},
                                  {"head_gemm W_UV", c.v_head_dim, c.kv_lora_rank}};
  const int heads = c.num_attention_heads;
  for (const HeadGemmShape& s : shapes) {
    if (!bench.Wants(s.name)) continue;
    HeadGemmLines(bench, s, heads, bench.Weights(heads, s.n, s.k, kBf16Format));
  }
}

// A prompt of `context` tokens in one chunk.
void Prefill(Bench& bench, const ModelConfig& c, int context) {
  const int heads = c.num_attention_heads;
  const MlaPrefillParams p = {
      .out = bench.Rows<bf16>(context, heads * c.v_head_dim),
      .q = bench.Rows<const bf16>(context, heads * c.qk_head_dim()),
      .kv = bench.Rows<const bf16>(context, heads * (c.qk_nope_head_dim + c.v_head_dim)),
      .k_pe = bench.Rows<const bf16>(context, c.qk_rope_head_dim),
      .chunk_first = 0,
      .first_position = 0,
      .segment_first = 0,
      .head_count = heads,
      .nope_dim = c.qk_nope_head_dim,
      .rope_dim = c.qk_rope_head_dim,
      .value_dim = c.v_head_dim,
      .scale = 0.1f};
  bench.Line({.name = "mla_prefill",
              .shape = absl::StrCat(context, " positions"),
              .rows = context,
              .cost = CostOf(p)},
             [&bench, p](int) { bench.ops().mla_prefill(bench.stream(), p); });
}

DecodeShape DecodeShapeOf(const ModelConfig& c, int context, DType dtype) {
  return {.heads = c.num_attention_heads,
          .latent = c.kv_lora_rank,
          .rope = c.qk_rope_head_dim,
          .nope = c.qk_nope_head_dim,
          .layers = c.num_hidden_layers,
          .tokens_per_block = kTokensPerBlock,
          .context = context,
          .format = dtype};
}

// The scores of all positions and the choice. Each call takes the next layer's keys, as MlaDecodeLine's.
void SelectLine(Bench& bench, const ModelConfig& c, int context, int rows, int rows_per_sequence) {
  const int blocks = (context + kTokensPerBlock - 1) / kTokensPerBlock;
  std::vector<int32_t> tables(rows / rows_per_sequence * blocks), slots(rows);
  std::iota(tables.begin(), tables.end(), 1);
  for (int row = 0; row < rows; ++row) slots[row] = row / rows_per_sequence;
  SelectEntriesParams p = {
      .selected = bench.Zeros<int32_t>(size_t(rows) * c.index_topk),
      .scores = bench.Rows<float>(rows, context),
      .q = bench.Rows<const bf16>(rows, c.index_n_heads * c.index_head_dim),
      .weights = bench.Rows<const float>(rows, c.index_n_heads),
      .entries = {.block_tables = bench.Put(tables),
                  .table_stride = blocks,
                  .rows_per_block = kTokensPerBlock,
                  .width = c.index_head_dim},
      .index = {bench.Put(slots), bench.Put(std::vector<int32_t>(rows, context - 1)), rows},
      .head_count = c.index_n_heads,
      .ratio = 1,
      .top_k = c.index_topk,
      .scale = 0.01f};
  const int entries = static_cast<int>(tables.size() + 1) * kTokensPerBlock;
  const double bytes = 2.0 * entries * c.index_head_dim;
  std::vector<Matrix<const bf16>> layers;
  for (int i = 0; i < std::max(1, static_cast<int>(kColdBytes / bytes)); ++i) {
    layers.push_back(bench.Rows<const bf16>(entries, c.index_head_dim));
  }
  const CostContext shape = {.context = context, .rows_per_sequence = rows_per_sequence};
  bench.Line({.name = absl::StrCat("select_entries, ", rows_per_sequence, " a sequence"),
              .shape = absl::StrCat(context, " positions"),
              .rows = rows,
              .cost = CostOf(p, shape),
              .context = shape},
             [&bench, &layers, p](int i) mutable {
               p.entries.data = layers[i % layers.size()].data;
               bench.ops().select_entries(bench.stream(), p);
             });
}

// Sparse attention: the indexer's choice, and decode over a list of so many positions.
void SparseAttention(Bench& bench, const ModelConfig& c, int context) {
  if (c.index_topk == 0 || context <= c.index_topk) return;
  for (const int rows : bench.rows()) {
    for (const int rows_per_sequence : {1, 4}) {
      if (rows % rows_per_sequence != 0) continue;
      if (bench.Wants("select_entries")) SelectLine(bench, c, context, rows, rows_per_sequence);
    }
    for (const WeightFormat& format : bench.formats()) {
      if (Is4Bit(format) || !bench.Wants("mla_decode, listed")) continue;
      DecodeShape shape = DecodeShapeOf(c, context, format.code);
      shape.name = "mla_decode, listed";
      shape.list_len = c.index_topk;
      MlaDecodeLine(bench, shape, rows, 1);
    }
  }
}

// Decode over BF16 and FP8 caches.
void Attention(Bench& bench, const ModelConfig& c, int context) {
  if (bench.Wants("mla_decode")) {
    for (const int rows : bench.rows()) {
      for (const int rows_per_sequence : {1, 4}) {
        for (const WeightFormat& format : bench.formats()) {
          if (rows % rows_per_sequence != 0 || Is4Bit(format)) continue;
          DecodeShape shape = DecodeShapeOf(c, context, format.code);
          shape.name = absl::StrCat("mla_decode, ", rows_per_sequence, " a sequence");
          MlaDecodeLine(bench, shape, rows, rows_per_sequence);
        }
      }
    }
  }
  if (bench.Wants("mla_prefill")) Prefill(bench, c, context);
}

}  // namespace

int RunCpuOps(OpsOptions options) {
  if (options.rows.empty()) options.rows = {1, 2, 4, 8, 16, 32, 64};
  for (const std::string& name : options.dtypes) {
    if (FindFormat(name) != nullptr) continue;
    std::cerr << "ops_bench: --dtype: " << name << ", allowed bf16, fp8, int4, fp4, nvfp4\n";
    return 2;
  }
  const auto config = ReadModelConfig(options.model);
  auto device = CreateDevice("cpu", {.threads = options.threads, .pin = true});
  if (!config.ok() || !device.ok()) {
    std::cerr << "ops_bench: " << (config.ok() ? device.status() : config.status()).message() << "\n";
    return 1;
  }
  Bench bench(options, *std::move(device));
  GroupedGemms(bench, *config);
  Gemms(bench, *config);
  HeadGemms(bench, *config);
  Attention(bench, *config, options.context);
  SparseAttention(bench, *config, options.context);
  bench.Print();
  return 0;
}

}  // namespace foredraft
