// Every field of a plan and a result crosses as it was, and every field out of its range is refused by name:
// what is tried follows from the lists of fields.

#include "ranks/plan_codec.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <set>
#include <string>

#include "absl/strings/str_cat.h"
#include "scheduler/plan_fields.h"

namespace foredraft {
namespace {

using testing::HasSubstr;

const PlanLimits& Limits() {
  static const PlanLimits limits{.rank_count = 3,
                                 .vocab_size = 100'000,
                                 .slot_count = 16,
                                 .largest_bucket = 16,
                                 .max_num_tokens = 32,
                                 .max_seq_len = 256,
                                 .max_draft_len = 3,
                                 .cuts_drafts = true,
                                 .drafter = {.module_count = 1, .rows_ahead = 2},
                                 .groups = {{.tokens_per_block = 8, .block_count = 40},
                                            {.tokens_per_block = 8, .lookback = 16, .block_count = 20}}};
  return limits;
}

std::vector<CacheGroupBlocks> Blocks() {
  return {{.group = 1, .first_index = 4, .block_ids = {1, 2, 3}},
          {.group = 1, .first_index = 9, .block_ids = {7}}};
}

// Of each field, one element at least has not its default value.
IterationPlan FullPlan() {
  IterationPlan plan{.number = 1'000'000'000'007,
                     .draft_len = 3,
                     .acceptance = {.relaxed_topk = 5, .relaxed_delta = 0.25f, .forced_length = 1.5f},
                     .verify_rows = 32,
                     .calibration = {{.slope = 0.5f, .offset = -1.5f}},
                     .argmax = true,
                     .decode_bucket = 16,
                     .prefill_rows = {17, 2, 9},
                     .ended_prompts = {1, 1, 2}};
  plan.ranks.resize(3);
  plan.ranks[1] = {
      .releases = {3, 4},
      .dropped_images = {~0ull, 5},
      .swaps_out = {{.image_id = 21, .slot = 5, .blocks = Blocks()}},
      .swaps_in = {{.image_id = 22, .slot = 6, .blocks = Blocks()},
                   {.image_id = 23, .slot = 9, .blocks = Blocks()}},
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
                      .thinking_budget = {.limit = 40, .end_ids = {13, 12}},
                      .draft_cap = 2,
                      .strict = true,
                      .prompt_len = 100,
                      .length_limit = 163,
                      .stop_ids = {1, 2},
                      .reused_len = 3,
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
                    TokenMask{.vocab_size = 100'000, .count = 3, .ids = {4, 9, 70'000}, .words = {}}),
                std::make_shared<TokenMask>(
                    TokenMask{.vocab_size = 64, .count = 3, .ids = {}, .words = {6, 1u << 31}})},
      .slot_masks = {{.slot = 7, .mask_indices = {1, 0}, .forced_drafts = {70}}},
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
                     .drafts = {8, -1},
                     .nonfinite_logits = true}},
          .prefill_seconds = 0.5,
          .decode_seconds = 0.25,
          .replayed = true};
}

const ExpectedResult kExpected{.number = 42, .draft_len = 3, .live_slots = {3}};

// ---- the lists have every field ----

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

// How many fields the list of a part has, those of parts within it not counted.
class FieldCount : public FieldVisitor<FieldCount> {
 public:
  FieldCount() : FieldVisitor(Limits()) {}

  int count = 0;

  template <class T>
  void operator()(const char*, const T&, Range = {}, Range = {}) {
    ++count;
  }
  template <class T>
  void operator()(const char*, const T&, RealRange) {
    ++count;
  }
  template <class T>
  void operator()(const char*, const T&, Range, RealRange) {
    ++count;
  }
  template <class T>
  void Tokens(const char*, const T&, Range) {
    ++count;
  }
  template <class T>
  void BlockRun(const T&, int64_t) {
    count += 3;
  }
};

