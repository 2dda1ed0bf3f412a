// Thinking budgets: the tokens of a request with one depend on nothing but the tokens before them, under
// every setting that must not change tokens; no output thinks more than its budget, and up to where it is
// spent the output is that of the request without one. The models do not think here: two tokens that each
// writes often begin and end the thoughts of these requests.

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/engine/engine_harness.h"
#include "tests/engine/test_requests.h"

namespace foredraft {
namespace {

struct Kind {
  const char* name;
  bool sampled, logprobs;
};
// The first one decodes by argmax, the others by `sample`.
constexpr Kind kKinds[] = {{"greedy", false, false}, {"logprobs", false, true}, {"sampled", true, true}};

constexpr char kDSparkDir[] = "tests/golden/checkpoints/deepseek_v4_dspark";

std::vector<Request> BaseRequests(const std::string& model, const Kind& kind) {
  if (model == kAbacusDir) return TestRequests({.sampled = kind.sampled, .logprobs = kind.logprobs});
  std::minstd_rand random(5);
  std::vector<Request> requests(8);
  for (size_t i = 0; i < requests.size(); ++i) {
    requests[i].prompt_ids.resize(20 + i * 17);
    for (int32_t& id : requests[i].prompt_ids) id = static_cast<int32_t>(2 + random() % 62);
    requests[i].max_tokens = 45;
    requests[i].sampling.seed = 1000 + i;
    requests[i].sampling.temperature = kind.sampled ? 0.8f : 0.0f;
    requests[i].logprob_count = kind.logprobs ? 2 : -1;
  }
  return requests;
}

class ThinkingBudgets : public ::testing::TestWithParam<const char*> {
 protected:
  ThinkingBudgets() : model_(LoadModelOnce(GetParam())) {
    const std::vector<Request> base = BaseRequests(GetParam(), kKinds[2]);
    const RunRecord run = RunRequests(model_, kPlain, base);
    std::map<int32_t, int> counts;
    for (const RequestRecord& request : run.requests) {
      for (const int32_t token : request.token_ids) ++counts[token];
    }
    for (const int32_t stop : base[0].stop_ids) counts.erase(stop);
    const auto by_count = [](const auto& a, const auto& b) { return a.second < b.second; };
    ids_.begin = std::max_element(counts.begin(), counts.end(), by_count)->first;
    counts.erase(ids_.begin);
    ids_.end = std::max_element(counts.begin(), counts.end(), by_count)->first;
    counts.erase(ids_.end);
    wind_down_ = {std::max_element(counts.begin(), counts.end(), by_count)->first, counts.begin()->first};
  }

  // One request in five has none; one prompt in three thinks already.
  std::vector<Request> Requests(const Kind& kind, bool budgets = true) const {
    std::vector<Request> requests = BaseRequests(GetParam(), kind);
    for (size_t i = 0; i < requests.size(); ++i) {
      requests[i].thinking = ids_;
      requests[i].prompt_phase = i % 3 == 0 ? Phase::kThinking : Phase::kAnswer;
      if (!budgets || i % 5 == 4) continue;
      requests[i].thinking_budget = {.limit = static_cast<int32_t>(i * 7 % 11), .end_ids = {}};
      if (i % 4 == 1) requests[i].thinking_budget.end_ids = wind_down_;
      requests[i].thinking_budget.end_ids.push_back(ids_.end);
    }
    return requests;
  }

  void ExpectTheSame(const RunRecord& plain, const Setting& setting, const Kind& kind) {
    SCOPED_TRACE(absl::StrCat(setting.DebugString(), ", ", kind.name));
    const std::vector<Request> requests = Requests(kind);
    const RunRecord run = RunRequests(model_, setting, requests);
    for (size_t id = 0; id < requests.size(); ++id) {
      const RequestRecord& a = plain.requests[id];
      const RequestRecord& b = run.requests[id];
      ASSERT_EQ(a.token_ids, b.token_ids) << "request " << id;
      ASSERT_EQ(a.finish, b.finish) << "request " << id;
      ASSERT_EQ(a.logprobs.size(), b.logprobs.size()) << "request " << id;
      for (size_t i = 0; i < a.logprobs.size(); ++i) {
        ASSERT_EQ(a.logprobs[i].token_id, a.token_ids[i]) << "request " << id;
        ASSERT_EQ(a.logprobs[i].token_id, b.logprobs[i].token_id) << "request " << id;
        ASSERT_EQ(a.logprobs[i].logprob, b.logprobs[i].logprob) << "request " << id << ", token " << i;
      }
    }
    EXPECT_EQ(run.load.blocks_used, 0);
    EXPECT_EQ(run.load.slots_used, 0);
  }

