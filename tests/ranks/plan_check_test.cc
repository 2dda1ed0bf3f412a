// Plans of a leader that lies. Whatever PlanCheck lets through, the engine carries out without a fault; what
// the scheduler could have sent passes.

#include "ranks/plan_check.h"

#include <gmock/gmock.h>
#include <google/protobuf/message.h>
#include <gtest/gtest.h>

#include <limits>
#include <random>

#include "config/config_defaults.h"
#include "engine/model_limits.h"
#include "ranks/engine_setup.h"
#include "ranks/plan_codec.h"
#include "ranks/rank_builder.h"

namespace foredraft {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using testing::HasSubstr;

constexpr int kForgedPlans = 10'000;

struct Rig {
  ModelConfig model;
  SchedulerOptions options;
  BuiltRank built;
};

Rig MakeRig(const std::string& checkpoint, bool vanilla) {
  LoadedConfig loaded;
  loaded.config.model = "tests/golden/checkpoints/" + checkpoint;
  loaded.config.max_seq_len = 96;
  loaded.config.max_batch_size = 4;
  loaded.config.max_num_tokens = 32;
  loaded.config.cpu.threads = 1;
  loaded.config.kv_cache_config.tokens_per_block = 8;
  loaded.config.kv_cache_config.max_tokens = 512;
  loaded.config.kv_cache_config.host_cache_size = 1 << 20;
  SpeculativeConfig& speculative = loaded.config.speculative_config.emplace();
  speculative.use_mtp_vanilla = vanilla;
  Rig rig;
  rig.model = *ReadModelConfig(loaded.config.model + "/config.json");
  if (rig.model.drafts_in_blocks()) {
    speculative = {.decoding_type = DecodingType::kDSpark,
                   .max_draft_len = 3,
                   .draft_policy = DraftPolicyKind::kConfidence};
  }
  const ModelLimits limits = ModelLimitsOf(rig.model);
  EXPECT_TRUE(ResolveDefaults({}, &limits, loaded).ok());
  rig.built = *BuildRank(loaded.config, rig.model, *CreateRankDevice(loaded.config), {}, {});
  rig.options =
      SchedulerOptionsOf(WithBlockCount(loaded.config, rig.model, rig.built.block_count), rig.model);
  return rig;
}

// Plans as a scheduler might make them, at random. It follows what was carried out.
class RandomPlans {
 public:
  RandomPlans(const Rig& rig, uint32_t seed)
      : options_(rig.options), vocab_(rig.model.vocab_size), random_(seed) {
    slots_.resize(options_.max_batch_size);
  }

  IterationPlan Next() {
    IterationPlan plan{.number = number_ + 1, .draft_len = Pick(0, options_.max_draft_len)};
    RankPlan& rank = plan.ranks.emplace_back();
    std::vector<std::optional<Slot>> slots = slots_;
    for (const auto& [id, image] : images_) {
      if (Pick(0, 5) == 0) rank.dropped_images.push_back(id);
    }
    for (int slot = 0; slot < options_.max_batch_size; ++slot) {
      std::optional<Slot>& state = slots[slot];
      if (state && Pick(0, 9) == 0) {
        rank.releases.push_back(slot);
        state.reset();
      } else if (state && state->prefilled == state->prompt_len && Pick(0, 9) == 0 && images_.size() < 3) {
        rank.swaps_out.push_back({.image_id = next_image_++, .slot = slot, .blocks = Blocks({})});
        state.reset();
      }
    }
    SwapIn(rank, slots);
    for (int slot = 0; slot < options_.max_batch_size; ++slot) {
      if (!slots[slot] && Pick(0, 1) == 0) Admit(slot, rank, slots);
    }
    Prefill(plan, slots);
    Decode(plan, slots);
    return plan;
  }

