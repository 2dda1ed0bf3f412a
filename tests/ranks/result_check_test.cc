// Random runs of a scheduler whose rank's results are forged now and then. Whatever ResultCheck lets through,
// Commit takes; what it refuses changes nothing, so the honest result still passes; and every honest result
// passes.

#include "ranks/result_check.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <limits>
#include <map>
#include <memory>
#include <random>

#include "absl/strings/str_cat.h"
#include "ranks/plan_codec.h"
#include "scheduler/scheduler.h"
#include "tests/scheduler/constrained_script.h"
#include "tests/scheduler/stub_rank.h"

namespace foredraft {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::Reflection;

constexpr int32_t kVocab = 50;
constexpr int kMaxDraft = 3;

SchedulerOptions TestOptions() {
  SchedulerOptions options;
  options.max_batch_size = 4;
  options.max_num_tokens = 32;
  options.max_seq_len = 96;
  options.groups = {{.tokens_per_block = 4, .block_count = 33}};  // few enough to swap
  options.host_frame_count = 200;
  options.batch_sizes = {1, 2, 4};
  options.max_draft_len = options.draft_len = kMaxDraft;
  options.drafter.rows_ahead = kMaxDraft;
  options.resume = true;
  return options;
}

// The tokens of constrained requests, by seed.
using ScriptedTokens = std::map<uint64_t, std::vector<int32_t>>;

class HonestRank : public StubRank {
 public:
  explicit HonestRank(const ScriptedTokens& scripted)
      : StubRank(0, TestOptions().max_batch_size, kMaxDraft), scripted_(scripted) {}

 private:
  int32_t TokenAt(const SlotAdmission& admission, int position) override {
    const auto found = scripted_.find(admission.sampling.seed);
    const size_t index = position - admission.prompt_len;
    if (found != scripted_.end() && index < found->second.size()) return found->second[index];
    return static_cast<int32_t>(Mix(admission.sampling.seed, position) % kVocab);
  }
  int AcceptedDrafts(const Slot& slot, int verified) override {
    return static_cast<int>(Mix(slot.admission.sampling.seed, slot.length + 7) % (verified + 1));
  }
  void TokenEmitted(const Slot& slot, SlotResult* result) override {
    if (slot.admission.logprob_count < 0) return;
    TokenLogprob& token = result->logprobs.emplace_back();
    token = {.token_id = result->token_ids.back(), .logprob = -0.25f};
    for (int i = 0; i < slot.admission.logprob_count; ++i) token.top.push_back({i, -0.25f - i});
  }
  void MaskFault(const std::string& text) override { ADD_FAILURE() << text; }

  const ScriptedTokens& scripted_;
};

class Forger {
 public:
  explicit Forger(uint64_t seed) : random_(seed) {}
  int Random(int low, int high) { return std::uniform_int_distribution<int>(low, high)(random_); }
  bool Chance(int percent) { return Random(1, 100) <= percent; }

  // Changes one random field somewhere in the message.
  void Forge(Message* message) {
    const Reflection& reflection = *message->GetReflection();
    const FieldDescriptor* field =
        message->GetDescriptor()->field(Random(0, message->GetDescriptor()->field_count() - 1));
    if (field->is_repeated()) {
      ForgeList(message, field);
    } else if (field->cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE) {
      Forge(reflection.MutableMessage(message, field));
    } else {
      ForgeScalar(message, field, -1);
    }
  }

