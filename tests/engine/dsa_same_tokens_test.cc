// The promise for sparse attention, through the scheduler: tokens and drafts do not depend on K, overlap,
// graphs, batch, chunks, prefix reuse, swaps, lost ranks, the cache's dtype or the number of ranks.
// index_topk is 32, an eighth of the context of 256 positions. With FOREDRAFT_FULL set in the environment: a
// covering array of strength 3.

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <random>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "tests/engine/covering_array.h"
#include "tests/engine/same_tokens_fixture.h"

namespace foredraft {
namespace {

// An indexer in every layer; and a layer that shares the selection of the one below, as recycled drafts share
// that of the module's first forward.
constexpr const char* kCheckpoints[] = {"deepseek_v32", "glm_moe_dsa"};
constexpr int kDraftLens[] = {0, 1, 3, 7};
// K, overlap, graphs (padded, none, exact sizes), batch, budget, reuse, small pool, draft caps, K changing on
// the way, losses of the rank, sampled, ranks, dtype of the KV cache
std::vector<int> Levels() {
  const bool cpu = TestBackend() == "cpu";  // of a GPU's ranks each needs a GPU of its own
  return {4, 2, 3, 2, 2, 2, 2, 2, 2, 2, 2, cpu ? 3 : 1, static_cast<int>(std::size(kKvFormats))};
}

bool IsFullTier() { return std::getenv("FOREDRAFT_FULL") != nullptr; }

SameTokensCase CaseOf(const std::vector<int>& row) {
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
  c.setting.kv_format = kKvFormats[row[12]];
  return c;
}

std::vector<int32_t> RandomIds(int count, uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<int32_t> ids(count);
  for (int32_t& id : ids) id = static_cast<int32_t>(4 + random() % 124);
  return ids;
}

// Prompts that end below, at and above the border of 32 positions and grow past it; long ones, of which some
// begin with the same 192 tokens and the last two are equal.
std::vector<Request> DsaRequests(bool sampled) {
  constexpr struct {
    int prompt_len;
    int max_tokens;
  } kShapes[] = {{20, 40},  {1, 60},  {31, 30},  {32, 12},  {33, 12},
                 {150, 50}, {193, 1}, {140, 45}, {200, 30}, {200, 25}};
  constexpr int kCount = std::size(kShapes);
  const std::vector<int32_t> prefix = RandomIds(192, 1);
  std::vector<Request> requests;
  for (int i = 0; i < kCount; ++i) {
    Request& request = requests.emplace_back();
    request.prompt_ids = RandomIds(kShapes[i].prompt_len, 100 + std::min(i, kCount - 2));
    if (kShapes[i].prompt_len > 192) std::copy(prefix.begin(), prefix.end(), request.prompt_ids.begin());
    request.max_tokens = kShapes[i].max_tokens;
    request.sampling.seed = 1000 + i;
    if (!sampled) continue;
    request.sampling.temperature = 0.8f;
    request.sampling.top_p = 0.95f;
    if (i % 4 == 0) request.sampling.frequency_penalty = 0.1f;
  }
  return requests;
}

// The checkpoint with another value in its config.json.
std::string CopyWith(const std::string& dir, const std::string& key, const nlohmann::json& value) {
  const std::filesystem::path copy = absl::StrCat(
      testing::TempDir(), "/", std::filesystem::path(dir).filename().string(), "_", key, "_", ::getpid());
  std::filesystem::copy(dir, copy, std::filesystem::copy_options::recursive);
  std::ifstream in(std::filesystem::path(dir) / "config.json");
  nlohmann::json config = nlohmann::json::parse(in);
  config[key] = value;
  std::ofstream(copy / "config.json") << config.dump();
  return copy;
}

class DsaSameTokens : public SameTokensFixture, public ::testing::WithParamInterface<const char*> {
 protected:
  DsaSameTokens()
      : SameTokensFixture(LoadModelOnce(absl::StrCat("tests/golden/checkpoints/", GetParam())), DsaRequests) {
  }
};

TEST_P(DsaSameTokens, OverSettingsAndEveryDraftEqualsTheFromScratchOne) {
  ASSERT_EQ(model_.config.index_topk, 32);
  std::vector<SameTokensCase> cases;
  for (const std::vector<int>& row : CoveringArray(Levels(), IsFullTier() ? 3 : 2)) {
    cases.push_back(CaseOf(row));
  }
  ExpectTheSame(cases);
}

// Chunks that end at every place around the border, so that the two forms meet in one chunk and in two.
TEST_P(DsaSameTokens, LogprobsHaveTheSameBitsWhateverTheChunks) {
  std::vector<Request> requests = DsaRequests(/*sampled=*/false);
  for (Request& request : requests) request.logprob_count = 3;
  const RunRecord plain = RunRequests(model_, {.mtp = false, .overlap = false, .reuse = false}, requests);
  for (const int budget : {7, 16, 31, 32, 33}) {
    const RunRecord run =
        RunRequests(model_, {.draft_len = 1, .max_batch_size = 4, .max_num_tokens = budget}, requests);
    for (size_t id = 0; id < requests.size(); ++id) {
      const auto& expected = plain.requests[id].logprobs;
      const auto& logprobs = run.requests[id].logprobs;
      ASSERT_EQ(logprobs.size(), expected.size());
      for (size_t i = 0; i < expected.size(); ++i) {
        EXPECT_EQ(logprobs[i].token_id, expected[i].token_id);
        ASSERT_EQ(logprobs[i].logprob, expected[i].logprob)
            << "request " << id << ", token " << i << ", chunks of " << budget;
      }
    }
  }
}

// A model whose indexer keeps as many positions as there are is the model of full attention, up to where the
// selection begins; from there on it is another.
TEST_P(DsaSameTokens, TheSelectionChangesTheTokensPastItsCountAlone) {
  const LoadedModel& full = LoadModelOnce(CopyWith(model_.dir, "index_topk", 2 * kMaxSeqLen));
  constexpr int kPromptLens[] = {12, 100, 32, 33};
  std::vector<Request> requests(std::size(kPromptLens));
  for (size_t i = 0; i < requests.size(); ++i) {
    requests[i].prompt_ids = RandomIds(kPromptLens[i], 300 + i);
    requests[i].max_tokens = 90;
    requests[i].sampling.seed = i + 1;
    requests[i].logprob_count = 0;
  }
  const RunRecord sparse = RunRequests(model_, {.draft_len = 3}, requests);
  const RunRecord all = RunRequests(full, {.draft_len = 3}, requests);
  // The row of position p gives the logprob of token p + 1. Position 32 is the first of 33.
  const auto& logprobs = sparse.requests[0].logprobs;
  for (int i = 0; i < 32 - 12 + 1; ++i) EXPECT_EQ(logprobs[i].logprob, all.requests[0].logprobs[i].logprob);
  EXPECT_NE(sparse.requests[0].token_ids, all.requests[0].token_ids);
  EXPECT_NE(sparse.requests[1].logprobs[0].logprob, all.requests[1].logprobs[0].logprob);
  // The last prompt row sees 32 positions, and 33.
  EXPECT_EQ(sparse.requests[2].logprobs[0].logprob, all.requests[2].logprobs[0].logprob);
  EXPECT_NE(sparse.requests[3].logprobs[0].logprob, all.requests[3].logprobs[0].logprob);
}

// Whether recycled drafts share the module's selection changes drafts past index_topk positions, the second
// of a step and later ones, and no token.
TEST_P(DsaSameTokens, ASharedSelectionOfRecycledDraftsChangesDraftsAlone) {
  const std::string key = "index_share_for_mtp_iteration";
  const LoadedModel& other =
      LoadModelOnce(CopyWith(model_.dir, key, !model_.config.index_share_for_mtp_iteration));
  const std::vector<Request> requests = DsaRequests(/*sampled=*/false);
  const RunRecord run = RunRequests(model_, {.draft_len = 7}, requests);
  const RunRecord changed = RunRequests(other, {.draft_len = 7}, requests);
  int compared = 0, different = 0;
  for (size_t id = 0; id < requests.size(); ++id) {
    ASSERT_EQ(run.requests[id].token_ids, changed.requests[id].token_ids);
    for (const StepRecord& step : run.requests[id].records) {
      const auto& records = changed.requests[id].records;
      const auto same = std::find_if(records.begin(), records.end(), [&](const StepRecord& record) {
        return record.token_count == step.token_count && record.drafts.size() == step.drafts.size();
      });
      if (same == records.end() || step.drafts.empty()) continue;
      ++compared;
      EXPECT_EQ(same->drafts[0], step.drafts[0]);
      const int last_position =
          static_cast<int>(requests[id].prompt_ids.size()) + step.token_count + kDraftLens[3];
      if (last_position <= 32) {
        EXPECT_EQ(same->drafts, step.drafts);
      }
      different += same->drafts != step.drafts;
    }
  }
  EXPECT_GT(compared, 20);
  EXPECT_GT(different, 0);
}

INSTANTIATE_TEST_SUITE_P(Checkpoints, DsaSameTokens, ::testing::ValuesIn(kCheckpoints),
                         [](const auto& info) { return std::string(info.param); });

}  // namespace
}  // namespace foredraft
