// Files written for TensorRT-LLM.

#include "config/foreign_keys.h"

#include "config/config_fields.h"
#include "config/config_reader.h"
#include "config/decode_buckets.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace foredraft {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

struct Parsed {
  LoadedConfig loaded;
  ConfigErrors errors;
};

Parsed Parse(const std::string& text, const std::vector<ConfigOverride>& overrides = {}) {
  Parsed parsed;
  parsed.loaded = ParseConfig({.file = "r1.yaml", .text = text, .environment = {}, .overrides = overrides},
                              parsed.errors);
  return parsed;
}

std::vector<std::string> Lines(const ConfigErrors& errors) {
  std::vector<std::string> lines;
  for (const absl::Status& error : errors.all()) lines.emplace_back(error.message());
  return lines;
}

TEST(ForeignKeys, NoneIsAKeyOfOurs) {
  for (const ForeignKey& key : ForeignKeys()) {
    EXPECT_EQ(FindField(key.path), nullptr) << key.path;
    const bool translated = key.use == ForeignUse::kSame || key.use == ForeignUse::kLogic;
    EXPECT_EQ(FindField(key.target) != nullptr || FindBlock(key.target) != nullptr, translated) << key.path;
    EXPECT_EQ(key.text.empty(), translated) << key.path;
    EXPECT_EQ(key.values.empty(), key.use != ForeignUse::kOnly) << key.path;
  }
}

// All kinds of keys of the file that TensorRT-LLM publishes for R1 on H200.
constexpr char kPublished[] = R"(model: /m
max_batch_size: 512
max_num_tokens: 3136
max_seq_len: 2068
tensor_parallel_size: 8
moe_expert_parallel_size: 8
enable_attention_dp: true
attention_dp_config:
  batching_wait_iters: 0
  enable_balance: true
  timeout_iters: 60
cuda_graph_config:
  enable_padding: true
  max_batch_size: 128
kv_cache_config:
  free_gpu_memory_fraction: 0.8
moe_config:
  backend: CUTLASS
speculative_config:
  decoding_type: MTP
  num_nextn_predict_layers: 1
print_iter_log: true
stream_interval: 10
trust_remote_code: true
)";

TEST(ForeignKeys, ThePublishedFileForR1IsTaken) {
  const Parsed parsed = Parse(kPublished);
  ASSERT_THAT(Lines(parsed.errors), IsEmpty());
  const Config& config = parsed.loaded.config;
  EXPECT_EQ(config.parallel.attention_dp, 8);
  EXPECT_EQ(config.parallel.moe_ep, 8);
  EXPECT_EQ(config.max_batch_size, 512);
  EXPECT_EQ(config.kv_cache_config.free_gpu_memory_fraction, 0.8);
  EXPECT_EQ(config.attention_dp_config.batching_wait_iters, 0);
  EXPECT_EQ(config.speculative_config->max_draft_len, 1);
  const std::vector<int>& sizes = config.cuda_graph_config->batch_sizes;
  EXPECT_THAT(std::vector<int>(sizes.begin(), sizes.begin() + 5), ElementsAre(1, 2, 4, 8, 16));
  EXPECT_THAT(std::vector<int>(sizes.end() - 3, sizes.end()), ElementsAre(120, 128, 256));
  EXPECT_EQ(DecodeBuckets(config).back(), 512);
  EXPECT_THAT(parsed.loaded.notes,
              ElementsAre("r1.yaml:10: attention_dp_config.enable_balance: true ignored: prompts are always "
                          "levelled between ranks",
                          HasSubstr("r1.yaml:11: attention_dp_config.timeout_iters: 60 ignored: "),
                          HasSubstr("r1.yaml:18: moe_config.backend: CUTLASS ignored: "),
                          HasSubstr("r1.yaml:22: print_iter_log: true ignored: "),
                          HasSubstr("r1.yaml:23: stream_interval: 10 ignored: "),
                          HasSubstr("r1.yaml:24: trust_remote_code: true ignored: "),
                          "r1.yaml:5: tensor_parallel_size: 8 became parallel.attention_dp: 8",
                          "r1.yaml:6: moe_expert_parallel_size: 8 became parallel.moe_ep: 8",
                          "r1.yaml:7: enable_attention_dp: true is what foredraft does",
                          "r1.yaml:14: cuda_graph_config.max_batch_size: 128 became "
                          "cuda_graph_config.batch_sizes: 1, 2, 4, ... up to 128, then doubling up to "
                          "max_batch_size, 512"));
  EXPECT_EQ(parsed.loaded.origins.at("parallel.attention_dp"), "r1.yaml:5 (tensor_parallel_size)");
}

