// ops_bench on a GPU: each op at DeepSeek-R1's shapes, and those of V4's attention at V4-Flash's, measured
// beside the prediction.

#include <algorithm>
#include <iostream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "tests/bench/bench_json.h"
#include "tests/bench/device_timer.h"
#include "tests/bench/library_rates.h"
#include "tests/bench/ops_bench.h"
#include "tests/bench/paper_device.h"

namespace foredraft {
namespace {

class Bench : public OpsBench {
 public:
  // `gpu`: the model that predictions come from; null prints none.
  Bench(const OpsOptions& options, std::unique_ptr<Device> device, const GpuModel* gpu)
      : OpsBench(options, std::move(device)), json_(options.json) {
    if (gpu != nullptr) {
      paper_ = std::make_unique<PaperDevice>(*gpu);
      paper_stream_ = paper_->CreateStream();
    }
    rates_ = options.backend == "paper" ? RatesOf(*gpu) : MeasureRates(OpsBench::device(), options_.small);
    const char* const origin = options.backend == "paper" ? "assumed" : "measured";
    std::cout << absl::StreamFormat("%s\ncopy %.0f GB/s, BF16 %.0f TFLOPS %s; FP8 taken for %.0f\n\n",
                                    OpsBench::device().name(), rates_.bytes_per_second / 1e9,
                                    rates_.bf16_flops / 1e12, origin, rates_.fp8_flops / 1e12);
    Head();
    json_.Add({{"program", "ops_bench"},
               {"device", OpsBench::device().name()},
               {"predicted_for", gpu != nullptr ? gpu->name : ""},
               {"rates", origin},
               {"copy_gb_per_s", rates_.bytes_per_second / 1e9},
               {"bf16_tflops", rates_.bf16_flops / 1e12}});
  }

  // A prediction takes the paper device's ops and stream: `submit` then calls the same ops with the same
  // parameters.
  const Ops& ops() override { return predicting_ ? paper_->ops() : OpsBench::ops(); }
  Stream& stream() override { return predicting_ ? *paper_stream_ : OpsBench::stream(); }

  int Width(int r1) const { return options_.small ? std::max(1, r1 / 16) : r1; }

  std::vector<PackedWeights> ColdWeights(int count, int n, int k, const WeightFormat& format) {
    return OpsBench::ColdWeights(count, n, k, format, options_.small ? 0 : kColdBytes);
  }

  void Line(const OpLine& line, const std::function<void(int)>& submit) override {
    const OpCost& cost = line.cost;
    const std::optional<double> predicted = Predicted(line.context, submit);
    PaperDevice::SetContext(line.context);
    const double seconds = MedianSeconds(device(), OpsBench::stream(), submit);
    const double roofline = RooflineSeconds(cost, rates_);
    const bool memory_bound = cost.bytes / rates_.bytes_per_second >= roofline;
    std::optional<double> library;
    if (line.library && options_.backend != "paper") {
      library = LibraryGemmSeconds(line.library->rows, line.library->n, line.library->k);
    }
    const std::string measured = options_.backend == "paper" ? "-" : Microseconds(seconds);
    std::cout << absl::StrFormat(LineFormat(), line.name, absl::StrCat(line.rows), measured,
                                 absl::StrFormat("%.0f", cost.bytes / seconds / 1e9),
                                 absl::StrFormat("%.1f", (cost.bf16_flops + cost.fp8_flops) / seconds / 1e12),
                                 absl::StrFormat("%.0f%%", 100 * roofline / seconds),
                                 memory_bound ? "memory" : "matrix", Microseconds(predicted),
                                 Microseconds(library))
              << std::flush;
    nlohmann::ordered_json json = {{"op", line.name}, {"rows", line.rows}};
    if (options_.backend != "paper") json["us"] = seconds * 1e6;
    json["roofline_us"] = roofline * 1e6;
    json["bytes"] = cost.bytes;
    json["flops"] = cost.bf16_flops + cost.fp8_flops;
    if (predicted.has_value()) json["predicted_us"] = *predicted * 1e6;
    if (library.has_value()) json["library_us"] = *library * 1e6;
    json_.Add(json);
  }

