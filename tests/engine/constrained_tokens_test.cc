// The promise with grammars (docs/structured-output.md section 5): tokens do not depend on drafts, batch,
// overlap, graphs, chunks, reuse, swaps, losses or ranks, and every draft is the one of a from-scratch
// computation. The reference runs each request alone, without drafts and without overlap.

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "tests/engine/constrained_requests.h"
#include "tests/engine/covering_array.h"
#include "tests/engine/same_tokens_fixture.h"
#include "tests/engine/test_requests.h"

namespace foredraft {
namespace {

constexpr Setting kAlone = {
    .mtp = false, .overlap = false, .graphs = false, .max_batch_size = 1, .reuse = false};

std::vector<std::vector<int32_t>> TokensOf(const RunRecord& run) {
  std::vector<std::vector<int32_t>> tokens;
  for (const RequestRecord& request : run.requests) tokens.push_back(request.token_ids);
  return tokens;
}

std::vector<Constraint> AbacusConstraints() {
  return {
      {.kind = Constraint::kJsonSchema,
       .source = R"({"type": "object", "properties": {"sum": {"type": "integer"},
                         "steps": {"type": "array", "items": {"type": "string"}}}, "required": ["sum", "steps"]})"},
      {.kind = Constraint::kRegex, .source = "(the answer is|it is) -?[0-9]{1,6}( or [0-9]+)*\\.?"},
      {.kind = Constraint::kJsonObject},
      {.kind = Constraint::kGbnf, .source = R"(root ::= "<" [a-z]{1,8} ">" ([0-9] | " ")* "</" [a-z]+ ">")"}};
}

// Made once for greedy and once for sampled requests.
std::vector<Request> AbacusRequests(bool sampled) {
  static auto* const made = new std::map<bool, std::vector<Request>>;
  std::vector<Request>& requests = (*made)[sampled];
  if (!requests.empty()) return requests;
  requests = TestRequests({.count = 24, .sampled = sampled});
  const RunRecord run = RunRequests(LoadModelOnce(kAbacusDir), {.draft_len = 3}, requests);
  ConstrainAll(TokensOf(run), AbacusConstraints(), AbacusVocabulary(), requests);
  return requests;
}

// ---- abacus ----

constexpr int kDraftLens[] = {0, 1, 3, 7};
// K, overlap, graphs (padded, none, exact sizes), batch, budget, reuse, small pool, K changing on the way,
// drafter, sampled, losses of the rank, draft caps, masks that come late at random
const std::vector<int> kLevels = {4, 2, 3, 2, 2, 2, 2, 2, 3, 2, 2, 2, 2};

SameTokensCase CaseOf(const std::vector<int>& row) {
  SameTokensCase c{.name = absl::StrCat("row [", absl::StrJoin(row, " "), "]"), .setting = {}};
  c.setting.draft_len = kDraftLens[row[0]];
  c.setting.overlap = row[1] == 0;
  c.setting.graphs = row[2] != 1;
  c.setting.padding = row[2] != 2;
  c.setting.max_batch_size = row[3] == 0 ? 32 : 2;
  c.setting.max_num_tokens = row[4] == 0 ? 8192 : 16;
  c.setting.reuse = row[5] == 0;
  c.setting.small_pool = row[6] == 1;
  if (row[7] == 1) c.setting.draft_len_changes = {3, 0, 7, 1, 1, 2};
  c.setting.vanilla = row[8] == 1;
  c.setting.mtp = row[8] != 2 || c.setting.draft_len > 0 || row[7] == 1;
  c.sampled = row[9] == 1;
  if (row[10] == 1) c.setting.losses = {4, 11, 30};
  c.setting.draft_caps = row[11] == 1;
  if (row[12] == 1) c.setting.late_percent = 40;
  return c;
}

class ConstrainedTokens : public SameTokensFixture {
 protected:
  ConstrainedTokens() : SameTokensFixture(LoadModelOnce(kAbacusDir), AbacusRequests) {}
};

TEST_F(ConstrainedTokens, OverSettingsAndEveryDraftEqualsTheFromScratchOne) {
  std::vector<SameTokensCase> cases;
  for (const std::vector<int>& row : CoveringArray(kLevels, 2)) cases.push_back(CaseOf(row));
  for (const int ranks : {2, 4}) {
    cases.push_back({.name = "ranks",
                     .setting = {.ranks = ranks, .draft_len = 3, .max_batch_size = 4, .losses = {9}},
                     .sampled = ranks == 2});
    Setting shared = {.attention_tp = ranks, .draft_len = 3, .max_batch_size = 4, .late_percent = 40};
    if (ranks == 4) shared.losses = {9};
    cases.push_back({.name = "ranks that share requests", .setting = shared, .sampled = ranks == 4});
  }
  ExpectTheSame(cases);
}

