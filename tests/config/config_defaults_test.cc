#include "config/config_defaults.h"

#include <filesystem>
#include <fstream>

#include "config/config_reader.h"
#include "config/decode_buckets.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace foredraft {
namespace {

using ::testing::ElementsAre;

// const: UBSan of GCC 12 takes the string inside for no constant expression.
const HostResources kHost = {.cores = 4, .ram_bytes = int64_t{1} << 30};

// 512 bytes of cache per token, 768 with a module.
ModelLimits SmallModel() {
  return {.vocab_size = 100,
          .longest_sequence = 10000,
          .sequence_bound = "max_position_embeddings",
          .check_drafter = nullptr,
          .check_parallel = nullptr,
          .cache_bytes = [](const Config& config) {
            return CacheBytes{.per_token = 512 + 256 * config.speculative_config.has_value()};
          }};
}

LoadedConfig LoadOrDie(const std::string& text) {
  absl::StatusOr<LoadedConfig> loaded = ParseConfig({"c.yaml", text, {}, {}});
  EXPECT_TRUE(loaded.ok()) << loaded.status();
  return loaded.ok() ? *loaded : LoadedConfig{};
}

Config Resolve(const std::string& text) {
  LoadedConfig loaded = LoadOrDie(text);
  const ModelLimits model = SmallModel();
  EXPECT_EQ(ResolveDefaults(kHost, &model, loaded), absl::OkStatus());
  return loaded.config;
}

TEST(ResolveDefaults, FillsWhatIsUnset) {
  const Config config = Resolve("model: /models/abacus/\nmax_batch_size: 20");
  EXPECT_EQ(config.served_model_name, "abacus");
  EXPECT_EQ(config.max_seq_len, 4096);
  EXPECT_EQ(config.kv_cache_config.tokens_per_block, 32);
  EXPECT_EQ(config.kv_cache_config.max_tokens, 20 * 4096);
  EXPECT_THAT(config.cuda_graph_config->batch_sizes, ElementsAre(1, 2, 4, 8, 16, 20));
  EXPECT_EQ(config.cpu.threads, 4);
  EXPECT_EQ(config.cpu.pin, true);
  EXPECT_EQ(config.constraints->max_live, 20);
  EXPECT_EQ(Resolve("model: /m\nmax_batch_size: 300").constraints->max_live, 256);
  EXPECT_EQ(Resolve("model: /m\nconstraints: {max_live: 300}").constraints->max_live, 300);
  EXPECT_FALSE(Resolve("model: /m\nconstraints: null").constraints.has_value());
}

TEST(ResolveDefaults, RefusesAnAliasThatIsTheModelsOwnName) {
  for (const char* text : {"model: /models/abacus\nserver: {model_aliases: [a, abacus]}",
                           "model: /m\nserved_model_name: abacus\nserver: {model_aliases: [abacus]}"}) {
    LoadedConfig loaded = LoadOrDie(text);
    EXPECT_THAT(
        std::string(ResolveDefaults(kHost, nullptr, loaded).message()),
        testing::HasSubstr("server.model_aliases: abacus, allowed other names than served_model_name"))
        << text;
  }
}

TEST(ResolveDefaults, KeepsWhatIsSet) {
  const Config config = Resolve(
      "model: /m\nserved_model_name: n\nmax_seq_len: 9000\ncpu: {threads: 8}\n"
      "kv_cache_config: {tokens_per_block: 16, max_tokens: 77}");
  EXPECT_EQ(config.served_model_name, "n");
  EXPECT_EQ(config.max_seq_len, 9000);
  EXPECT_EQ(config.kv_cache_config.tokens_per_block, 16);
  EXPECT_EQ(config.kv_cache_config.max_tokens, 77);
  EXPECT_EQ(config.cpu.pin, false) << "8 threads do not fit 4 cores";
}

TEST(ResolveDefaults, ThePoolIsAtMostAQuarterOfRam) {
  EXPECT_EQ(Resolve("model: /m\nmax_batch_size: 4096").kv_cache_config.max_tokens, (int64_t{1} << 28) / 512);
  EXPECT_EQ(Resolve("model: /m\nmax_batch_size: 4096\nspeculative_config: {}").kv_cache_config.max_tokens,
            (int64_t{1} << 28) / 768 / 32 * 32);
}

TEST(ResolveDefaults, RanksShareTheirHost) {
  struct Case {
    const char* local_workers;
    int threads;
    int64_t max_tokens;
  };
  const int64_t quarter = (int64_t{1} << 28) / 512;
  for (const Case& test : {Case{"auto", 2, quarter / 2}, Case{"2", 2, quarter / 2}, Case{"1", 4, quarter},
                           Case{"0", 4, quarter}}) {
    LoadedConfig loaded = LoadOrDie("model: /m\nmax_batch_size: 4096");
    loaded.config.parallel.attention_dp = loaded.config.parallel.moe_ep = 2;
    loaded.config.parallel.local_workers = test.local_workers;
    const ModelLimits model = SmallModel();
    ASSERT_EQ(ResolveDefaults(kHost, &model, loaded), absl::OkStatus());
    EXPECT_EQ(loaded.config.cpu.threads, test.threads) << test.local_workers;
    EXPECT_EQ(loaded.config.cpu.pin, test.threads == 4) << test.local_workers;
    EXPECT_EQ(loaded.config.kv_cache_config.max_tokens, test.max_tokens) << test.local_workers;
  }
}

TEST(ResolveDefaults, RanksOfOneHostAreNotPinned) {
  LoadedConfig loaded = LoadOrDie("model: /m\ncpu: {pin: true}\nparallel: {attention_dp: 4, moe_ep: 4}");
  EXPECT_EQ(std::string(ResolveDefaults(kHost, nullptr, loaded).message()),
            "c.yaml:2: cpu.pin: true, allowed false where ranks share a host");
}

TEST(ResolveDefaults, WithoutAModelItsKeysStayUnset) {
  LoadedConfig loaded = LoadOrDie("model: /m");
  ASSERT_EQ(ResolveDefaults(kHost, nullptr, loaded), absl::OkStatus());
  EXPECT_EQ(loaded.config.max_seq_len, 0);
  EXPECT_EQ(loaded.config.served_model_name, "m");
}

struct Refusal {
  const char* name;
  const char* keys;
  const char* error;
};

class ResolveDefaultsRefuses : public ::testing::TestWithParam<Refusal> {};

TEST_P(ResolveDefaultsRefuses, WhatTheModelCannotDo) {
  LoadedConfig loaded = LoadOrDie(std::string("model: /m\n") + GetParam().keys);
  const ModelLimits model = SmallModel();
  EXPECT_EQ(std::string(ResolveDefaults(kHost, &model, loaded).message()), GetParam().error);
}

const Refusal kRefusals[] = {
    {"TooLong", "max_seq_len: 10001",
     "c.yaml:2: max_seq_len: 10001, allowed 2..10000, max_position_embeddings"},
    {"PromptsThatCannotBeCut", "max_num_tokens: 16\nenable_chunked_prefill: false",
     "c.yaml:3: enable_chunked_prefill: false, allowed true where max_num_tokens, 16, is below max_seq_len, "
     "4096"},
    {"ThinkingToken", "speculative_config: {begin_thinking_phase_token: 100}",
     "c.yaml:2: speculative_config.begin_thinking_phase_token: 100, allowed 0..99, the vocabulary"},
};
INSTANTIATE_TEST_SUITE_P(Cases, ResolveDefaultsRefuses, ::testing::ValuesIn(kRefusals),
                         [](const auto& info) { return info.param.name; });

TEST(ResolveDefaults, Fp8ProductsNeedLatents) {
  const std::string text = "model: /m\nkv_cache_config: {dtype: fp8, attention_products: fp8}";
  EXPECT_EQ(Resolve(text).kv_cache_config.attention_products, AttentionProducts::kFp8);
  ModelLimits model = SmallModel();
  model.fp8_products = false;
  LoadedConfig loaded = LoadOrDie(text);
  EXPECT_EQ(
      std::string(ResolveDefaults(kHost, &model, loaded).message()),
      "c.yaml:2: kv_cache_config.attention_products: fp8, allowed bf16 with this model, whose keys are no "
      "latents");
}

TEST(ResolveDefaults, RoundedInputsNeedExpertsInNvfp4) {
  const std::string text = "model: /m\nmoe: {inputs: nvfp4}";
  EXPECT_EQ(Resolve("model: /m").moe.inputs, MoeInputs::kAuto);
  EXPECT_EQ(Resolve(text).moe.inputs, MoeInputs::kNvfp4);
  ModelLimits model = SmallModel();
  model.nvfp4_experts = false;
  LoadedConfig loaded = LoadOrDie(text);
  EXPECT_EQ(
      std::string(ResolveDefaults(kHost, &model, loaded).message()),
      "c.yaml:2: moe.inputs: nvfp4, allowed auto with this model, whose routed experts are not in NVFP4");
}

TEST(ResolveDefaults, Int8InputsNeedWeightsOf4Bits) {
  const std::string text = "model: /m\ncpu: {inputs: int8}";
  EXPECT_EQ(Resolve("model: /m").cpu.inputs, CpuInputs::kBf16);
  EXPECT_EQ(Resolve(text).cpu.inputs, CpuInputs::kInt8);
  ModelLimits model = SmallModel();
  model.has_4bit_weights = false;
  LoadedConfig loaded = LoadOrDie(text);
  EXPECT_EQ(std::string(ResolveDefaults(kHost, &model, loaded).message()),
            "c.yaml:2: cpu.inputs: int8, allowed bf16 with this model, which has no weights of 4-bit codes");
}

TEST(ResolveDefaults, ADrafterIsCheckedWhereThereIsOne) {
  ModelLimits model = SmallModel();
  model.check_drafter = [](const LoadedConfig& loaded, ConfigErrors& errors) {
    errors.Add("speculative_config.max_draft_len",
               RefuseKey(loaded, "speculative_config.max_draft_len", "3", "fewer"));
  };
  LoadedConfig loaded = LoadOrDie("model: /m\nspeculative_config:\n  max_draft_len: 3");
  EXPECT_EQ(std::string(ResolveDefaults(kHost, &model, loaded).message()),
            "c.yaml:3: speculative_config.max_draft_len: 3, allowed fewer");
  loaded = LoadOrDie("model: /m\nspeculative_config:\n  max_draft_len: 0");
  EXPECT_EQ(ResolveDefaults(kHost, &model, loaded), absl::OkStatus());
}

TEST(ResolveDefaults, TheWindowsOfACacheLeaveTheHistoryLess) {
  ModelLimits model = SmallModel();
  model.cache_bytes = [](const Config& config) {
    return CacheBytes{.per_token = 512, .windows = int64_t{config.max_batch_size} << 14};
  };
  LoadedConfig loaded = LoadOrDie("model: /m\nmax_batch_size: 4096");
  ASSERT_EQ(ResolveDefaults(kHost, &model, loaded), absl::OkStatus());
  EXPECT_EQ(loaded.config.kv_cache_config.max_tokens, ((int64_t{1} << 28) - (int64_t{1} << 26)) / 512);
}

struct Buckets {
  const char* name;
  const char* keys;
  std::vector<int> buckets;
};

class DecodeBucketsTest : public ::testing::TestWithParam<Buckets> {};

TEST_P(DecodeBucketsTest, EndAtMaxBatchSize) {
  EXPECT_EQ(DecodeBuckets(LoadOrDie(std::string("model: /m\n") + GetParam().keys).config),
            GetParam().buckets);
}

const Buckets kBuckets[] = {
    {"Default", "", {1, 2, 4, 8, 16, 24, 32, 40, 48, 56, 64}},
    {"One", "max_batch_size: 1", {1}},
    {"Three", "max_batch_size: 3", {1, 2, 3}},
    {"Eight", "max_batch_size: 8", {1, 2, 4, 8}},
    {"Eager", "max_batch_size: 9\ncuda_graph_config: null", {1, 2, 4, 8, 9}},
    {"Given", "cuda_graph_config: {batch_sizes: [3, 64]}", {3, 64}},
    {"GivenTooShort", "cuda_graph_config: {batch_sizes: [3]}", {3, 64}},
};
INSTANTIATE_TEST_SUITE_P(Cases, DecodeBucketsTest, ::testing::ValuesIn(kBuckets),
                         [](const auto& info) { return info.param.name; });

TEST(StepSizes, ArePaddedToTheGraphsUnlessPaddingIsOff) {
  const std::string keys = "model: /m\nmax_batch_size: 5\n";
  EXPECT_EQ(StepSizes(LoadOrDie(keys).config), (std::vector<int>{1, 2, 4, 5}));
  EXPECT_EQ(StepSizes(LoadOrDie(keys + "cuda_graph_config: null").config), (std::vector<int>{1, 2, 4, 5}));
  const Config exact = LoadOrDie(keys + "cuda_graph_config: {enable_padding: false}").config;
  EXPECT_EQ(StepSizes(exact), (std::vector<int>{1, 2, 3, 4, 5}));
  EXPECT_EQ(DecodeBuckets(exact), (std::vector<int>{1, 2, 4, 5})) << "what is captured stays the same";
}

}  // namespace
}  // namespace foredraft
