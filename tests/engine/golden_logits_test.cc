// Logits against transformers in float32 (tests/golden): every position, target and MTP modules, prefill and
// decode form. Where transformers has no MTP modules, theirs are a float64 reference's.
//
// The bound is not fitted: it is the distance between the reference's own logits in BF16 and its exact ones,
// measured when the golden was made. foredraft rounds the same inputs to BF16 and keeps the residual stream
// in FP32, so it has to be at least as near.
//
// E4M3 has four bits of mantissa less than BF16, so that its roundings are 16 times as large. With an FP8
// cache, and on a device that rounds the inputs of FP8 weights too, the bound is 16 times as large. Where two
// experts are nearly tied, such a rounding chooses between them and so changes a row by any amount; one row
// in a hundred may be such a one.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <iostream>
#include <string>

#include "absl/strings/str_format.h"
#include "tests/engine/engine_harness.h"
#include "tests/engine/from_scratch.h"
#include "tests/engine/logit_distance.h"
#include "tests/engine/test_requests.h"
#include "tests/golden/golden_reader.h"
#include "tools/quantize/quantize_checkpoint.h"

namespace foredraft {
namespace {

constexpr int kDecodeFrom = 5;  // tokens of the prompt when the rest goes in the decode form

class GoldenLogits : public ::testing::TestWithParam<const char*> {};

// `nvfp4` has the weights of `fp4`, cast exactly (tests/golden/cast_nvfp4.py), and so has its logits.
ModelGolden GoldenOf(const std::string& name) {
  const bool cast = name == "nvfp4";
  ModelGolden golden = ReadModelGolden(cast ? "fp4" : name);
  if (cast) golden.checkpoint = "tests/golden/checkpoints/nvfp4";
  return golden;
}

constexpr int kF8Roundings = 16;

// Whether the device rounds what FP8 weights multiply.
bool RoundsInputsToF8(const LoadedModel& model) {
  return model.device->quantizes_rows() && model.config.projections.code == DType::kF8E4M3;
}

void ExpectWithinF8Roundings(const LogitDistance& distance, const ModelGolden& golden) {
  EXPECT_LE(distance.mean_error(), kF8Roundings * golden.bfloat16_mean_error);
  EXPECT_LE(distance.rows_above(kF8Roundings * golden.bfloat16_max_error), distance.rows / 100);
}

LogitDistance DistanceOf(FromScratch& forward, const ModelGolden& golden, bool decode_form) {
  LogitDistance distance;
  for (const GoldenPrompt& prompt : golden.prompts) {
    const int length = static_cast<int>(prompt.ids.size());
    const int prompt_len = decode_form ? std::min(length, kDecodeFrom) : length;
    distance.Add(forward.TargetLogits(prompt.ids, prompt_len), prompt.logits, golden.vocab_size);
    for (const GoldenMtp& mtp : prompt.mtp) {
      EXPECT_EQ(mtp.first_position, mtp.module);
      distance.Add(forward.ModuleLogits(mtp.module, prompt.ids, prompt_len), mtp.logits, golden.vocab_size);
    }
  }
  return distance;
}

TEST_P(GoldenLogits, AreAsNearAsTransformersInBf16) {
  const ModelGolden golden = GoldenOf(GetParam());
  const LoadedModel& model = LoadModelOnce(golden.checkpoint);
  FromScratch forward(*model.device, model.config, model.weights, 256);
  for (const bool decode_form : {false, true}) {
    const LogitDistance distance = DistanceOf(forward, golden, decode_form);
    std::cout << absl::StreamFormat(
        "%s, %s form, %d rows: error over rms %.4f mean, %.4f max (transformers in BF16: %.4f, %.4f), "
        "argmax %.2f%% (%.2f%%)\n",
        GetParam(), decode_form ? "decode" : "prefill", distance.rows, distance.mean_error(),
        distance.largest_error, golden.bfloat16_mean_error, golden.bfloat16_max_error,
        100 * distance.argmax_agreement(), 100 * golden.bfloat16_argmax_agreement);
    if (RoundsInputsToF8(model)) {
      ExpectWithinF8Roundings(distance, golden);
      continue;
    }
    EXPECT_LE(distance.mean_error(), golden.bfloat16_mean_error);
    if (model.config.index_topk > 0 && distance.rows > 300) {
      // Long prompts have selections that are nearly tied. A rounding changes such a row by any amount, here
      // and in the reference in BF16; beyond the reference's largest one row in a hundred may be.
      EXPECT_LE(distance.rows_above(golden.bfloat16_max_error), distance.rows / 100);
    } else {
      EXPECT_LE(distance.largest_error, golden.bfloat16_max_error);
    }
    // Near ties fall either way, so the agreement may be three standard deviations below BF16's rate.
    const double rate = golden.bfloat16_argmax_agreement;
    EXPECT_GE(distance.argmax_agreement(), rate - 3 * std::sqrt(rate * (1 - rate) / distance.rows));
  }
}

// The reference in BF16 rounds the latents too, beside much else.
TEST_P(GoldenLogits, WithAnFp8CacheAreWithin16TimesTransformersInBf16) {
  const ModelGolden golden = GoldenOf(GetParam());
  const LoadedModel& model = LoadModelOnce(golden.checkpoint);
  FromScratch forward(*model.device, model.config, model.weights, 256, DType::kF8E4M3);
  for (const bool decode_form : {false, true}) {
    const LogitDistance distance = DistanceOf(forward, golden, decode_form);
    std::cout << absl::StreamFormat(
        "%s, %s form, FP8 cache: error over rms %.4f mean, %.4f max, argmax %.2f%%\n", GetParam(),
        decode_form ? "decode" : "prefill", distance.mean_error(), distance.largest_error,
        100 * distance.argmax_agreement());
    ExpectWithinF8Roundings(distance, golden);
  }
}

// An element of a rounded group of g moves by amax / 254 at most, and amax is sqrt(g) times the group's root
// mean square at most: sqrt(g) times what BF16 rounds of an element of that size, and less in the mean.
// BF16's own roundings come on top.
double Int8Roundings(const ModelConfig& config) {
  const WeightFormat& format = config.experts.value_or(config.projections);
  return 1 + std::sqrt(format.columns);
}

std::string DistanceText(const LogitDistance& distance) {
  return absl::StrFormat(
      "error over rms %.4f mean, %.4f max; divergence %.2e mean, %.2e max; argmax %.2f%%; %d rows",
      distance.mean_error(), distance.largest_error, distance.mean_divergence(), distance.largest_divergence,
      100 * distance.argmax_agreement(), distance.rows);
}

class Int8Logits : public ::testing::TestWithParam<const char*> {};

TEST_P(Int8Logits, AreWithinTheirRoundingsOfTransformersInBf16) {
  if (TestBackend() != "cpu") return;  // an option of the CPU
  const ModelGolden golden = GoldenOf(GetParam());
  const LoadedModel& model = LoadModelOnce(golden.checkpoint, TestBackend(), {}, {.int8_inputs = true});
  const double roundings = Int8Roundings(model.config);
  FromScratch forward(*model.device, model.config, model.weights, 256);
  for (const bool decode_form : {false, true}) {
    const LogitDistance distance = DistanceOf(forward, golden, decode_form);
    std::cout << GetParam() << ", inputs in 8 bits: " << DistanceText(distance) << "\n";
    EXPECT_LE(distance.mean_error(), roundings * golden.bfloat16_mean_error);
    EXPECT_LE(distance.rows_above(roundings * golden.bfloat16_max_error), distance.rows / 100);
  }
}

INSTANTIATE_TEST_SUITE_P(Checkpoints, Int8Logits, ::testing::Values("int4", "fp4", "nvfp4"),
                         [](const auto& info) { return std::string(info.param); });

// With abacus, inputs in 8 bits change the logits of its INT4 weights less than these weights change those of
// BF16 weights (docs/cpu-server.md section 5 has the figures).
TEST(Int8Logits, OfAbacusMoveLessThanByItsWeights) {
  if (TestBackend() != "cpu") return;  // an option of the CPU
  const std::string dir = testing::TempDir() + "/golden_logits_int4";
  std::filesystem::remove_all(dir);
  const auto report =
      QuantizeCheckpoint({.in_dir = kAbacusDir, .out_dir = dir, .format = kInt4Format}, nullptr);
  ASSERT_TRUE(report.ok()) << report.status();
  const ModelGolden golden = ReadModelGolden("abacus");
  const LoadedModel* const models[] = {&LoadModelOnce(kAbacusDir), &LoadModelOnce(dir),
                                       &LoadModelOnce(dir, TestBackend(), {}, {.int8_inputs = true})};
  std::vector<std::vector<float>> logits[3];
  for (int i = 0; i < 3; ++i) {
    FromScratch forward(*models[i]->device, models[i]->config, models[i]->weights, 256);
    for (const GoldenPrompt& prompt : golden.prompts) {
      logits[i].push_back(forward.TargetLogits(prompt.ids, static_cast<int>(prompt.ids.size())));
    }
  }
  LogitDistance of_weights, of_inputs;
  for (size_t i = 0; i < golden.prompts.size(); ++i) {
    of_weights.Add(logits[1][i], logits[0][i], golden.vocab_size);
    of_inputs.Add(logits[2][i], logits[1][i], golden.vocab_size);
  }
  std::cout << "abacus, INT4 weights beside BF16: " << DistanceText(of_weights) << "\n"
            << "abacus, inputs in 8 bits beside BF16: " << DistanceText(of_inputs) << "\n";
  EXPECT_GT(of_inputs.mean_divergence(), 0);
  EXPECT_LT(of_inputs.mean_divergence(), of_weights.mean_divergence());
  EXPECT_LT(of_inputs.mean_error(), of_weights.mean_error());
}

INSTANTIATE_TEST_SUITE_P(Checkpoints, GoldenLogits,
                         ::testing::Values("abacus", "grouped", "fp8", "int4", "fp4", "nvfp4",
                                           "glm4_moe_lite", "kimi_k2", "deepseek_v32", "glm_moe_dsa",
                                           "joyai_llm_flash", "deepseek_v32_long", "glm_moe_dsa_long"),
                         [](const auto& info) { return std::string(info.param); });

}  // namespace
}  // namespace foredraft
