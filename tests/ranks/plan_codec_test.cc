#include "ranks/plan_codec.h"

#include <gtest/gtest.h>

#include <string>

namespace foredraft {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;

// Appends the names of the fields that are unset somewhere in the message: for those the test would prove
// nothing.
void FindUnset(const Message& message, const std::string& where, std::string* unset) {
  const google::protobuf::Reflection& reflection = *message.GetReflection();
  for (int i = 0; i < message.GetDescriptor()->field_count(); ++i) {
    const FieldDescriptor* field = message.GetDescriptor()->field(i);
    const std::string name = where + "." + field->name();
    if (field->is_repeated() ? reflection.FieldSize(message, field) == 0
                             : !reflection.HasField(message, field)) {
      *unset += name + " ";
    } else if (field->cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE && field->is_repeated()) {
      for (int j = 0; j < reflection.FieldSize(message, field); ++j) {
        FindUnset(reflection.GetRepeatedMessage(message, field, j), name, unset);
      }
    } else if (field->cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE) {
      FindUnset(reflection.GetMessage(message, field), name, unset);
    }
  }
}

// No field has its default value.
IterationPlan FullPlan() {
  IterationPlan plan{.number = 1'000'000'000'007,
                     .draft_len = 3,
                     .acceptance = {.relaxed_topk = 5, .relaxed_delta = 0.25f, .forced_length = 1.5f},
                     .verify_rows = 32,
                     .calibration = {{.slope = 0.5f, .offset = -1.5f}},
                     .decode_bucket = 16,
                     .prefill_rows = {17, 0, 9},
                     .ended_prompts = {1, 0, 2}};
  plan.ranks.resize(3);
  plan.ranks[1] = {
      .releases = {3, 4},
      .dropped_images = {1ull << 60},
      .swaps_out = {{.image_id = 21,
                     .slot = 5,
                     .blocks = {{.group = 2, .first_index = 4, .block_ids = {1, 2, 3}}}}},
      .swaps_in = {{.image_id = 22,
                    .slot = 6,
                    .blocks = {{.group = 1, .first_index = 9, .block_ids = {7, 8}},
                               {.group = 3, .first_index = 2, .block_ids = {6}}}},
                   {.image_id = 23, .slot = 9, .blocks = {{.group = 1, .first_index = 5, .block_ids = {4}}}}},
      .admissions = {{.slot = 7,
                      .sampling = {.temperature = 0.7f,
                                   .top_p = 0.9f,
                                   .top_k = 40,
                                   .min_p = 0.05f,
                                   .repetition_penalty = 1.1f,
                                   .presence_penalty = -0.5f,
                                   .frequency_penalty = 0.3f,
                                   .seed = ~0ull,
                                   .min_tokens = 7,
                                   .logit_bias = {{3, -1.5f}, {9, 100}}},
                      .logprob_count = -1,
                      .phase = Phase::kThinking,
                      .thinking = {.begin = 11, .end = 12},
                      .draft_cap = 2,
                      .strict = true,
                      .prompt_len = 100,
                      .length_limit = 163,
                      .stop_ids = {1, 2},
                      .reused_len = 32,
                      .boundary_block = 14,
                      .reused_ids = {9, 8, 7},
                      .gate = {.constrained = true,
                               .first = Gate::kTrigger,
                               .opens_thought = true,
                               .trigger_ids = {31, 33},
                               .barred_stop_count = 2}}},
      .block_table_deltas = {{.slot = 7, .group = 1, .first_index = 2, .block_ids = {14, 0}}},
      .prefill_chunks = {{.slot = 7, .first_position = 32, .token_ids = {70'000, 5}, .last = true}},
      .live_slots = {7, 1},
      .given_tokens = {{.slot = 7, .token_ids = {5, 6}}},
      .masks = {std::make_shared<TokenMask>(
          TokenMask{.vocab_size = 100'000, .count = 3, .ids = {4, 9, 70'000}, .words = {6, 1u << 31}})},
      .slot_masks = {{.slot = 7, .mask_indices = {3, 1}, .forced_drafts = {70}}},
      .first_masks = {{.slot = 2, .mask_index = 1}},
  };
  return plan;
}

RankResult FullResult() {
  return {.number = 42,
          .slots = {{.slot = 3,
                     .token_ids = {5, 6, 7},
                     .first_token = true,
                     .length = 99,
                     .drafts_verified = 2,
                     .relaxed_count = 1,
                     .ends_in_draft = true,
                     .finished = true,
                     .logprobs = {{.token_id = 5,
                                   .logprob = -0.5f,
                                   .top = {{.token_id = 6, .logprob = -1.5f},
                                           {.token_id = 7, .logprob = -2.5f}}}},
                     .confidences = {1.5f, -0.5f, 0.25f},
                     .drafts = {8, 9},
                     .nonfinite_logits = true}},
          .prefill_seconds = 0.5,
          .decode_seconds = 0.25,
          .replayed = true};
}

// Converts to any type: MemberCount tries how many of them initialise an aggregate.
struct AnyValue {
  template <class T>
  operator T() const;
};

template <class T, class... Members>
constexpr int MemberCount() {
  if constexpr (requires { T{Members{}..., AnyValue{}}; }) {
    return MemberCount<T, Members..., AnyValue>();
  } else {
    return sizeof...(Members);
  }
}

// Fails when a struct gets a field that its message does not have. EncodesEveryField then requires its line
// in the codec.
TEST(PlanCodec, KnowsEveryField) {
  const auto expect_fields = [](const google::protobuf::Descriptor& message, int members) {
    EXPECT_EQ(message.field_count(), members) << message.name();
  };
  expect_fields(*worker::v1::WorkerPlan::descriptor(),
                MemberCount<IterationPlan>() - 1 + MemberCount<RankPlan>());
  expect_fields(*worker::v1::PlanAcceptance::descriptor(), MemberCount<AcceptanceRule>());
  expect_fields(*worker::v1::PlanCalibration::descriptor(), MemberCount<DraftCalibration>());
  expect_fields(*worker::v1::PlanSwap::descriptor(), MemberCount<SwapOut>());
  expect_fields(*worker::v1::PlanSwap::descriptor(), MemberCount<SwapIn>());
  expect_fields(*worker::v1::PlanGroupBlocks::descriptor(), MemberCount<CacheGroupBlocks>());
  expect_fields(*worker::v1::PlanAdmission::descriptor(), MemberCount<SlotAdmission>());
  expect_fields(*worker::v1::PlanSampling::descriptor(), MemberCount<SamplingParams>());
  expect_fields(*worker::v1::PlanThinking::descriptor(), MemberCount<ThinkingIds>());
  expect_fields(*worker::v1::PlanGate::descriptor(), MemberCount<SlotGate>());
  expect_fields(*worker::v1::PlanMask::descriptor(), MemberCount<TokenMask>());
  expect_fields(*worker::v1::PlanSlotMasks::descriptor(), MemberCount<SlotMasks>());
  expect_fields(*worker::v1::PlanFirstMask::descriptor(), MemberCount<FirstMask>());
  expect_fields(*worker::v1::PlanTableDelta::descriptor(), MemberCount<BlockTableDelta>());
  expect_fields(*worker::v1::PlanChunk::descriptor(), MemberCount<PrefillChunk>());
  expect_fields(*worker::v1::WorkerResult::descriptor(), MemberCount<RankResult>());
  expect_fields(*worker::v1::ResultSlot::descriptor(), MemberCount<SlotResult>());
  // `top` is two lists in the message.
  expect_fields(*worker::v1::ResultLogprob::descriptor(),
                MemberCount<TokenLogprob>() - 1 + MemberCount<TopLogprob>());
}

TEST(PlanCodec, EncodesEveryField) {
  std::string unset;
  FindUnset(EncodePlan(FullPlan(), 1), "plan", &unset);
  FindUnset(EncodeResult(FullResult()), "result", &unset);
  EXPECT_EQ(unset, "");
}

TEST(PlanCodec, GivesBackWhatItTook) {
  const worker::v1::WorkerPlan plan = EncodePlan(FullPlan(), 1);
  const IterationPlan decoded = DecodePlan(plan, 1);
  EXPECT_EQ(EncodePlan(decoded, 1).SerializeAsString(), plan.SerializeAsString());
  EXPECT_EQ(decoded.number, 1'000'000'000'007u);
  EXPECT_EQ(decoded.acceptance, FullPlan().acceptance);
  const SlotAdmission& admission = decoded.ranks[1].admissions.at(0);
  EXPECT_EQ(admission.phase, Phase::kThinking);
  EXPECT_EQ(admission.thinking, FullPlan().ranks[1].admissions[0].thinking);
  EXPECT_EQ(admission.gate, FullPlan().ranks[1].admissions[0].gate);
  EXPECT_EQ(decoded.ranks[1].masks.at(0)->ids, FullPlan().ranks[1].masks[0]->ids);
  EXPECT_EQ(decoded.ranks[1].masks.at(0)->words, FullPlan().ranks[1].masks[0]->words);
  EXPECT_EQ(decoded.ranks[1].swaps_in.at(1).blocks.at(0).block_ids, (std::vector<int32_t>{4}));
  EXPECT_EQ(decoded.ranks[1].swaps_in.at(0).blocks.at(1).group, 3);
  EXPECT_EQ(decoded.ranks[1].block_table_deltas.at(0).group, 1);

  const worker::v1::WorkerResult message = EncodeResult(FullResult());
  const RankResult result = DecodeResult(message);
  EXPECT_EQ(EncodeResult(result).SerializeAsString(), message.SerializeAsString());
  const TokenLogprob& token = result.slots.at(0).logprobs.at(0);
  ASSERT_EQ(token.top.size(), 2u);
  EXPECT_EQ(token.top[1].token_id, 7);
  EXPECT_EQ(token.top[1].logprob, -2.5f);
}

TEST(PlanCodec, SendsARankOnlyItsOwnPlan) {
  const IterationPlan decoded = DecodePlan(EncodePlan(FullPlan(), 2), 2);
  ASSERT_EQ(decoded.ranks.size(), 3u);
  EXPECT_TRUE(decoded.ranks[1].live_slots.empty());
  EXPECT_EQ(decoded.prefill_rows, (std::vector<int32_t>{17, 0, 9}));
  EXPECT_EQ(decoded.ended_prompts, (std::vector<int32_t>{1, 0, 2}));
}

}  // namespace
}  // namespace foredraft
