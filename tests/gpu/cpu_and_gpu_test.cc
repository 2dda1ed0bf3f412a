// Compares the two backends: ops whose bits they share, and the logits of a whole model.

#include <algorithm>
#include <cmath>
#include <iostream>
#include <vector>

#include "absl/strings/str_format.h"
#include "tests/engine/engine_harness.h"
#include "tests/engine/from_scratch.h"
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

// Each backend differs from float32 by no more than transformers in BF16 (golden_logits_test), so the two
// differ by no more than twice that.
TEST(CpuAndGpu, LogitsAreWithinTwiceTheBf16ErrorOfEachOther) {
  const ModelGolden golden = ReadModelGolden("abacus");
  const LoadedModel& cpu_model = LoadModelOnce(golden.checkpoint, "cpu");
  const LoadedModel& gpu_model = LoadModelOnce(golden.checkpoint);
  FromScratch cpu(*cpu_model.device, cpu_model.config, cpu_model.weights, 256);
  FromScratch gpu(*gpu_model.device, gpu_model.config, gpu_model.weights, 256);
  double largest_error = 0;
  for (const GoldenPrompt& prompt : golden.prompts) {
    for (const bool decode_form : {false, true}) {
      const int length = static_cast<int>(prompt.ids.size());
      const int prompt_len = decode_form ? std::min(length, 5) : length;
      const std::vector<float> a = cpu.TargetLogits(prompt.ids, prompt_len);
      const std::vector<float> b = gpu.TargetLogits(prompt.ids, prompt_len);
      ASSERT_EQ(a.size(), b.size());
      for (size_t first = 0; first < a.size(); first += golden.vocab_size) {
        double squares = 0;
        double largest = 0;
        for (size_t i = first; i < first + golden.vocab_size; ++i) {
          squares += double(a[i]) * a[i];
          largest = std::max(largest, std::abs(double(a[i]) - b[i]));
          ASSERT_FALSE(std::isnan(b[i]));
        }
        largest_error = std::max(largest_error, largest / std::sqrt(squares / golden.vocab_size));
      }
    }
  }
  std::cout << absl::StreamFormat("CPU and GPU logits: largest error over rms %.4f, bound %.4f\n",
                                  largest_error, 2 * golden.bfloat16_max_error);
  EXPECT_LE(largest_error, 2 * golden.bfloat16_max_error);
}

}  // namespace
}  // namespace foredraft