struct Ranks {
  const char* text;
  int attention_dp, attention_tp, moe_ep, moe_tp;
};

TEST(ForeignKeys, RanksAreSharedUnlessAttentionIsDataParallel) {
  const Ranks kCases[] = {
      {"tensor_parallel_size: 8", 1, 8, 8, 1},
      {"tp_size: 4\nenable_attention_dp: false", 1, 4, 4, 1},
      {"tensor_parallel_size: 8\nmoe_expert_parallel_size: 2", 1, 8, 2, 4},  // NVIDIA's benchmark of MTP
      {"tensor_parallel_size: 8\nmoe_tensor_parallel_size: 8", 1, 8, 1, 8},
      {"tensor_parallel_size: 8\nmoe_tensor_parallel_size: -1", 1, 8, 8, 1},
      {"tp_size: 8\nep_size: 4\nmoe_tensor_parallel_size: 2\nenable_attention_dp: false", 1, 8, 4, 2},
      {"tensor_parallel_size: 8\nenable_attention_dp: true", 8, 1, 8, 1},
      {"tensor_parallel_size: 1\nmoe_expert_parallel_size: 1\nenable_attention_dp: true", 1, 1, 1, 1},
  };
  for (const Ranks& ranks : kCases) {
    const Parsed parsed = Parse(absl::StrCat("model: /m\n", ranks.text));
    EXPECT_THAT(Lines(parsed.errors), IsEmpty()) << ranks.text;
    const ParallelConfig& parallel = parsed.loaded.config.parallel;
    EXPECT_THAT(
        (std::vector<int>{parallel.attention_dp, parallel.attention_tp, parallel.moe_ep, parallel.moe_tp}),
        ElementsAre(ranks.attention_dp, ranks.attention_tp, ranks.moe_ep, ranks.moe_tp))
        << ranks.text;
  }
}

TEST(ForeignKeys, TheFileOfTheMtpPostIsTakenAsItStands) {
  const Parsed parsed = Parse(R"(use_cuda_graph: true
moe_backend: TRTLLM
speculative_config:
    decoding_type: MTP
    num_nextn_predict_layers: 3
    use_relaxed_acceptance_for_thinking: true
    relaxed_topk: 10
    relaxed_delta: 0.6
)",
                              {{"model", "/m"}, {"backend", "cuda"}});
  ASSERT_THAT(Lines(parsed.errors), IsEmpty());
  const Config& config = parsed.loaded.config;
  EXPECT_TRUE(config.cuda_graph_config.has_value());
  EXPECT_EQ(config.speculative_config->max_draft_len, 3);
  EXPECT_EQ(config.speculative_config->relaxed_topk, 10);
  EXPECT_EQ(config.speculative_config->relaxed_delta, 0.6);
  EXPECT_THAT(parsed.loaded.notes,
              ElementsAre("r1.yaml:1: use_cuda_graph: true became cuda_graph_config, which is on",
                          "r1.yaml:2: moe_backend: TRTLLM ignored: foredraft has kernels of its own"));
}

TEST(ForeignKeys, TheOldBlockIsTheTop) {
  const Parsed parsed =
      Parse("model: /m\npytorch_backend_config: {use_cuda_graph: false, enable_overlap_scheduler: false}");
  ASSERT_THAT(Lines(parsed.errors), IsEmpty());
  EXPECT_FALSE(parsed.loaded.config.cuda_graph_config.has_value());
  EXPECT_TRUE(parsed.loaded.config.disable_overlap_scheduler);
}