  // `plan` was carried out.
  void Apply(const IterationPlan& plan) {
    if (plan.number == 1) std::fill(slots_.begin(), slots_.end(), std::nullopt);
    number_ = plan.number;
    const RankPlan& rank = plan.ranks[0];
    for (const uint64_t id : rank.dropped_images) images_.erase(id);
    for (const int32_t slot : rank.releases) slots_[slot].reset();
    for (const SwapOut& swap : rank.swaps_out) {
      Image& image = images_[swap.image_id];
      image.slot = *slots_[swap.slot];
      for (const CacheGroupBlocks& blocks : swap.blocks) image.counts.push_back(blocks.block_ids.size());
      slots_[swap.slot].reset();
    }
    for (const foredraft::SwapIn& swap : rank.swaps_in) {
      slots_[swap.slot] = images_[swap.image_id].slot;
      images_.erase(swap.image_id);
    }
    for (const SlotAdmission& a : rank.admissions) slots_[a.slot] = Slot{a.prompt_len, a.reused_len, a.gate};
    for (const PrefillChunk& chunk : rank.prefill_chunks) {
      slots_[chunk.slot]->prefilled += static_cast<int>(chunk.token_ids.size());
    }
  }

  // The next plan is the first one of another scheduler.
  void StartAgain() {
    number_ = 0;
    std::fill(slots_.begin(), slots_.end(), std::nullopt);
  }

  int Pick(int low, int high) { return std::uniform_int_distribution<int>(low, high)(random_); }

 private:
  struct Slot {
    int prompt_len;
    int prefilled;
    SlotGate gate;
  };
  struct Image {
    Slot slot{};
    std::vector<size_t> counts;
  };

