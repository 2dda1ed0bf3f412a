// The seven helpers of docs/mtp-contract.md section 2: the contract's examples and every refusal.

#include "tools/validate_mtp/mtp_contract.h"

#include <limits>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace foredraft {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using Ids = std::vector<int64_t>;

// The error of `result` has this code, and its text has `text`.
template <class Result>
void ExpectRefused(const Result& result, absl::StatusCode code, const std::string& text) {
  EXPECT_EQ(result.status().code(), code) << result.status();
  EXPECT_THAT(std::string(result.status().message()), HasSubstr(text));
}
constexpr absl::StatusCode kInvalid = absl::StatusCode::kInvalidArgument;
constexpr absl::StatusCode kOutOfRange = absl::StatusCode::kOutOfRange;

// ---- BuildMtpPrefillInputIds ----

TEST(BuildMtpPrefillInputIds, ShiftsEachPromptAndAppendsItsNextToken) {
  EXPECT_THAT(*BuildMtpPrefillInputIds(Ids{1, 2, 3, 4, 5}, Ids{3, 2}, Ids{9, 8}), ElementsAre(2, 3, 9, 5, 8));
  EXPECT_THAT(*BuildMtpPrefillInputIds(Ids{7}, Ids{1}, Ids{6}), ElementsAre(6));
  EXPECT_THAT(*BuildMtpPrefillInputIds(Ids{}, Ids{}, Ids{}), IsEmpty());
}

TEST(BuildMtpPrefillInputIds, RefusesLengthsInTheContractsOrder) {
  ExpectRefused(BuildMtpPrefillInputIds(Ids{1, 2, 3}, Ids{1, 1}, Ids{}), kInvalid,
                "seq_lens: a sum of 2, allowed 3, the input_ids");
  ExpectRefused(BuildMtpPrefillInputIds(Ids{1, 2, 3}, Ids{3, 0}, Ids{9}), kInvalid,
                "next_tokens: 1 values, allowed 2");
  ExpectRefused(BuildMtpPrefillInputIds(Ids{1, 2, 3}, Ids{3, 0}, Ids{9, 8}), kInvalid,
                "seq_lens[1]: 0, allowed at least 1");
  ExpectRefused(BuildMtpPrefillInputIds(Ids{1, 2, 3}, Ids{4, -1}, Ids{9, 8}), kInvalid,
                "seq_lens[1]: -1, allowed at least 1");
  const int64_t large = std::numeric_limits<int64_t>::max();
  ExpectRefused(BuildMtpPrefillInputIds(Ids{1, 2}, Ids{large, large, 4}, Ids{9, 8, 7}), kInvalid, "seq_lens");
}

// ---- RestoreCpPrefillNextTokens ----

TEST(RestoreCpPrefillNextTokens, PutsTokensInTheOrderOfRequests) {
  EXPECT_THAT(*RestoreCpPrefillNextTokens(Ids{8, 9}, Ids{1, 0}, 2), ElementsAre(9, 8));
}

TEST(RestoreCpPrefillNextTokens, LeavesZeroAndTakesTheLastOfSeveral) {
  EXPECT_THAT(*RestoreCpPrefillNextTokens(Ids{8, 9, 7}, Ids{2, 0, 2}, 4), ElementsAre(9, 0, 7, 0));
}

TEST(RestoreCpPrefillNextTokens, CountsNegativeIndicesFromTheEnd) {
  EXPECT_THAT(*RestoreCpPrefillNextTokens(Ids{8, 9}, Ids{-1, -3}, 3), ElementsAre(9, 0, 8));
}

TEST(RestoreCpPrefillNextTokens, RefusesOtherLengthsAndIndices) {
  ExpectRefused(RestoreCpPrefillNextTokens(Ids{8, 9}, Ids{0}, 2), kInvalid,
                "output_request_indices: 1 values, allowed 2");
  ExpectRefused(RestoreCpPrefillNextTokens(Ids{8, 9}, Ids{0, 2}, 2), kOutOfRange,
                "output_request_indices[1]: 2, allowed -2..1");
  ExpectRefused(RestoreCpPrefillNextTokens(Ids{8}, Ids{-3}, 2), kOutOfRange,
                "output_request_indices[0]: -3, allowed -2..1");
  ExpectRefused(RestoreCpPrefillNextTokens(Ids{8}, Ids{0}, 0), kOutOfRange, "the array is empty");
  ExpectRefused(RestoreCpPrefillNextTokens(Ids{}, Ids{}, -1), kInvalid, "request_count: -1");
}

