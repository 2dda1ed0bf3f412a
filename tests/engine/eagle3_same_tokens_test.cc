// The project's promise for drafts of Eagle3 heads: tokens are those without drafts under every setting, and
// every draft is the one that a from-scratch computation gives (docs/eagle3.md).

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <set>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "engine/model/draft_head.h"
#include "tests/engine/covering_array.h"
#include "tests/engine/eagle3_heads.h"
#include "tests/engine/same_tokens_fixture.h"
#include "tests/engine/test_requests.h"

namespace foredraft {
namespace {

constexpr int kDraftLens[] = {1, 3, 7, 0};
constexpr DraftPolicyKind kPolicies[] = {DraftPolicyKind::kFixed, DraftPolicyKind::kSchedule,
                                         DraftPolicyKind::kAdaptive};
// K, overlap, graphs (padded, none, exact sizes), batch, budget, reuse (none, of prompts, of generated
// blocks, too), small pool, draft caps, K changing on the way, sampled, policy, losses of the rank, format of
// the KV cache
std::vector<int> Levels() {
  return {4, 2, 3, 2, 2, 3, 2, 2, 2, 2, 3, 2, static_cast<int>(std::size(kKvFormats))};
}

SameTokensCase CaseOf(const std::vector<int>& row) {
  SameTokensCase c{.name = absl::StrCat("row [", absl::StrJoin(row, " "), "]"), .setting = {}};
  c.setting.draft_len = kDraftLens[row[0]];
  c.setting.overlap = row[1] == 0;
  c.setting.graphs = row[2] != 1;
  c.setting.padding = row[2] != 2;
  c.setting.max_batch_size = row[3] == 0 ? 32 : 1;
  c.setting.max_num_tokens = row[4] == 0 ? 8192 : 16;
  c.setting.reuse = row[5] != 0;
  c.setting.small_pool = row[6] == 1;
  c.setting.draft_caps = row[7] == 1;
  if (row[8] == 1) c.setting.draft_len_changes = {3, 0, 7, 1, 1, 2};
  c.sampled = row[9] == 1;
  c.setting.policy = kPolicies[row[10]];
  if (row[11] == 1) c.setting.losses = {4, 11, 30};
  c.setting.kv_format = kKvFormats[row[12]];
  return c;
}

bool IsFullTier() { return std::getenv("FOREDRAFT_FULL") != nullptr; }

const LoadedModel& AbacusWith(const std::string& head_dir) {
  return LoadModelOnce(absl::StrCat(kAbacusDir, "+", head_dir));
}

class Eagle3SameTokens : public SameTokensFixture {
 protected:
  explicit Eagle3SameTokens(const std::string& head_dir = kAbacusEagle3Dir)
      : SameTokensFixture(AbacusWith(head_dir),
                          [](bool sampled) { return TestRequests({.sampled = sampled}); }) {}
};

TEST_F(Eagle3SameTokens, OverSettingsAndEveryDraftEqualsTheFromScratchOne) {
  std::vector<SameTokensCase> cases;
  for (const std::vector<int>& row : CoveringArray(Levels(), IsFullTier() ? 3 : 2))
    cases.push_back(CaseOf(row));
  ExpectTheSame(cases);
}

class Eagle3Forms : public testing::TestWithParam<HeadForm> {};

// Random heads have no right drafts but by chance, so every step rewrites what was drafted.
TEST_P(Eagle3Forms, GiveTheTokensOfNoDraftsAndDraftFromScratch) {
  const LoadedModel& model = AbacusWith(RandomHeadDir(GetParam()));
  FromScratch scratch(*model.device, model.config, model.weights, 400);
  for (const bool sampled : {false, true}) {
    const std::vector<Request> requests = TestRequests({.count = 8, .sampled = sampled});
    const RunRecord plain = RunRequests(model, {.mtp = false, .overlap = false}, requests);
    for (const Setting& setting : {Setting{.draft_len = 7}, Setting{.draft_len = 3, .max_num_tokens = 16}}) {
      SCOPED_TRACE(setting.DebugString());
      const RunRecord run = RunRequests(model, setting, requests);
      std::set<int32_t> drafted;
      for (size_t id = 0; id < requests.size(); ++id) {
        const RequestRecord& request = run.requests[id];
        ASSERT_EQ(request.token_ids, plain.requests[id].token_ids) << "request " << id;
        scratch.SetRules(requests[id]);
        for (size_t i = 0; i < request.records.size(); i += 5) {
          const StepRecord& step = request.records[i];
          if (step.drafts.empty()) continue;
          std::vector<int32_t> tokens = requests[id].prompt_ids;
          tokens.insert(tokens.end(), request.token_ids.begin(),
                        request.token_ids.begin() + step.token_count);
          ASSERT_EQ(step.drafts, scratch.Drafts(tokens, static_cast<int>(requests[id].prompt_ids.size()),
                                                static_cast<int>(step.drafts.size()), requests[id].sampling))
              << "request " << id << " after " << step.token_count << " tokens";
          drafted.insert(step.drafts.begin(), step.drafts.end());
        }
      }
      const DraftHead& head = *model.config.draft_head;
      for (const int32_t token : drafted) {
        const std::vector<int32_t>& all = head.token_ids;
        EXPECT_TRUE(all.empty() || std::find(all.begin(), all.end(), token) != all.end()) << token;
      }
      EXPECT_GT(drafted.size(), 10u);
    }
  }
}
INSTANTIATE_TEST_SUITE_P(Heads, Eagle3Forms, testing::ValuesIn(HeadForms()),
                         [](const auto& info) { return info.param.name; });

// Ranks that have no row at times, and tensor groups: the head is whole on every rank.
TEST(Eagle3Ranks, GiveTheSameTokensAndDrafts) {
  for (const char* const form : {"small_vocabulary", "targets_head"}) {
    const auto found = std::find_if(HeadForms().begin(), HeadForms().end(),
                                    [&](const HeadForm& row) { return std::string(row.name) == form; });
    const LoadedModel& model = AbacusWith(RandomHeadDir(*found));
    const std::vector<Request> requests = TestRequests({.count = 7, .sampled = true});
    const RunRecord alone = RunRequests(model, {.draft_len = 3, .max_batch_size = 4}, requests);
    for (const Setting& setting :
         {Setting{.ranks = 2, .draft_len = 3, .max_batch_size = 4},
          Setting{.ranks = 1, .attention_tp = 2, .draft_len = 3, .max_batch_size = 4},
          Setting{.ranks = 2, .attention_tp = 2, .draft_len = 3, .max_batch_size = 4},
          Setting{.ranks = 8, .draft_len = 3, .max_batch_size = 2}}) {
      SCOPED_TRACE(absl::StrCat(form, ": ", setting.DebugString()));
      const RunRecord run = RunRequests(model, setting, requests);
      for (size_t id = 0; id < requests.size(); ++id) {
        EXPECT_EQ(run.requests[id].token_ids, alone.requests[id].token_ids);
        ASSERT_EQ(run.requests[id].records.size(), alone.requests[id].records.size());
        for (size_t i = 0; i < run.requests[id].records.size(); ++i) {
          EXPECT_EQ(run.requests[id].records[i].drafts, alone.requests[id].records[i].drafts);
        }
      }
    }
  }
}

}  // namespace
}  // namespace foredraft
