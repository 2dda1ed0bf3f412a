// R1Shapes (r1_shapes_test.cc) for a preemption: the bytes of a sequence's blocks and of its slot go to host
// memory and come back, into other blocks and another slot.

#include <gtest/gtest.h>

#include <span>
#include <vector>

#include "engine/cache/kv_cache.h"
#include "engine/cache/slot_state.h"
#include "engine/model/deepseek_v3/deepseek_v3_kind.h"
#include "engine/model/model_kind.h"
#include "tests/gpu/r1_rows.h"

namespace foredraft {
namespace {

KvCacheShape R1Cache() {
  ModelConfig config;
  config.architecture = "DeepseekV3ForCausalLM";
  config.kind = &kDeepseekV3Kind;
  config.num_hidden_layers = 61;
  config.kv_lora_rank = 512;
  config.qk_rope_head_dim = 64;
  config.hidden_size = kR1Hidden;
  return {.groups = CacheGroupsOf(config, /*module_count=*/1, /*tokens_per_block=*/64),
          .block_counts = {9},
          .boundaries = {}};
}

SlotStateShape R1Slots() {
  return {.slot_count = 3,
          .vocab_size = kR1Vocab,
          .table_strides = {8},
          .rows = {{.name = "boundaries", .width = kR1Hidden}}};
}

// The bytes of one block in all layers, another for every block.
std::vector<uint8_t> BlockBytes(int block) {
  std::vector<uint8_t> bytes(R1Cache().block_bytes());
  for (size_t i = 0; i < bytes.size(); ++i)
    bytes[i] = static_cast<uint8_t>(i * 7 + i / 251 + size_t(block) * 89);
  return bytes;
}

TEST(R1Shapes, SwappedBlocksComeBack) {
  OpRig& rig = Rig(RunMode::kEager);
  const CacheGroupTable table = {rig.Poisoned<int32_t>(8), 8};
  const auto cache = KvCache::Create(rig.device(), R1Cache(), {&table, 1}, /*poison=*/true);
  ASSERT_TRUE(cache.ok()) << cache.status();
  const int64_t bytes = R1Cache().block_bytes();
  uint8_t* const image = *rig.device().AllocatePinnedArray<uint8_t>(4 * bytes);
  // Frames of half a block: a layer's rows may lie in two of them.
  std::vector<uint8_t*> frames;
  for (int i = 0; i < 8; ++i) frames.push_back(image + i * bytes / 2);
  const auto block_frames = [&](int i) {
    return HostFrames{.frames = std::span(frames).subspan(2 * i, 2), .frame_bytes = size_t(bytes / 2)};
  };
  for (int i = 0; i < 3; ++i) {
    const std::vector<uint8_t> block = BlockBytes(i);
    std::copy(block.begin(), block.end(), image + i * bytes);
    cache->CopyBlockToDevice(rig.device(), rig.stream(), 0, 2 + i, block_frames(i));
  }
  rig.stream().Synchronize();
  std::fill(image, image + 3 * bytes, uint8_t{0});
  // Out of blocks 2..4, in stream order into 5, 8 and 7, and back to the host.
  const int into[] = {5, 8, 7};
  for (int i = 0; i < 3; ++i) {
    cache->CopyBlockToHost(rig.device(), rig.stream(), 0, 2 + i, block_frames(i));
    cache->CopyBlockToDevice(rig.device(), rig.stream(), 0, into[i], block_frames(i));
  }
  for (int i = 0; i < 3; ++i) {
    cache->CopyBlockToHost(rig.device(), rig.stream(), 0, into[i], block_frames(3));
    rig.stream().Synchronize();
    const std::vector<uint8_t> back(image + 3 * bytes, image + 4 * bytes);
    EXPECT_EQ(back == BlockBytes(i), true) << "block " << i;
  }
}

TEST(R1Shapes, SwappedSlotsComeBack) {
  OpRig& rig = Rig(RunMode::kEager);
  auto slots = SlotState::Create(rig.device(), R1Slots());
  ASSERT_TRUE(slots.ok()) << slots.status();
  SlotAdmission admission = {.slot = 0, .logprob_count = 3, .prompt_len = 17, .length_limit = 400};
  admission.sampling.temperature = 0.5f;
  admission.sampling.presence_penalty = 0.25f;  // so the counts of tokens belong to the image
  slots->Admit(rig.stream(), admission);
  const std::vector<int32_t> prompt = {0, 5, 129279};
  slots->CountPrompt(rig.stream(), 0, prompt);
  const SlotArrays& arrays = slots->arrays();
  std::vector<int32_t> counts(kR1Vocab);
  for (int v = 0; v < kR1Vocab; ++v) counts[v] = v % 11;
  rig.device().CopyToDevice(rig.stream(), arrays.output_counts, counts.data(),
                            counts.size() * sizeof(int32_t));
  constexpr size_t kFrameBytes = size_t{64} << 10;
  const size_t frame_count = (SlotState::ImageBytes(R1Slots()) + kFrameBytes - 1) / kFrameBytes;
  uint8_t* const memory = *rig.device().AllocatePinnedArray<uint8_t>(frame_count * kFrameBytes);
  std::vector<uint8_t*> frames;
  for (size_t i = frame_count; i-- > 0;) frames.push_back(memory + i * kFrameBytes);
  const HostFrames image = {.frames = frames, .frame_bytes = kFrameBytes};
  HostSlotState host = slots->SwapOut(rig.stream(), 0, image);
  slots->Release(rig.stream(), 0);
  const std::vector<SlotConstants> before = rig.Get(arrays.constants, 1);
  slots->SwapIn(rig.stream(), 2, image, std::move(host));
  const SlotConstants after = rig.Get(arrays.constants + 2, 1)[0];
  EXPECT_EQ(BytesOf(&after, 1), BytesOf(before.data(), 1));
  EXPECT_EQ(rig.Get(arrays.output_counts + size_t{2} * kR1Vocab, kR1Vocab), counts);
  std::vector<uint8_t> seen(kR1Vocab, 0);
  for (const int32_t id : prompt) seen[id] = 1;
  EXPECT_EQ(rig.Get(arrays.prompt_seen + size_t{2} * kR1Vocab, kR1Vocab), seen);
  EXPECT_TRUE(slots->wants_logprobs(2));
}

}  // namespace
}  // namespace foredraft
