// The estimate against what an engine allocates, and what it says of R1 on eight GPUs.

#include "engine/memory_estimate.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <fstream>
#include <map>
#include <span>

#include "base/check.h"
#include "engine/kinds/read_model_config.h"
#include "engine/model_weights.h"
#include "engine/rank.h"
#include "engine/spec/drafter_kind.h"
#include "engine/spec/dspark/dspark_drafter.h"
#include "engine/spec/eagle/eagle_drafter.h"
#include "engine/spec/eagle3/eagle3_drafter.h"
#include "engine/spec/vanilla/vanilla_drafter.h"
#include "kernels/cpu/gemm/packed_weight.h"
#include "tests/bench/lone_rank.h"
#include "tests/engine/eagle3_heads.h"
#include "tests/engine/engine_harness.h"
#include "tests/engine/test_requests.h"

namespace foredraft {
namespace {

using testing::HasSubstr;

constexpr int64_t kGiB = int64_t{1} << 30;

// A device that computes, and adds up what is allocated on it.
class SummingDevice : public Device {
 public:
  SummingDevice() : device_(*CreateDevice("cpu", {})) {}
  int64_t bytes(const std::string& purpose) { return bytes_[purpose]; }

  std::string name() const override { return device_->name(); }
  const Ops& ops() const override { return device_->ops(); }
  absl::StatusOr<void*> Allocate(size_t bytes) override {
    bytes_[purpose_] += static_cast<int64_t>((bytes + 255) / 256 * 256);
    return device_->Allocate(bytes);
  }
  void BeginPurpose(const std::string& purpose) override { purpose_ = purpose; }
  absl::StatusOr<void*> AllocatePinned(size_t bytes) override { return device_->AllocatePinned(bytes); }
  DeviceMemory memory() const override { return device_->memory(); }
  bool needs_first_runs() const override { return false; }
  void Freeze() override { device_->Freeze(); }
  absl::StatusOr<PackedWeight> PackWeight(std::span<const HostWeight> parts) override {
    return device_->PackWeight(parts);
  }
  absl::StatusOr<PackedWeights> PackWeights(int count, const WeightParts& parts) override {
    return device_->PackWeights(count, parts);
  }
  absl::StatusOr<PackedWeights> MakeRandomWeights(int count, const RandomWeight& weight) override {
    return device_->MakeRandomWeights(count, weight);
  }
  std::unique_ptr<Stream> CreateStream() override { return device_->CreateStream(); }
  std::unique_ptr<Event> CreateEvent() override { return device_->CreateEvent(); }
  void CopyToDevice(Stream& stream, void* device, const void* host, size_t bytes) override {
    device_->CopyToDevice(stream, device, host, bytes);
  }
  void CopyPinnedToDevice(Stream& stream, void* device, const void* host, size_t bytes) override {
    device_->CopyPinnedToDevice(stream, device, host, bytes);
  }
  void CopyToHost(Stream& stream, void* host, const void* device, size_t bytes) override {
    device_->CopyToHost(stream, host, device, bytes);
  }
  std::unique_ptr<Graph> Capture(Stream& stream, const std::function<void()>& record) override {
    return device_->Capture(stream, record);
  }