// ---- BuildMtpPrefillInputIdsCp ----

TEST(BuildMtpPrefillInputIdsCp, ScattersTheShiftedIdsAndPadsWithZero) {
  EXPECT_THAT(*BuildMtpPrefillInputIdsCp(Ids{1, 2, 3, 4, 5}, Ids{3, 2}, Ids{0, 1, 2, 3, 4}, 6, Ids{9, 8}),
              ElementsAre(2, 3, 9, 5, 8, 0));
  EXPECT_THAT(*BuildMtpPrefillInputIdsCp(Ids{1, 2, 3, 4, 5}, Ids{3, 2}, Ids{7, 0, 2, 3, -3}, 8, Ids{9, 8}),
              ElementsAre(3, 0, 9, 5, 0, 8, 0, 2));
}

TEST(BuildMtpPrefillInputIdsCp, RefusesPlacesThatDoNotFit) {
  ExpectRefused(BuildMtpPrefillInputIdsCp(Ids{1, 2}, Ids{1}, Ids{}, -1, Ids{}), kInvalid,
                "seq_lens: a sum of 1");
  ExpectRefused(BuildMtpPrefillInputIdsCp(Ids{1, 2}, Ids{2}, Ids{0, 1}, -1, Ids{9}), kInvalid,
                "padded_token_count: -1, allowed at least 0");
  ExpectRefused(BuildMtpPrefillInputIdsCp(Ids{1, 2}, Ids{2}, Ids{0}, 4, Ids{9}), kInvalid,
                "valid_token_indices: 1 values, allowed 2");
  ExpectRefused(BuildMtpPrefillInputIdsCp(Ids{1, 2}, Ids{2}, Ids{0, 4}, 4, Ids{9}), kOutOfRange,
                "valid_token_indices[1]: 4, allowed -4..3");
}

// ---- BuildMainDecodeInputIdsForMtp ----

absl::StatusOr<MainDecodeInputs> BuildMainDecode(const Ids& current_tokens, const Ids& spec_tokens,
                                                 const Ids& accepted_num, const Ids& kv_len, int64_t next_n,
                                                 std::optional<int64_t> pad_to = std::nullopt) {
  return BuildMainDecodeInputIdsForMtp({current_tokens, spec_tokens, accepted_num, kv_len}, next_n, pad_to);
}

TEST(BuildMainDecodeInputIdsForMtp, PutsTheCurrentTokenBeforeItsDrafts) {
  const auto inputs = BuildMainDecode(Ids{10}, Ids{11, 12}, Ids{0}, Ids{7}, 2);
  EXPECT_THAT(inputs->input_ids, ElementsAre(10, 11, 12));
  EXPECT_THAT(inputs->position_ids, ElementsAre(5, 6, 7));
  EXPECT_THAT(inputs->kv_len, ElementsAre(10));
}

TEST(BuildMainDecodeInputIdsForMtp, PadsWithZerosAndNeverCuts) {
  const auto padded = BuildMainDecode(Ids{10}, Ids{11, 12}, Ids{0}, Ids{7}, 2, 5);
  EXPECT_THAT(padded->input_ids, ElementsAre(10, 11, 12, 0, 0));
  EXPECT_THAT(padded->position_ids, ElementsAre(5, 6, 7, 0, 0));
  EXPECT_THAT(padded->kv_len, ElementsAre(10));
  const auto whole = BuildMainDecode(Ids{10}, Ids{11, 12}, Ids{0}, Ids{7}, 2, 1);
  EXPECT_THAT(whole->input_ids, ElementsAre(10, 11, 12));
}