 private:
  void ForgeList(Message* message, const FieldDescriptor* field) {
    const Reflection& reflection = *message->GetReflection();
    const bool messages = field->cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE;
    const int size = reflection.FieldSize(*message, field);
    const int choice = Random(0, 9);
    if (choice == 0 && size > 0) return reflection.RemoveLast(message, field);
    if (choice == 1 && size > 1) return reflection.SwapElements(message, field, 0, size - 1);
    if (choice <= 2 || size == 0) {
      if (messages) {
        reflection.AddMessage(message, field);
      } else if (field->cpp_type() == FieldDescriptor::CPPTYPE_INT32) {
        reflection.AddInt32(message, field, Number());
      } else {
        reflection.AddFloat(message, field, static_cast<float>(Real()));
      }
      return;
    }
    const int index = Random(0, size - 1);
    if (messages) return Forge(reflection.MutableRepeatedMessage(message, field, index));
    ForgeScalar(message, field, index);
  }
  // index -1: not repeated.
  void ForgeScalar(Message* message, const FieldDescriptor* field, int index) {
    const Reflection& reflection = *message->GetReflection();
    switch (field->cpp_type()) {
      case FieldDescriptor::CPPTYPE_INT32: {
        const int32_t old = index < 0 ? reflection.GetInt32(*message, field)
                                      : reflection.GetRepeatedInt32(*message, field, index);
        const int32_t value = Chance(60) ? static_cast<int32_t>(uint32_t(old) + Random(-3, 3)) : Number();
        return index < 0 ? reflection.SetInt32(message, field, value)
                         : reflection.SetRepeatedInt32(message, field, index, value);
      }
      case FieldDescriptor::CPPTYPE_FLOAT:
        return index < 0 ? reflection.SetFloat(message, field, static_cast<float>(Real()))
                         : reflection.SetRepeatedFloat(message, field, index, static_cast<float>(Real()));
      case FieldDescriptor::CPPTYPE_DOUBLE:
        return reflection.SetDouble(message, field, Real());
      case FieldDescriptor::CPPTYPE_UINT64:
        return reflection.SetUInt64(message, field, reflection.GetUInt64(*message, field) + Random(-1, 2));
      case FieldDescriptor::CPPTYPE_BOOL:
        return reflection.SetBool(message, field, !reflection.GetBool(*message, field));
      default:
        FAIL() << "no forgery for " << field->full_name();
    }
  }
  int32_t Number() {
    constexpr int32_t kNumbers[] = {0, 1, -1, kVocab - 1, kVocab, 1 << 20, INT32_MAX, INT32_MIN};
    return kNumbers[Random(0, 7)];
  }
  double Real() {
    constexpr double kInfinity = std::numeric_limits<double>::infinity();
    constexpr double kReals[] = {
        0, -1, 1, 1e300, kInfinity, -kInfinity, std::numeric_limits<double>::quiet_NaN()};
    return kReals[Random(0, 6)];
  }

  std::mt19937_64 random_;
};

struct Totals {
  int honest = 0, refused = 0, believed = 0, losses = 0;
  uint64_t swaps = 0, replayed = 0, held = 0, masks = 0;
};

// One scheduler and its rank, until a forged result was believed: the rank knows nothing of it.
class ForgedRun {
 public:
  explicit ForgedRun(uint64_t seed) : forger_(seed), scheduler_(TestOptions()) {}

  void Run(Totals* totals) {
    for (int i = 0; i < 300 && !believed_; ++i) {
      if (forger_.Chance(40)) Submit();
      if (forger_.Chance(3) && submitted_ > 0) {
        scheduler_.Cancel(forger_.Random(1, submitted_), FinishReason::kCancelled);
      }
      now_ += std::chrono::milliseconds(1);
      if (in_flight_ > 0 && scheduler_.NeedsResults() && forger_.Chance(70)) Collect(totals);
      if (believed_) break;
      const IterationPlan plan = scheduler_.Plan(now_);
      if (!IsEmpty(plan)) {
        check_.Expect(plan.ranks[0], plan.number, plan.draft_len);
        ASSERT_TRUE(rank_->Launch(plan).ok());
        ++in_flight_;
      }
      if (in_flight_ > 1 || (in_flight_ > 0 && IsEmpty(plan))) Collect(totals);
      scheduler_.TakeUpdates();
      if (forger_.Chance(2)) Lose(totals);
    }
    totals->swaps += scheduler_.load().preemptions;
    totals->replayed += scheduler_.load().replayed_tokens;
    totals->held += scheduler_.load().held_slots;
    totals->masks += scheduler_.load().masks;
  }

