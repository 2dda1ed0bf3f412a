// The engine on backend cuda: the device calls of a step; nothing blocks or allocates after the warm-up.

#include <gtest/gtest.h>

#include <cmath>
#include <memory>
#include <numeric>
#include <vector>

#include "base/check.h"
#include "engine/comm/solo_communicator.h"
#include "engine/engine_shapes.h"
#include "engine/memory_estimate.h"
#include "engine/model/deepseek_v3/deepseek_v3_kind.h"
#include "engine/model/model_kind.h"
#include "engine/model_weights.h"
#include "engine/rank.h"
#include "engine/rank_engine.h"
#include "engine/spec/drafter_kind.h"
#include "engine/spec/eagle/eagle_drafter.h"
#include "engine/spec/vanilla/vanilla_drafter.h"
#include "tests/cuda_on_host/counts.h"

namespace foredraft {
namespace {

constexpr int kBlocksPerSlot = 4;
constexpr int kVocab = 96;

ModelConfig SmallConfig(bool fp8 = false) {
  ModelConfig config;
  if (fp8) config.projections = kFp8Format;
  config.architecture = "DeepseekV3ForCausalLM";
  config.kind = &kDeepseekV3Kind;
  config.vocab_size = kVocab;
  config.hidden_size = 32;
  config.num_hidden_layers = 2;
  config.num_nextn_predict_layers = 2;
  config.first_k_dense_replace = 1;
  config.intermediate_size = 32;
  config.moe_intermediate_size = 16;
  config.n_routed_experts = 8;
  config.num_experts_per_tok = 2;
  config.n_shared_experts = 1;
  config.num_attention_heads = 2;
  config.q_lora_rank = 16;
  config.kv_lora_rank = 32;
  config.qk_nope_head_dim = 16;
  config.qk_rope_head_dim = 16;
  config.v_head_dim = 16;
  config.max_position_embeddings = 64;
  return config;
}

// FP8 in multiples of 128: the shapes of the Hopper kernels and of the fused ones.
ModelConfig BlocksConfig() {
  ModelConfig config = SmallConfig(/*fp8=*/true);
  config.hidden_size = 128;
  config.intermediate_size = 128;
  config.moe_intermediate_size = 128;
  config.q_lora_rank = 128;
  return config;
}

// Every projection in 4 bits, but for W_UK and W_UV in INT4: these stay in BF16.
ModelConfig FourBitConfig(const WeightFormat& format) {
  ModelConfig config = SmallConfig();
  config.projections = format;
  config.hidden_size = config.intermediate_size = config.moe_intermediate_size = 128;
  config.q_lora_rank = config.kv_lora_rank = 128;
  config.num_attention_heads = 8;
  return config;
}

ModelConfig RoundedInputsConfig() {
  ModelConfig config = FourBitConfig(kNvfp4Format);
  config.nvfp4_inputs = true;
  return config;
}

EngineOptions SmallOptions(const DrafterKind& drafter = kEagle) {
  EngineOptions options;
  options.max_batch_size = 2;
  options.max_num_tokens = 24;
  options.max_seq_len = 48;
  UseDrafter(&drafter, 2, SmallConfig(), options);
  options.tokens_per_block = 16;
  options.block_count = 1 + 3 * kBlocksPerSlot;
  options.batch_sizes = {2};
  options.host_cache_bytes = 1 << 20;
  options.step_timeout = std::chrono::seconds(300);
  return options;
}

std::unique_ptr<RankEngine> MakeEngine(const std::string& backend, const EngineOptions& options,
                                       const ModelConfig& config = SmallConfig()) {
  auto device = CreateDevice(backend, {});
  CHECK(device.ok()) << device.status().ToString();
  const auto stream = (*device)->CreateStream();
  auto weights =
      MakeDummyWeights(config, options.drafter_requirements.module_count, **device, *stream, nullptr);
  CHECK(weights.ok()) << weights.status().ToString();
  auto engine = RankEngine::Create(options, config, *std::move(device), *std::move(weights));
  CHECK(engine.ok()) << engine.status().ToString();
  return *std::move(engine);
}

// Whether such an engine can be made.
absl::Status TryEngine(const EngineOptions& options) {
  const ModelConfig config = SmallConfig();
  auto device = CreateDevice("cuda", {});
  if (!device.ok()) return device.status();
  auto stream = (*device)->CreateStream();
  auto weights =
      MakeDummyWeights(config, options.drafter_requirements.module_count, **device, *stream, nullptr);
  stream.reset();  // before its device is destroyed
  if (!weights.ok()) return weights.status();
  return RankEngine::Create(options, config, *std::move(device), *std::move(weights)).status();
}

std::vector<int32_t> BlocksOf(int slot) {
  std::vector<int32_t> blocks(kBlocksPerSlot);
  std::iota(blocks.begin(), blocks.end(), 1 + slot * kBlocksPerSlot);
  return blocks;
}

IterationPlan Step(std::vector<int32_t> live_slots, int draft_len) {
  IterationPlan plan;
  plan.draft_len = draft_len;
  plan.decode_bucket = 2;
  plan.prefill_rows = {0};
  plan.ended_prompts = {0};
  plan.ranks.resize(1);
  plan.ranks[0].live_slots = std::move(live_slots);
  return plan;
}

IterationPlan Start(int slot, const SamplingParams& sampling, int logprob_count, int draft_len) {
  IterationPlan plan = Step({slot}, draft_len);
  RankPlan& rank = plan.ranks[0];
  const std::vector<int32_t> prompt = {3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8};
  const int prompt_len = static_cast<int>(prompt.size());
  rank.admissions.push_back({.slot = slot,
                             .sampling = sampling,
                             .logprob_count = logprob_count,
                             .draft_cap = 7,
                             .prompt_len = prompt_len,
                             .length_limit = 40});
  rank.block_table_deltas.push_back({.slot = slot, .first_index = 0, .block_ids = BlocksOf(slot)});
  rank.prefill_chunks.push_back({.slot = slot, .first_position = 0, .token_ids = prompt, .last = true});
  plan.prefill_rows = {prompt_len};
  plan.ended_prompts = {1};
  return plan;
}

RankResult RunPlan(RankEngine& engine, const IterationPlan& plan) {
  auto result = engine.Run(plan, 0);
  CHECK(result.ok()) << result.status().ToString();
  return *std::move(result);
}

template <class T>
std::vector<T> Get(const RankEngine& engine, const T* device, size_t count) {
  std::vector<T> host(count);
  const auto stream = engine.rank().device->CreateStream();
  engine.rank().device->CopyToHost(*stream, host.data(), device, count * sizeof(T));
  stream->Synchronize();
  return host;
}

// What the last step drafted for a slot.
std::vector<int32_t> DraftsOf(const RankEngine& engine, int slot) {
  const SlotDrafts drafts = Get(engine, engine.rank().slots.arrays().drafts + slot, 1)[0];
  return {drafts.tokens, drafts.tokens + drafts.draft_count};
}

// What the drafter keeps of a slot, as bits.
std::vector<std::vector<int32_t>> DrafterRows(const RankEngine& engine, int slot) {
  std::vector<std::vector<int32_t>> rows;
  for (const SlotRow& row : SlotRowsOf(engine.options(), SmallConfig())) {
    rows.push_back(Get(engine, engine.rank().slots.int_rows(row.name) + slot * row.width, row.width));
  }
  return rows;
}

void ExpectFrozen(const cuda_on_host::Counts& before, const cuda_on_host::Counts& after) {
  EXPECT_EQ(after.mallocs, before.mallocs);
  EXPECT_EQ(after.captures, before.captures);
  EXPECT_EQ(after.instantiations, before.instantiations);
  EXPECT_EQ(after.syncs, before.syncs);
}

TEST(EngineOnHost, AStepIsOneGraphLaunchAFewCopiesAndOneWait) {
  const auto engine = MakeEngine("cuda", SmallOptions());
  ASSERT_TRUE(engine->WarmUp().ok());
  RunPlan(*engine, Start(0, {}, -1, 2));
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::minutes(5);
  engine->Submit(Step({0}, 2), 0);
  for (int step = 0; step < 3; ++step) {
    const cuda_on_host::Counts before = cuda_on_host::CurrentCounts();
    engine->Submit(Step({0}, 2), 0);  // while the previous one is unfinished
    const cuda_on_host::Counts submitted = cuda_on_host::CurrentCounts();
    ExpectFrozen(before, submitted);
    EXPECT_EQ(submitted.graph_launches, before.graph_launches + 1);
    EXPECT_EQ(submitted.launches, before.launches);
    EXPECT_EQ(submitted.copies, before.copies + 2) << "live slots in, outputs out";
    EXPECT_EQ(submitted.queries, before.queries);
    const auto result = engine->Finish(deadline);
    ASSERT_TRUE(result.ok()) << result.status();
    EXPECT_TRUE(result->replayed);
    EXPECT_EQ(result->slots.size(), 1u);
    ExpectFrozen(submitted, cuda_on_host::CurrentCounts());
  }
  ASSERT_TRUE(engine->Finish(deadline).ok());
}

// A plan with penalties and logprobs, a prompt, a swap out and in.
TEST(EngineOnHost, NoPlanWaitsOrAllocates) {
  for (const DrafterKind* drafter : {&kEagle, &kVanilla}) {
    SCOPED_TRACE(drafter->name);
    const EngineOptions options = SmallOptions(*drafter);
    const auto engine = MakeEngine("cuda", options);
    ASSERT_TRUE(engine->WarmUp().ok());
    const SamplingParams sampled{.temperature = 0.8f, .repetition_penalty = 1.1f, .seed = 5};
    IterationPlan out = Step({}, 2);
    out.decode_bucket = 0;
    out.ranks[0].swaps_out = {{.image_id = 5, .slot = 0, .blocks = {{.block_ids = BlocksOf(0)}}}};
    IterationPlan in = Step({1}, 2);
    in.ranks[0].swaps_in = {{.image_id = 5, .slot = 1, .blocks = {{.block_ids = BlocksOf(1)}}}};
    in.ranks[0].block_table_deltas = {{.slot = 1, .first_index = 0, .block_ids = BlocksOf(1)}};
    for (const IterationPlan& plan : {Start(0, sampled, 3, 2), Step({0}, 2), out, in, Step({1}, 1)}) {
      const cuda_on_host::Counts before = cuda_on_host::CurrentCounts();
      engine->Submit(plan, 0);
      ExpectFrozen(before, cuda_on_host::CurrentCounts());
      EXPECT_EQ(cuda_on_host::CurrentCounts().queries, before.queries);
      const auto result = engine->Finish(std::chrono::steady_clock::now() + std::chrono::minutes(5));
      ASSERT_TRUE(result.ok()) << result.status();
    }
  }
}

TEST(EngineOnHost, SwappingChangesNothing) {
  for (const DrafterKind* drafter : {&kEagle, &kVanilla}) {
    SCOPED_TRACE(drafter->name);
    EngineOptions options = SmallOptions(*drafter);
    if (drafter == &kVanilla) options.kv_format = DType::kF8E4M3;
    options.capture_graphs = false;
    const auto engine = MakeEngine("cuda", options);
    const auto untouched = MakeEngine("cuda", options);
    const SamplingParams sampled{.temperature = 0.8f, .frequency_penalty = 0.5f, .seed = 5};
    for (RankEngine* one : {engine.get(), untouched.get()}) {
      RunPlan(*one, Start(0, sampled, -1, 2));
      RunPlan(*one, Step({0}, 2));
    }
    IterationPlan out = Step({}, 2);
    out.decode_bucket = 0;
    out.ranks[0].swaps_out = {{.image_id = 5, .slot = 0, .blocks = {{.block_ids = BlocksOf(0)}}}};
    IterationPlan in = Step({1}, 2);
    in.ranks[0].swaps_in = {{.image_id = 5, .slot = 1, .blocks = {{.block_ids = BlocksOf(2)}}}};
    in.ranks[0].block_table_deltas = {{.slot = 1, .first_index = 0, .block_ids = BlocksOf(2)}};
    // All submitted before any wait: only stream order protects the swap image.
    engine->Submit(out, 0);
    engine->Submit(in, 0);
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::minutes(5);
    ASSERT_TRUE(engine->Finish(deadline).ok());
    const auto a = engine->Finish(deadline);
    ASSERT_TRUE(a.ok());
    const RankResult b = RunPlan(*untouched, Step({0}, 2));
    EXPECT_EQ(a->slots[0].token_ids, b.slots[0].token_ids);
    EXPECT_EQ(DraftsOf(*engine, 1), DraftsOf(*untouched, 0));
    EXPECT_EQ(DrafterRows(*engine, 1), DrafterRows(*untouched, 0));
  }
}

// As many swapped sequences as the store has room for, of one block each: more than a step's batch.
TEST(EngineOnHost, AFullSwapStoreAllocatesNothing) {
  constexpr int kImages = 20;
  EngineOptions options = SmallOptions();
  options.capture_graphs = false;
  const SwapStoreShape store = SwapStoreShapeOf(options, SmallConfig());
  options.host_cache_bytes = kImages * (1 + store.slot_frames()) * store.frame_bytes();
  const auto engine = MakeEngine("cuda", options);
  const auto untouched = MakeEngine("cuda", options);
  for (RankEngine* one : {engine.get(), untouched.get()}) ASSERT_TRUE(one->WarmUp().ok());
  const std::vector<int32_t> first_block = {BlocksOf(0)[0]};
  const cuda_on_host::Counts before = cuda_on_host::CurrentCounts();
  const size_t pinned = cuda_on_host::PinnedBytes();
  const SamplingParams sampled{.temperature = 0.8f, .frequency_penalty = 0.5f, .seed = 5};
  for (int image = 0; image < kImages; ++image) {
    RunPlan(*engine, Start(0, sampled, -1, 0));
    IterationPlan out = Step({}, 0);
    out.decode_bucket = 0;
    out.ranks[0].swaps_out = {
        {.image_id = uint64_t(image), .slot = 0, .blocks = {{.block_ids = first_block}}}};
    RunPlan(*engine, out);
  }
  EXPECT_EQ(engine->swap_store().image_count(), size_t{kImages});
  EXPECT_EQ(engine->swap_store().used_bytes(), options.host_cache_bytes) << "full, to the last frame";
  RunPlan(*untouched, Start(0, sampled, -1, 0));
  IterationPlan in = Step({1}, 0);
  in.ranks[0].swaps_in = {{.image_id = kImages - 1, .slot = 1, .blocks = {{.block_ids = {BlocksOf(1)[0]}}}}};
  in.ranks[0].block_table_deltas = {{.slot = 1, .first_index = 0, .block_ids = {BlocksOf(1)[0]}}};
  EXPECT_EQ(RunPlan(*engine, in).slots[0].token_ids, RunPlan(*untouched, Step({0}, 0)).slots[0].token_ids);
  EXPECT_EQ(cuda_on_host::CurrentCounts().mallocs, before.mallocs);
  EXPECT_EQ(cuda_on_host::PinnedBytes(), pinned);
}

// Page-locked memory is for the copies of a stream, a step's outputs and the swap store: whichever has none
// left, the engine is not made, and the store's refusal names its key.
TEST(EngineOnHost, TooLittlePageLockedMemoryIsRefused) {
  EngineOptions options = SmallOptions();
  options.capture_graphs = false;
  options.host_cache_bytes = 3 << 20;
  bool made = false;
  int named = 0;
  for (int mib = 0; !made && mib < 40; ++mib) {
    SCOPED_TRACE(mib);
    cuda_on_host::SetPinnedMemory(cuda_on_host::PinnedBytes() + (size_t(mib) << 20));
    const absl::Status status = TryEngine(options);
    made = status.ok();
    if (made) continue;
    EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted) << status;
    EXPECT_NE(status.message().find("no page-locked host memory for "), std::string_view::npos) << status;
    if (status.message().find("kv_cache_config.host_cache_size: 3145728: ") == 0) ++named;
  }
  EXPECT_TRUE(made);
  EXPECT_GT(named, 0);
  cuda_on_host::SetPinnedMemory(SIZE_MAX);
}

// The same weights on both backends: BF16 sums differ in their order, FP8 products also in the rounding of
// their inputs. An FP8 cache rounds latents that differ a little to codes that differ more.
TEST(EngineOnHost, LogprobsAreNearTheCpus) {
  EngineOptions options = SmallOptions();
  options.capture_graphs = false;
  const struct {
    const char* name;
    ModelConfig config;
    double tolerance;
    KvFormat kv_format = DType::kBF16;
  } cases[] = {{"bf16", SmallConfig(), 0.05},
               {"bf16, FP8 cache", SmallConfig(), 0.3, DType::kF8E4M3},
               {"fp8", SmallConfig(/*fp8=*/true), 0.3},
               {"fp8 in whole blocks", BlocksConfig(), 0.3},
               {"int4 in groups of 32", FourBitConfig(kInt4Format), 0.05},
               {"int4 in groups of 128", FourBitConfig(Int4Format(128)), 0.05},
               {"fp4", FourBitConfig(kMxfp4Format), 0.05},
               {"nvfp4", FourBitConfig(kNvfp4Format), 0.05},
               {"nvfp4, inputs too", RoundedInputsConfig(), 0.3}};
  for (const auto& c : cases) {
    SCOPED_TRACE(c.name);
    options.kv_format = c.kv_format;
    const auto gpu = MakeEngine("cuda", options, c.config);
    const auto cpu = MakeEngine("cpu", options, c.config);
    const TokenLogprob a = RunPlan(*gpu, Start(0, {}, 20, 0)).slots[0].logprobs[0];
    const TokenLogprob b = RunPlan(*cpu, Start(0, {}, 20, 0)).slots[0].logprobs[0];
    EXPECT_EQ(a.token_id, b.token_id);
    EXPECT_NEAR(a.logprob, b.logprob, c.tolerance);
  }
}

// `foredraft check-config --explain` shows this estimate.
TEST(EngineOnHost, TheEstimateOfMemoryIsWhatIsHeld) {
  EngineOptions options = SmallOptions();
  for (const ModelConfig& config : {SmallConfig(), BlocksConfig(), RoundedInputsConfig()}) {
    SCOPED_TRACE(config.hidden_size);
    options.nvfp4_inputs = config.nvfp4_inputs;
    const auto memory = EstimateMemory(SizedBackend::kCuda, options, config);
    ASSERT_TRUE(memory.ok()) << memory.status();
    Rank rank;
    rank.device = *CreateDevice("cuda", {});
    rank.comm = std::make_unique<SoloCommunicator>(rank.device->ops());
    const auto stream = rank.device->CreateStream();
    const auto start = cuda_on_host::CurrentCounts();
    const int64_t empty = rank.device->memory().free_bytes;
    auto weights =
        MakeDummyWeights(config, options.drafter_requirements.module_count, *rank.device, *stream, nullptr);
    ASSERT_TRUE(weights.ok()) << weights.status();
    const int64_t loaded = rank.device->memory().free_bytes;
    ASSERT_TRUE(rank.Allocate(options, config, *std::move(weights)).ok());
    const int64_t allocated = rank.device->memory().free_bytes;
    // The estimate rounds every allocation up to 256 bytes, as CUDA does and this emulation does not.
    const double rounding =
        256.0 * static_cast<double>(cuda_on_host::CurrentCounts().mallocs - start.mallocs);
    const double held_weights = static_cast<double>(memory->weight_bytes - (empty - loaded));
    const double held_buffers =
        static_cast<double>(memory->activation_bytes + memory->slot_bytes - (loaded - allocated));
    EXPECT_GE(held_weights, 0);
    EXPECT_LE(held_weights, rounding);
    EXPECT_GE(held_buffers, 0);
    EXPECT_LE(held_buffers, rounding);
  }
}

TEST(EngineOnHost, TheKvCacheTakesItsShareOfWhatIsLeft) {
  EngineOptions options = SmallOptions();
  options.capture_graphs = false;
  options.block_count = 0;
  options.free_memory_fraction = 0.5;
  cuda_on_host::SetDeviceMemory(size_t{64} << 20);
  for (const DType dtype : {DType::kBF16, DType::kF8E4M3}) {
    options.kv_format = dtype;
    const auto engine = MakeEngine("cuda", options);
    const KvCacheShape shape = {
        .groups = CacheGroupsOf(SmallConfig(), 1, 16, dtype), .block_counts = {1}, .boundaries = {}};
    const int64_t cache_bytes =
        engine->options().block_count * (shape.block_bytes() + shape.boundary_bytes());
    EXPECT_GT(cache_bytes, int64_t{20} << 20) << DTypeName(dtype);
    EXPECT_LT(cache_bytes, int64_t{32} << 20) << DTypeName(dtype);
  }
  cuda_on_host::SetDeviceMemory(size_t{1} << 30);
}

TEST(EngineOnHost, TheKvCacheLeavesTheGraphsTheirs) {
  constexpr int64_t kTotal = 64 << 20;
  EngineOptions options = SmallOptions();
  options.block_count = 0;
  options.free_memory_fraction = 1.0;
  cuda_on_host::SetDeviceMemory(kTotal);
  cuda_on_host::SetGraphMemory(1 << 20);
  {
    const auto engine = MakeEngine("cuda", options);
    ASSERT_TRUE(engine->WarmUp().ok());
    const int64_t free_bytes = engine->rank().device->memory().free_bytes;
    EXPECT_GE(free_bytes, 0) << "the graphs took what was not there";
    EXPECT_LT(free_bytes, 1 << 20) << "as many graphs as were counted";
  }
  cuda_on_host::SetGraphMemory(0);
  cuda_on_host::SetDeviceMemory(size_t{1} << 30);
}

// Any allocation that does not fit, an op's workspace included, gives an error that lists what holds the
// memory.
TEST(EngineOnHost, TooLittleMemoryIsRefused) {
  EngineOptions options = SmallOptions();
  bool made = false;
  int workspaces = 0;
  for (int half_mib = 2; !made && half_mib < 128; ++half_mib) {
    SCOPED_TRACE(half_mib);
    const int mib = half_mib / 2;
    options.capture_graphs = half_mib % 2 != 0;
    cuda_on_host::SetDeviceMemory(size_t(mib) << 20);
    const absl::Status status = TryEngine(options);
    made = status.ok();
    if (made) continue;
    EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted) << status;
    if (status.message().find("for op workspace") != std::string_view::npos) ++workspaces;
  }
  EXPECT_TRUE(made);
  EXPECT_GT(workspaces, 0);
  cuda_on_host::SetDeviceMemory(size_t{1} << 30);
}

}  // namespace
}  // namespace foredraft