  std::vector<int32_t> Ids(int count) {
    std::vector<int32_t> ids(count);
    for (int32_t& id : ids) id = Pick(0, vocab_ - 1);
    return ids;
  }
  std::vector<int32_t> BlockIds(int group, size_t count) {
    std::vector<int32_t> ids(count);
    for (int32_t& id : ids) id = Pick(1, options_.groups[group].block_count - 1);
    return ids;
  }
  std::vector<CacheGroupBlocks> Blocks(const std::vector<size_t>& counts) {
    std::vector<CacheGroupBlocks> blocks;
    for (size_t g = 0; g < options_.groups.size(); ++g) {
      const int entries = options_.groups[g].BlocksFor(options_.max_seq_len);
      const size_t count = counts.empty() ? Pick(0, std::min(2, entries)) : counts[g];
      blocks.push_back({.group = static_cast<int>(g), .block_ids = BlockIds(g, count)});
    }
    return blocks;
  }
  void SwapIn(RankPlan& rank, std::vector<std::optional<Slot>>& slots) {
    for (const auto& [id, image] : images_) {
      const auto& dropped = rank.dropped_images;
      const auto free = std::find(slots.begin(), slots.end(), std::nullopt);
      if (free == slots.end() || std::find(dropped.begin(), dropped.end(), id) != dropped.end()) continue;
      if (Pick(0, 2) != 0) continue;
      rank.swaps_in.push_back(
          {.image_id = id, .slot = static_cast<int>(free - slots.begin()), .blocks = Blocks(image.counts)});
      *free = image.slot;
      Map(static_cast<int>(free - slots.begin()), rank);
    }
  }
  void Admit(int slot, RankPlan& rank, std::vector<std::optional<Slot>>& slots) {
    SlotAdmission a{.slot = slot, .logprob_count = Pick(-1, 3), .draft_cap = Pick(0, options_.max_draft_len)};
    a.sampling.temperature = static_cast<float>(Pick(0, 1));
    a.sampling.presence_penalty = static_cast<float>(Pick(0, 1));
    a.sampling.seed = random_();
    if (Pick(0, 3) == 0) a.sampling.logit_bias = {{Pick(0, 9), -2}, {Pick(10, 20), 3}};
    a.prompt_len = Pick(1, 40);
    a.length_limit = Pick(a.prompt_len, options_.max_seq_len - 1);
    a.stop_ids = Ids(Pick(0, 3));
    const int whole = options_.groups[kHistoryGroup].tokens_per_block;
    const int reusable = std::max(0, a.prompt_len - options_.drafter.reuse_reserve) / whole * whole;
    if (reusable > 0 && Pick(0, 1) == 0) {
      a.reused_len = reusable;
      a.boundary_block = BlockIds(kHistoryGroup, 1)[0];
      if (a.sampling.counts_tokens()) a.reused_ids = Ids(a.reused_len);
    }
    if (Pick(0, 1) == 0) {
      a.gate = {.constrained = true,
                .first = static_cast<Gate>(Pick(0, 2)),
                .opens_thought = Pick(0, 1) == 0,
                .trigger_ids = Ids(Pick(0, 3)),
                .barred_stop_count = Pick(0, static_cast<int>(a.stop_ids.size()))};
      a.thinking = {.begin = Pick(0, vocab_ - 1), .end = Pick(0, vocab_ - 1)};
    }
    rank.admissions.push_back(a);
    slots[slot] = Slot{a.prompt_len, a.reused_len, a.gate};
    Map(slot, rank);
  }
  void Map(int slot, RankPlan& rank) {
    const int positions = options_.max_seq_len + options_.max_draft_len + options_.drafter.rows_ahead;
    for (size_t g = 0; g < options_.groups.size(); ++g) {
      rank.block_table_deltas.push_back({.slot = slot,
                                         .group = static_cast<int>(g),
                                         .block_ids = BlockIds(g, options_.groups[g].BlocksFor(positions))});
    }
  }
  void Prefill(IterationPlan& plan, std::vector<std::optional<Slot>>& slots) {
    int room = options_.max_num_tokens;
    int ended = 0;
    for (int slot = 0; slot < options_.max_batch_size; ++slot) {
      if (!slots[slot] || slots[slot]->prefilled == slots[slot]->prompt_len || room == 0) continue;
      Slot& state = *slots[slot];
      const int count = std::min(room, Pick(1, state.prompt_len - state.prefilled));
      plan.ranks[0].prefill_chunks.push_back({.slot = slot,
                                              .first_position = state.prefilled,
                                              .token_ids = Ids(count),
                                              .last = state.prefilled + count == state.prompt_len});
      state.prefilled += count;
      room -= count;
      if (state.prefilled != state.prompt_len) continue;
      ++ended;
      RankPlan& rank = plan.ranks[0];
      if (!state.gate.constrained || (state.gate.first != Gate::kBehind && Pick(0, 1) == 0)) continue;
      rank.first_masks.push_back({.slot = slot, .mask_index = AddMask(rank)});
    }
    plan.prefill_rows = {options_.max_num_tokens - room};
    plan.ended_prompts = {ended};
  }
  int32_t AddMask(RankPlan& rank) {
    TokenMask mask{.vocab_size = vocab_, .count = 1, .ids = {Pick(0, vocab_ - 1)}, .words = {}};
    if (Pick(0, 1) == 0) {
      mask.ids.clear();
      mask.words.assign((vocab_ + 31) / 32, static_cast<uint32_t>(random_()));
    }
    rank.masks.push_back(std::make_shared<const TokenMask>(std::move(mask)));
    return static_cast<int32_t>(rank.masks.size()) - 1;
  }
  void Mask(const IterationPlan& plan, int32_t slot, RankPlan& rank) {
    SlotMasks& masks = rank.slot_masks.emplace_back(SlotMasks{.slot = slot});
    for (int row = Pick(0, plan.draft_len + 1); row > 0; --row) masks.mask_indices.push_back(AddMask(rank));
    const int rows = static_cast<int>(masks.mask_indices.size());
    masks.forced_drafts = Ids(Pick(0, std::clamp(rows - 1, 0, options_.drafter.forced_limit())));
  }
  void Decode(IterationPlan& plan, const std::vector<std::optional<Slot>>& slots) {
    RankPlan& rank = plan.ranks[0];
    for (int slot = 0; slot < options_.max_batch_size; ++slot) {
      if (slots[slot] && slots[slot]->prefilled == slots[slot]->prompt_len) rank.live_slots.push_back(slot);
    }
    for (const int bucket : options_.batch_sizes) {
      if (rank.live_slots.empty() || bucket < static_cast<int>(rank.live_slots.size())) continue;
      plan.decode_bucket = bucket;
      break;
    }
    for (const int32_t slot : rank.live_slots) {
      if (Pick(0, 9) == 0) rank.given_tokens.push_back({.slot = slot, .token_ids = Ids(1)});
      if (slots[slot]->gate.constrained && Pick(0, 2) > 0) Mask(plan, slot, rank);
    }
    const bool cuts = options_.draft_policy.kind == DraftPolicyKind::kConfidence;
    if (cuts && plan.draft_len > 1 && plan.decode_bucket > 0 && rank.given_tokens.empty()) {
      plan.verify_rows = plan.decode_bucket * (1 + Pick(1, plan.draft_len - 1));
      plan.calibration.assign(options_.max_draft_len, {.slope = 0.5f, .offset = 1});
    }
  }