template <class Part>
void ExpectEveryField(const char* name, int apart = 0) {
  FieldCount fields;
  Part part;
  VisitFields(fields, part);
  EXPECT_EQ(fields.count + apart, MemberCount<Part>()) << name;
}

TEST(PlanCodec, KnowsEveryField) {
  ExpectEveryField<IterationPlan>("IterationPlan", /*apart=*/1);  // ranks
  ExpectEveryField<RankPlan>("RankPlan");
  ExpectEveryField<AcceptanceRule>("AcceptanceRule");
  ExpectEveryField<DraftCalibration>("DraftCalibration");
  ExpectEveryField<SwapOut>("SwapOut");
  ExpectEveryField<SwapIn>("SwapIn");
  ExpectEveryField<CacheGroupBlocks>("CacheGroupBlocks");
  ExpectEveryField<SlotAdmission>("SlotAdmission");
  ExpectEveryField<SamplingParams>("SamplingParams");
  ExpectEveryField<TokenBias>("TokenBias");
  ExpectEveryField<ThinkingIds>("ThinkingIds");
  ExpectEveryField<SlotGate>("SlotGate");
  ExpectEveryField<TokenMask>("TokenMask");
  ExpectEveryField<SlotMasks>("SlotMasks");
  ExpectEveryField<FirstMask>("FirstMask");
  ExpectEveryField<BlockTableDelta>("BlockTableDelta");
  ExpectEveryField<PrefillChunk>("PrefillChunk");
  ExpectEveryField<GivenTokens>("GivenTokens");
  ExpectEveryField<RankResult>("RankResult");
  ExpectEveryField<SlotResult>("SlotResult");
  ExpectEveryField<TokenLogprob>("TokenLogprob");
  ExpectEveryField<TopLogprob>("TopLogprob");
}

// ---- there and back ----

// "part.field value" of every number and length, in order.
class Dump : public FieldVisitor<Dump> {
 public:
  Dump() : FieldVisitor(Limits()) {}

  std::string text;
  std::set<std::string> fields, set_fields;

  template <class T>
  void Number(const char* name, const T& value, Range, int64_t) {
    Add(name, static_cast<int64_t>(value));
  }
  template <class T>
  void Real(const char* name, const T& value, RealRange) {
    Add(name, value);
  }
  template <class List>
  void Count(const char* name, const List& list, Range) {
    Add(name, list.size());
  }
  void Begin(const char* name) { absl::StrAppend(&part_, name, "."); }
  void End() { part_.resize(part_.rfind('.', part_.size() - 2) + 1); }

 private:
  template <class T>
  void Add(const char* name, T value) {
    absl::StrAppend(&text, part_, name, " ", value, "\n");
    fields.insert(part_ + name);
    if (value != T()) set_fields.insert(part_ + name);
  }
  std::string part_;
};

Dump DumpOf(const IterationPlan& plan) {
  Dump dump;
  VisitFields(dump, plan);
  VisitFields(dump, plan.ranks[1]);
  return dump;
}
Dump DumpOf(const RankResult& result) {
  Dump dump;
  VisitFields(dump, result);
  return dump;
}

TEST(PlanCodec, GivesBackEveryField) {
  const absl::StatusOr<IterationPlan> plan = DecodePlan(EncodePlan(FullPlan(), 1), 1, Limits());
  ASSERT_TRUE(plan.ok()) << plan.status();
  const Dump sent = DumpOf(FullPlan());
  EXPECT_EQ(sent.fields, sent.set_fields) << "a field that has its default everywhere shows nothing";
  EXPECT_EQ(DumpOf(*plan).text, sent.text);
  EXPECT_EQ(plan->number, 1'000'000'000'007u);
  EXPECT_EQ(plan->ranks[1].admissions[0].gate, FullPlan().ranks[1].admissions[0].gate);

  const absl::StatusOr<RankResult> result = DecodeResult(EncodeResult(FullResult()), kExpected, Limits());
  ASSERT_TRUE(result.ok()) << result.status();
  const Dump answered = DumpOf(FullResult());
  EXPECT_EQ(answered.fields, answered.set_fields);
  EXPECT_EQ(DumpOf(*result).text, answered.text);
}

