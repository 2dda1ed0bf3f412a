// Constrained sequences (docs/structured-output.md section 5): which plans have masks, what holds a slot, and
// what ends a request. scheduler_property_test runs many at random.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "grammar/compile.h"
#include "grammar/grammar.h"
#include "scheduler/mask_job.h"
#include "scheduler/sequence_constraint.h"
#include "tests/scheduler/constrained_script.h"
#include "tests/scheduler/scheduler_stage.h"

namespace foredraft {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;

constexpr ThinkingIds kThinking = {.begin = 3, .end = 4};

SchedulerOptions Options(int draft_len) {
  SchedulerOptions options = SmallOptions();
  options.max_draft_len = options.draft_len = draft_len;
  options.drafter.rows_ahead = draft_len;
  return options;
}

// A scheduler and its rank, which gives the tokens that the requests should get.
class Turns {
 public:
  explicit Turns(const SchedulerOptions& options)
      : scheduler(options),
        rank_(
            {.rank = 0,
             .scheduler = options,
             .token_of = [this](uint64_t seed, int position) { return TokenOf(seed, position); }},
            [this](uint64_t seed) -> const std::vector<int32_t>& { return requests_.at(seed).prompt_ids; }) {}
  ~Turns() { EXPECT_THAT(rank_.faults(), IsEmpty()); }

  static Request MakeRequest(uint64_t id, int grammar, int max_tokens = 20) {
    Request request{.id = id, .prompt_ids = {8, 9, 10}, .max_tokens = max_tokens, .stop_ids = {kScriptEnd}};
    request.sampling.seed = id;
    if (grammar >= 0) request.constraint.grammar = ScriptGrammar(grammar);
    return request;
  }
  void Submit(const Request& request) {
    requests_[request.id] = request;
    if (request.constraint.grammar != nullptr) expected_[request.id] = ConstrainedTokens(request);
    ASSERT_TRUE(scheduler.Submit(request).ok());
  }
  const std::vector<int32_t>& expected(uint64_t id) const { return expected_.at(id); }

  IterationPlan Launch() {
    IterationPlan plan = scheduler.Plan({});
    if (!IsEmpty(plan)) {
      EXPECT_TRUE(rank_.Launch(plan).ok());
    }
    return plan;
  }
  // `change` is called with the rank's result before it is committed.
  void Commit(const std::function<void(RankResult&)>& change = nullptr) {
    std::vector<RankResult> results = {*rank_.Collect()};
    if (change) change(results[0]);
    scheduler.Commit(results);
    scheduler.CheckInvariants();
  }
  IterationPlan Turn() {
    IterationPlan plan = Launch();
    if (!IsEmpty(plan)) Commit();
    return plan;
  }
  std::map<uint64_t, std::vector<int32_t>> Tokens() {
    for (const RequestUpdate& update : scheduler.TakeUpdates()) {
      std::vector<int32_t>& tokens = tokens_[update.request_id];
      tokens.insert(tokens.end(), update.token_ids.begin(), update.token_ids.end());
      if (update.finish == FinishReason::kError) errors[update.request_id] = update.error;
    }
    return tokens_;
  }

  Scheduler scheduler;
  std::map<uint64_t, absl::Status> errors;

 private:
  int32_t TokenOf(uint64_t seed, int position) const {
    const auto found = expected_.find(seed);
    const size_t index = position - requests_.at(seed).prompt_ids.size();
    if (found == expected_.end() || index >= found->second.size()) return ScriptedToken(seed, position);
    return found->second[index];
  }