TEST(BuildMainDecodeInputIdsForMtp, KeepsRequestsApart) {
  const auto inputs = BuildMainDecode(Ids{10, 20}, Ids{11, 12, 21, 22}, Ids{0, 1}, Ids{7, 9}, 2);
  EXPECT_THAT(inputs->input_ids, ElementsAre(10, 11, 12, 20, 21, 22));
  EXPECT_THAT(inputs->position_ids, ElementsAre(5, 6, 7, 7, 8, 9));
  EXPECT_THAT(inputs->kv_len, ElementsAre(10, 12));
}

TEST(BuildMainDecodeInputIdsForMtp, FillsShortRowsAndKeepsTheEndOfLongOnes) {
  EXPECT_THAT(BuildMainDecode(Ids{10}, Ids{11}, Ids{1}, Ids{7}, 3)->input_ids, ElementsAre(10, 11, 11, 11));
  EXPECT_THAT(BuildMainDecode(Ids{10}, Ids{}, Ids{0}, Ids{7}, 1)->input_ids, ElementsAre(10, 10));
  const auto cut = BuildMainDecode(Ids{10}, Ids{11, 12, 13}, Ids{3}, Ids{7}, 1);
  EXPECT_THAT(cut->input_ids, ElementsAre(12, 13));
  EXPECT_THAT(cut->position_ids, ElementsAre(6, 7));
}

TEST(BuildMainDecodeInputIdsForMtp, LetsPositionsBeNegative) {
  EXPECT_THAT(BuildMainDecode(Ids{10}, Ids{11, 12}, Ids{0}, Ids{0}, 2)->position_ids, ElementsAre(-2, -1, 0));
}

TEST(BuildMainDecodeInputIdsForMtp, RefusesWhatDoesNotFit) {
  ExpectRefused(BuildMainDecode(Ids{1, 2}, Ids{3, 4, 5}, Ids{0, 0}, Ids{7, 7}, 1), kInvalid,
                "spec_tokens: 3 values, allowed multiples of 2");
  ExpectRefused(BuildMainDecode(Ids{1, 2}, Ids{3, 4}, Ids{0}, Ids{7, 7}, 1), kInvalid,
                "accepted_num: 1 values, allowed 2");
  ExpectRefused(BuildMainDecode(Ids{1, 2}, Ids{3, 4}, Ids{0, -1}, Ids{7, 7}, 1), kInvalid,
                "accepted_num[1]: -1, allowed 0..1");
  ExpectRefused(BuildMainDecode(Ids{1, 2}, Ids{3, 4}, Ids{2, 0}, Ids{7, 7}, 1), kInvalid,
                "accepted_num[0]: 2, allowed 0..1");
  ExpectRefused(BuildMainDecode(Ids{1, 2}, Ids{3, 4}, Ids{0, 0}, Ids{7}, 1), kInvalid,
                "kv_len: 1 values, allowed 2");
  ExpectRefused(BuildMainDecode(Ids{1}, Ids{3}, Ids{0}, Ids{int64_t{1} << 31}, 1), kInvalid,
                "kv_len[0]: 2147483648");
  ExpectRefused(BuildMainDecode(Ids{1}, Ids{3}, Ids{0}, Ids{7}, -1), kInvalid, "next_n: -1");
}

// ---- BuildMtpDecodeInputIds ----

TEST(BuildMtpDecodeInputIds, Flattens) {
  EXPECT_THAT(BuildMtpDecodeInputIds({{2, 1}, {101, 202}}), ElementsAre(101, 202));
}

// ---- VerifyMtpSpecTokens ----

TEST(VerifyMtpSpecTokens, CountsTheLongestEqualPrefix) {
  EXPECT_THAT(*VerifyMtpSpecTokens({{2, 2}, {11, 12, 21, 22}}, {{2, 3}, {11, 99, 13, 21, 22, 23}}),
              ElementsAre(1, 2));
  EXPECT_THAT(*VerifyMtpSpecTokens({{1, 3}, {1, 2, 3}}, {{1, 4}, {9, 2, 3, 4}}), ElementsAre(0));
}

