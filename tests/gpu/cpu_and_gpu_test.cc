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

// Both backends round the same values to BF16, but add in another order, which turns some roundings the other
// way. If all of them were independent, the backends' errors against float32 would be of equal size and
// independent, and the mean distance between the backends sqrt(2) times the CPU's own. As most are shared, it
// is less. The largest errors are of rows where the error changes the choice of an expert: each backend has
// such rows, so twice the CPU's.
TEST(CpuAndGpu, LogitsAreAsNearAsBf16Allows) {
  const ModelGolden golden = ReadModelGolden("abacus");
  const LoadedModel& cpu_model = LoadModelOnce(golden.checkpoint, "cpu");
  const LoadedModel& gpu_model = LoadModelOnce(golden.checkpoint);
  FromScratch cpu(*cpu_model.device, cpu_model.config, cpu_model.weights, 256);
  FromScratch gpu(*gpu_model.device, gpu_model.config, gpu_model.weights, 256);
  for (const bool decode_form : {false, true}) {
    LogitDistance of_cpu, of_gpu, between;
    for (const GoldenPrompt& prompt : golden.prompts) {
      const int length = static_cast<int>(prompt.ids.size());
      const int prompt_len = decode_form ? std::min(length, 5) : length;
      const std::vector<float> cpu_logits = cpu.TargetLogits(prompt.ids, prompt_len);
      const std::vector<float> gpu_logits = gpu.TargetLogits(prompt.ids, prompt_len);
      of_cpu.Add(cpu_logits, prompt.logits, golden.vocab_size);
      of_gpu.Add(gpu_logits, prompt.logits, golden.vocab_size);
      between.Add(gpu_logits, cpu_logits, golden.vocab_size);
    }
    std::cout << absl::StreamFormat(
        "CPU and GPU logits, %s form, error over rms, mean and max: CPU to float32 %.4f %.4f, GPU to float32 "
        "%.4f %.4f, GPU to CPU %.4f %.4f\n",
        decode_form ? "decode" : "prefill", of_cpu.mean_error(), of_cpu.largest_error, of_gpu.mean_error(),
        of_gpu.largest_error, between.mean_error(), between.largest_error);
    EXPECT_LE(between.mean_error(), std::sqrt(2.0) * of_cpu.mean_error());
    EXPECT_LE(between.largest_error, 2 * of_cpu.largest_error);
  }
}

}  // namespace
}  // namespace foredraft