TEST(ForeignKeys, OverridesReplaceWhatTheFileBecame) {
  const Parsed parsed = Parse(kPublished, {{"parallel.attention_dp", "4"},
                                           {"parallel.moe_ep", "4"},
                                           {"max_batch_size", "16"},
                                           {"kv_cache_config.free_gpu_memory_fraction", "0.5"}});
  ASSERT_THAT(Lines(parsed.errors), IsEmpty());
  EXPECT_EQ(parsed.loaded.config.parallel.attention_dp, 4);
  EXPECT_THAT(parsed.loaded.config.cuda_graph_config->batch_sizes, ElementsAre(1, 2, 4, 8, 16));
}

// A file of TensorRT-LLM's with the number of ranks on the command line, as its own server takes it.
TEST(ForeignKeys, KeysOfSeveralSourcesAreTranslatedTogether) {
  const Parsed parsed = Parse("model: /m\nenable_attention_dp: true", {{"tensor_parallel_size", "8"}});
  ASSERT_THAT(Lines(parsed.errors), IsEmpty());
  EXPECT_EQ(parsed.loaded.config.parallel.attention_dp, 8);
  EXPECT_EQ(parsed.loaded.config.parallel.moe_ep, 8);
  EXPECT_THAT(parsed.loaded.notes,
              ElementsAre("--set: tensor_parallel_size: 8 became parallel.attention_dp: 8",
                          "--set: tensor_parallel_size: 8 became parallel.moe_ep: 8",
                          "r1.yaml:2: enable_attention_dp: true is what foredraft does"));
}

TEST(ForeignKeys, OfTwoSpellingsTheLaterSourceCounts) {
  const Parsed parsed = Parse("model: /m\ntensor_parallel_size: 8\nenable_attention_dp: true",
                              {{"tp_size", "2"}, {"enable_attention_dp", "true"}});
  ASSERT_THAT(Lines(parsed.errors), IsEmpty());
  EXPECT_EQ(parsed.loaded.config.parallel.attention_dp, 2);
  EXPECT_THAT(parsed.loaded.notes, Contains("r1.yaml:3: enable_attention_dp: true replaced by --set"));
  EXPECT_THAT(parsed.loaded.notes,
              Contains("r1.yaml:2: tensor_parallel_size: 8 replaced by --set: tp_size: 2"));
}

struct TwoSources {
  const char* name;
  const char* text;
  std::vector<ConfigOverride> overrides;
  const char* key;
  const char* value;
  const char* note;
};

class ForeignKeysOfTwoSources : public ::testing::TestWithParam<TwoSources> {};

TEST_P(ForeignKeysOfTwoSources, TheLaterOneCounts) {
  const Parsed parsed = Parse(std::string("model: /m\n") + GetParam().text, GetParam().overrides);
  ASSERT_THAT(Lines(parsed.errors), IsEmpty());
  const std::string key = GetParam().key;
  EXPECT_EQ(FindField(key) == nullptr ? BlockPresent(parsed.loaded.config, key) ? "on" : "off"
                                      : ShowField(*FindField(key), parsed.loaded.config),
            GetParam().value);
  EXPECT_THAT(parsed.loaded.notes, Contains(GetParam().note));
}

TEST(ForeignKeys, SayThatAnFp8CacheKeepsBf16Products) {
  const auto notes = [](const std::string& text) { return Parse("model: /m\n" + text).loaded.notes; };
  const auto products = Contains(HasSubstr("kv_cache_config.attention_products"));
  EXPECT_THAT(notes("kv_cache_dtype: fp8"), products);
  EXPECT_THAT(notes("kv_cache_config: {dtype: fp8}\nmoe_backend: CUTLASS"), products);
  EXPECT_THAT(notes("kv_cache_config: {dtype: fp8}"), Not(products));
  EXPECT_THAT(notes("kv_cache_dtype: auto"), Not(products));
  EXPECT_THAT(notes("kv_cache_dtype: fp8\nkv_cache_config: {attention_products: bf16}"), Not(products));
}