 private:
  using Format = absl::ParsedFormat<'s', 's', 's', 's', 's', 's', 's', 's', 's'>;
  const Format& LineFormat() const {
    static const Format text("%-42s %5s %10s %8s %8s %7s %-7s %12s %10s\n");
    static const Format markdown("| %s | %s | %s | %s | %s | %s | %s | %s | %s |\n");
    return options_.markdown ? markdown : text;
  }
  void Head() const {
    std::cout << absl::StrFormat(LineFormat(), "op", "rows", "us", "GB/s", "TFLOPS", "share", "bound",
                                 "predicted us", "library us");
    if (options_.markdown) std::cout << "|---|---|---|---|---|---|---|---|---|\n";
  }

  static DeviceRates RatesOf(const GpuModel& gpu) {
    return {.bytes_per_second = gpu.memory_rate, .bf16_flops = gpu.bf16_flops, .fp8_flops = gpu.fp8_flops};
  }
  static std::string Microseconds(std::optional<double> seconds) {
    return seconds.has_value() ? absl::StrFormat("%.2f", *seconds * 1e6) : "-";
  }

  std::optional<double> Predicted(const CostContext& shape, const std::function<void(int)>& submit) {
    if (paper_ == nullptr) return std::nullopt;
    PaperDevice::SetContext(shape);
    predicting_ = true;
    const double seconds = MedianSeconds(*paper_, *paper_stream_, submit);
    predicting_ = false;
    return seconds;
  }

