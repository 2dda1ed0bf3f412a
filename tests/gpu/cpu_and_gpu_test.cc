// Compares the two backends: ops whose bits they share, and the logits of a whole model.

#include <algorithm>
#include <cmath>
#include <iostream>
#include <vector>

#include "absl/strings/str_format.h"
#include "tests/engine/engine_harness.h"
#include "tests/engine/from_scratch.h"
#include "tests/engine/logit_distance.h"
#include "tests/golden/golden_reader.h"
#include "tests/ops/op_rig.h"
#include "tests/ops/slot_fixture.h"

namespace foredraft {
namespace {

constexpr int kVocab = 129280;

// Rows similar to a model's: most logits within a few nats, some high, some equal.
std::vector<float> ModelLogits(Noise& noise, int rows) {
  std::vector<float> logits = noise.Floats(size_t(rows) * kVocab, 2.0f);
  for (size_t i = 0; i < logits.size(); i += 97) logits[i] = std::round(logits[i]) + 3.0f;
  return logits;
}

struct Filters {
  float temperature, top_p, min_p;
  int top_k;
};

const Filters kFilters[] = {{0.0f, 1.0f, 0.0f, 0},   {1.0f, 1.0f, 0.0f, 0},    {0.6f, 0.95f, 0.0f, 0},
                            {1.0f, 1.0f, 0.0f, 40},  {1.3f, 0.9f, 0.02f, 500}, {100.0f, 0.5f, 0.0f, 0},
                            {0.001f, 0.9f, 0.0f, 40}};

std::vector<int32_t> SampledTokens(OpRig& rig, const std::vector<float>& logits) {
  constexpr int kRows = static_cast<int>(std::size(kFilters));
  SlotFixture slots(kRows, kVocab);
  std::vector<int32_t> slot_ids(kRows), positions(kRows);
  for (int row = 0; row < kRows; ++row) {
    SlotConstants& c = slots.constants[row];
    c.seed = 1000 + row;
    c.temperature = kFilters[row].temperature;
    c.top_p = kFilters[row].top_p;
    c.min_p = kFilters[row].min_p;
    c.top_k = kFilters[row].top_k;
    c.presence_penalty = row % 2 == 0 ? 0.5f : 0.0f;
    slots.output_counts[size_t(row) * kVocab + 97] = 2;
    slot_ids[row] = row;
    positions[row] = 10 * row;
  }
  int32_t* const out = rig.Poisoned<int32_t>(kRows);
  const SampleParams params = {.out = out,
                               .logits = Dense<const float>(rig.Put(logits), kRows, kVocab),
                               .index = {rig.Put(slot_ids), rig.Put(positions), kRows},
                               .ids = rig.Put(std::vector<int32_t>(kRows, 0)),
                               .slots = slots.Put(rig),
                               .scratch = rig.Poisoned<float>(size_t(kRows) * kVocab)};
  rig.Run([&] { rig.ops().sample(rig.stream(), params); });
  return rig.Get(out, kRows);
}

TEST(CpuAndGpu, DrawTheSameTokens) {
  OpRig cpu({.threads = 4}, RunMode::kEager, "cpu");
  OpRig gpu({}, RunMode::kEager);
  for (int seed = 0; seed < 8; ++seed) {
    Noise noise(seed);
    const std::vector<float> logits = ModelLogits(noise, static_cast<int>(std::size(kFilters)));
    EXPECT_EQ(SampledTokens(gpu, logits), SampledTokens(cpu, logits)) << "seed " << seed;
  }
}

struct Routed {
  std::vector<int32_t> ids;
  std::vector<float> weights;
};

Routed Route(const std::string& backend) {
  constexpr int kRows = 300, kExperts = 256, kTopK = 8;
  Noise noise(61);
  const std::vector<float> logits = noise.Floats(kRows * kExperts);
  const std::vector<float> bias = noise.Floats(kExperts, 0.1f);
  const std::vector<int32_t> slots(kRows, 0);
  OpRig rig({}, RunMode::kEager, backend);
  const RouteExpertsParams params = {.expert_ids = rig.Poisoned<int32_t>(kRows * kTopK),
                                     .expert_weights = rig.Poisoned<float>(kRows * kTopK),
                                     .logits = Dense<const float>(rig.Put(logits), kRows, kExperts),
                                     .bias = rig.Put(bias),
                                     .index = {rig.Put(slots), rig.Put(slots), kRows},
                                     .n_group = 8,
                                     .topk_group = 4,
                                     .top_k = kTopK,
                                     .norm_topk_prob = 1,
                                     .routed_scaling_factor = 2.5f};
  rig.Run([&] { rig.ops().route_experts(rig.stream(), params); });
  return {rig.Get(params.expert_ids, kRows * kTopK), rig.Get(params.expert_weights, kRows * kTopK)};
}

TEST(CpuAndGpu, RouteTheSameWay) {
  const Routed cpu = Route("cpu");
  const Routed gpu = Route(TestBackend());
  EXPECT_EQ(gpu.ids, cpu.ids);
  EXPECT_EQ(BytesOf(gpu.weights.data(), gpu.weights.size()), BytesOf(cpu.weights.data(), cpu.weights.size()));
}

Routed RouteSoftplus(const std::string& backend, bool by_token) {
  constexpr int kRows = 300, kExperts = 256, kTopK = 6, kTokens = 40;
  Noise noise(62);
  const std::vector<float> logits = noise.Floats(kRows * kExperts, 3.0f);
  const std::vector<float> bias = noise.Floats(kExperts, 0.3f);
  const std::vector<int32_t> slots(kRows, 0);
  std::vector<int32_t> tokens(kRows), table;
  for (int32_t& token : tokens) token = noise.Int(0, kTokens - 1);
  // Any distinct experts, in no order.
  for (int i = 0; i < kTokens * kTopK; ++i) table.push_back(i * 37 % kExperts);
  OpRig rig({}, RunMode::kEager, backend);
  const RouteSoftplusParams params = {.expert_ids = rig.Poisoned<int32_t>(kRows * kTopK),
                                      .expert_weights = rig.Poisoned<float>(kRows * kTopK),
                                      .logits = Dense<const float>(rig.Put(logits), kRows, kExperts),
                                      .bias = rig.Put(bias),
                                      .expert_table = by_token ? rig.Put(table) : nullptr,
                                      .ids = rig.Put(tokens),
                                      .index = {rig.Put(slots), rig.Put(slots), kRows},
                                      .vocab_size = kTokens,
                                      .top_k = kTopK,
                                      .routed_scaling_factor = 1.5f};
  rig.Run([&] { rig.ops().route_softplus(rig.stream(), params); });
  return {rig.Get(params.expert_ids, kRows * kTopK), rig.Get(params.expert_weights, kRows * kTopK)};
}

TEST(CpuAndGpu, RouteV4TheSameWay) {
  for (const bool by_token : {false, true}) {
    const Routed cpu = RouteSoftplus("cpu", by_token);
    const Routed gpu = RouteSoftplus(TestBackend(), by_token);
    EXPECT_EQ(gpu.ids, cpu.ids);
    EXPECT_EQ(BytesOf(gpu.weights.data(), gpu.weights.size()),
              BytesOf(cpu.weights.data(), cpu.weights.size()));
  }
}

// Both backends round the same values to BF16, but add in another order, which turns some roundings the other
// way. If all of them were independent, the backends' errors against float32 would be of equal size and
// independent, and the mean distance between the backends sqrt(2) times the CPU's own. As most are shared, it
// is less. The largest errors are of rows where the error changes the choice of an expert: each backend has
// such rows, so twice the CPU's.
struct BackendDistances {
  LogitDistance of_cpu, of_gpu, between;