  const SchedulerOptions options_;
  const int vocab_;
  std::mt19937 random_;
  uint64_t number_ = 0;
  uint64_t next_image_ = 1;
  std::vector<std::optional<Slot>> slots_;
  std::map<uint64_t, Image> images_;
};

// Changes one field, anywhere in the message, to a value that a liar might choose.
class Liar {
 public:
  explicit Liar(RandomPlans& random) : random_(random) {}

  void Forge(Message& message) {
    const auto* descriptor = message.GetDescriptor();
    const auto* reflection = message.GetReflection();
    for (int tries = 0; tries < 100; ++tries) {
      const FieldDescriptor* field = descriptor->field(random_.Pick(0, descriptor->field_count() - 1));
      const int size = field->is_repeated() ? reflection->FieldSize(message, field) : 0;
      const bool is_message = field->cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE;
      if (!field->is_repeated()) {
        if (is_message) return Forge(*reflection->MutableMessage(&message, field));
        return Set(message, field);
      }
      if (size == 0 && random_.Pick(0, 3) != 0) continue;
      if (is_message) {
        if (size == 0 || random_.Pick(0, 4) == 0) return Forge(*reflection->AddMessage(&message, field));
        return Forge(*reflection->MutableRepeatedMessage(&message, field, random_.Pick(0, size - 1)));
      }
      return SetRepeated(message, field, size);
    }
  }

 private:
  int32_t Number(int32_t old) {
    constexpr int32_t kLow = std::numeric_limits<int32_t>::min(), kHigh = std::numeric_limits<int32_t>::max();
    const int32_t values[] = {-1, 0, 1, 2, 3, 7, kLow, kHigh, 1 << 20, 1 << 30, 4096, 64};
    const int pick = random_.Pick(0, std::size(values) + 1);
    if (pick < static_cast<int>(std::size(values))) return values[pick];
    return static_cast<int32_t>(int64_t{old} + (pick % 2 == 0 ? 1 : -1));
  }
  float Real() {
    const float values[] = {-1,
                            0,
                            1e-45f,
                            1e-38f,
                            1.0f,
                            1e9f,
                            3e38f,
                            std::numeric_limits<float>::infinity(),
                            std::numeric_limits<float>::quiet_NaN()};
    return values[random_.Pick(0, std::size(values) - 1)];
  }
  void Set(Message& message, const FieldDescriptor* field) {
    const auto* reflection = message.GetReflection();
    switch (field->cpp_type()) {
      case FieldDescriptor::CPPTYPE_INT32:
        return reflection->SetInt32(&message, field, Number(reflection->GetInt32(message, field)));
      case FieldDescriptor::CPPTYPE_UINT64:
        return reflection->SetUInt64(&message, field, static_cast<uint64_t>(random_.Pick(-1, 5)));
      case FieldDescriptor::CPPTYPE_FLOAT:
        return reflection->SetFloat(&message, field, Real());
      case FieldDescriptor::CPPTYPE_BOOL:
        return reflection->SetBool(&message, field, !reflection->GetBool(message, field));
      default:
        ADD_FAILURE() << field->full_name() << ": a type that the test does not forge";
    }
  }
  void SetRepeated(Message& message, const FieldDescriptor* field, int size) {
    const auto* reflection = message.GetReflection();
    const int action = size == 0 ? 0 : random_.Pick(0, 3);
    if (action == 1) return reflection->RemoveLast(&message, field);
    if (field->cpp_type() == FieldDescriptor::CPPTYPE_UINT64) {
      return reflection->AddUInt64(&message, field, static_cast<uint64_t>(random_.Pick(0, 5)));
    }
    if (field->cpp_type() == FieldDescriptor::CPPTYPE_UINT32) {
      return reflection->AddUInt32(&message, field, static_cast<uint32_t>(Number(0)));
    }
    if (action == 0) return reflection->AddInt32(&message, field, Number(0));
    const int index = random_.Pick(0, size - 1);
    reflection->SetRepeatedInt32(&message, field, index,
                                 Number(reflection->GetRepeatedInt32(message, field, index)));
  }

