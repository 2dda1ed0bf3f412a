// The device: backends and instruction paths by name, memory, copies, streams and graphs.

#include "kernels/cpu/device/cpu_device.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <vector>

#include "tests/ops/op_rig.h"

namespace foredraft {
namespace {

TEST(CreateDevice, NamesWhatItRefuses) {
  const struct {
    const char* backend;
    DeviceOptions options;
    absl::StatusCode code;
    const char* message;
  } cases[] = {
      {"tpu", {}, absl::StatusCode::kUnimplemented, "backend: \"tpu\", this binary has cpu"},
      {"cpu", {.threads = 0}, absl::StatusCode::kInvalidArgument, "threads: 0, allowed from 1"},
      {"cpu", {.isa = "mmx"}, absl::StatusCode::kInvalidArgument, "cpu.isa: mmx, allowed auto, "},
  };
  for (const auto& c : cases) {
    const auto device = CreateDevice(c.backend, c.options);
    EXPECT_EQ(device.status().code(), c.code);
    EXPECT_NE(device.status().message().find(c.message), std::string::npos) << device.status();
  }
}

TEST(CreateDevice, NamesItsPath) {
  EXPECT_EQ((*CreateDevice("cpu", {.isa = "portable"}))->name(), "cpu portable");
  const auto widest = CreateDevice("cpu", {});
  EXPECT_EQ((*widest)->name(), (*CreateDevice("cpu", {.isa = SupportedIsas()[0]}))->name());
}

TEST(ChooseIsaPath, TakesTheWidestThatTheCpuHasUnlessToldOtherwise) {
  const IsaPath all[] = {{"avx512", true}, {"avx2", true}, {"portable", true}};
  EXPECT_EQ(*ChooseIsaPath("", all), 0);
  EXPECT_EQ(*ChooseIsaPath("auto", all), 0);
  EXPECT_EQ(*ChooseIsaPath("avx2", all), 1);
  const IsaPath older[] = {{"avx512", false}, {"avx2", true}, {"portable", true}};
  EXPECT_EQ(*ChooseIsaPath("auto", older), 1);
  EXPECT_EQ(*ChooseIsaPath("portable", older), 2);
  const absl::Status refused = ChooseIsaPath("avx512", older).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(refused.message(),
            "cpu.isa: avx512, allowed auto, avx2, portable: this CPU does not have avx512");
  const IsaPath other_processor[] = {{"portable", true}};
  EXPECT_EQ(ChooseIsaPath("avx2", other_processor).status().message(),
            "cpu.isa: avx2, allowed auto, portable");
}

TEST(CpuDevice, AllocatesZeroFilledAlignedMemoryThatNobodyElseHas) {
  OpRig rig({}, RunMode::kEager);
  // Small allocations, more 15 MB ones than fit one region, and ones with a region of their own.
  const std::vector<size_t> sizes = {1,        63,       64,       100'000,  15 << 20, 15 << 20,
                                     15 << 20, 15 << 20, 15 << 20, 17 << 20, 3,        33 << 20};
  std::vector<unsigned char*> pieces;
  for (const size_t bytes : sizes) {
    const auto memory = rig.device().Allocate(bytes);
    ASSERT_TRUE(memory.ok());
    EXPECT_EQ(reinterpret_cast<uintptr_t>(*memory) % 64, 0u);
    pieces.push_back(static_cast<unsigned char*>(*memory));
    EXPECT_EQ(std::count(pieces.back(), pieces.back() + bytes, 0), static_cast<int64_t>(bytes));
    std::memset(pieces.back(), static_cast<int>(pieces.size()), bytes);
  }
  for (size_t i = 0; i < sizes.size(); ++i) {
    EXPECT_EQ(std::count(pieces[i], pieces[i] + sizes[i], static_cast<unsigned char>(i + 1)),
              static_cast<int64_t>(sizes[i]));
  }
}

TEST(CpuDevice, NamesTheBytesItDoesNotHave) {
  OpRig rig({}, RunMode::kEager);
  const auto memory = rig.device().Allocate(~size_t{0} - 5);
  EXPECT_EQ(memory.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_NE(memory.status().message().find("18446744073709551610"), std::string::npos);
}

// Two ops over one buffer: out += x, then out -> bf16.
struct TwoOps {
  explicit TwoOps(OpRig& rig)
      : sum(rig.Put(std::vector<float>{1, 2, 3})),
        x(rig.Put(std::vector<float>{10, 20, 30})),
        rounded(rig.Poisoned<bf16>(3)) {}
  void Submit(OpRig& rig) const {
    rig.ops().add(rig.stream(), {.out = Dense(sum, 1, 3), .x = Dense<const float>(x, 1, 3)});
    rig.ops().to_bf16_rows(rig.stream(), {.out = Dense(rounded, 1, 3), .x = Dense<const float>(sum, 1, 3)});
  }
  float* sum;
  float* x;
  bf16* rounded;
};

TEST(CpuGraph, RunsNothingBeforeReplayAndEverythingThen) {
  OpRig rig({}, RunMode::kEager);
  const TwoOps ops(rig);
  const auto graph = rig.device().Capture(rig.stream(), [&] { ops.Submit(rig); });
  EXPECT_EQ(graph->node_count(), 2u);
  EXPECT_EQ(rig.Get(ops.sum, 3), (std::vector<float>{1, 2, 3}));
  graph->Replay(rig.stream());
  graph->Replay(rig.stream());
  EXPECT_EQ(rig.Get(ops.sum, 3), (std::vector<float>{21, 42, 63}));
  EXPECT_EQ(ToFloat(rig.Get(ops.rounded, 3)[2]), 63.0f);
}

TEST(CpuGraph, KeepsNothingOfTheHost) {
  OpRig rig({}, RunMode::kEager);
  const TwoOps ops(rig);
  auto params = std::make_unique<AddParams>();
  *params = {.out = Dense(ops.sum, 1, 3), .x = Dense<const float>(ops.x, 1, 3)};
  const auto graph = rig.device().Capture(rig.stream(), [&] { rig.ops().add(rig.stream(), *params); });
  std::memset(static_cast<void*>(params.get()), 0xff, sizeof(AddParams));
  params.reset();
  graph->Replay(rig.stream());
  EXPECT_EQ(rig.Get(ops.sum, 3), (std::vector<float>{11, 22, 33}));
}

TEST(CpuGraph, TwoCapturesGiveTheSameNodes) {
  OpRig rig({}, RunMode::kEager);
  const TwoOps ops(rig);
  const auto capture = [&](int scribble) {
    EmbedParams params;  // ends in padding, which must not count
    std::memset(static_cast<void*>(&params), scribble, sizeof(params));
    params.out = Dense(ops.sum, 1, 3);
    params.table = ops.rounded;
    params.ids = nullptr;
    params.vocab_size = 1;
    return rig.device().Capture(rig.stream(), [&] {
      ops.Submit(rig);
      rig.ops().embed(rig.stream(), params);
    });
  };
  const auto first = capture(0x00);
  const auto second = capture(0xa5);
  EXPECT_TRUE(first->SameNodes(*second));
}

TEST(CpuGraph, SeesADifferentKernelParameterOrCount) {
  OpRig rig({}, RunMode::kEager);
  const TwoOps ops(rig);
  const AddParams params = {.out = Dense(ops.sum, 1, 3), .x = Dense<const float>(ops.x, 1, 3)};
  AddParams other = params;
  other.x.cols = 2;
  const auto capture = [&](const std::function<void()>& record) {
    return rig.device().Capture(rig.stream(), record);
  };
  const auto add = capture([&] { rig.ops().add(rig.stream(), params); });
  const auto other_add = capture([&] { rig.ops().add(rig.stream(), other); });
  const auto twice = capture([&] {
    rig.ops().add(rig.stream(), params);
    rig.ops().add(rig.stream(), params);
  });
  const auto none = capture([] {});
  for (const Graph* graph : {other_add.get(), twice.get(), none.get()}) EXPECT_FALSE(add->SameNodes(*graph));
  EXPECT_EQ(none->node_count(), 0u);

  // Same parameter bytes, another kernel.
  StoreDraftsParams bytes = {};
  const auto store = capture([&] { rig.ops().store_drafts(rig.stream(), bytes); });
  const auto store_again = capture([&] { rig.ops().store_drafts(rig.stream(), bytes); });
  EXPECT_TRUE(store->SameNodes(*store_again));
  EXPECT_FALSE(store->SameNodes(*add));
}

TEST(CpuStreamDeathTest, RefusesCopiesInsideACapture) {
  OpRig rig({}, RunMode::kEager);
  float value = 0.0f;
  float* memory = rig.Poisoned<float>(1);
  EXPECT_DEATH(
      rig.device().Capture(rig.stream(), [&] { rig.device().CopyToHost(rig.stream(), &value, memory, 4); }),
      "copy inside a capture");
}

}  // namespace
}  // namespace foredraft
