// Sparse attention over long contexts, end to end: needles in noise (needle_checkpoint.h) are found by the
// daemon wherever they are, by the target and by the MTP module. 8,192 positions, with FOREDRAFT_FULL 65,536;
// lists of 64.

#include <gtest/gtest.h>

#include <chrono>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/e2e/daemon_fixture.h"
#include "tests/e2e/needle_checkpoint.h"
#include "tests/server/http/http_client.h"

namespace foredraft {
namespace {

using nlohmann::json;

constexpr int kTopK = 64;
constexpr std::chrono::seconds kPatience(300);  // a prefill of 65,000 tokens, beside other tests

int PromptLen() { return std::getenv("FOREDRAFT_FULL") != nullptr ? 65000 : 8000; }
int MaxPositions() { return std::getenv("FOREDRAFT_FULL") != nullptr ? 65536 : 8192; }

std::vector<std::string> Sets(int draft_len, const std::vector<std::string>& more = {}) {
  std::vector<std::string> sets = {absl::StrCat("max_seq_len=", MaxPositions()), "max_batch_size=2",
                                   absl::StrCat("kv_cache_config.max_tokens=", 3 * MaxPositions()),
                                   absl::StrCat("speculative_config.max_draft_len=", draft_len),
                                   "speculative_config.draft_policy=fixed"};
  sets.insert(sets.end(), more.begin(), more.end());
  return sets;
}

json Ask(const Daemon& daemon, const NeedlePrompt& prompt) {
  const std::string& address = daemon.http_address();
  const json body = {{"prompt", prompt.ids},
                     {"max_tokens", prompt.answer.size()},
                     {"ignore_eos", true},
                     {"return_token_ids", true},
                     {"temperature", 0}};
  HttpClient client(std::stoi(address.substr(address.rfind(':') + 1)), kPatience);
  client.Send(HttpText("POST", "/v1/completions", body.dump()));
  const HttpReply reply = client.Read();
  EXPECT_EQ(reply.status, 200) << reply.body;
  return reply.status == 200 ? json::parse(reply.body) : json();
}

class Needle : public testing::TestWithParam<const char*> {
 protected:
  static NeedleShape Shape() {
    return {.family = GetParam(), .index_topk = kTopK, .max_positions = MaxPositions()};
  }
};

TEST_P(Needle, IsFoundByTheTargetAndByEveryDraft) {
  const std::string dir = WriteNeedleCheckpoint(Shape());
  const Daemon daemon(Sets(3), dir);
  for (const uint32_t seed : {1, 2}) {
    const NeedlePrompt prompt = MakeNeedlePrompt(PromptLen() + static_cast<int>(seed), seed);
    const json answer = Ask(daemon, prompt);
    EXPECT_EQ(answer["choices"][0]["token_ids"], json(prompt.answer)) << "seed " << seed;
    EXPECT_EQ(answer["usage"]["completion_tokens_details"]["rejected_prediction_tokens"], 0);
    EXPECT_GE(answer["usage"]["completion_tokens_details"]["accepted_prediction_tokens"], 15);
  }
}

TEST_P(Needle, IsFoundWhateverTheChunksTheCacheAndTheDrafts) {
  const std::string dir = WriteNeedleCheckpoint(Shape());
  const NeedlePrompt prompt = MakeNeedlePrompt(PromptLen(), 3);
  for (const std::vector<std::string>& sets :
       {Sets(0, {"max_num_tokens=1000"}), Sets(1, {"kv_cache_config.dtype=fp8"})}) {
    const Daemon daemon(sets, dir);
    // The second time from reused blocks.
    for (int turn = 0; turn < 2; ++turn) {
      EXPECT_EQ(Ask(daemon, prompt)["choices"][0]["token_ids"], json(prompt.answer)) << "turn " << turn;
    }
  }
}

// The test can fail: an indexer that sees nothing selects the lowest positions.
TEST_P(Needle, IsMissedByAnIndexerThatSeesNothing) {
  NeedleShape shape = Shape();
  shape.blind = true;
  const Daemon daemon(Sets(0), WriteNeedleCheckpoint(shape));
  const NeedlePrompt prompt = MakeNeedlePrompt(PromptLen(), 4);
  EXPECT_NE(Ask(daemon, prompt)["choices"][0]["token_ids"], json(prompt.answer));
}

// GLM-5.2: a step's first draft finds its needle; the next ones look for theirs in the first one's list.
TEST(NeedleInSharedLists, IsFoundByTheFirstDraftOfAStep) {
  const Daemon daemon(Sets(3), WriteNeedleCheckpoint({.family = "glm_moe_dsa",
                                                      .index_topk = kTopK,
                                                      .max_positions = MaxPositions(),
                                                      .shares_lists = true}));
  const NeedlePrompt prompt = MakeNeedlePrompt(PromptLen(), 5);
  const json answer = Ask(daemon, prompt);
  EXPECT_EQ(answer["choices"][0]["token_ids"], json(prompt.answer));
  // The prompt's forward emits a token, then each step two.
  EXPECT_EQ(answer["usage"]["completion_tokens_details"]["accepted_prediction_tokens"],
            (prompt.answer.size() - 1) / 2);
}

INSTANTIATE_TEST_SUITE_P(Families, Needle, testing::Values("deepseek_v32", "glm_moe_dsa"),
                         [](const auto& info) { return std::string(info.param); });

}  // namespace
}  // namespace foredraft
