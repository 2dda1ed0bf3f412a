// The promise for DeepSeek-V4, through the scheduler: tokens and drafts do not depend on K, overlap, graphs,
// batch, chunks, prefix reuse, swaps, lost ranks or the number of ranks. Sequences of up to 384 tokens:
// entries of 128 tokens are read, the indexer chooses 12 of up to 96 entries, and windows slide. With
// FOREDRAFT_FULL set in the environment: a covering array of strength 3, also over 2 and 4 ranks.

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <random>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "tests/engine/covering_array.h"
#include "tests/engine/same_tokens_fixture.h"
#include "tools/synth/synth.h"

namespace foredraft {
namespace {

// With an MTP module, and with DSpark, whose K is at most 5. _nvfp4: experts in NVFP4, those of the module in
// MXFP4, other projections in FP8.
constexpr const char* kCheckpoints[] = {"deepseek_v4", "deepseek_v4_dspark", "deepseek_v4_nvfp4"};
constexpr int kDraftLens[] = {0, 1, 3, 7};
// K, overlap, graphs (padded, none, exact sizes), batch, budget, reuse, small pool, draft caps, K changing on
// the way, losses of the rank, sampled, ranks, cuts (none, by the policy, all), dtype of keys and entries
std::vector<int> Levels() {
  const bool cpu = TestBackend() == "cpu";  // of a GPU's ranks each needs a GPU of its own
  return {4, 2, 3, 2, 2, 2, 2, 2, 2, 2, 2, cpu ? 3 : 1, 3, 2};
}

bool IsFullTier() { return std::getenv("FOREDRAFT_FULL") != nullptr; }

SameTokensCase CaseOf(const std::vector<int>& row, bool dspark) {
  SameTokensCase c{.name = absl::StrCat("row [", absl::StrJoin(row, " "), "]"), .setting = {}};
  c.setting.draft_len = kDraftLens[row[0]];
  c.setting.overlap = row[1] == 0;
  c.setting.graphs = row[2] != 1;
  c.setting.padding = row[2] != 2;
  c.setting.max_batch_size = row[3] == 0 ? 8 : 1;
  c.setting.max_num_tokens = row[4] == 0 ? 8192 : 16;
  c.setting.reuse = row[5] == 0;
  c.setting.small_pool = row[6] == 1;
  c.setting.draft_caps = row[7] == 1;
  if (row[8] == 1) c.setting.draft_len_changes = {3, 0, 7, 1, 1, 2};
  if (row[9] == 1) c.setting.losses = {4, 11, 30};
  c.sampled = row[10] == 1;
  c.setting.ranks = 1 << row[11];
  // Where drafts have no confidences, the policy is adaptive and nothing is cut.
  if (row[12] == 1) c.setting.policy = dspark ? DraftPolicyKind::kConfidence : DraftPolicyKind::kAdaptive;
  if (row[12] == 2 && dspark) c.setting.verify_len = 1;
  if (row[13] == 1) c.setting.kv_format = DType::kF8E4M3;
  return c;
}

std::vector<int32_t> RandomIds(int count, uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<int32_t> ids(count);
  for (int32_t& id : ids) id = static_cast<int32_t>(2 + random() % 62);
  return ids;
}

// The first ones grow past a block of 128 tokens side by side, so a small pool swaps some of them. Later ones
// begin with the same 256 tokens, which may be reused, and the last two are equal: their first drafts
// depend on the streams at the end of what is reused.
std::vector<Request> V4Requests(bool sampled) {
  constexpr struct {
    int prompt_len;
    int max_tokens;
  } kShapes[] = {{100, 45}, {1, 140}, {95, 50}, {257, 1}, {98, 48}, {330, 20}, {262, 20}, {262, 25}};
  const std::vector<int32_t> prefix = RandomIds(256, 1);
  std::vector<Request> requests;
  for (int i = 0; i < 8; ++i) {
    Request& request = requests.emplace_back();
    request.prompt_ids = RandomIds(kShapes[i].prompt_len, 100 + std::min(i, 6));
    if (i > 4 || i == 3) std::copy(prefix.begin(), prefix.end(), request.prompt_ids.begin());
    request.max_tokens = kShapes[i].max_tokens;
    request.sampling.seed = 1000 + i;
    if (!sampled) continue;
    request.sampling.temperature = 0.8f;
    request.sampling.top_p = 0.95f;
    if (i % 4 == 0) request.sampling.frequency_penalty = 0.1f;
  }
  return requests;
}

class V4SameTokens : public SameTokensFixture, public ::testing::WithParamInterface<const char*> {
 protected:
  V4SameTokens()
      : SameTokensFixture(LoadModelOnce(absl::StrCat("tests/golden/checkpoints/", GetParam())), V4Requests) {}