TEST_F(ConstrainedTokens, AreWhatTheGrammarsAllow) {
  for (const bool sampled : {false, true}) {
    const std::vector<Request> requests = AbacusRequests(sampled);
    const RunRecord run = RunRequests(model_, {.draft_len = 3}, requests);
    int constrained = 0, stopped = 0, gates = 0, second_drafts = 0;
    for (size_t i = 0; i < requests.size(); ++i) {
      EXPECT_EQ(FaultOf(requests[i], run.requests[i].token_ids), "") << "request " << i;
      EXPECT_NE(run.requests[i].finish, FinishReason::kError) << "request " << i;
      const bool has_grammar = requests[i].constraint.grammar != nullptr;
      constrained += has_grammar;
      if (has_grammar) second_drafts += run.requests[i].accepted_per_position[1];
      stopped += has_grammar && run.requests[i].finish == FinishReason::kStop;
      gates += requests[i].prompt_phase == Phase::kThinking || !requests[i].constraint.trigger_ids.empty();
    }
    EXPECT_GT(constrained, 14);
    EXPECT_GT(stopped, 2);
    EXPECT_GT(gates, 4);
    EXPECT_GT(second_drafts, sampled ? 5 : 20);  // masks reach along the drafts
    EXPECT_GT(run.load.held_slots, 10u);
    EXPECT_GT(run.load.masks, 100u);
    EXPECT_GT(run.load.mask_steps, 20u);
    EXPECT_GT(run.load.drafts_outside_grammar, 10u);
    EXPECT_GT(run.load.forced_drafts, 10u);
    EXPECT_GT(run.load.mask_seconds, 0);
  }
}

// Free requests take the steps that they take in a run without the others.
TEST_F(ConstrainedTokens, FreeRequestsDoNotNotice) {
  const std::vector<Request> mixed = AbacusRequests(/*sampled=*/false);
  const Setting setting = {.draft_len = 3, .overlap = false, .reuse = false};
  const RunRecord with = RunRequests(model_, setting, mixed);
  const RunRecord without = RunRequests(model_, setting, TestRequests({.count = 24}));
  int free_requests = 0;
  for (size_t i = 0; i < mixed.size(); ++i) {
    if (mixed[i].constraint.grammar != nullptr) continue;
    ++free_requests;
    EXPECT_EQ(with.requests[i].token_ids, without.requests[i].token_ids) << "request " << i;
    EXPECT_EQ(with.requests[i].accepted_per_position, without.requests[i].accepted_per_position);
  }
  EXPECT_GT(free_requests, 2);
}

// ---- where thinking ends ----

// Where in its step the token that ends a thought came.
struct GatePlaces {
  int draft = 0;          // it was an accepted draft
  int drafts_follow = 0;  // and others came after it
  int own = 0;            // it was the target's own token, no draft
  int first_of_step = 0;
  int later_in_step = 0;
};

void Count(const RequestRecord& request, int gate_index, GatePlaces& places) {
  for (size_t i = 1; i < request.records.size(); ++i) {
    const StepRecord& before = request.records[i - 1];
    const StepRecord& step = request.records[i];
    if (gate_index < before.token_count || gate_index >= step.token_count) continue;
    ASSERT_EQ(step.token_count, gate_index + 1) << "the step goes on after the gate token";
    const int place = gate_index - before.token_count;
    const bool drafted = place < step.drafts_verified && place < static_cast<int>(before.drafts.size()) &&
                         before.drafts[place] == request.token_ids[gate_index];
    places.draft += drafted;
    places.own += !drafted;
    places.drafts_follow += drafted && place + 1 < step.drafts_verified;
    places.first_of_step += place == 0;
    places.later_in_step += place > 0;
  }
}