  const Setting kPlain{.mtp = false, .overlap = false, .graphs = false, .max_batch_size = 1, .reuse = false};
  const LoadedModel& model_;
  ThinkingIds ids_;
  std::vector<int32_t> wind_down_;
};

INSTANTIATE_TEST_SUITE_P(Models, ThinkingBudgets, ::testing::Values(kAbacusDir, kDSparkDir),
                         [](const auto& info) { return info.param == kAbacusDir ? "Mtp" : "DSpark"; });

TEST_P(ThinkingBudgets, ChangeNoTokenWithTheSetting) {
  const bool dspark = DraftsInBlocks(model_.config);
  std::vector<Setting> settings = {
      {.draft_len = 0},
      {.draft_len = 1, .overlap = false},
      {.draft_len = 3},
      {.draft_len = 7, .graphs = false, .max_num_tokens = 16},
      {.draft_len = 3, .small_pool = true},
      {.draft_len = 3, .losses = {4, 11, 30}},
      {.draft_len = 3, .draft_caps = true, .draft_len_changes = {3, 0, 7, 1, 1, 2}},
      {.ranks = 2, .draft_len = 3},
      {.attention_tp = 2, .draft_len = 3}};
  settings.push_back(dspark ? Setting{.draft_len = 7, .policy = DraftPolicyKind::kConfidence, .verify_len = 1}
                            : Setting{.draft_len = 3, .vanilla = true});
  for (const Kind& kind : kKinds) {
    const RunRecord plain = RunRequests(model_, kPlain, Requests(kind));
    for (const Setting& setting : settings) ExpectTheSame(plain, setting, kind);
  }
}

TEST_P(ThinkingBudgets, AreKeptAndChangeNothingBeforeTheyAreSpent) {
  int spent_budgets = 0, wind_downs = 0;
  for (const Kind& kind : kKinds) {
    const std::vector<Request> requests = Requests(kind);
    const RunRecord run = RunRequests(model_, {.draft_len = 3}, requests);
    const RunRecord free = RunRequests(model_, {.draft_len = 3}, Requests(kind, /*budgets=*/false));
    for (size_t id = 0; id < requests.size(); ++id) {
      const ThinkingBudget& budget = requests[id].thinking_budget;
      const std::vector<int32_t>& tokens = run.requests[id].token_ids;
      const std::vector<int32_t>& free_tokens = free.requests[id].token_ids;
      bool thinks = requests[id].prompt_phase == Phase::kThinking;
      size_t thought = 0;
      bool spent = false;
      for (size_t i = 0; i < tokens.size(); ++i) {
        if (thinks && !budget.end_ids.empty() && thought >= static_cast<size_t>(budget.limit)) {
          const size_t next = std::min(thought - budget.limit, budget.end_ids.size() - 1);
          ASSERT_EQ(tokens[i], budget.end_ids[next]) << "request " << id << ", token " << i;
          spent_budgets += spent ? 0 : 1;
          wind_downs += next == 1 ? 1 : 0;
          spent = true;
        }
        if (!spent) {
          ASSERT_LT(i, free_tokens.size());
          ASSERT_EQ(tokens[i], free_tokens[i]) << "request " << id << ", token " << i;
        }
        thought += thinks && tokens[i] != ids_.begin && tokens[i] != ids_.end ? 1 : 0;
        if (tokens[i] == ids_.begin) thinks = true;
        if (tokens[i] == ids_.end) thinks = false;
      }
      if (!budget.end_ids.empty()) {
        EXPECT_LE(thought, budget.limit + budget.end_ids.size() - 1) << "request " << id;
      }
    }
  }
  EXPECT_GT(spent_budgets, 10);
  EXPECT_GT(wind_downs, 1);
}

}  // namespace
}  // namespace foredraft