  void Add(const std::vector<float>& cpu, const std::vector<float>& gpu, const std::vector<float>& reference,
           int vocab_size) {
    of_cpu.Add(cpu, reference, vocab_size);
    of_gpu.Add(gpu, reference, vocab_size);
    between.Add(gpu, cpu, vocab_size);
  }
};

void ExpectAsNearAsBf16Allows(const ModelGolden& golden, int positions) {
  const LoadedModel& cpu_model = LoadModelOnce(golden.checkpoint, "cpu");
  const LoadedModel& gpu_model = LoadModelOnce(golden.checkpoint);
  FromScratch cpu(*cpu_model.device, cpu_model.config, cpu_model.weights, positions);
  FromScratch gpu(*gpu_model.device, gpu_model.config, gpu_model.weights, positions);
  for (const bool decode_form : {false, true}) {
    BackendDistances d;
    for (const GoldenPrompt& prompt : golden.prompts) {
      const int length = static_cast<int>(prompt.ids.size());
      const int prompt_len = decode_form ? std::min(length, 5) : length;
      d.Add(cpu.TargetLogits(prompt.ids, prompt_len), gpu.TargetLogits(prompt.ids, prompt_len), prompt.logits,
            golden.vocab_size);
      for (const GoldenMtp& mtp : prompt.mtp) {
        d.Add(cpu.ModuleLogits(mtp.module, prompt.ids, prompt_len),
              gpu.ModuleLogits(mtp.module, prompt.ids, prompt_len), mtp.logits, golden.vocab_size);
      }
    }
    std::cout << absl::StreamFormat(
        "CPU and GPU logits, %s form, error over rms, mean and max: CPU to float32 %.4f %.4f, GPU to float32 "
        "%.4f %.4f, GPU to CPU %.4f %.4f\n",
        decode_form ? "decode" : "prefill", d.of_cpu.mean_error(), d.of_cpu.largest_error,
        d.of_gpu.mean_error(), d.of_gpu.largest_error, d.between.mean_error(), d.between.largest_error);
    EXPECT_LE(d.between.mean_error(), std::sqrt(2.0) * d.of_cpu.mean_error());
    EXPECT_LE(d.between.largest_error, 2 * d.of_cpu.largest_error);
  }
}

TEST(CpuAndGpu, LogitsAreAsNearAsBf16Allows) {
  ModelGolden golden = ReadModelGolden("abacus");
  for (GoldenPrompt& prompt : golden.prompts) prompt.mtp.clear();  // its modules share the target's kernels
  ExpectAsNearAsBf16Allows(golden, 256);
}

#ifdef FOREDRAFT_EMULATED_GPU
constexpr int kV4Positions = 140;  // an entry of 128 tokens, more entries of 4 than the indexer keeps
#else
constexpr int kV4Positions = 600;  // all
#endif

// DeepSeek-V4, its MTP module too. What comes later in a prompt changes no earlier logits.
TEST(CpuAndGpu, V4LogitsAreAsNearAsBf16Allows) {
  ModelGolden golden = ReadModelGolden("deepseek_v4");
  for (GoldenPrompt& prompt : golden.prompts) {
    prompt.ids.resize(std::min<size_t>(prompt.ids.size(), kV4Positions));
    prompt.logits.resize(prompt.ids.size() * golden.vocab_size);
    for (GoldenMtp& mtp : prompt.mtp) {
      mtp.logits.resize((prompt.ids.size() - mtp.first_position) * golden.vocab_size);
    }
  }
  ExpectAsNearAsBf16Allows(golden, kV4Positions);
}

}  // namespace
}  // namespace foredraft