// The first fault of other servers (docs/structured-output.md): rows after the end of thinking without a
// mask.
TEST_F(ConstrainedTokens, WhereverInAStepThinkingEnds) {
  std::vector<Request> requests;
  std::vector<std::vector<int32_t>> free_tokens;
  std::vector<int> gates;
  const std::vector<Request> plain = TestRequests({.count = 12});
  const RunRecord free_run = RunRequests(model_, {.draft_len = 3}, plain);
  for (size_t i = 0; i < plain.size(); ++i) {
    const std::vector<int32_t>& own = free_run.requests[i].token_ids;
    for (int end = 0; end < 9 && end + 1 < static_cast<int>(own.size()); ++end) {
      if (std::find(own.begin(), own.end(), own[end]) - own.begin() != end) continue;
      Request request = plain[i];
      request.sampling.seed = 5000 + requests.size();
      request.max_tokens = 24;
      Constrain({.constraint = AbacusConstraints()[0], .thought_end = end}, own, AbacusVocabulary(), request);
      requests.push_back(request);
      gates.push_back(end);
    }
  }
  const RunRecord alone = RunRequests(model_, kAlone, requests);
  GatePlaces places;
  for (const bool overlap : {false, true}) {
    const RunRecord run = RunRequests(model_, {.draft_len = 3, .overlap = overlap}, requests);
    for (size_t i = 0; i < requests.size(); ++i) {
      ASSERT_EQ(run.requests[i].token_ids, alone.requests[i].token_ids)
          << "request " << i << ", thinking ends at " << gates[i] << ", overlap " << overlap;
      EXPECT_EQ(FaultOf(requests[i], run.requests[i].token_ids), "") << "request " << i;
      Count(run.requests[i], gates[i], places);
    }
  }
  EXPECT_GT(places.draft, 3);
  EXPECT_GT(places.drafts_follow, 3);
  EXPECT_GT(places.own, 3);
  EXPECT_GT(places.first_of_step, 3);
  EXPECT_GT(places.later_in_step, 3);
}

// EOS is the most probable token by far, and comes only where the grammar has let it: neither the thought nor
// a draft in it has one.
TEST_F(ConstrainedTokens, AThoughtDoesNotEndTheTurn) {
  for (const bool sampled : {false, true}) {
    std::vector<Request> requests = TestRequests({.count = 10, .sampled = sampled});
    for (Request& request : requests) request.max_tokens = 40;
    const std::vector<std::vector<int32_t>> own = TokensOf(RunRequests(model_, {.draft_len = 3}, requests));
    std::vector<int> ends;
    for (size_t i = 0; i < requests.size(); ++i) {
      const int last = static_cast<int>(own[i].size()) - 2;
      int end = std::min(last, 5 + static_cast<int>(i));
      while (end > 0 && std::find(own[i].begin(), own[i].end(), own[i][end]) - own[i].begin() != end) --end;
      ends.push_back(end);
      Constrain({.constraint = AbacusConstraints()[i % 3], .thought_end = end}, own[i], AbacusVocabulary(),
                requests[i]);
      requests[i].sampling.logit_bias = {{.token_id = requests[i].stop_ids[0], .bias = 100}};
    }
    const RunRecord alone = RunRequests(model_, kAlone, requests);
    const Setting settings[] = {{.draft_len = 3},
                                {.draft_len = 2, .vanilla = true, .graphs = false},
                                {.ranks = 2, .draft_len = 7, .max_batch_size = 4, .losses = {5}}};
    for (const Setting& setting : settings) {
      const RunRecord run = RunRequests(model_, setting, requests);
      int drafts = 0;
      for (size_t i = 0; i < requests.size(); ++i) {
        SCOPED_TRACE(absl::StrCat("request ", i, ", ", setting.DebugString()));
        const RequestRecord& request = run.requests[i];
        ASSERT_EQ(request.token_ids, alone.requests[i].token_ids);
        ASSERT_GT(static_cast<int>(request.token_ids.size()), ends[i] + 1);
        EXPECT_TRUE(std::equal(own[i].begin(), own[i].begin() + ends[i] + 1, request.token_ids.begin()));
        EXPECT_EQ(FaultOf(requests[i], request.token_ids), "");
        for (const StepRecord& step : request.records) {
          if (step.token_count > ends[i]) continue;  // behind the thought
          drafts += static_cast<int>(step.drafts.size());
          EXPECT_EQ(std::count(step.drafts.begin(), step.drafts.end(), requests[i].stop_ids[0]), 0);
        }
      }
      EXPECT_GT(drafts, 20);
    }
  }
}

