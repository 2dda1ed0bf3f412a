// The ops that read weights and keys, on backend cpu at a model's shapes: time, traffic, products, and the
// time over its bound: the longer of traffic and products at the machine's rates, which are measured before
// and after every line. Calls cycle through copies of the weights, so that a large model's weights are not in
// a cache. A small model's are, as in a real step.
//
// usage: cpu_ops [--model CONFIG_JSON] [--rows 1,4,8] [--dtype bf16,fp8,int4,fp4] [--context N] [--threads N]
//                [--only WORD] [--buffer-mb N] [--markdown]
//   --model  default deploy/configs/yardstick.json
//   --dtype  of the projections, one line each; default bf16
//   --only   ops with WORD in their name

#include <algorithm>
#include <functional>
#include <iostream>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/measure/table.h"
#include "engine/model/model_config.h"
#include "tests/bench/bench_flags.h"
#include "tests/bench/cpu_rates.h"
#include "tests/bench/device_timer.h"
#include "tests/bench/op_cost.h"
#include "tests/bench/op_memory.h"

namespace foredraft {
namespace {

constexpr double kColdBytes = 256e6;
constexpr int kMaxCopies = 2048;
constexpr SampleLength kSample = {.seconds = 10e-3, .max_calls = kMaxCopies};  // reads all copies
constexpr int kTokensPerBlock = 32;

struct Options {
  std::string model = "deploy/configs/yardstick.json";
  std::string only;
  std::vector<int> rows = {1, 2, 4, 8, 16, 32, 64};
  std::vector<std::string> dtypes = {"bf16"};
  int context = 512;
  int threads = static_cast<int>(std::thread::hardware_concurrency());
  int buffer_mb = 512;
  bool markdown = false;
  std::string command;  // as given
};

std::optional<DType> FindDType(const std::string& name) {
  if (name == "bf16") return DType::kBF16;
  if (name == "fp8") return DType::kF8E4M3;
  if (name == "int4") return DType::kInt4;
  if (name == "fp4") return DType::kF4E2M1;
  return std::nullopt;
}

class Bench : public OpMemory {
 public:
  Bench(const Options& options, std::unique_ptr<Device> device)
      : OpMemory(std::move(device)),
        options_(options),
        rates_(options.threads, size_t(options.buffer_mb) << 20),
        table_({"op", "n x k", "dtype", "rows", "us", "GB/s", "of read bandwidth", "GFLOPS",
                "over the bound"}) {}

  bool Wants(const std::string& name) const { return name.find(options_.only) != std::string::npos; }
  const std::vector<int>& rows() const { return options_.rows; }
  std::vector<DType> dtypes() const {
    std::vector<DType> dtypes;
    for (const std::string& name : options_.dtypes) dtypes.push_back(*FindDType(name));
    return dtypes;
  }

  std::vector<PackedWeights> Weights(int count, int n, int k, DType dtype) {
    return ColdWeights(count, n, k, dtype, std::min(kColdBytes, options_.buffer_mb * 0.5e6), kMaxCopies);
  }