const TwoSources kTwoSources[] = {
    {"OursInTheFile",
     "kv_cache_config: {dtype: bf16}",
     {{"kv_cache_dtype", "fp8"}},
     "kv_cache_config.dtype",
     "fp8",
     "--set: kv_cache_dtype: fp8 became kv_cache_config.dtype: fp8"},
    {"OursInTheOverride",
     "kv_cache_dtype: fp8",
     {{"kv_cache_config.dtype", "bf16"}},
     "kv_cache_config.dtype",
     "bf16",
     "r1.yaml:2: kv_cache_dtype: fp8 replaced by --set"},
    {"OursInALaterOverride",
     "",
     {{"kv_cache_dtype", "fp8"}, {"kv_cache_config.dtype", "bf16"}},
     "kv_cache_config.dtype",
     "bf16",
     "--set: kv_cache_dtype: fp8 replaced by --set"},
    {"GraphsOffAndABlockGiven",
     "use_cuda_graph: false",
     {{"cuda_graph_config.batch_sizes", "[1]"}},
     "cuda_graph_config",
     "on",
     "r1.yaml:2: use_cuda_graph: false replaced by --set"},
    {"GraphsGivenAndOff",
     "cuda_graph_config: {batch_sizes: [1]}",
     {{"use_cuda_graph", "false"}},
     "cuda_graph_config",
     "off",
     "--set: use_cuda_graph: false became cuda_graph_config: null"},
    {"SizesAndABlockOff",
     "cuda_graph_batch_sizes: [1, 2]",
     {{"cuda_graph_config", "null"}},
     "cuda_graph_config",
     "off",
     "r1.yaml:2: cuda_graph_batch_sizes: a list replaced by --set"},
    {"AKeyThatIsRefusedInABlockThatIsReplaced",
     "speculative_config: {max_draft_len: 1, max_concurrency: 4}",
     {{"speculative_config", "{max_draft_len: 2}"}},
     "speculative_config.max_draft_len",
     "2",
     "r1.yaml:2: speculative_config.max_concurrency: 4 replaced by --set"},
};
INSTANTIATE_TEST_SUITE_P(Cases, ForeignKeysOfTwoSources, ::testing::ValuesIn(kTwoSources),
                         [](const auto& info) { return info.param.name; });

// The keys of speculative_config in TensorRT-LLM 1.4's reference, with the values of its defaults.
TEST(ForeignKeys, DefaultsOfMtpAndDsparkAreTaken) {
  const std::string common =
      "max_total_draft_tokens: null, moe_backend: AUTO, load_format: null, "
      "acceptance_rate_window_size: null, acceptance_rate_threshold: null, use_rejection_sampling: false, "
      "allow_advanced_sampling: false, advanced_sampling_mode: full, enable_penalty: true, spec_dec_variant: "
      "1";
  for (const std::string& own :
       {std::string("decoding_type: MTP, num_nextn_predict_layers: 2, use_mtp_vanilla: false, "
                    "use_dynamic_tree: false, dynamic_tree_max_topK: null, sa_config: null, "
                    "begin_thinking_phase_token: 128798, end_thinking_phase_token: 128799"),
        std::string(
            "decoding_type: DSpark, max_draft_len: 5, mask_token_id: null, target_layer_ids: null, "
            "block_size: null, markov_rank: null, markov_head_type: vanilla, attention_backend: TRTLLM")}) {
    EXPECT_THAT(Lines(Parse("model: /m\nspeculative_config: {" + own + ", " + common + "}").errors),
                IsEmpty())
        << own;
  }
}

TEST(ForeignKeys, OursWinWhereTheyListTheSizes) {
  const Parsed parsed = Parse("model: /m\ncuda_graph_config: {batch_sizes: [1, 8], max_batch_size: 32}");
  ASSERT_THAT(Lines(parsed.errors), IsEmpty());
  EXPECT_THAT(parsed.loaded.config.cuda_graph_config->batch_sizes, ElementsAre(1, 8));
}

