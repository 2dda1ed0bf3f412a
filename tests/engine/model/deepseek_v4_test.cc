// The recipes of DeepSeek-V4 against transformers in float32 (target) and a float64 reference (MTP module):
// 600 positions of checkpoints with every kind of layer (tests/golden/make_v4_golden.py,
// make_dspark_golden.py). The bounds are not fitted: they follow from transformers' own distance when it
// computes in BF16. The prompt goes through in chunks of the prefill form, then row by row in the decode
// form, with drafts that are taken back.

#include "engine/model/deepseek_v4/deepseek_v4.h"

#include <algorithm>
#include <cmath>
#include <iostream>
#include <numeric>

#include "absl/strings/str_format.h"
#include "engine/comm/solo_communicator.h"
#include "engine/kinds/read_model_config.h"
#include "engine/model/model_kind.h"
#include "engine/model_weights.h"
#include "gtest/gtest.h"
#include "tests/engine/logit_distance.h"
#include "tests/golden/golden_reader.h"

namespace foredraft {
namespace {

constexpr int kDrafts = 3;
constexpr int kBlock = 16;

// A model, and forwards over one sequence.
class V4Runner {
 public:
  V4Runner(const std::string& checkpoint, int positions, KvFormat kv_format = DType::kBF16)
      : config_(*ReadModelConfig(checkpoint + "/config.json")),
        device_(*CreateDevice("cpu", {.threads = 2})),
        solo_(device_->ops()),
        stream_(device_->CreateStream()),
        positions_(positions),
        kv_format_(kv_format),
        modules_(config_.num_nextn_predict_layers) {
    auto weights = As<V4Weights>(LoadWeights(checkpoint, config_, modules_, *device_, *stream_, nullptr));
    CHECK(weights.ok()) << weights.status();
    model_ = *DeepseekV4::Create(*device_, solo_, config_, *std::move(weights),
                                 {.rows = positions, .decode_rows = positions, .positions = positions});
    NewSequence();
  }

  const ModelConfig& config() const { return config_; }
  int width() const { return model_->output_width(); }
  bool has_module() const { return modules_ > 0 && config_.drafter.empty(); }

  // One sequence's cache, as large as it can get. Everything that is not written is NaN.
  void NewSequence() {
    std::vector<CacheGroupTable> tables;
    std::vector<int> block_counts;
    for (const CacheGroup& group : CacheGroupsOf(config_, modules_, kBlock, kv_format_)) {
      std::vector<int32_t> table((positions_ + group.tokens_per_block - 1) / group.tokens_per_block);
      std::iota(table.rbegin(), table.rend(), 1);  // in descending order; block 0 is scratch
      tables.push_back({Put(table), static_cast<int>(table.size())});
      block_counts.push_back(static_cast<int>(table.size()) + 1);
    }
    const KvCacheShape shape = {.groups = CacheGroupsOf(config_, modules_, kBlock, kv_format_),
                                .block_counts = block_counts,
                                .boundaries = {}};
    cache_ = *KvCache::Create(*device_, shape, tables, /*poison=*/true);
  }

  // What a level made of some rows.
  struct Output {
    std::vector<float> streams;  // [rows, N D]
    std::vector<float> logits;   // [rows, V]
  };

  Output Target(const std::vector<int32_t>& ids, int first, bool prefill) {
    return Run(0, ids, first, prefill, {});
  }
  // previous: [rows, N D], the streams one position lower.
  Output Module(const std::vector<int32_t>& ids, int first, bool prefill,
                const std::vector<float>& previous) {
    return Run(1, ids, first, prefill, previous);
  }

 private:
  Output Run(int level, const std::vector<int32_t>& ids, int first, bool prefill,
             const std::vector<float>& previous) {
    const int rows = static_cast<int>(ids.size());
    std::vector<int32_t> slots(rows, 0), positions(rows);
    std::iota(positions.begin(), positions.end(), first);
    const PrefillSpan span = {.slot = 0, .first_row = 0, .row_count = rows, .first_position = first};
    Batch batch = {.index = {Put(slots), Put(positions), rows}, .ids = Put(ids)};
    if (prefill) batch.spans = std::span(&span, 1);
    const float* const below = level == 0 ? nullptr : Put(previous);
    if (level > 0) batch.previous = Dense(below, rows, width());
    Output output{std::vector<float>(size_t(rows) * width()),
                  std::vector<float>(size_t(rows) * config_.vocab_size)};
    const Matrix<float> streams = Dense(Put(output.streams), rows, width());
    const Matrix<float> logits = Dense(Put(output.logits), rows, config_.vocab_size);
    if (level == 0) {
      model_->RunTarget(*stream_, batch, cache_, streams);
    } else {
      model_->RunModule(*stream_, 0, batch, cache_, streams);
    }
    model_->Logits(*stream_, level, streams, logits, nullptr);
    device_->CopyToHost(*stream_, output.streams.data(), streams.data, output.streams.size() * sizeof(float));
    device_->CopyToHost(*stream_, output.logits.data(), logits.data, output.logits.size() * sizeof(float));
    stream_->Synchronize();
    return output;
  }