TEST(VerifyMtpSpecTokens, ComparesTheColumnsThatBothHave) {
  EXPECT_THAT(*VerifyMtpSpecTokens({{2, 3}, {1, 2, 3, 4, 5, 6}}, {{2}, {1, 9}}), ElementsAre(1, 0));
  EXPECT_THAT(*VerifyMtpSpecTokens({{2, 1}, {1, 4}}, {{2, 1, 2}, {1, 2, 4, 5}}), ElementsAre(1, 1));
  EXPECT_THAT(*VerifyMtpSpecTokens({{2, 0}, {}}, {{4}, {1, 2, 4, 5}}), ElementsAre(0, 0));
}

TEST(VerifyMtpSpecTokens, TakesAFlatArray) {
  EXPECT_THAT(*VerifyMtpSpecTokens({{2, 2}, {11, 12, 21, 22}}, {{6}, {11, 99, 13, 21, 22, 23}}),
              ElementsAre(1, 2));
}

TEST(VerifyMtpSpecTokens, AcceptsNothingInAPrefill) {
  EXPECT_THAT(*VerifyMtpSpecTokens({{2, 1}, {11, 21}}, {{2, 1}, {11, 21}}, true), ElementsAre(0, 0));
  // What the target sampled is not looked at.
  EXPECT_THAT(*VerifyMtpSpecTokens({{2, 1}, {11, 21}}, {{3}, {11, 21, 7}}, true), ElementsAre(0, 0));
}

TEST(VerifyMtpSpecTokens, RefusesOtherShapes) {
  ExpectRefused(VerifyMtpSpecTokens({{4}, {1, 2, 3, 4}}, {{4}, {1, 2, 3, 4}}), kInvalid,
                "spec_tokens: shape [4], allowed two dimensions");
  ExpectRefused(VerifyMtpSpecTokens({{2, 2}, {1, 2, 3}}, {{2}, {1, 2}}), kInvalid,
                "spec_tokens: 3 values for shape [2, 2]");
  ExpectRefused(VerifyMtpSpecTokens({{2, 1}, {1, 2}}, {{3}, {1, 2, 3}}), kInvalid,
                "main_next_tokens: 3 values, allowed multiples of 2");
  ExpectRefused(VerifyMtpSpecTokens({{2, 1}, {1, 2}}, {{1, 2}, {1, 2}}), kInvalid,
                "main_next_tokens: shape [1, 2]");
  ExpectRefused(VerifyMtpSpecTokens({{2, 1}, {1, 2}}, {{}, {1}}), kInvalid, "main_next_tokens: shape []");
}

// ---- UpdateMtpStateAfterStep ----

MtpState Prefilled() {
  return {
      .spec_tokens = {{2, 2}, {0, 0, 0, 0}}, .accepted_num = {0, 0}, .kv_len = {5, 6}, .is_prefill = true};
}

MtpState Decoding(TokenArray spec_tokens, Ids accepted_num) {
  MtpState state{.spec_tokens = std::move(spec_tokens), .accepted_num = std::move(accepted_num)};
  state.kv_len.assign(state.accepted_num.size(), 8);
  state.step_index = 3;
  return state;
}

// Logits whose argmax over the last dimension, of 100, are `tokens`.
LogitArray LogitsOf(const TokenArray& tokens) {
  LogitArray logits{.shape = tokens.shape, .values = {}};
  logits.shape.push_back(100);
  for (const int64_t token : tokens.values) {
    for (int id = 0; id < 100; ++id) logits.values.push_back(id == token ? 1.0f : -1.0f);
  }
  return logits;
}

TEST(UpdateMtpStateAfterPrefill, TakesTheLastColumn) {
  const auto state = UpdateMtpStateAfterStep(
      Prefilled(), {.sampled_tokens = TokenArray{{2, 3}, {1, 2, 33, 4, 5, 44}}, .next_n = 2, .q_len = 3});
  EXPECT_THAT(state->spec_tokens.shape, ElementsAre(2, 2));
  EXPECT_THAT(state->spec_tokens.values, ElementsAre(33, 0, 44, 0));
  EXPECT_THAT(state->accepted_num, ElementsAre(0, 0));
  EXPECT_THAT(state->kv_len, ElementsAre(8, 9));
  EXPECT_FALSE(state->is_prefill);
  EXPECT_EQ(state->step_index, 0);
}