TEST(ForeignKeys, TheSameValueTwiceIsNoContradiction) {
  EXPECT_THAT(Lines(Parse("model: /m\nparallel: {attention_dp: 2, moe_ep: 2}\ntensor_parallel_size: 2\n"
                          "enable_attention_dp: true")
                        .errors),
              IsEmpty());
}

// Of database/deepseek-ai/DeepSeek-R1-0528: the key says nothing that foredraft could do otherwise.
TEST(ForeignKeys, TheBackendPytorchIsNotSaid) {
  const Parsed alone = Parse("model: /m\nbackend: pytorch");
  ASSERT_THAT(Lines(alone.errors), IsEmpty());
  EXPECT_EQ(alone.loaded.config.backend, Backend::kCpu);
  EXPECT_FALSE(alone.loaded.origins.contains("backend"));
  EXPECT_THAT(alone.loaded.notes, ElementsAre(HasSubstr("r1.yaml:2: backend: pytorch ignored: ")));
  EXPECT_EQ(Parse("model: /m\nbackend: pytorch", {{"backend", "cuda"}}).loaded.config.backend,
            Backend::kCuda);
  EXPECT_EQ(Parse("model: /m\nbackend: cuda", {{"backend", "pytorch"}}).loaded.config.backend,
            Backend::kCuda);
}

// Of the guides of GLM-5 and V4, of V3's and V4's README.
TEST(ForeignKeys, PublishedKeysAreAnswered) {
  const Parsed parsed = Parse(R"(model: /m
custom_tokenizer: glm_moe_dsa
moe_max_num_tokens: 32768
guided_decoding_backend: xgrammar
sparse_attention_config:
  algorithm: deepseek_v4
  enable_heuristic_topk: true
  indexer_k_dtype: fp4
)");
  ASSERT_THAT(Lines(parsed.errors), IsEmpty());
  EXPECT_EQ(parsed.loaded.notes.size(), 6u);
}

TEST(ForeignKeys, GraphsThatNoBatchFillsAreCutAndNamed) {
  const std::string slots = "model: /m\nmax_batch_size: 161\n";
  for (const char* text :
       {"cuda_graph_batch_sizes: [1, 128, 384]", "cuda_graph_config: {batch_sizes: [1, 128, 384]}"}) {
    const Parsed list = Parse(slots + text);
    ASSERT_THAT(Lines(list.errors), IsEmpty());
    EXPECT_THAT(list.loaded.config.cuda_graph_config->batch_sizes, ElementsAre(1, 128));
    EXPECT_THAT(
        list.loaded.warnings,
        ElementsAre(AllOf(HasSubstr("r1.yaml:3"), HasSubstr("cuda_graph_config.batch_sizes: 384: cut to "
                                                            "max_batch_size, 161: a rank decodes"))));
  }
  const Parsed limit = Parse("model: /m\ncuda_graph_config: {max_batch_size: 1024}");
  ASSERT_THAT(Lines(limit.errors), IsEmpty());
  EXPECT_EQ(limit.loaded.config.cuda_graph_config->batch_sizes.back(), 64);
  EXPECT_THAT(
      limit.loaded.warnings,
      ElementsAre(HasSubstr("r1.yaml:2: cuda_graph_config.max_batch_size: 1024: cut to max_batch_size, 64")));
  EXPECT_THAT(Parse("model: /m\ncuda_graph_config: {max_batch_size: 64}").loaded.warnings, IsEmpty());
}

struct Refusal {
  const char* name;
  const char* text;
  const char* error;
};

class ForeignKeysRefuse : public ::testing::TestWithParam<Refusal> {};

TEST_P(ForeignKeysRefuse, SayingWhatToWrite) {
  EXPECT_THAT(Lines(Parse(std::string("model: /m\n") + GetParam().text).errors),
              ElementsAre(GetParam().error));
}