 private:
  const std::unique_ptr<Device> device_;
  std::string purpose_;
  std::map<std::string, int64_t> bytes_;
};

EngineOptions SmallOptions(const DrafterKind& drafter, const ModelConfig& model) {
  EngineOptions options;
  options.max_batch_size = 4;
  options.max_num_tokens = 96;
  options.max_seq_len = 256;
  UseDrafter(&drafter, 3, model, options);
  options.batch_sizes = {1, 2, 4};
  return options;
}

// A rank whose peers are absent: nothing is exchanged where nothing runs.
class AbsentPeers : public LoneRank {
 public:
  using LoneRank::LoneRank;
  void AllGather(Stream&, const AllGatherParams&) override {}
  void AllToAll(Stream&, const AllToAllParams&) override {}
};

constexpr char kV4Dir[] = "tests/golden/checkpoints/deepseek_v4";
constexpr char kDSparkDir[] = "tests/golden/checkpoints/deepseek_v4_dspark";

TEST(EstimateMemory, IsWhatTheEngineAllocates) {
  const RankLayout alone, shared = RankLayout::TensorParallel(2);
  const std::string with_head = absl::StrCat(kAbacusDir, "+", RandomHeadDir(HeadForms()[3]));
  const std::tuple<std::string, const DrafterKind*, RankLayout> cases[] = {
      {with_head, &kEagle3, alone},   {with_head, &kEagle3, shared}, {kAbacusDir, &kEagle, alone},
      {kAbacusDir, &kVanilla, alone}, {kV4Dir, &kEagle, alone},      {kDSparkDir, &kDSpark, alone},
      {kAbacusDir, &kEagle, shared},  {kV4Dir, &kEagle, shared},     {kDSparkDir, &kDSpark, shared}};
  for (const auto& [dir, drafter, layout] : cases) {
    SCOPED_TRACE(absl::StrCat(dir, ", ", layout.world_size(), " ranks"));
    const LoadedModel& model = LoadModelOnce(dir, TestBackend(), {.layout = layout});
    EngineOptions options = SmallOptions(*drafter, model.config);
    options.layout = layout;
    Rank rank;
    auto device = std::make_unique<SummingDevice>();
    SummingDevice& summed = *device;
    rank.device = std::move(device);
    rank.comm = std::make_unique<AbsentPeers>(layout.world_size());
    ASSERT_TRUE(rank.Allocate(options, model.config, model.weights).ok());
    ASSERT_TRUE(rank.AllocateCache(options, 9, /*poison=*/false).ok());

    const auto memory = EstimateMemory(SizedBackend::kCpu, options, model.config);
    ASSERT_TRUE(memory.ok()) << memory.status();
    EXPECT_EQ(memory->activation_bytes, summed.bytes("activations"));
    EXPECT_EQ(memory->slot_bytes, summed.bytes("slots"));
    EXPECT_NEAR(static_cast<double>(memory->cache_bytes(9)), static_cast<double>(summed.bytes("KV cache")),
                256 * 16)
        << "an allocation per layer, kind of row and level, rounded";
    EXPECT_EQ(memory->graph_count, 3 * 4 * 2);
    EXPECT_EQ(memory->graph_bytes, 0) << "assumed for a GPU only";
  }
}

TEST(PackedBytes, IsWhatPackingAllocates) {
  ThreadPool pool(1, false, 1);
  const std::vector<uint8_t> zeros(1 << 16);
  const std::vector<float> scales(64, 1.0f);
  const HostWeight cases[] = {
      {.format = kBf16Format, .n = 70, .k = 33, .data = zeros.data()},
      {.format = kFp8Format, .n = 130, .k = 200, .data = zeros.data(), .scales = scales.data()},
      {.format = kInt4Format, .n = 64, .k = 96, .data = zeros.data(), .scales = zeros.data()},
  };
  for (const HostWeight& weight : cases) {
    int64_t allocated = 0;
    std::vector<std::unique_ptr<std::byte[]>> memory;
    const auto packed = PackParts({&weight, 1}, pool, [&](size_t bytes, int) -> absl::StatusOr<void*> {
      allocated += static_cast<int64_t>(bytes);
      memory.push_back(std::make_unique<std::byte[]>(bytes + 64));
      auto address = reinterpret_cast<uintptr_t>(memory.back().get());
      return reinterpret_cast<void*>((address + 63) / 64 * 64);
    });
    ASSERT_TRUE(packed.ok()) << packed.status();
    EXPECT_EQ(PackedBytes({&weight, 1}), allocated) << DTypeName(weight.format.code);
  }
}

ModelConfig R1() {
  auto config = ReadModelConfig("deploy/configs/r1-shape-61x256.json");
  CHECK(config.ok()) << config.status().ToString();
  return *config;
}

EngineOptions R1Options() {
  EngineOptions options;
  options.max_batch_size = 64;
  options.max_seq_len = 32'768;
  UseDrafter(&kEagle, 3, R1(), options);
  options.tokens_per_block = 64;
  options.block_count = 0;
  options.batch_sizes = {1, 8, 64};
  return options;
}

MemoryEstimate EstimateR1(const RankLayout& layout) {
  EngineOptions options = R1Options();
  options.layout = layout;
  const auto memory = EstimateMemory(SizedBackend::kCuda, options, R1());
  CHECK(memory.ok()) << memory.status().ToString();
  return *memory;
}
MemoryEstimate EstimateR1(int ranks) { return EstimateR1(RankLayout::DataParallel(ranks)); }

TEST(EstimateMemory, OneRankHasTheCheckpointAndTheHeadsOfKvB) {
  const ModelConfig config = R1();
  // kv_b is kept in BF16, for the prefill and, head by head, for the decode form: 2 x 2 bytes for 1.
  const int64_t kv_b = int64_t{62} * config.num_attention_heads *
                       (config.qk_nope_head_dim + config.v_head_dim) * config.kv_lora_rank;
  const double expected = static_cast<double>(DummyBytes(config, 1) + 3 * kv_b);
  EXPECT_NEAR(static_cast<double>(EstimateR1(1).weight_bytes), expected, expected * 1e-3);
}

TEST(EstimateMemory, EightRanksShareTheExperts) {
  const ModelConfig config = R1();
  const double experts =
      59.0 * config.n_routed_experts * 3 * config.moe_intermediate_size * config.hidden_size;
  const int64_t difference = EstimateR1(1).weight_bytes - EstimateR1(8).weight_bytes;
  EXPECT_NEAR(static_cast<double>(difference), experts * 7 / 8, experts * 1e-3);
}

// Of what a group's ranks share, each has an eighth: heads of q_b, kv_b (as above) and o_proj, the dense and
// shared MLPs, and the head.
TEST(EstimateMemory, EightRanksThatShareRequestsHaveAnEighthOfWhatIsCut) {
  const ModelConfig config = R1();
  const double heads = config.num_attention_heads;
  const double of_heads = heads * (config.q_lora_rank * (config.qk_nope_head_dim + config.qk_rope_head_dim) +
                                   4.0 * (config.qk_nope_head_dim + config.v_head_dim) * config.kv_lora_rank +
                                   config.v_head_dim * config.hidden_size);
  const double of_mlps =
      3.0 * config.hidden_size * (3.0 * config.intermediate_size + 59.0 * config.moe_intermediate_size);
  const double cut = 62 * of_heads + of_mlps + 2.0 * config.vocab_size * config.hidden_size;
  const MemoryEstimate shared = EstimateR1(RankLayout::TensorParallel(8));
  const int64_t difference = EstimateR1(8).weight_bytes - shared.weight_bytes;
  EXPECT_NEAR(static_cast<double>(difference), cut * 7 / 8, cut * 1e-3);
  const MemoryEstimate columns = EstimateR1({.attention_tp = 8, .moe_ep = 2, .moe_tp = 4});
  EXPECT_NEAR(static_cast<double>(columns.weight_bytes), static_cast<double>(shared.weight_bytes),
              static_cast<double>(shared.weight_bytes) * 1e-3)
      << "the same bytes of experts, in other shapes";
}

// docs/deepseek-v4.md section 13 has a row per number of ranks: "| ranks | GiB of weights | ...".
TEST(EstimateMemory, OfV4FlashIsWhatTheDocumentSays) {
  const absl::StatusOr<ModelConfig> config = ReadModelConfig("deploy/configs/v4-flash-shape.json");
  ASSERT_TRUE(config.ok()) << config.status();
  std::ifstream document("docs/deepseek-v4.md");
  int rows = 0;
  bool in_section = false;
  for (std::string line; std::getline(document, line); in_section |= line.starts_with("## 13.")) {
    int ranks = 0;
    double gib = 0;
    if (!in_section || std::sscanf(line.c_str(), "| %d | %lf |", &ranks, &gib) != 2) continue;
    ++rows;
    EngineOptions options = R1Options();
    UseDrafter(&kEagle, 1, *config, options);
    options.tokens_per_block = 32;
    options.layout = RankLayout::DataParallel(ranks);
    const auto memory = EstimateMemory(SizedBackend::kCpu, options, *config);
    ASSERT_TRUE(memory.ok()) << memory.status();
    EXPECT_NEAR(static_cast<double>(memory->weight_bytes) / kGiB, gib, 0.06) << ranks << " ranks";
    const CacheGroup& history = memory->cache.groups[0];
    EXPECT_EQ(history.bytes_per_block / history.tokens_per_block, 6880);
  }
  EXPECT_EQ(rows, 4);
}

TEST(BlocksOn, FitsAnH200AndNotHalfOfOne) {
  const MemoryEstimate memory = EstimateR1(8);
  const EngineOptions options = R1Options();
  const auto blocks = BlocksOn(140 * kGiB, memory, options);
  ASSERT_TRUE(blocks.ok()) << blocks.status();
  EXPECT_GT(*blocks * memory.block_bytes(), 20 * kGiB);
  EXPECT_LT(memory.fixed_bytes() + memory.graph_bytes + *blocks * memory.block_bytes(), 140 * kGiB);
  const auto refused = BlocksOn(70 * kGiB, memory, options);
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(refused.status().message()),
              HasSubstr("no GPU memory for the KV cache: of 70.00 GiB"));
}

TEST(BlocksOn, FitsTheSmallestDeviceExactly) {
  const MemoryEstimate memory = EstimateR1(8);
  const EngineOptions options = R1Options();
  const int64_t smallest = SmallestDevice(memory, options);
  EXPECT_TRUE(BlocksOn(smallest, memory, options).ok());
  const auto refused = BlocksOn(smallest - (int64_t{1} << 20), memory, options);
  EXPECT_THAT(std::string(refused.status().message()), HasSubstr("too little GPU memory for the KV cache"));
}

}  // namespace
}  // namespace foredraft