  void Line(const std::string& name, const std::string& shape, DType dtype, int rows, const OpCost& cost,
            const std::function<void(int)>& submit) {
    const DeviceRates before = rates_.Measure();
    const double seconds = MedianSeconds(device(), stream(), submit, kSample);
    const DeviceRates rates = CpuRates::Mean(before, rates_.Measure());
    OpCost stored = cost;
    stored.bytes = cost.stored_bytes;
    table_.Add({name, shape, DTypeName(dtype), absl::StrCat(rows), absl::StrFormat("%.1f", seconds * 1e6),
                absl::StrFormat("%.1f", cost.stored_bytes / seconds / 1e9),
                absl::StrFormat("%.0f%%", 100 * cost.stored_bytes / seconds / rates.bytes_per_second),
                absl::StrFormat("%.0f", (cost.bf16_flops + cost.fp8_flops) / seconds / 1e9),
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
  const Options options_;
  CpuRates rates_;
  Table table_;
};

std::string ShapeName(int n, int k) { return absl::StrCat(n, " x ", k); }

// Rows outside, dtypes inside: times that are compared are taken one after another.
void GemmLines(Bench& bench, const std::string& name, int n, int k, const std::vector<DType>& dtypes) {
  std::vector<std::vector<PackedWeights>> weights;
  for (const DType dtype : dtypes) weights.push_back(bench.Weights(1, n, k, dtype));
  for (const int rows : bench.rows()) {
    for (const std::vector<PackedWeights>& copies : weights) {
      GemmParams p = {.out = bench.Rows<float>(rows, n), .x = bench.Rows<const bf16>(rows, k)};
      p.weight = copies[0].first;
      bench.Line(name, ShapeName(n, k), p.weight.dtype, rows, CostOf(p), [&bench, &copies, p](int i) mutable {
        p.weight = copies[i % copies.size()].first;
        bench.ops().gemm(bench.stream(), p);
      });
    }
  }
}

void Gemms(Bench& bench, const ModelConfig& c) {
  const std::vector<DType> bf16_only = {DType::kBF16};
  const int q_rows = c.num_attention_heads * c.qk_head_dim();
  const int q_rank = c.q_lora_rank > 0 ? c.q_lora_rank : q_rows;
  const struct {
    const char* name;
    int n, k;
    std::vector<DType> dtypes;
  } shapes[] = {
      {"q_a and kv_a", q_rank + c.kv_lora_rank + c.qk_rope_head_dim, c.hidden_size, bench.dtypes()},
      {"q_b", q_rows, c.q_lora_rank, bench.dtypes()},
      {"o", c.hidden_size, c.num_attention_heads * c.v_head_dim, bench.dtypes()},
      {"router", c.n_routed_experts, c.hidden_size, bf16_only},
      {"shared gate and up", 2 * c.n_shared_experts * c.moe_intermediate_size, c.hidden_size, bench.dtypes()},
      {"shared down", c.hidden_size, c.n_shared_experts * c.moe_intermediate_size, bench.dtypes()},
      {"dense gate and up", 2 * c.intermediate_size, c.hidden_size, bench.dtypes()},
      {"dense down", c.hidden_size, c.intermediate_size, bench.dtypes()},
      {"eh_proj", c.hidden_size, 2 * c.hidden_size, bf16_only},
      {"head", c.vocab_size, c.hidden_size, bf16_only}};
  for (const auto& s : shapes) {
    const std::string name = absl::StrCat("gemm ", s.name);
    if (s.n > 0 && s.k > 0 && bench.Wants(name)) GemmLines(bench, name, s.n, s.k, s.dtypes);
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
  for (const DType dtype : bench.dtypes()) weights.push_back(bench.Weights(experts, n, k, dtype));
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
      bench.Line(name, ShapeName(n, k), p.experts.first.dtype, rows, CostOf(p, {.host_arrays = true}),
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
  const struct {
    const char* name;
    int n, k;
  } shapes[] = {{"head_gemm W_UK", c.kv_lora_rank, c.qk_nope_head_dim},
                {"head_gemm W_UV", c.v_head_dim, c.kv_lora_rank}};
  const int heads = c.num_attention_heads;
  for (const auto& s : shapes) {
    if (!bench.Wants(s.name)) continue;
    const std::vector<PackedWeights> weights = bench.Weights(heads, s.n, s.k, DType::kBF16);
    for (const int rows : bench.rows()) {
      HeadGemmParams p = {.out = bench.Rows<bf16>(rows, heads * s.n),
                          .x = bench.Rows<const bf16>(rows, heads * s.k),
                          .heads = weights[0],
                          .out_head_stride = s.n,
                          .x_head_stride = s.k};
      bench.Line(s.name, absl::StrCat(heads, " x ", ShapeName(s.n, s.k)), DType::kBF16, rows, CostOf(p),
                 [&bench, &weights, p](int i) mutable {
                   p.heads = weights[i % weights.size()];
                   bench.ops().head_gemm(bench.stream(), p);
                 });
    }
  }
}

// Adjacent rows of a sequence attend the same keys, as the K + 1 rows of a step. The keys of one layer fit
// into a cache, so each call takes the next layer.
void Decode(Bench& bench, const ModelConfig& c, int context, int rows, int rows_per_sequence, DType dtype) {
  const int blocks = (context + kTokensPerBlock - 1) / kTokensPerBlock;
  const int sequences = rows / rows_per_sequence;
  std::vector<int32_t> tables(sequences * blocks), slots(rows), positions(rows, context - 1);
  for (size_t i = 0; i < tables.size(); ++i) tables[i] = static_cast<int32_t>(i) + 1;
  for (int row = 0; row < rows; ++row) slots[row] = row / rows_per_sequence;
  MlaDecodeParams p = {.out = bench.Rows<bf16>(rows, c.num_attention_heads * c.kv_lora_rank),
                       .q_lat = bench.Rows<const bf16>(rows, c.num_attention_heads * c.kv_lora_rank),
                       .q = bench.Rows<const bf16>(rows, c.num_attention_heads * c.qk_head_dim()),
                       .layer = {.block_tables = bench.Put(tables),
                                 .table_stride = blocks,
                                 .tokens_per_block = kTokensPerBlock,
                                 .latent_dim = c.kv_lora_rank,
                                 .rope_dim = c.qk_rope_head_dim,
                                 .dtype = dtype},
                       .index = {bench.Put(slots), bench.Put(positions), rows},
                       .head_count = c.num_attention_heads,
                       .head_dim = c.qk_head_dim(),
                       .first_position = 0,
                       .scale = 0.1f};
  const size_t bytes = (tables.size() + 1) * kTokensPerBlock * p.layer.row_bytes();
  const int layers = std::min(c.num_hidden_layers, std::max(1, static_cast<int>(kColdBytes / bytes)));
  std::vector<uint8_t*> caches;
  for (int layer = 0; layer < layers; ++layer) caches.push_back(bench.Put(std::vector<uint8_t>(bytes)));
  bench.Line(absl::StrCat("mla_decode, ", rows_per_sequence, " a sequence"),
             absl::StrCat(context, " positions"), dtype, rows,
             CostOf(p, {.context = context, .rows_per_sequence = rows_per_sequence}),
             [&bench, &caches, p](int i) mutable {
               p.layer.data = caches[i % caches.size()];
               bench.ops().mla_decode(bench.stream(), p);
             });
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
      .window_first = 0,
      .head_count = heads,
      .nope_dim = c.qk_nope_head_dim,
      .rope_dim = c.qk_rope_head_dim,
      .value_dim = c.v_head_dim,
      .scale = 0.1f};
  bench.Line("mla_prefill", absl::StrCat(context, " positions"), DType::kBF16, context, CostOf(p),
             [&bench, p](int) { bench.ops().mla_prefill(bench.stream(), p); });
}

// Decode over BF16 and FP8 caches.
void Attention(Bench& bench, const ModelConfig& c, int context) {
  if (bench.Wants("mla_decode")) {
    for (const int rows : bench.rows()) {
      for (const int rows_per_sequence : {1, 4}) {
        for (const DType dtype : bench.dtypes()) {
          if (rows % rows_per_sequence != 0 || Is4Bit(dtype)) continue;
          Decode(bench, c, context, rows, rows_per_sequence, dtype);
        }
      }
    }
  }
  if (bench.Wants("mla_prefill")) Prefill(bench, c, context);
}

int Main(int argc, char** argv) {
  Options options;
  options.command = ParseBenchFlags(argc, argv,
                                    {{"--model", &options.model},
                                     {"--rows", &options.rows},
                                     {"--dtype", &options.dtypes},
                                     {"--context", &options.context},
                                     {"--threads", &options.threads},
                                     {"--only", &options.only},
                                     {"--buffer-mb", &options.buffer_mb},
                                     {"--markdown", &options.markdown}});
  for (const std::string& name : options.dtypes) {
    if (FindDType(name)) continue;
    std::cerr << "cpu_ops: --dtype: " << name << ", allowed bf16, fp8, int4, fp4\n";
    return 2;
  }
  const auto config = ReadModelConfig(options.model);
  auto device = CreateDevice("cpu", {.threads = options.threads, .pin = true});
  if (!config.ok() || !device.ok()) {
    std::cerr << "cpu_ops: " << (config.ok() ? device.status() : config.status()).message() << "\n";
    return 1;
  }
  Bench bench(options, *std::move(device));
  GroupedGemms(bench, *config);
  Gemms(bench, *config);
  HeadGemms(bench, *config);
  Attention(bench, *config, options.context);
  bench.Print();
  return 0;
}

}  // namespace
}  // namespace foredraft

int main(int argc, char** argv) { return foredraft::Main(argc, argv); }
