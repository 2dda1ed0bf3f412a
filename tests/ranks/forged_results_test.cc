// Random runs of a scheduler whose rank's results are forged now and then. Whatever is within its ranges
// (plan_codec.h) and passes Scheduler::CheckResult, Commit takes; what is refused changes nothing, so the
// honest result still passes; and every honest result passes.

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <deque>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <random>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "ranks/plan_codec.h"
#include "scheduler/plan_fields.h"
#include "scheduler/scheduler.h"
#include "tests/scheduler/constrained_script.h"
#include "tests/scheduler/stub_rank.h"

namespace foredraft {
namespace {

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

const PlanLimits& Limits() {
  static const PlanLimits limits{
      .vocab_size = kVocab, .slot_count = 4, .max_seq_len = 96, .max_draft_len = kMaxDraft};
  return limits;
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

// Changes the n-th field of a result.
class Forger : public FieldVisitor<Forger> {
 public:
  Forger(int field, std::mt19937_64& random) : FieldVisitor(Limits()), field_(field), random_(random) {}

  int seen() const { return seen_; }

  template <class T>
  void Number(const char*, T& value, Range, int64_t) {
    if (seen_++ != field_) return;
    if constexpr (std::is_same_v<T, bool>) {
      value = !value;
    } else {
      constexpr int32_t kNumbers[] = {0, 1, -1, kVocab - 1, kVocab, 1 << 20, INT32_MAX, INT32_MIN};
      const auto near = static_cast<T>(static_cast<uint64_t>(value) + random_() % 7 - 3);
      value = random_() % 10 < 6 ? near : static_cast<T>(kNumbers[random_() % 8]);
    }
  }
  template <class T>
  void Real(const char*, T& value, RealRange) {
    constexpr double kInfinity = std::numeric_limits<double>::infinity();
    constexpr double kReals[] = {
        0, -1, 1, 1e30, kInfinity, -kInfinity, std::numeric_limits<double>::quiet_NaN()};
    if (seen_++ == field_) value = static_cast<T>(kReals[random_() % 7]);
  }
  template <class List>
  void Count(const char*, List& list, Range) {
    if (seen_++ != field_) return;
    if (random_() % 2 == 0 && !list.empty()) {
      list.pop_back();
    } else if (random_() % 2 == 0 && list.size() > 1) {
      std::swap(list.front(), list.back());
    } else {
      list.emplace_back();
    }
  }
  void Begin(const char*) {}
  void End() {}

 private:
  const int field_;
  std::mt19937_64& random_;
  int seen_ = 0;
};

struct Totals {
  int honest = 0, refused = 0, believed = 0, losses = 0;
  uint64_t swaps = 0, replayed = 0, held = 0, masks = 0;
};

// One scheduler and its rank, until a forged result was believed: the rank knows nothing of it.
class ForgedRun {
 public:
  explicit ForgedRun(uint64_t seed) : random_(seed), scheduler_(TestOptions()) {}

  void Run(Totals* totals) {
    for (int i = 0; i < 300 && !believed_; ++i) {
      if (Chance(40)) Submit();
      if (Chance(3) && submitted_ > 0) {
        scheduler_.Cancel(Random(1, submitted_), FinishReason::kCancelled);
      }
      now_ += std::chrono::milliseconds(1);
      if (in_flight_ > 0 && scheduler_.NeedsResults() && Chance(70)) Collect(totals);
      if (believed_) break;
      const IterationPlan plan = scheduler_.Plan(now_);
      if (!IsEmpty(plan)) {
        expected_.push_back(
            {.number = plan.number, .draft_len = plan.draft_len, .live_slots = plan.ranks[0].live_slots});
        ASSERT_TRUE(rank_->Launch(plan).ok());
        ++in_flight_;
      }
      if (in_flight_ > 1 || (in_flight_ > 0 && IsEmpty(plan))) Collect(totals);
      scheduler_.TakeUpdates();
      if (Chance(2)) Lose(totals);
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
    request.prompt_ids.assign(Random(1, 40), 3);
    request.sampling.seed = request.id;
    request.max_tokens = Random(1, 50);
    request.draft_cap = Random(0, kMaxDraft);
    request.logprob_count = Chance(40) ? Random(0, 3) : -1;
    if (Chance(40)) request.stop_ids = {Random(0, kVocab - 1), Random(0, kVocab - 1)};
    request.arrival = now_;
    if (Chance(40)) Constrain(request);
    ASSERT_TRUE(scheduler_.Submit(request).ok());
  }
  void Constrain(Request& request) {
    request.constraint.grammar = ScriptGrammar(Random(0, kScriptGrammarCount - 1));
    if (Chance(40)) request.constraint.trigger_ids = {kScriptTrigger};
    request.thinking = {.begin = 3, .end = 4};
    if (Chance(50)) request.prompt_phase = Phase::kThinking;
    request.stop_ids = {kScriptEnd};
    scripted_[request.id] = ConstrainedTokens(request);
  }
  void Collect(Totals* totals) {
    --in_flight_;
    const ExpectedResult expected = expected_.front();
    expected_.pop_front();
    const RankResult honest = *rank_->Collect();
    if (Chance(50)) {
      RankResult forged = honest;
      for (int i = Random(1, 3); i > 0; --i) Forge(forged);
      if (Commit(forged, expected).ok()) {
        ++totals->believed;
        believed_ = true;
        return;
      }
      ++totals->refused;
    }
    const absl::Status status = Commit(honest, expected);
    ASSERT_TRUE(status.ok()) << status;
    ++totals->honest;
  }
  void Forge(RankResult& result) {
    Forger count(-1, random_);
    VisitFields(count, result);
    Forger forger(Random(0, count.seen() - 1), random_);
    VisitFields(forger, result);
  }
  // As the leader and the serving loop do. Not ok: nothing has changed.
  absl::Status Commit(const RankResult& sent, const ExpectedResult& expected) {
    ASSIGN_OR_RETURN(const RankResult result, DecodeResult(EncodeResult(sent), expected, Limits()));
    RETURN_IF_ERROR(scheduler_.CheckResult(/*rank=*/0, result));
    scheduler_.Commit({result});
    scheduler_.CheckInvariants();
    return absl::OkStatus();
  }
  void Lose(Totals* totals) {
    scheduler_.LoseRanks(absl::UnavailableError("lost"));
    rank_ = std::make_unique<HonestRank>(scripted_);
    expected_.clear();
    in_flight_ = 0;
    ++totals->losses;
  }

  int Random(int low, int high) { return std::uniform_int_distribution<int>(low, high)(random_); }
  bool Chance(int percent) { return Random(1, 100) <= percent; }

  std::mt19937_64 random_;
  Scheduler scheduler_;
  ScriptedTokens scripted_;
  std::unique_ptr<HonestRank> rank_ = std::make_unique<HonestRank>(scripted_);
  std::deque<ExpectedResult> expected_;  // of the plans in flight
  int submitted_ = 0;
  int in_flight_ = 0;
  bool believed_ = false;
  SteadyTime now_;
};

TEST(ForgedResults, PassOnlyWhereCommitTakesThemAndHonestOnesAlways) {
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

// A step of one live sequence, whose prompt of 5 tokens ends in it: the honest result, and what is refused.
struct RefusedResult {
  const char* says;
  std::function<void(SlotResult&)> forge;
};

TEST(ForgedResults, AreRefusedByName) {
  const std::vector<RefusedResult> cases = {
      {"slot: 2, allowed 0..0", [](auto& r) { r.slot = 2; }},
      {"tokens of the step: 0, allowed 1..4", [](auto& r) { r.token_ids = {11}, r.length = 5; }},
      {"length: 7, allowed 6..6", [](auto& r) { r.length = 7; }},
      {"drafts_verified: 0, allowed 1..3",
       [](auto& r) {
         r.token_ids = {11, 12, 13}, r.length = 7, r.logprobs.resize(3);
       }},
      {"relaxed_count: 1, allowed 0..0", [](auto& r) { r.relaxed_count = 1; }},
      {"logprobs size: 1, allowed 2..2", [](auto& r) { r.logprobs.pop_back(); }},
      {"finished: 1, allowed 0..0", [](auto& r) { r.finished = true; }},
  };
  for (const RefusedResult& forged : cases) {
    SCOPED_TRACE(forged.says);
    Scheduler scheduler(TestOptions());
    Request request{.id = 1, .prompt_ids = {1, 2, 3, 4, 5}};
    request.max_tokens = 40;
    request.draft_cap = kMaxDraft;
    request.logprob_count = 0;
    ASSERT_TRUE(scheduler.Submit(std::move(request)).ok());
    const IterationPlan plan = scheduler.Plan({});
    const int32_t slot = plan.ranks[0].live_slots.at(0);
    SlotResult honest{.slot = slot, .token_ids = {11, 12}, .first_token = true, .length = 6};
    honest.logprobs.resize(2);
    SlotResult lie = honest;
    forged.forge(lie);
    const absl::Status refused = scheduler.CheckResult(0, {.number = plan.number, .slots = {lie}});
    EXPECT_EQ(refused.message(), absl::StrCat("slot ", lie.slot, ": ", forged.says));
    EXPECT_TRUE(scheduler.CheckResult(0, {.number = plan.number, .slots = {honest}}).ok());
  }
}

}  // namespace
}  // namespace foredraft