  std::map<uint64_t, Request> requests_;
  std::map<uint64_t, std::vector<int32_t>> expected_;
  std::map<uint64_t, std::vector<int32_t>> tokens_;
  FakeRank rank_;
};

TEST(SchedulerMasks, TheFirstMaskTravelsWithThePromptAndTheSlotIsHeldBehindIt) {
  Turns turns(Options(3));
  turns.Submit(Turns::MakeRequest(1, /*grammar=*/0));
  const IterationPlan plan = turns.Turn();
  const RankPlan& rank = plan.ranks[0];
  ASSERT_THAT(rank.first_masks, SizeIs(1));
  ASSERT_THAT(rank.slot_masks, SizeIs(1));
  EXPECT_THAT(rank.slot_masks[0].mask_indices, IsEmpty());
  EXPECT_TRUE(rank.admissions[0].gate.constrained);
  EXPECT_EQ(rank.admissions[0].gate.first, Gate::kBehind);
  EXPECT_EQ(turns.scheduler.load().held_slots, 1u);
  EXPECT_THAT(turns.Tokens().at(1), SizeIs(1));
  // Then one mask for each row.
  const IterationPlan next = turns.Turn();
  ASSERT_THAT(next.ranks[0].slot_masks, SizeIs(1));
  EXPECT_GE(next.ranks[0].slot_masks[0].mask_indices.size(), 1u);
  EXPECT_EQ(turns.scheduler.load().held_slots, 1u);
}

TEST(SchedulerMasks, FreeRequestsHaveNone) {
  Turns turns(Options(3));
  turns.Submit(Turns::MakeRequest(1, /*grammar=*/-1));
  while (turns.scheduler.HasWork()) {
    const IterationPlan plan = turns.Turn();
    EXPECT_THAT(plan.ranks[0].masks, IsEmpty());
    EXPECT_THAT(plan.ranks[0].slot_masks, IsEmpty());
    EXPECT_FALSE(turns.scheduler.NeedsResults());
  }
}

// What the second plan does with drafts that the first result tells.
struct DraftCase {
  const char* name;
  int grammar;
  std::vector<int32_t> drafts;
  size_t masks;
  uint64_t outside;
};

TEST(SchedulerMasks, RowsEndWithTheFirstDraftThatTheGrammarDoesNotContinue) {
  for (const DraftCase& c : {
           DraftCase{"all are in it", 3, {0, 1, 2}, 4, 0},
           DraftCase{"refused", 1, {25, 25, 25}, 1, 1},
           DraftCase{"refused later", 3, {0, 38, 2}, 2, 1},
           DraftCase{"no token at all", 3, {0, -1, 2}, 2, 1},
           DraftCase{"the output ends, others follow", 3, {kScriptEnd, 1, 2}, 1, 0},
           DraftCase{"it ends later", 3, {0, kScriptEnd, 2}, 2, 0},
           DraftCase{"none", 3, {}, 1, 0},
       }) {
    Turns turns(Options(3));
    turns.Submit(Turns::MakeRequest(1, c.grammar));
    turns.Launch();
    turns.Commit([&](RankResult& result) { result.slots[0].drafts = c.drafts; });
    const IterationPlan plan = turns.scheduler.Plan({});
    ASSERT_THAT(plan.ranks[0].slot_masks, SizeIs(1)) << c.name;
    EXPECT_THAT(plan.ranks[0].slot_masks[0].mask_indices, SizeIs(c.masks)) << c.name;
    EXPECT_THAT(plan.ranks[0].slot_masks[0].forced_drafts, IsEmpty()) << c.name;
    EXPECT_EQ(turns.scheduler.load().drafts_outside_grammar, c.outside) << c.name;
  }
}

// Grammar 1 is "abcd" or "quba": after a first token of text the rest is forced.
TEST(SchedulerMasks, ForcedTextTakesThePlaceOfDraftsThatTheGrammarRefuses) {
  const std::map<int32_t, std::vector<int32_t>> rest = {
      {0, {27, 3}}, {26, {28}}, {16, {20, 34}}, {35, {34}}};  // a bc d, ab cd, q u ba, qu ba
  int seen = 0;
  for (uint64_t id = 1; id <= 30; ++id) {
    for (const int limit : {1, 7}) {
      SchedulerOptions options = Options(3);
      options.drafter.given_limit = limit + 1;
      Turns turns(options);
      turns.Submit(Turns::MakeRequest(id, /*grammar=*/1));
      const auto found = rest.find(turns.expected(id).front());
      if (found == rest.end()) continue;
      ++seen;
      turns.Launch();
      turns.Commit([](RankResult& result) { result.slots[0].drafts = {25, 25, 25}; });
      std::vector<int32_t> forced = found->second;
      if (limit == 1) forced.resize(1);
      const IterationPlan plan = turns.Launch();
      EXPECT_EQ(plan.ranks[0].slot_masks[0].forced_drafts, forced) << id;
      EXPECT_THAT(plan.ranks[0].slot_masks[0].mask_indices, SizeIs(forced.size() + 1)) << id;
      EXPECT_EQ(turns.scheduler.load().forced_drafts, forced.size()) << id;
      EXPECT_EQ(turns.scheduler.load().drafts_outside_grammar, 1u) << id;
      turns.Commit();
      while (turns.scheduler.HasWork()) turns.Turn();
      EXPECT_EQ(turns.Tokens()[id], turns.expected(id));
    }
  }
  EXPECT_GT(seen, 10);
}

TEST(SchedulerMasks, OnlySequencesBehindTheirGateNeedResults) {
  Turns turns(Options(1));
  Request request = Turns::MakeRequest(7, /*grammar=*/0, 60);
  request.thinking = kThinking;
  request.prompt_phase = Phase::kThinking;
  turns.Submit(request);
  EXPECT_FALSE(turns.scheduler.NeedsResults());
  const std::vector<int32_t>& expected = turns.expected(7);
  const auto end = std::find(expected.begin(), expected.end(), kThinking.end);
  ASSERT_NE(end, expected.end()) << "the script must end its thought";
  while (turns.scheduler.HasWork()) {
    turns.Turn();
    const auto count = static_cast<std::ptrdiff_t>(turns.Tokens()[7].size());
    const bool behind =
        count > end - expected.begin() && count < static_cast<std::ptrdiff_t>(expected.size());
    EXPECT_EQ(turns.scheduler.NeedsResults(), behind) << count;
  }
  EXPECT_EQ(turns.Tokens()[7], expected);
}

// A plan made before the result of the step that lowers the gate holds the slot: it costs the step alone.
TEST(SchedulerMasks, AStepThatWasLaunchedOverTheGateIsHeld) {
  Turns turns(Options(1));
  Request request = Turns::MakeRequest(7, /*grammar=*/0, 60);
  request.thinking = kThinking;
  request.prompt_phase = Phase::kThinking;
  turns.Submit(request);
  turns.Launch();
  while (turns.scheduler.HasWork()) {
    const bool launched = !IsEmpty(turns.Launch());
    turns.Commit();
    if (!launched || !turns.scheduler.NeedsResults()) continue;
    turns.Commit();  // the held one
    if (turns.scheduler.HasWork()) turns.Launch();
  }
  EXPECT_EQ(turns.Tokens()[7], turns.expected(7));
  EXPECT_GE(turns.scheduler.load().held_slots, 2u);
}

TEST(SchedulerMasks, TheFirstMaskAllowsAThoughtUnlessThePromptEndsOne) {
  for (const bool closed : {false, true}) {
    for (const bool from_first_token : {false, true}) {
      Turns turns(Options(0));
      Request request = Turns::MakeRequest(1, /*grammar=*/1);
      request.thinking = {.begin = 38, .end = 4};
      if (closed) request.prompt_ids.back() = 4;
      request.constraint.from_first_token = from_first_token;
      turns.Submit(request);
      const IterationPlan plan = turns.Turn();
      ASSERT_THAT(plan.ranks[0].first_masks, SizeIs(1));
      EXPECT_EQ(plan.ranks[0].masks[0]->Allows(38), !closed && !from_first_token);
      EXPECT_EQ(plan.ranks[0].admissions[0].gate.opens_thought, !closed && !from_first_token);
    }
  }
}

// Behind a thought row j has the line ends that the drafts before it leave, up to the first of other text.
TEST(SchedulerMasks, LineEndsMayComeBetweenAThoughtAndTheGrammar) {
  struct Case {
    const char* name;
    std::vector<int32_t> drafts;
    std::vector<int> line_ends;  // that each row may choose, as text: 0, 1, or 2 of them
  };
  constexpr int32_t kOne = kScriptLineEnd, kTwo = kScriptLineEnds;
  const Case cases[] = {{"none", {27, 3, 3}, {2}},
                        {"text", {0, 27, 3}, {2, 0, 0, 0}},
                        {"one", {kOne, 0, 27}, {2, 1, 0, 0}},
                        {"one and one", {kOne, kOne, 0}, {2, 1, 0, 0}},
                        {"two at once", {kTwo, 0, 27}, {2, 0, 0, 0}},
                        {"one too many", {kTwo, kOne, 0}, {2, 0}},
                        {"two behind one", {kOne, kTwo, 0}, {2, 1}}};
  for (const bool thinks : {true, false}) {
    for (const Case& c : cases) {
      SCOPED_TRACE(c.name);
      Request request = Turns::MakeRequest(1, /*grammar=*/1);
      request.thinking = {.begin = -1, .end = 4};
      request.prompt_phase = Phase::kThinking;
      if (!thinks) request.prompt_phase = Phase::kAnswer;
      request.constraint.line_end_ids = {kTwo, kOne};
      const auto constraint = SequenceConstraint::Of(request);
      if (thinks) {
        ASSERT_TRUE(constraint->Take(std::vector<int32_t>{7, 4}).ok());
      } else {
        const auto first = constraint->FirstMask();
        ASSERT_TRUE(first.ok());
        EXPECT_FALSE((*first)->Allows(kOne)) << "no thought came";
      }
      const std::shared_ptr<MaskJob> job = constraint->NextRows();
      job->Aim(c.drafts, {.drafts = 3, .forced_drafts = 0});
      ASSERT_TRUE(job->Run(MaskWork::kNoEnd, /*waits=*/true));
      const absl::StatusOr<GrammarRows>& rows = job->rows();
      ASSERT_TRUE(rows.ok()) << rows.status();
      for (size_t row = 0; row < rows->masks.size(); ++row) {
        const int allowed = thinks && row < c.line_ends.size() ? c.line_ends[row] : 0;
        EXPECT_EQ(rows->masks[row]->Allows(kOne), allowed >= 1) << row;
        EXPECT_EQ(rows->masks[row]->Allows(kTwo), allowed >= 2) << row;
      }
      if (thinks) {
        EXPECT_EQ(rows->masks.size(), c.line_ends.size());
      }
    }
  }
}

TEST(SchedulerMasks, ATokenThatTheGrammarRefusesEndsItsRequestAlone) {
  Turns turns(Options(0));
  turns.Submit(Turns::MakeRequest(1, /*grammar=*/0));
  turns.Submit(Turns::MakeRequest(2, /*grammar=*/3));
  turns.Turn();
  turns.Launch();
  turns.Commit([](RankResult& result) { result.slots[0].token_ids.back() = 38; });
  turns.Tokens();
  ASSERT_EQ(turns.errors.count(1), 1u);
  EXPECT_EQ(turns.errors[1].code(), absl::StatusCode::kInternal);
  EXPECT_THAT(std::string(turns.errors[1].message()), HasSubstr("token 38, number 2 of the answer"));
  while (turns.scheduler.HasWork()) turns.Turn();
  EXPECT_EQ(turns.Tokens()[2], turns.expected(2));
}

// "b", then any letters in many ways: the second mask takes more steps than the first.
std::shared_ptr<const Grammar> WithLimit(int64_t max_mask_steps) {
  GrammarLimits limits;
  limits.max_mask_steps = max_mask_steps;
  auto vocabulary = std::shared_ptr<const Vocabulary>(std::shared_ptr<const Grammar>(ScriptGrammar(0)),
                                                      &ScriptGrammar(0)->vocabulary());
  auto grammar =
      CompileConstraint({.kind = Constraint::kGbnf,
                         .source = R"(root ::= "b" ([a-m] [a-z] | [n-z] | [c-q] "z" [a-z] | [e-h])*)"},
                        vocabulary, limits);
  return grammar.ok() ? *grammar : nullptr;
}

TEST(SchedulerMasks, AMaskBeyondALimitEndsItsRequestAlone) {
  int64_t limit = 1;
  while (WithLimit(limit) == nullptr) ++limit;  // the first mask can just be made
  Turns turns(Options(0));
  Request request = Turns::MakeRequest(1, /*grammar=*/-1);
  turns.Submit(Turns::MakeRequest(2, /*grammar=*/3));
  request.constraint.grammar = ScriptGrammar(3);
  turns.Submit(request);
  // The rank's script is that of grammar 3, so its first token is replaced by the only one allowed.
  Turns other(Options(0));
  request.constraint.grammar = WithLimit(limit);
  ASSERT_TRUE(other.scheduler.Submit(request).ok());
  IterationPlan plan = other.scheduler.Plan({});
  RankResult result{.number = plan.number,
                    .slots = {{.slot = 0, .token_ids = {1}, .first_token = true, .length = 3}}};
  other.scheduler.Commit({result});
  other.scheduler.TakeUpdates();
  plan = other.scheduler.Plan({});
  const std::vector<RequestUpdate> updates = other.scheduler.TakeUpdates();
  ASSERT_THAT(updates, SizeIs(1));
  EXPECT_EQ(updates[0].finish, FinishReason::kError);
  EXPECT_EQ(updates[0].error.code(), absl::StatusCode::kResourceExhausted) << updates[0].error;
  ASSERT_THAT(plan.ranks[0].slot_masks, SizeIs(1));
  EXPECT_THAT(plan.ranks[0].slot_masks[0].mask_indices, IsEmpty()) << "its slot is held";
  other.scheduler.Commit({RankResult{.number = plan.number, .slots = {{.slot = 0, .length = 3}}}});
  other.scheduler.CheckInvariants();
  while (turns.scheduler.HasWork()) turns.Turn();
}

TEST(SchedulerMasks, ASlotWhoseMasksAreNotReadyIsLeftOutWhileOthersStep) {
  bool are_late = false;
  SchedulerOptions options = Options(3);
  options.masks_are_late = [&are_late] { return are_late; };
  Turns turns(options);
  turns.Submit(Turns::MakeRequest(1, /*grammar=*/0));
  Request free = Turns::MakeRequest(2, /*grammar=*/-1, /*max_tokens=*/60);
  free.stop_ids.clear();
  turns.Submit(free);
  turns.Turn();
  are_late = true;
  const uint64_t held = turns.scheduler.load().held_slots;
  for (uint64_t i = 1; i <= 5; ++i) {
    const IterationPlan plan = turns.Launch();
    EXPECT_THAT(plan.ranks[0].live_slots, testing::ElementsAre(1)) << "the free request's";
    EXPECT_THAT(plan.ranks[0].slot_masks, IsEmpty());
    EXPECT_EQ(plan.decode_bucket, 1);
    EXPECT_FALSE(turns.scheduler.NeedsResults()) << "so the next plan may be made while this one runs";
    turns.Commit();
    EXPECT_EQ(turns.scheduler.load().held_slots, held + i);
  }
  EXPECT_THAT(turns.Tokens().at(1), SizeIs(1));
  EXPECT_GE(turns.Tokens().at(2).size(), 6u);
  are_late = false;
  EXPECT_THAT(turns.Turn().ranks[0].live_slots, SizeIs(2));
  while (turns.scheduler.HasWork()) turns.Turn();
  EXPECT_EQ(turns.Tokens().at(1), turns.expected(1));
}

TEST(SchedulerMasks, APlanThatWouldDoNothingWaitsForMasks) {
  SchedulerOptions options = Options(3);
  options.masks_are_late = [] { return true; };
  Turns turns(options);
  for (uint64_t id = 1; id <= 3; ++id) turns.Submit(Turns::MakeRequest(id, static_cast<int>(id)));
  while (turns.scheduler.HasWork()) EXPECT_FALSE(IsEmpty(turns.Turn()));
  for (uint64_t id = 1; id <= 3; ++id) EXPECT_EQ(turns.Tokens().at(id), turns.expected(id));
}

// Letters that may each be the twelfth from the end: a mask takes ten times what a plan waits for.
std::shared_ptr<const Grammar> Heavy() {
  std::string source = "root ::= ";
  for (char c = 'a'; c <= 'z'; ++c) {
    source += std::string(c == 'a' ? "" : " | ") + "[a-z]* \"" + c + "\" [a-z]{12} [a-z]{40}";
  }
  GrammarLimits limits;
  limits.max_mask_steps = 10'000'000;
  const auto vocabulary = std::shared_ptr<const Vocabulary>(std::shared_ptr<const Grammar>(ScriptGrammar(0)),
                                                            &ScriptGrammar(0)->vocabulary());
  return *CompileConstraint({.kind = Constraint::kGbnf, .source = source}, vocabulary, limits);
}

TEST(SchedulerMasks, AClientPaysForItsMasksAlone) {
  Turns turns(Options(3));
  const std::shared_ptr<const Grammar> heavy = Heavy();
  for (uint64_t id = 1; id <= 4; ++id) {
    Request request = Turns::MakeRequest(id, id == 4 ? -1 : 3, /*max_tokens=*/id == 3 ? 30 : 12);
    if (id < 3) request.constraint.grammar = heavy;
    request.client = id < 3 ? 1 : id;
    request.caller = id < 3 ? "heavy" : "";
    if (id == 4) {
      request.max_tokens = 90;
      request.stop_ids.clear();
    }
    turns.Submit(request);
  }
  std::map<std::string, double> seconds;
  int steps = 0;
  for (; turns.scheduler.HasWork() && turns.Tokens()[3].size() < turns.expected(3).size(); ++steps) {
    turns.Turn();
    for (const auto& [caller, more] : turns.scheduler.TakeMaskSeconds()) seconds[caller] += more;
  }
  EXPECT_LE(steps, 34) << "the light one was held for the heavy ones";
  EXPECT_LT(turns.Tokens()[1].size() + turns.Tokens()[2].size(), 24u) << "the heavy ones kept pace";
  while (turns.scheduler.HasWork()) {
    turns.Turn();
    for (const auto& [caller, more] : turns.scheduler.TakeMaskSeconds()) seconds[caller] += more;
  }
  for (uint64_t id = 1; id <= 3; ++id) EXPECT_EQ(turns.Tokens()[id], turns.expected(id));
  EXPECT_GT(seconds["heavy"], seconds[""]);
  EXPECT_GT(seconds[""], 0);
}

TEST(SchedulerMasks, ACancelledRequestLeavesItsLongJobBehind) {
  Turns turns(Options(0));
  Request request = Turns::MakeRequest(1, /*grammar=*/-1, 40);
  request.constraint.grammar = Heavy();
  turns.Submit(request);
  Request free = Turns::MakeRequest(2, /*grammar=*/-1, 40);
  free.stop_ids.clear();
  turns.Submit(free);
  for (int i = 0; i < 3; ++i) turns.Turn();
  turns.scheduler.Cancel(1, FinishReason::kCancelled);
  while (turns.scheduler.HasWork()) turns.Turn();
  EXPECT_EQ(turns.scheduler.load().running, 0);
}

TEST(SchedulerMasks, SequencesAboveTheBoundWait) {
  SchedulerOptions options = Options(1);
  options.max_live_constraints = 2;
  Turns turns(options);
  for (uint64_t id = 1; id <= 4; ++id) turns.Submit(Turns::MakeRequest(id, /*grammar=*/0));
  EXPECT_THAT(turns.Turn().ranks[0].admissions, SizeIs(2));
  EXPECT_EQ(turns.scheduler.waiting_count(), 2);
  while (turns.scheduler.HasWork()) turns.Turn();
  for (uint64_t id = 1; id <= 4; ++id) EXPECT_EQ(turns.Tokens()[id], turns.expected(id));
}

TEST(SchedulerMasks, PlansDoNotDependOnTheThreadsThatMakeThem) {
  std::vector<std::string> plans[2];
  for (const int threads : {1, 3}) {
    SchedulerOptions options = Options(3);
    options.mask_threads = threads;
    Turns turns(options);
    for (uint64_t id = 1; id <= 8; ++id) turns.Submit(Turns::MakeRequest(id, static_cast<int>(id % 4)));
    while (turns.scheduler.HasWork()) {
      const IterationPlan plan = turns.Turn();
      std::string text = plan.DebugString();
      for (const auto& mask : plan.ranks[0].masks) text += " " + std::to_string(mask->count);
      plans[threads > 1].push_back(text);
    }
  }
  EXPECT_EQ(plans[0], plans[1]);
}

}  // namespace
}  // namespace foredraft