  JsonLines json_;
  DeviceRates rates_;
  std::unique_ptr<PaperDevice> paper_;
  std::unique_ptr<Stream> paper_stream_;
  bool predicting_ = false;
};

void Gemms(Bench& bench) {
  const struct {
    const char* name;
    int n, k;
    WeightFormat format;
  } shapes[] = {{"q_a and kv_a", 2112, 7168, kFp8Format},
                {"q_b", 24576, 1536, kFp8Format},
                {"o", 7168, 16384, kFp8Format},
                {"shared gate and up", 4096, 7168, kFp8Format},
                {"shared down", 7168, 2048, kFp8Format},
                {"dense gate and up", 36864, 7168, kFp8Format},
                {"dense down", 7168, 18432, kFp8Format},
                {"router", 256, 7168, kBf16Format},
                {"q_b in BF16", 24576, 1536, kBf16Format},
                {"head", 129280, 7168, kBf16Format},
                {"eh_proj", 7168, 14336, kBf16Format},
                {"q_a and kv_a in INT4", 2112, 7168, kInt4Format},
                {"q_b in INT4", 24576, 1536, kInt4Format},
                {"o in INT4", 7168, 16384, kInt4Format},
                {"o in FP4", 7168, 16384, kMxfp4Format},
                {"o in NVFP4", 7168, 16384, kNvfp4Format},
                {"dense gate and up in INT4", 36864, 7168, kInt4Format}};
  for (const auto& s : shapes) {
    const std::string name = absl::StrCat("gemm ", s.name);
    if (!bench.Wants(name)) continue;
    GemmLines(bench, name, {bench.ColdWeights(1, bench.Width(s.n), bench.Width(s.k), s.format)});
  }
}

void HeadGemms(Bench& bench) {
  const int heads = bench.Width(128);
  for (const HeadGemmShape& s :
       {HeadGemmShape{"head_gemm W_UK", 512, 128}, HeadGemmShape{"head_gemm W_UV", 128, 512}}) {
    if (!bench.Wants(s.name)) continue;
    HeadGemmLines(bench, s, heads, bench.ColdWeights(heads, s.n, s.k, kBf16Format));
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
    WeightFormat format;
    const char* name;
  } kinds[] = {{kFp8Format, "FP8"},
               {kBf16Format, "BF16"},
               {kInt4Format, "INT4"},
               {kMxfp4Format, "FP4"},
               {kNvfp4Format, "NVFP4"}};
  for (const auto& [format, kind] : kinds) {
    for (const auto& s : shapes) {
      const std::string name = absl::StrCat("grouped_gemm ", s.name, ", ", kind);
      if (!bench.Wants(name)) continue;
      const int n = bench.Width(s.n);
      const int k = bench.Width(s.k);
      const PackedWeights experts = bench.Random(kExperts, n, k, format);
      for (const int rows_per_expert : {1, 4, 16, 64, 256}) {
        const int pairs = kExperts * rows_per_expert;
        std::vector<int32_t> offsets(kExperts + 1);
        for (int e = 0; e <= kExperts; ++e) offsets[e] = e * rows_per_expert;
        const GroupedGemmParams p = {.out = bench.Rows<float>(pairs, n),
                                     .x = bench.Rows<const bf16>(pairs, k),
                                     .x_f8 = IsF8(format) ? bench.F8Rows(pairs, k) : QuantizedRows{},
                                     .x_rows = nullptr,
                                     .expert_offsets = bench.Put(offsets),
                                     .experts = experts};
        const CostContext shape = {.met_experts = kExperts};
        bench.Line({.name = name, .rows = pairs, .cost = CostOf(p, shape), .context = shape},
                   [&bench, p](int) { bench.ops().grouped_gemm(bench.stream(), p); });
        if (!p.x_f8 || s.n != 4096 || k % kQuantGroup != 0) continue;
        GroupedGemmParams silu = p;
        silu.out = {};
        silu.silu_f8 = bench.F8Rows(pairs, n / 2);
        bench.Line({.name = absl::StrCat(name, ", with SwiGLU"),
                    .rows = pairs,
                    .cost = CostOf(silu, shape),
                    .context = shape},
                   [&bench, silu](int) { bench.ops().grouped_gemm(bench.stream(), silu); });
      }
    }
  }
}

void Attention(Bench& bench) {
  struct Case {
    std::string name;
    int rows_per_sequence;
    int heads = 128;
    KvFormat format = {};
    int context = 4096;
    int list_len = 0;
    int max_rows = 128;
  };
  const Case cases[] = {{"mla_decode, 1 rows a sequence", 1},
                        {"mla_decode, 4 rows a sequence", 4},
                        {"mla_decode, 20 heads", 1, 20},
                        {"mla_decode, FP8 cache", 1, 128, DType::kF8E4M3},
                        {"mla_decode, FP8 products", 1, 128, {DType::kF8E4M3, true}},
                        {"mla_decode, 2,048 of 32,768 positions", 1, 128, DType::kBF16, 32768, 2048},
                        {"mla_decode, 163,840 positions", 1, 128, DType::kBF16, 163840, 0, 1}};
  for (const Case& c : cases) {
    const DecodeShape shape = {.name = c.name,
                               .heads = bench.Width(c.heads),
                               .latent = 512,
                               .rope = 64,
                               .nope = 128,
                               .layers = 61,
                               .tokens_per_block = 64,
                               .context = bench.Width(c.context),
                               .format = c.format,
                               .list_len = bench.options().small ? c.list_len / 16 : c.list_len};
    if (!bench.Wants(shape.name)) continue;
    for (const int rows : bench.rows()) {
      if (rows >= c.rows_per_sequence && rows <= c.max_rows)
        MlaDecodeLine(bench, shape, rows, c.rows_per_sequence);
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
      bench.Line({.name = "rms_norm", .rows = rows, .cost = CostOf(p)},
                 [&bench, p](int) { bench.ops().rms_norm(bench.stream(), p); });
      RmsNormParams f8 = p;
      f8.out_bf16 = {};
      f8.out_f8 = bench.F8Rows(rows, hidden);
      if (f8.out_f8) {
        bench.Line({.name = "rms_norm to FP8", .rows = rows, .cost = CostOf(f8)},
                   [&bench, f8](int) { bench.ops().rms_norm(bench.stream(), f8); });
      }
    }
    if (bench.Wants("add_partials")) {
      AddPartialsNormParams p = {
          .partials = {.hidden = bench.Rows<float>(rows, hidden),
                       .partials_bf16 = bench.Rows<const bf16>(8 * rows, hidden),
                       .shared = bench.Rows<const float>(rows, hidden),
                       .expert_ids = bench.Zeros<int32_t>(rows),
                       .top_k = 1,
                       .rank_count = 8},
          .norm = {.out_f8 = bench.F8Rows(rows, hidden), .weight = bench.Zeros<float>(hidden), .eps = 1e-6f}};
      p.norm.x = p.partials.hidden;
      bench.Line({.name = "add_partials", .rows = rows, .cost = CostOf(p.partials)},
                 [&bench, p](int) { bench.ops().add_partials(bench.stream(), p.partials); });
      bench.Line({.name = "add_partials_norm", .rows = rows, .cost = CostOf(p)},
                 [&bench, p](int) { bench.ops().add_partials_norm(bench.stream(), p); });
    }
    if (bench.Wants("silu_mul")) {
      const int width = bench.Width(2048);
      const SiluMulParams p = {.out = bench.Rows<bf16>(8 * rows, width),
                               .gate_up = bench.Rows<const float>(8 * rows, 2 * width)};
      bench.Line({.name = "silu_mul", .rows = 8 * rows, .cost = CostOf(p)},
                 [&bench, p](int) { bench.ops().silu_mul(bench.stream(), p); });
      SiluMulParams f8 = p;
      f8.out = {};
      f8.out_f8 = bench.F8Rows(8 * rows, width);
      if (f8.out_f8) {
        bench.Line({.name = "silu_mul to FP8", .rows = 8 * rows, .cost = CostOf(f8)},
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
      bench.Line({.name = "route_experts", .rows = rows, .cost = CostOf(route)},
                 [&](int) { bench.ops().route_experts(bench.stream(), route); });
    }
    if (bench.Wants("group_rows")) {
      bench.ops().route_experts(bench.stream(), route);
      bench.Line({.name = "group_rows", .rows = rows, .cost = CostOf(group)},
                 [&](int) { bench.ops().group_rows(bench.stream(), group); });
    }
    if (bench.Wants("combine_experts")) {
      bench.ops().route_experts(bench.stream(), route);
      bench.ops().group_rows(bench.stream(), group);
      bench.Line({.name = "combine_experts", .rows = rows, .cost = CostOf(combine)},
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
      bench.Line({.name = "argmax", .rows = rows, .cost = CostOf(p)},
                 [&](int) { bench.ops().argmax(bench.stream(), p); });
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
      const CostContext filters = {.sampled = kind.temperature > 0,
                                   .filtered = kind.top_p < 1 || kind.top_k > 0};
      bench.Line({.name = kind.name, .rows = rows, .cost = CostOf(p), .context = filters},
                 [&](int) { bench.ops().sample(bench.stream(), p); });
    }
  }
}

}  // namespace

int RunGpuOps(OpsOptions options) {
  if (options.rows.empty()) options.rows = {1, 4, 8, 32, 128};
  const bool paper = options.backend == "paper";
  if (paper && options.gpu.empty()) options.gpu = "h200";
  const GpuModel* gpu = FindGpuModel(options.gpu);
  if (gpu == nullptr && !options.gpu.empty()) {
    std::cerr << "ops_bench: --gpu " << options.gpu << ": unknown, allowed h200, h100\n";
    return 2;
  }
  absl::StatusOr<std::unique_ptr<Device>> device =
      paper ? std::make_unique<PaperDevice>(*gpu) : CreateDevice(options.backend, {.threads = 2});
  if (!device.ok()) {
    std::cerr << "ops_bench: " << device.status().message() << "\n";
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
  V4AttentionOps(bench, [&bench](int width) { return bench.Width(width); });
  return 0;
}

}  // namespace foredraft