TEST(PlanCodec, SendsARankOnlyItsOwnPlan) {
  IterationPlan plan = FullPlan();
  plan.prefill_rows[2] = plan.ended_prompts[2] = 0;
  const absl::StatusOr<IterationPlan> decoded = DecodePlan(EncodePlan(plan, 2), 2, Limits());
  ASSERT_TRUE(decoded.ok()) << decoded.status();
  ASSERT_EQ(decoded->ranks.size(), 3u);
  EXPECT_TRUE(decoded->ranks[1].live_slots.empty());
  EXPECT_EQ(decoded->prefill_rows, plan.prefill_rows);
}

TEST(PlanCodec, RefusesWhatIsCutShortOrTooLong) {
  const std::string plan = EncodePlan(FullPlan(), 1);
  for (size_t size = 0; size < plan.size(); ++size) {
    const absl::Status status = DecodePlan(plan.substr(0, size), 1, Limits()).status();
    ASSERT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << size;
  }
  EXPECT_EQ(DecodePlan(plan + '\0', 1, Limits()).status().message(),
            "plan: bytes after the last field: 1, allowed 0..0");
  const std::string result = EncodeResult(FullResult());
  for (size_t size = 0; size < result.size(); ++size) {
    ASSERT_FALSE(DecodeResult(result.substr(0, size), kExpected, Limits()).ok()) << size;
  }
}

TEST(PlanCodec, RefusesOtherSumsThanItsParts) {
  IterationPlan plan = FullPlan();
  plan.prefill_rows[1] = 3;
  EXPECT_EQ(DecodePlan(EncodePlan(plan, 1), 1, Limits()).status().message(),
            "prefill_rows of this rank: 3, allowed 2");
  plan = FullPlan();
  plan.ended_prompts[1] = 0;
  EXPECT_EQ(DecodePlan(EncodePlan(plan, 1), 1, Limits()).status().message(),
            "ended_prompts of this rank: 0, allowed 1");
}

// ---- out of range ----

enum class Side { kBelow, kAbove, kNaN };

// Puts one field, the n-th, out of its range where that can be.
class Forger : public FieldVisitor<Forger> {
 public:
  Forger(int field, Side side) : FieldVisitor(Limits()), field_(field), side_(side) {
    plan.draft_len = kExpected.draft_len;  // of a result; a plan says it itself
  }

  bool past_end() const { return seen_ <= field_; }
  const std::string& says() const { return says_; }  // empty: nothing was changed