TEST(UpdateMtpStateAfterPrefill, TakesTheArgmaxOfLogits) {
  const TokenArray sampled = {{2, 3}, {1, 2, 33, 4, 5, 44}};
  const auto by_tokens =
      UpdateMtpStateAfterStep(Prefilled(), {.sampled_tokens = sampled, .next_n = 2, .q_len = 3});
  const auto by_logits =
      UpdateMtpStateAfterStep(Prefilled(), {.logits = LogitsOf(sampled), .next_n = 2, .q_len = 3});
  EXPECT_EQ(by_logits->spec_tokens.values, by_tokens->spec_tokens.values);
  EXPECT_EQ(by_logits->kv_len, by_tokens->kv_len);
}

TEST(UpdateMtpStateAfterPrefill, TakesTheLowestOfEqualLogitsAndNeverNaN) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const auto state = UpdateMtpStateAfterStep(
      Prefilled(), {.logits = LogitArray{{4, 3}, {1, 2, 2, nan, 0, 1, 0, nan, 1, nan, nan, nan}}});
  EXPECT_THAT(state->spec_tokens.values, ElementsAre(1, 2, 2, 0));
}

TEST(UpdateMtpStateAfterPrefill, GathersRequestsThenFinalTokens) {
  const TokenArray sampled = {{3, 2}, {1, 2, 3, 4, 5, 6}};
  const auto rows = UpdateMtpStateAfterStep(
      Prefilled(), {.sampled_tokens = sampled, .output_request_indices = Ids{2, -3}, .next_n = 1});
  EXPECT_THAT(rows->spec_tokens.values, ElementsAre(6, 2));
  const auto places = UpdateMtpStateAfterStep(
      Prefilled(), {.sampled_tokens = sampled, .final_token_indices = Ids{0, 3}, .next_n = 2});
  EXPECT_THAT(places->spec_tokens.values, ElementsAre(1, 0, 4, 0));
  const auto both = UpdateMtpStateAfterStep(Prefilled(), {.sampled_tokens = sampled,
                                                          .output_request_indices = Ids{2, 0},
                                                          .final_token_indices = Ids{0, -1},
                                                          .next_n = 3});
  EXPECT_THAT(both->spec_tokens.values, ElementsAre(5, 0, 0, 2, 0, 0));
  EXPECT_THAT(
      UpdateMtpStateAfterStep(Prefilled(), {.sampled_tokens = TokenArray{{2}, {7, 8}}})->spec_tokens.values,
      ElementsAre(7, 8));
}

TEST(UpdateMtpStateAfterPrefill, RefusesWhatDoesNotFit) {
  ExpectRefused(UpdateMtpStateAfterStep(Prefilled(), {}), kInvalid, "sampled_tokens: missing");
  ExpectRefused(UpdateMtpStateAfterStep(Prefilled(), {.sampled_tokens = TokenArray{{2}, {1, 2}},
                                                      .output_request_indices = Ids{2}}),
                kOutOfRange, "output_request_indices[0]: 2, allowed -2..1");
  ExpectRefused(UpdateMtpStateAfterStep(
                    Prefilled(), {.sampled_tokens = TokenArray{{}, {1}}, .output_request_indices = Ids{0}}),
                kInvalid, "output_request_indices");
  ExpectRefused(UpdateMtpStateAfterStep(
                    Prefilled(), {.sampled_tokens = TokenArray{{2}, {1, 2}}, .final_token_indices = Ids{-3}}),
                kOutOfRange, "final_token_indices[0]: -3, allowed -2..1");
  ExpectRefused(UpdateMtpStateAfterStep(Prefilled(), {.sampled_tokens = TokenArray{{2}, {1}}}), kInvalid,
                "sampled_tokens: 1 values for shape [2]");
  ExpectRefused(UpdateMtpStateAfterStep(Prefilled(), {.logits = LogitArray{{2, 0}, {}}}), kInvalid,
                "logits: shape [2, 0]");
  ExpectRefused(
      UpdateMtpStateAfterStep(Prefilled(), {.sampled_tokens = TokenArray{{2}, {1, 2}}, .next_n = -1}),
      kInvalid, "next_n: -1");
  ExpectRefused(
      UpdateMtpStateAfterStep(Prefilled(), {.sampled_tokens = TokenArray{{2}, {1, 2}}, .q_len = -1}),
      kInvalid, "q_len: -1");
}