const Refusal kRefusals[] = {
    {"SplitExperts", "tensor_parallel_size: 8\nenable_attention_dp: true\nmoe_expert_parallel_size: 2",
     "r1.yaml:4: moe_expert_parallel_size: 2, allowed 8, tensor_parallel_size: with enable_attention_dp a "
     "rank holds whole experts"},
    {"RanksDiffer", "tensor_parallel_size: 8\nmoe_expert_parallel_size: 2\nmoe_tensor_parallel_size: 2",
     "r1.yaml:3: moe_expert_parallel_size: 2, allowed moe_expert_parallel_size times "
     "moe_tensor_parallel_size 8, tensor_parallel_size: 2 times 2 is 4"},
    {"ExpertsAlone", "moe_expert_parallel_size: 4",
     "r1.yaml:2: moe_expert_parallel_size: 4, needs the number of ranks: write tensor_parallel_size beside "
     "it"},
    {"ThreeRanks", "tensor_parallel_size: 3\nenable_attention_dp: true",
     "r1.yaml:2 (tensor_parallel_size): parallel.attention_dp: 3, allowed 1, 2, 4, 8"},
    {"Pipeline", "pipeline_parallel_size: 2",
     "r1.yaml:2: pipeline_parallel_size: 2, allowed 1: foredraft has no pipeline of ranks: leave the key "
     "out"},
    {"Words", "tensor_parallel_size: many", "r1.yaml:2: tensor_parallel_size: many, allowed a number from 1"},
    {"Yes", "use_cuda_graph: yes", "r1.yaml:2: use_cuda_graph: yes, allowed true, false"},
    {"Contradiction",
     "attention_dp_config: {batching_wait_iters: 4}\ndisable_overlap_scheduler: true\n"
     "enable_overlap_scheduler: true",
     "r1.yaml:4 (enable_overlap_scheduler): disable_overlap_scheduler: false, but it was set to true by "
     "r1.yaml:3"},
    {"GraphsOffAndOn", "cuda_graph_config: {batch_sizes: [1]}\nuse_cuda_graph: false",
     "r1.yaml:3 (use_cuda_graph): cuda_graph_config: off, but it was set on by r1.yaml:2"},
    {"DraftTree", "speculative_config: {max_draft_len: 3, use_dynamic_tree: true}",
     "r1.yaml:2: speculative_config.use_dynamic_tree: true, allowed false: drafts are one sequence, not a "
     "tree: "
     "leave the key out"},
    {"DsparkBlock", "speculative_config: {decoding_type: DSpark, block_size: 3}",
     "r1.yaml:2: speculative_config.block_size: 3, allowed null: the checkpoint's config.json has "
     "dspark_block_size; for fewer drafts write max_draft_len"},
    {"OtherSparseAttention", "sparse_attention_config: {algorithm: rocket}",
     "r1.yaml:2: sparse_attention_config.algorithm: rocket, allowed dsa, deepseek_v4: the checkpoint's "
     "config.json "
     "says how it attends: leave the block out"},
    {"Port", "port: 8000",
     "r1.yaml:2: port: 8000, not a key of foredraft: write server.http_address: HOST:PORT for OpenAI's API, "
     "server.grpc_address for gRPC"},
    {"BeamSearch", "max_beam_width: 4",
     "r1.yaml:2: max_beam_width: 4, allowed 1: foredraft has no beam search: leave the key out"},
    {"Concurrency", "speculative_config: {max_draft_len: 3, max_concurrency: 16}",
     "r1.yaml:2: speculative_config.max_concurrency: 16, not a key of foredraft: write draft_policy: "
     "schedule "
     "and draft_len_schedule: {N: K}, with N this number and K max_draft_len"},
    {"AliasOutOfRange", "kv_cache_free_gpu_memory_fraction: 1.5",
     "r1.yaml:2 (kv_cache_free_gpu_memory_fraction): kv_cache_config.free_gpu_memory_fraction: 1.5, allowed "
     "0.01..1"},
    {"UnknownInAForeignBlock", "moe_config: {backend: CUTLASS, colour: red}",
     "r1.yaml:2: moe_config.colour: unknown key, docs/configuration.md lists all"},
};
INSTANTIATE_TEST_SUITE_P(Cases, ForeignKeysRefuse, ::testing::ValuesIn(kRefusals),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace foredraft