  template <class T>
  T* Put(const std::vector<T>& values) {
    T* const memory = *device_->AllocateArray<T>(values.size());
    device_->CopyToDevice(*stream_, memory, values.data(), values.size() * sizeof(T));
    return memory;
  }

  const ModelConfig config_;
  std::unique_ptr<Device> device_;
  SoloCommunicator solo_;
  std::unique_ptr<Stream> stream_;
  const int positions_;
  const KvFormat kv_format_;
  const int modules_;  // or stages of DSpark
  std::unique_ptr<DeepseekV4> model_;
  KvCache cache_;
};

void Append(std::vector<float>& all, const std::vector<float>& more) {
  all.insert(all.end(), more.begin(), more.end());
}

std::vector<int32_t> Slice(const std::vector<int32_t>& ids, int first, int count) {
  return {ids.begin() + first, ids.begin() + first + count};
}

struct Levels {
  std::vector<float> target;   // [positions, V]
  std::vector<float> module;   // [positions - 1, V]; empty without one
  std::vector<float> streams;  // [positions, N D]
};

// The whole prompt in chunks of the prefill form.
Levels Prefill(V4Runner& runner, const std::vector<int32_t>& ids, const std::vector<int>& chunks) {
  Levels levels;
  runner.NewSequence();
  int first = 0;
  for (const int count : chunks) {
    const V4Runner::Output target = runner.Target(Slice(ids, first, count), first, true);
    Append(levels.target, target.logits);
    Append(levels.streams, target.streams);
    const int module_first = std::max(first, 1);
    const int module_count = runner.has_module() ? first + count - module_first : 0;
    if (module_count > 0) {
      const auto below = levels.streams.begin() + int64_t{module_first - 1} * runner.width();
      const V4Runner::Output module =
          runner.Module(Slice(ids, module_first, module_count), module_first, true,
                        {below, below + int64_t{module_count} * runner.width()});
      Append(levels.module, module.logits);
    }
    first += count;
  }
  return levels;
}

// Row by row in the decode form. Every step verifies drafts that are all wrong: their rows stay in the cache.
Levels Decode(V4Runner& runner, const std::vector<int32_t>& ids) {
  Levels levels;
  runner.NewSequence();
  const int length = static_cast<int>(ids.size()), vocab = runner.config().vocab_size;
  for (int position = 0; position < length; ++position) {
    std::vector<int32_t> rows = {ids[position]};
    for (int draft = 1; draft <= std::min(kDrafts, length - 1 - position); ++draft) {
      rows.push_back((ids[position + draft] + 1) % vocab);
    }
    const V4Runner::Output target = runner.Target(rows, position, false);
    Append(levels.target, {target.logits.begin(), target.logits.begin() + vocab});
    Append(levels.streams, {target.streams.begin(), target.streams.begin() + runner.width()});
    if (position == 0 || !runner.has_module()) continue;
    const auto below = levels.streams.begin() + int64_t{position - 1} * runner.width();
    Append(levels.module,
           runner.Module({ids[position]}, position, false, {below, below + runner.width()}).logits);
  }
  return levels;
}

class DeepseekV4Golden : public ::testing::TestWithParam<const char*> {};

LogitDistance DistanceOf(const Levels& levels, const ModelGolden& golden) {
  const GoldenPrompt& prompt = golden.prompts[0];
  LogitDistance distance;
  distance.Add(levels.target, prompt.logits, golden.vocab_size);
  for (const GoldenMtp& mtp : prompt.mtp) distance.Add(levels.module, mtp.logits, golden.vocab_size);
  return distance;
}

void ExpectNear(const Levels& levels, const ModelGolden& golden, const char* form) {
  const LogitDistance distance = DistanceOf(levels, golden);
  std::cout << absl::StreamFormat(
      "%s form, %d rows: error over rms %.4f mean, %.4f max (transformers in BF16: %.4f, %.4f), argmax "
      "%.2f%% "
      "(%.2f%%)\n",
      form, distance.rows, distance.mean_error(), distance.largest_error, golden.bfloat16_mean_error,
      golden.bfloat16_max_error, 100 * distance.argmax_agreement(), 100 * golden.bfloat16_argmax_agreement);
  EXPECT_LE(distance.mean_error(), golden.bfloat16_mean_error);
  // The largest error is that of one row in which a nearly tied expert or entry was chosen otherwise. Which
  // rows these are is chance, in BF16 as here, so the two extremes may differ.
  EXPECT_LE(distance.largest_error, 2 * golden.bfloat16_max_error);
  // Near ties fall either way, so the agreement may be three standard deviations below BF16's rate.
  const double rate = golden.bfloat16_argmax_agreement;
  EXPECT_GE(distance.argmax_agreement(), rate - 3 * std::sqrt(rate * (1 - rate) / distance.rows));
}

// `deepseek_v4_nvfp4` has the weights of `deepseek_v4_fp4`, the target's experts cast exactly
// (tests/golden/cast_nvfp4.py), and so has its logits.
ModelGolden GoldenOf(const std::string& name) {
  const bool cast = name == "deepseek_v4_nvfp4";
  ModelGolden golden = ReadModelGolden(cast ? "deepseek_v4_fp4" : name);
  if (cast) golden.checkpoint = "tests/golden/checkpoints/deepseek_v4_nvfp4";
  return golden;
}

TEST_P(DeepseekV4Golden, IsAsNearAsTransformersInBf16) {
  const ModelGolden golden = GoldenOf(GetParam());
  const std::vector<int32_t>& ids = golden.prompts[0].ids;
  V4Runner runner(golden.checkpoint, static_cast<int>(ids.size()));
  const Levels whole = Prefill(runner, ids, {600});
  ExpectNear(whole, golden, "prefill");
  // Chunk borders leave no trace.
  const Levels chunks = Prefill(runner, ids, {1, 2, 13, 128, 129, 327});
  EXPECT_EQ(whole.target, chunks.target);
  EXPECT_EQ(whole.module, chunks.module);
  EXPECT_EQ(whole.streams, chunks.streams);
  ExpectNear(Decode(runner, ids), golden, "decode");
}

// As golden_logits_test.cc has it. A row of the forward itself is read as it is read from the cache: the
// forms and the chunks give the same bits in FP8, too.
TEST_P(DeepseekV4Golden, WithAnFp8CacheIsWithin16TimesTransformersInBf16) {
  const ModelGolden golden = GoldenOf(GetParam());
  const std::vector<int32_t>& ids = golden.prompts[0].ids;
  V4Runner runner(golden.checkpoint, static_cast<int>(ids.size()), DType::kF8E4M3);
  const Levels whole = Prefill(runner, ids, {600});
  const LogitDistance distance = DistanceOf(whole, golden);
  std::cout << absl::StreamFormat("FP8 cache: error over rms %.4f mean, %.4f max, argmax %.2f%%\n",
                                  distance.mean_error(), distance.largest_error,
                                  100 * distance.argmax_agreement());
  EXPECT_LE(distance.mean_error(), 16 * golden.bfloat16_mean_error);
  EXPECT_LE(distance.rows_above(16 * golden.bfloat16_max_error), distance.rows / 100);
  V4Runner plain(golden.checkpoint, static_cast<int>(ids.size()));
  EXPECT_NE(whole.target, Prefill(plain, ids, {600}).target) << "the FP8 cache was not read";
  const Levels chunks = Prefill(runner, ids, {1, 2, 13, 128, 129, 327});
  EXPECT_EQ(whole.target, chunks.target);
  EXPECT_EQ(whole.module, chunks.module);
  const Levels decode = Decode(runner, ids);
  EXPECT_EQ(whole.target, decode.target);
  EXPECT_EQ(whole.module, decode.module);
}

INSTANTIATE_TEST_SUITE_P(Checkpoints, DeepseekV4Golden,
                         ::testing::Values("deepseek_v4", "deepseek_v4_fp4", "deepseek_v4_nvfp4",
                                           "deepseek_v4_f32", "deepseek_v4_dspark", "deepseek_v4_dspark_fp4"),
                         [](const auto& info) { return std::string(info.param); });

// docs/deepseek-v4.md section 6: at position 1 the embedding counts as zero.
TEST(DeepseekV4Module, TakesNoTokenAtPositionOne) {
  V4Runner runner("tests/golden/checkpoints/deepseek_v4", 8);
  const std::vector<float> streams = runner.Target({5, 6}, 0, false).streams;
  const std::vector<float> first(streams.begin(), streams.begin() + runner.width());
  const std::vector<float> second(streams.begin() + runner.width(), streams.end());
  EXPECT_EQ(runner.Module({6}, 1, false, first).logits, runner.Module({7}, 1, false, first).logits);
  EXPECT_NE(runner.Module({8}, 2, false, second).logits, runner.Module({9}, 2, false, second).logits);
}

}  // namespace
}  // namespace foredraft