  template <class T>
  void Number(const char* name, T& value, Range range, int64_t) {
    if (seen_++ != field_ || std::is_same_v<T, bool> || side_ == Side::kNaN) return;
    const Range all{std::numeric_limits<int64_t>::min(), std::numeric_limits<int64_t>::max()};
    if (range.lowest == all.lowest && range.highest == all.highest) return;
    const int64_t forged = side_ == Side::kBelow ? range.lowest - 1 : range.highest + 1;
    if (static_cast<int64_t>(static_cast<T>(forged)) != forged) return;
    value = static_cast<T>(forged);
    says_ = absl::StrCat(name, ": ", forged, ", allowed ", range.lowest, "..", range.highest);
  }
  template <class T>
  void Real(const char* name, T& value, RealRange range) {
    if (seen_++ != field_) return;
    const T forged = side_ == Side::kNaN     ? std::numeric_limits<T>::quiet_NaN()
                     : side_ == Side::kBelow ? static_cast<T>(range.lowest * 1.5 - 1)
                                             : static_cast<T>(range.highest * 1.5);
    value = forged;
    says_ = absl::StrCat(name, ": ", forged, ", allowed ");
  }
  template <class List>
  void Count(const char* name, List& list, Range range) {
    if (seen_++ != field_ || side_ == Side::kNaN) return;
    const int64_t size = side_ == Side::kBelow ? range.lowest - 1 : range.highest + 1;
    if (size < 0 || size > 10'000) return;
    list.resize(size);
    says_ = absl::StrCat(name, " size: ", size, ", allowed ", range.lowest, "..", range.highest);
  }
  void Begin(const char*) {}
  void End() {}

 private:
  const int field_;
  const Side side_;
  int seen_ = 0;
  std::string says_;
};

// How many forgeries there were. Each is refused, by name.
template <class Make, class Visit, class Decode>
int TryForgeries(const Make& make, const Visit& visit, const Decode& decode) {
  int tried = 0;
  for (const Side side : {Side::kBelow, Side::kAbove, Side::kNaN}) {
    for (int field = 0;; ++field) {
      auto forged = make();
      Forger forger(field, side);
      visit(forger, forged);
      if (forger.past_end()) break;
      if (forger.says().empty()) continue;
      ++tried;
      const absl::Status status = decode(forged);
      EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << forger.says();
      EXPECT_THAT(std::string(status.message()), HasSubstr(forger.says()));
      EXPECT_THAT(std::string(status.message()), testing::Not(HasSubstr("\n")));
    }
  }
  return tried;
}

TEST(PlanCodec, RefusesEveryFieldOfAPlanOutOfItsRange) {
  const auto visit = [](Forger& forger, IterationPlan& plan) {
    VisitFields(forger, plan);
    VisitFields(forger, plan.ranks[1]);
  };
  const auto decode = [](const IterationPlan& plan) {
    return DecodePlan(EncodePlan(plan, 1), 1, Limits()).status();
  };
  EXPECT_GT(TryForgeries(FullPlan, visit, decode), 200);
}

TEST(PlanCodec, RefusesEveryFieldOfAResultOutOfItsRange) {
  const auto visit = [](Forger& forger, RankResult& result) { VisitFields(forger, result); };
  const auto decode = [](const RankResult& result) {
    return DecodeResult(EncodeResult(result), kExpected, Limits()).status();
  };
  EXPECT_GT(TryForgeries(FullResult, visit, decode), 40);
}

TEST(PlanCodec, RefusesAResultOfAnotherPlan) {
  const std::string bytes = EncodeResult(FullResult());
  EXPECT_EQ(
      DecodeResult(bytes, {.number = 41, .draft_len = 3, .live_slots = {3}}, Limits()).status().message(),
      "result.number: 42, allowed 41");
  EXPECT_EQ(DecodeResult(bytes, {.number = 42, .draft_len = 3}, Limits()).status().message(),
            "result.slots size: 1, allowed 0");
  EXPECT_EQ(
      DecodeResult(bytes, {.number = 42, .draft_len = 3, .live_slots = {4}}, Limits()).status().message(),
      "result.slots.slot: 3, allowed 4");
}

TEST(PlanCodec, NoResultIsLongerThanTheLimit) {
  RankResult result{.number = ~0ull};
  SlotResult slot{.slot = 15, .token_ids = std::vector<int32_t>(5, 99'999), .length = 255};
  TokenLogprob logprob{
      .token_id = 99'999, .logprob = -0.1f, .top = std::vector<TopLogprob>(20, {99'999, -1})};
  slot.logprobs.assign(5, logprob);
  slot.confidences.assign(3, 1.5f);
  slot.drafts.assign(3, 99'999);
  result.slots.assign(16, slot);
  EXPECT_LE(static_cast<int64_t>(EncodeResult(result).size()), LargestResult(Limits()));
}

TEST(PlanCodec, ALayoutIsEightHexDigits) {
  EXPECT_THAT(PlanLayout(), testing::MatchesRegex("[0-9a-f]{8}"));
  EXPECT_EQ(PlanLayout(), PlanLayout());
}

}  // namespace
}  // namespace foredraft