 private:
  void Submit() {
    Request request;
    request.id = ++submitted_;
    request.prompt_ids.assign(forger_.Random(1, 40), 3);
    request.sampling.seed = request.id;
    request.max_tokens = forger_.Random(1, 50);
    request.draft_cap = forger_.Random(0, kMaxDraft);
    request.logprob_count = forger_.Chance(40) ? forger_.Random(0, 3) : -1;
    if (forger_.Chance(40)) request.stop_ids = {forger_.Random(0, kVocab - 1), forger_.Random(0, kVocab - 1)};
    request.arrival = now_;
    if (forger_.Chance(40)) Constrain(request);
    ASSERT_TRUE(scheduler_.Submit(request).ok());
  }
  void Constrain(Request& request) {
    request.constraint.grammar = ScriptGrammar(forger_.Random(0, kScriptGrammarCount - 1));
    if (forger_.Chance(40)) request.constraint.trigger_ids = {kScriptTrigger};
    request.thinking = {.begin = 3, .end = 4};
    if (forger_.Chance(50)) request.prompt_phase = Phase::kThinking;
    request.stop_ids = {kScriptEnd};
    scripted_[request.id] = ConstrainedTokens(request);
  }
  void Collect(Totals* totals) {
    --in_flight_;
    const worker::v1::WorkerResult honest = EncodeResult(*rank_->Collect());
    if (forger_.Chance(50)) {
      worker::v1::WorkerResult forged = honest;
      for (int i = forger_.Random(1, 3); i > 0; --i) forger_.Forge(&forged);
      believed_ = check_.Check(forged).ok();
      ++(believed_ ? totals->believed : totals->refused);
      if (believed_) return Commit(forged);
    }
    const absl::Status status = check_.Check(honest);
    ASSERT_TRUE(status.ok()) << status << "\n" << honest.DebugString();
    ++totals->honest;
    Commit(honest);
  }
  void Commit(const worker::v1::WorkerResult& result) {
    scheduler_.Commit({DecodeResult(result)});
    scheduler_.CheckInvariants();
  }
  void Lose(Totals* totals) {
    scheduler_.LoseRanks(absl::UnavailableError("lost"));
    rank_ = std::make_unique<HonestRank>(scripted_);
    check_.Clear();
    in_flight_ = 0;
    ++totals->losses;
  }