  RandomPlans& random_;
};

class PlanCheckTest : public testing::TestWithParam<std::pair<const char*, bool>> {};

TEST_P(PlanCheckTest, WhatPassesRuns) {
  const auto& [checkpoint, vanilla] = GetParam();
  Rig rig = MakeRig(checkpoint, vanilla);
  RandomPlans plans(rig, /*seed=*/25);
  Liar liar(plans);
  PlanCheck check(rig.options, /*rank=*/0, rig.model.vocab_size);
  int forged = 0, refused = 0, carried_out = 0;
  bool harmed = false;  // a forged plan was carried out since the slots were empty
  while (forged < kForgedPlans / 2) {
    IterationPlan plan = plans.Next();
    if (const absl::Status status = PlanCheck(check).Check(plan); !status.ok()) {
      ASSERT_TRUE(harmed) << status << "\n" << plan.DebugString();
      plans.StartAgain();  // what a forged plan has done to slots, such as unmapping, makes good ones bad
      harmed = false;
      continue;
    }
    bool forgery = false;
    if (plans.Pick(0, 4) != 0) {
      worker::v1::WorkerPlan message = EncodePlan(plan, 0);
      liar.Forge(message);
      plan = DecodePlan(message, 0);
      ++forged;
      forgery = true;
    }
    PlanCheck after = check;
    if (const absl::Status status = after.Check(plan); !status.ok()) {
      ++refused;
      ASSERT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
      ASSERT_THAT(std::string(status.message()), HasSubstr(", allowed "));
      ASSERT_EQ(status.message().find('\n'), absl::string_view::npos);
      continue;
    }
    check = after;
    harmed |= forgery;
    plans.Apply(plan);
    ASSERT_TRUE(rig.built.executor->Launch(plan).ok());
    const absl::StatusOr<RankResult> result = rig.built.executor->Collect();
    ASSERT_TRUE(result.ok()) << result.status();
    ASSERT_EQ(result->slots.size(), plan.ranks[0].live_slots.size());
    check.Note(*result);
    ++carried_out;
  }
  EXPECT_GT(refused, forged / 2);
  EXPECT_GT(carried_out, forged / 4);
}

INSTANTIATE_TEST_SUITE_P(Checkpoints, PlanCheckTest,
                         testing::Values(std::pair{"fp8", true}, std::pair{"deepseek_v4", false},
                                         std::pair{"deepseek_v4_dspark", false}),
                         [](const auto& info) { return std::string(info.param.first); });

// ---- the worker's executor ----

class CountingExecutor : public Executor {
 public:
  absl::Status Launch(const IterationPlan&) override {
    ++launched;
    return absl::OkStatus();
  }
  absl::StatusOr<RankResult> Collect() override { return RankResult{}; }
  int launched = 0;
};

IterationPlan Idle(uint64_t number) {
  IterationPlan plan{.number = number, .prefill_rows = {0}, .ended_prompts = {0}};
  plan.ranks.resize(1);
  return plan;
}

TEST(CheckedExecutor, LaunchesNothingAfterARefusal) {
  CountingExecutor rank;
  CheckedExecutor executor(rank, PlanCheck({}, 0, 100));
  EXPECT_TRUE(executor.Launch(Idle(1)).ok());
  EXPECT_TRUE(executor.Collect().ok());
  IterationPlan forged = Idle(2);
  forged.ranks[0].releases = {1 << 30};
  EXPECT_EQ(executor.Launch(forged),
            absl::InvalidArgumentError("the leader sent a plan that this rank cannot carry out: "
                                       "releases: 1073741824, allowed 0..63"));
  EXPECT_FALSE(executor.Launch(Idle(3)).ok());
  EXPECT_EQ(rank.launched, 1);
}

TEST(CheckedExecutor, HasTwoPlansInFlightAtMost) {
  CountingExecutor rank;
  CheckedExecutor executor(rank, PlanCheck({}, 0, 100));
  for (uint64_t number = 1; number <= 2; ++number) EXPECT_TRUE(executor.Launch(Idle(number)).ok());
  EXPECT_THAT(std::string(executor.Launch(Idle(3)).message()),
              HasSubstr("plans without a result: 3, allowed at most 2"));
  EXPECT_EQ(rank.launched, 2);
}

}  // namespace
}  // namespace foredraft