  // The fast tier has every other row of the quantised checkpoint, and those in which a small pool swaps.
  std::vector<SameTokensCase> Cases(int strength, const std::vector<int>& levels) const {
    const bool all = IsFullTier() || !IsQuantised(model_.config.projections);
    const auto rows = CoveringArray(levels, strength);
    std::vector<SameTokensCase> cases;
    for (size_t i = 0; i < rows.size(); ++i) {
      const SameTokensCase c = CaseOf(rows[i], DraftsInBlocks(model_.config));
      const bool swaps = c.setting.small_pool && c.setting.max_batch_size > 1;
      if (all || swaps || i % 2 == 0) cases.push_back(c);
    }
    return cases;
  }
};

TEST_P(V4SameTokens, OverSettingsAndEveryDraftEqualsTheFromScratchOne) {
  ExpectTheSame(Cases(IsFullTier() ? 3 : 2, Levels()));
}

// Drafts overrun the context, whose last position completes an entry of each kind.
TEST_P(V4SameTokens, InTheLastPositionsOfTheContext) {
  std::vector<Request> requests = V4Requests(/*sampled=*/false);
  for (size_t i = 0; i < requests.size(); ++i) {
    requests[i].prompt_ids = RandomIds(kMaxSeqLen - 1 - static_cast<int>(i), 200 + i);
    requests[i].max_tokens = static_cast<int>(1 + i);
  }
  const RunRecord plain = RunRequests(model_, {.mtp = false, .overlap = false}, requests);
  const RunRecord run = RunRequests(model_, {.draft_len = 7, .max_batch_size = 8}, requests);
  for (size_t i = 0; i < requests.size(); ++i) {
    EXPECT_EQ(run.requests[i].token_ids.size(), 1 + i);
    EXPECT_EQ(run.requests[i].token_ids, plain.requests[i].token_ids) << "request " << i;
    EXPECT_EQ(run.requests[i].finish, FinishReason::kLength);
  }
}

// A drafter's rows take no prefix away: requests one after another find as many cached tokens as without
// drafts.
TEST_P(V4SameTokens, PrefixesAreFoundAsWithoutDrafts) {
  const std::vector<Request> requests = V4Requests(/*sampled=*/false);
  const RunRecord plain = RunRequests(model_, {.max_open = 1, .mtp = false}, requests);
  const RunRecord run = RunRequests(model_, {.max_open = 1, .draft_len = 3}, requests);
  int hits = 0;
  for (size_t i = 0; i < requests.size(); ++i) {
    EXPECT_EQ(run.requests[i].cached_tokens, plain.requests[i].cached_tokens) << "request " << i;
    hits += run.requests[i].cached_tokens > 0;
  }
  EXPECT_GE(hits, 2);
}

// Long enough for the policy to try steps that cut drafts: it does so whatever the times of steps are.
TEST_P(V4SameTokens, WhereThePolicyCutsDrafts) {
  if (!DraftsInBlocks(model_.config)) return;
  for (const bool overlap : {false, true}) {
    Setting setting{.draft_len = 5, .overlap = overlap, .max_batch_size = 8};
    setting.policy = DraftPolicyKind::kConfidence;
    const std::vector<Request> requests = V4Requests(/*sampled=*/true);
    const RunRecord plain = RunRequests(model_, {.mtp = false, .overlap = false}, requests);
    const RunRecord run = RunRequests(model_, setting, requests);
    for (size_t i = 0; i < requests.size(); ++i) {
      EXPECT_EQ(run.requests[i].token_ids, plain.requests[i].token_ids) << "request " << i;
    }
    EXPECT_GT(run.load.cut_drafts, 0u);
    EXPECT_GT(run.load.calibration_error, 0);
    EXPECT_LT(run.load.calibration_error, 1);
  }
}

// A checkpoint whose inputs of some products are rounded, as the class says.
void ExpectRoundedInputsGiveTheSameTokens(const std::string& dir, const ModelClass& model_class) {
  const LoadedModel& model = LoadModelOnce(dir, TestBackend(), {}, model_class);
  const std::vector<Request> requests = V4Requests(/*sampled=*/true);
  const RunRecord plain =
      RunRequests(model, {.mtp = false, .overlap = false, .graphs = false, .max_batch_size = 1}, requests);
  const RunRecord of_bf16 = RunRequests(LoadModelOnce(dir), {.mtp = false}, requests);
  FromScratch scratch(*model.device, model.config, model.weights, 400);
  std::vector<Setting> settings = {{.draft_len = 7, .max_batch_size = 8},
                                   {.draft_len = 3, .max_batch_size = 4, .max_num_tokens = 16}};
  if (TestBackend() == "cpu") settings.push_back({.ranks = 2, .draft_len = 3, .max_batch_size = 4});
  int differ = 0;
  for (const Setting& setting : settings) {
    SCOPED_TRACE(setting.DebugString());
    const RunRecord run = RunRequests(model, setting, requests);
    for (size_t id = 0; id < requests.size(); ++id) {
      ASSERT_EQ(run.requests[id].token_ids, plain.requests[id].token_ids) << "request " << id;
      differ += run.requests[id].token_ids != of_bf16.requests[id].token_ids;
      scratch.SetRules(requests[id]);
      for (size_t i = 0; i < run.requests[id].records.size(); i += 7) {
        const StepRecord& step = run.requests[id].records[i];
        if (step.drafts.empty()) continue;
        std::vector<int32_t> tokens = requests[id].prompt_ids;
        const std::vector<int32_t>& made = run.requests[id].token_ids;
        tokens.insert(tokens.end(), made.begin(), made.begin() + step.token_count);
        ASSERT_EQ(step.drafts, scratch.Drafts(tokens, static_cast<int>(requests[id].prompt_ids.size()),
                                              static_cast<int>(step.drafts.size()), requests[id].sampling))
            << "request " << id << " after " << step.token_count << " tokens";
      }
    }
  }
  EXPECT_GT(differ, 0) << "inputs were not rounded";
}

// Experts in NVFP4 whose inputs are rounded to it, too (moe.inputs); the module's experts keep theirs in
// BF16.
TEST(V4Nvfp4Inputs, GiveTheSameTokensAndDraftsFromScratch) {
  const std::string dir = testing::TempDir() + "/v4_nvfp4_inputs";
  std::filesystem::remove_all(dir);
  const auto written =
      WriteRandomCheckpoint({.config_json = "tests/golden/checkpoints/deepseek_v4/config.json",
                             .out_dir = dir,
                             .seed = 3,
                             .projections = kNvfp4Format});
  ASSERT_TRUE(written.ok()) << written.status();
  ExpectRoundedInputsGiveTheSameTokens(dir, {.nvfp4_inputs = true});
}

// Experts in MXFP4 with rows rounded to 8 bits (cpu.inputs); the FP8 projections read BF16 rows.
TEST(V4Int8Inputs, GiveTheSameTokensAndDraftsFromScratch) {
  if (TestBackend() != "cpu") return;  // an option of the CPU
  ExpectRoundedInputsGiveTheSameTokens("tests/golden/checkpoints/deepseek_v4_fp4", {.int8_inputs = true});
}

INSTANTIATE_TEST_SUITE_P(Checkpoints, V4SameTokens, ::testing::ValuesIn(kCheckpoints),
                         [](const auto& info) { return std::string(info.param); });

}  // namespace
}  // namespace foredraft