// Long thoughts keep the overlap: only the step that crosses the gate is held.
TEST_F(ConstrainedTokens, ACrossingCostsOneHeldStep) {
  std::vector<Request> requests = {TestRequests({.count = 4})[2]};
  requests[0].max_tokens = 40;
  const std::vector<int32_t> own = RunRequests(model_, {.draft_len = 1}, requests).requests[0].token_ids;
  int end = static_cast<int>(own.size()) - 3;
  while (std::find(own.begin(), own.end(), own[end]) - own.begin() != end) --end;
  ASSERT_GT(end, 2);
  Constrain({.constraint = AbacusConstraints()[1], .thought_end = end}, own, AbacusVocabulary(), requests[0]);
  const RunRecord run = RunRequests(model_, {.draft_len = 1}, requests);
  EXPECT_LE(run.load.held_slots, 2u);  // the one that ends the prompt, and the one launched over the gate
  EXPECT_GE(run.load.held_slots, 1u);
}

// ---- DeepSeek-V4 with DSpark ----

std::vector<int32_t> RandomIds(int count, uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<int32_t> ids(count);
  for (int32_t& id : ids) id = static_cast<int32_t>(2 + random() % 62);
  return ids;
}

const LoadedModel& DSparkModel() { return LoadModelOnce("tests/golden/checkpoints/deepseek_v4_dspark"); }

std::vector<Request> V4Requests(bool sampled) {
  static auto* const made = new std::map<bool, std::vector<Request>>;
  std::vector<Request>& requests = (*made)[sampled];
  if (!requests.empty()) return requests;
  for (int i = 0; i < 9; ++i) {
    Request& request = requests.emplace_back();
    // Some grow past a block of 128 tokens side by side, at their first steps, so a small pool swaps them.
    request.prompt_ids = RandomIds(i % 2 == 0 ? 118 + i : 30 + 20 * i, 100 + std::min(i, 6));
    if (i == 8) request.prompt_ids = requests[7].prompt_ids;
    request.max_tokens = i % 2 == 0 ? 60 : 15 + 5 * i;
    request.sampling.seed = 1000 + i;
    request.stop_ids = {1};
    if (!sampled) continue;
    request.sampling.temperature = 0.8f;
    request.sampling.top_p = 0.95f;
    if (i % 4 == 0) request.sampling.frequency_penalty = 0.1f;
  }
  const RunRecord run = RunRequests(DSparkModel(), {.draft_len = 3, .max_batch_size = 8}, requests);
  const std::vector<Constraint> constraints = {
      {.kind = Constraint::kRegex, .source = "([a-f]{1,3}zkeyz[0-9]{2,4}){9,40}"},
      {.kind = Constraint::kGbnf, .source = R"(root ::= ([a-z] [a-z] | [0-9]+){25,90} "end")"}};
  ConstrainAll(TokensOf(run), constraints, LetterVocabulary(DSparkModel().config.vocab_size), requests);
  return requests;
}

class ConstrainedTokensV4 : public SameTokensFixture {
 protected:
  ConstrainedTokensV4() : SameTokensFixture(DSparkModel(), V4Requests) {}
};

TEST_F(ConstrainedTokensV4, OverSettingsAndEveryDraftEqualsTheFromScratchOne) {
  const Setting five{.draft_len = 5, .max_batch_size = 8};
  const RunRecord run = RunRequests(model_, five, V4Requests(/*sampled=*/false));
  EXPECT_GT(run.load.forced_drafts, 10u);
  std::vector<SameTokensCase> cases(9, {.name = "DSpark", .setting = five});
  cases[0].setting.overlap = false;
  cases[1].setting.verify_len = 1;
  cases[1].sampled = true;
  cases[2].setting.policy = DraftPolicyKind::kConfidence;
  cases[3].setting.small_pool = true;
  cases[3].setting.draft_len_changes = {3, 0, 5, 1, 1, 2};
  cases[4].setting.max_num_tokens = 16;
  cases[4].setting.graphs = false;
  cases[4].sampled = true;
  cases[5].setting.losses = {4, 11, 30, 45};
  cases[5].setting.verify_len = 1;
  cases[6].setting.ranks = 2;
  cases[6].setting.losses = {12};
  cases[6].sampled = true;
  cases[7].setting.max_batch_size = 1;
  cases[7].setting.draft_len = 1;
  cases[8].setting.attention_tp = 2;
  cases[8].setting.verify_len = 1;
  for (const int late : {0, 2, 3, 5, 6}) cases[late].setting.late_percent = 40;
  ExpectTheSame(cases);
}

}  // namespace
}  // namespace foredraft