  Forger forger_;
  Scheduler scheduler_;
  ScriptedTokens scripted_;
  std::unique_ptr<HonestRank> rank_ = std::make_unique<HonestRank>(scripted_);
  ResultCheck check_{{.vocab_size = kVocab, .max_batch_size = 4, .max_draft_len = kMaxDraft}};
  int submitted_ = 0;
  int in_flight_ = 0;
  bool believed_ = false;
  SteadyTime now_;
};

TEST(ResultCheck, LetsThroughWhatCommitTakesAndEveryHonestResult) {
  Totals totals;
  for (uint64_t seed = 1; seed <= 3000 && !HasFailure(); ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    ForgedRun(seed).Run(&totals);
  }
  printf("%d honest, %d forged and refused, %d forged and believed; %d losses, %llu swaps, %llu replayed\n",
         totals.honest, totals.refused, totals.believed, totals.losses,
         static_cast<unsigned long long>(totals.swaps), static_cast<unsigned long long>(totals.replayed));
  EXPECT_GT(totals.honest, 1000);
  EXPECT_GT(totals.refused, 1000);
  EXPECT_GT(totals.believed, 100);
  EXPECT_GT(totals.swaps, 10u);
  EXPECT_GT(totals.replayed, 100u);
  EXPECT_GT(totals.held, 1000u);
  EXPECT_GT(totals.masks, 1000u);
}

// One constrained slot, plan by plan: what it gives, and the forgery that is refused.
struct ConstrainedStep {
  const char* name;
  bool prompt_ends;
  std::vector<SlotMasks> slot_masks;
  SlotResult honest, forged;
  const char* refusal;
};

const ConstrainedStep kConstrainedSteps[] = {
    {"held where the prompt ends",
     true,
     {{.slot = 0}},
     {.token_ids = {7}, .first_token = true, .length = 3},
     {.token_ids = {7, 8}, .first_token = true, .length = 4},
     ".token_ids size of the step: 1, allowed 0..0"},
    {"up to the gate",
     false,
     {},
     {.token_ids = {5, 4}, .length = 5, .drafts_verified = 2, .drafts = {9, -1}},
     {.token_ids = {5, 4, 6}, .length = 6, .drafts_verified = 2},
     ".token_ids[1]: 4, allowed no gate token before the last token"},
    {"held behind it",
     false,
     {},
     {.length = 5, .drafts = {9, -1}},
     {.token_ids = {6}, .length = 6},
     ".token_ids size of the step: 1, allowed 0..0"},
    {"as many rows as masks",
     false,
     {{.slot = 0, .mask_indices = {0, 0}}},
     {.token_ids = {6, 8}, .length = 7, .drafts_verified = 1},
     {.token_ids = {6, 8, 9}, .length = 8, .drafts_verified = 2},
     ".drafts_verified: 2, allowed 2..1"},
    {"drafts of the vocabulary",
     false,
     {{.slot = 0, .mask_indices = {0}}},
     {.token_ids = {6}, .length = 8, .drafts = {kVocab - 1}},
     {.token_ids = {6}, .length = 8, .drafts = {kVocab}},
     ".drafts[0]: 50, allowed -1..49"},
    {"one token at least, with masks",
     false,
     {{.slot = 0, .mask_indices = {0}}},
     {.token_ids = {6}, .length = 9},
     {.length = 8},
     ".token_ids size of the step: 0, allowed 1..4"},
};

TEST(ResultCheck, FollowsTheGateOfAConstrainedSlot) {
  ResultCheck check({.vocab_size = kVocab, .max_batch_size = 4, .max_draft_len = kMaxDraft});
  uint64_t number = 0;
  for (const ConstrainedStep& step : kConstrainedSteps) {
    SCOPED_TRACE(step.name);
    RankPlan plan{.live_slots = {0}, .slot_masks = step.slot_masks};
    if (step.prompt_ends) {
      plan.admissions = {{.slot = 0,
                          .thinking = {.begin = 3, .end = 4},
                          .draft_cap = kMaxDraft,
                          .prompt_len = 3,
                          .length_limit = 20,
                          .gate = {.constrained = true, .first = Gate::kThinking}}};
      plan.prefill_chunks = {{.slot = 0, .token_ids = {1, 1, 1}, .last = true}};
    }
    check.Expect(plan, ++number, kMaxDraft);
    const absl::Status refused = check.Check(EncodeResult({.number = number, .slots = {step.forged}}));
    EXPECT_EQ(refused.message(), absl::StrCat("result.slots[0]", step.refusal));
    const absl::Status honest = check.Check(EncodeResult({.number = number, .slots = {step.honest}}));
    EXPECT_TRUE(honest.ok()) << honest;
  }
}

// Field by field: what a message of full use says is what the check reads. A field that it does not read must
// be named here, with the reason.
TEST(ResultCheck, ReadsEveryField) {
  const auto fields = [](const google::protobuf::Descriptor& message) { return message.field_count(); };
  EXPECT_EQ(fields(*worker::v1::WorkerResult::descriptor()), 5)
      << "replayed: either value is a possible truth";
  EXPECT_EQ(fields(*worker::v1::ResultSlot::descriptor()), 12);
  EXPECT_EQ(fields(*worker::v1::ResultLogprob::descriptor()), 4);
}

}  // namespace
}  // namespace foredraft