TEST(UpdateMtpStateAfterDecode, PutsTheDraftBehindTheAcceptedOnes) {
  const TokenArray sampled = {{2, 2}, {6, 7, 9, 8}};
  const auto state =
      UpdateMtpStateAfterStep(Decoding({{2, 2}, {33, 0, 44, 0}}, {1, 2}), {.logits = LogitsOf(sampled)});
  EXPECT_THAT(state->spec_tokens.values, ElementsAre(33, 7, 8, 0));
  EXPECT_THAT(state->accepted_num, ElementsAre(1, 2));
  EXPECT_THAT(state->kv_len, ElementsAre(9, 9));
  EXPECT_EQ(state->step_index, 4);
  EXPECT_FALSE(state->is_prefill);
}

TEST(UpdateMtpStateAfterDecode, ClearsWhatLiesBehindTheDraft) {
  const auto state = UpdateMtpStateAfterStep(Decoding({{2, 3}, {31, 32, 33, 41, 42, 43}}, {0, 1}),
                                             {.sampled_tokens = TokenArray{{2}, {91, 92}}});
  EXPECT_THAT(state->spec_tokens.values, ElementsAre(91, 0, 0, 41, 92, 0));
}

TEST(UpdateMtpStateAfterDecode, StartsAFullRowAnew) {
  const auto state = UpdateMtpStateAfterStep(Decoding({{1, 3}, {31, 32, 33}}, {3}),
                                             {.sampled_tokens = TokenArray{{1}, {91}}});
  EXPECT_THAT(state->spec_tokens.values, ElementsAre(91, 0, 0));
}

TEST(UpdateMtpStateAfterDecode, TakesAtMostTheLastColumn) {
  const auto state = UpdateMtpStateAfterStep(Decoding({{2, 3}, {1, 2, 3, 4, 5, 6}}, {2, 0}),
                                             {.sampled_tokens = TokenArray{{4}, {71, 72, 73, 74}}});
  EXPECT_THAT(state->spec_tokens.values, ElementsAre(1, 2, 72, 73, 0, 0));
}

TEST(UpdateMtpStateAfterDecode, RefusesWhatDoesNotFit) {
  const MtpStepResult two = {.sampled_tokens = TokenArray{{2}, {1, 2}}};
  const TokenArray spec = {{2, 1}, {3, 4}};
  ExpectRefused(UpdateMtpStateAfterStep(Decoding(spec, {0, 0}), {}), kInvalid, "sampled_tokens: missing");
  ExpectRefused(UpdateMtpStateAfterStep(Decoding({{2}, {3, 4}}, {0, 0}), two), kInvalid,
                "spec_tokens: shape [2], allowed two dimensions");
  ExpectRefused(UpdateMtpStateAfterStep(Decoding(spec, {0}), two), kInvalid,
                "accepted_num: 1 values, allowed 2");
  ExpectRefused(UpdateMtpStateAfterStep(Decoding(spec, {0, -1}), two), kInvalid,
                "accepted_num[1]: -1, allowed 0..1");
  ExpectRefused(UpdateMtpStateAfterStep(Decoding(spec, {2, 0}), two), kInvalid,
                "accepted_num[0]: 2, allowed 0..1");
  ExpectRefused(
      UpdateMtpStateAfterStep(Decoding(spec, {0, 0}), {.sampled_tokens = TokenArray{{3}, {1, 2, 3}}}),
      kInvalid, "sampled_tokens: 3 values, allowed multiples of 2");
  ExpectRefused(UpdateMtpStateAfterStep(Decoding(spec, {0, 0}), {.sampled_tokens = TokenArray{{0}, {}}}),
                kInvalid, "sampled_tokens: no value");
  ExpectRefused(UpdateMtpStateAfterStep(Decoding({{2, 0}, {}}, {0, 0}), two), kInvalid,
                "spec_tokens: width 0");
}

}  // namespace
}  // namespace foredraft
