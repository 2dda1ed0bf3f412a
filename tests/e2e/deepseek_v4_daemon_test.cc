// DeepSeek-V4 through the binary: `synth` writes a small checkpoint of the shape in tests/golden, the daemon
// serves it, and drafts change no token.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "tests/e2e/daemon_fixture.h"

namespace foredraft {
namespace {

using ::testing::HasSubstr;
using Json = nlohmann::json;

// Folders of tests/golden/checkpoints: with an MTP module, and with DSpark stages.
constexpr char kMtp[] = "deepseek_v4";
constexpr char kDSpark[] = "deepseek_v4_dspark";

std::string Checkpoint(const std::string& shape) {
  static auto* const dirs = new std::map<std::string, std::string>;
  std::string& dir = (*dirs)[shape];
  if (!dir.empty()) return dir;
  dir = TestDir(shape) + "/checkpoint";
  const std::string config = absl::StrCat("tests/golden/checkpoints/", shape, "/config.json");
  const RunResult synth = Foredraft({"synth", "--config-json", config, "--out", dir, "--seed", "7"});
  EXPECT_EQ(synth.exit_code, 0) << synth.err;
  return dir;
}

// 290 prompt tokens, several prefill chunks of which no border is that of an entry, and 100 output tokens.
std::vector<std::string> LongCall(double temperature) {
  std::vector<int> ids;
  for (int i = 0; i < 290; ++i) ids.push_back(2 + (i * 37 + i / 7) % 62);
  return {"--token-ids", absl::StrJoin(ids, ","), "--max-tokens", "100",           "--seed",
          "3",           "--ignore-eos",          "--json",       "--temperature", absl::StrCat(temperature)};
}

std::vector<std::string> Sets(const std::vector<std::string>& more, const std::string& shape = kMtp) {
  std::vector<std::string> sets = {absl::StrCat("model=", Checkpoint(shape)), "max_seq_len=512",
                                   "max_num_tokens=100", "max_batch_size=4",
                                   "kv_cache_config.max_tokens=4096"};
  sets.insert(sets.end(), more.begin(), more.end());
  return sets;
}

void ExpectTheSameTokens(const Daemon& plain, const Daemon& drafting) {
  for (const double temperature : {0.0, 0.8}) {
    const RunResult expected = plain.Generate(LongCall(temperature));
    ASSERT_EQ(expected.exit_code, 0) << expected.err;
    // The second time the prompt's first 256 tokens are reused.
    for (int turn = 0; turn < 2; ++turn) {
      const RunResult result = drafting.Generate(LongCall(temperature));
      ASSERT_EQ(result.exit_code, 0) << result.err;
      const Json answer = Json::parse(result.out);
      EXPECT_EQ(answer["token_ids"], Json::parse(expected.out)["token_ids"]) << "turn " << turn;
      EXPECT_EQ(answer["usage"]["completion_tokens"], 100);
    }
  }
  EXPECT_GT(drafting.Metric("spec_decode_draft_tokens_total"), 100);
  EXPECT_GT(drafting.Metric("prefix_cache_hit_tokens_total"), 200);
}

TEST(DeepseekV4Daemon, GivesTheSameTokensWithAndWithoutDrafts) {
  ExpectTheSameTokens(Daemon(Sets({"speculative_config.max_draft_len=0"})),
                      Daemon(Sets({"speculative_config.max_draft_len=3"})));
}

TEST(DeepseekV4Daemon, GivesTheSameTokensWithAndWithoutDSpark) {
  const std::string type = "speculative_config.decoding_type=DSpark";
  Daemon plain(Sets({"speculative_config=null"}, kDSpark));
  ExpectTheSameTokens(plain, Daemon(Sets({type, "speculative_config.max_draft_len=5"}, kDSpark)));
  ExpectTheSameTokens(plain, Daemon(Sets({type, "speculative_config.max_draft_len=2",
                                          "cuda_graph_config=null", "disable_overlap_scheduler=true"},
                                         kDSpark)));
}

// The small trained V4, with both of its drafters.
TEST(DeepseekV4Daemon, TrainedDraftersDraftWhatTheTargetSays) {
  for (const std::string drafter : {"mtp", "dspark"}) {
    SCOPED_TRACE(drafter);
    const std::string dir = "deploy/models/abacus-v4/" + drafter;
    Daemon drafting({}, dir, {"--set", "speculative_config.draft_policy=fixed"}),
        plain({}, dir, {"--drafts", "0"});
    for (const char* const question : {"What is 48 + 275?", "What is 47 times 6?", "How many cm are 3 m?"}) {
      const std::vector<std::string> call = {"--chat", question, "--json", "--max-tokens", "150"};
      const Json ours = Json::parse(drafting.Generate(call).out),
                 theirs = Json::parse(plain.Generate(call).out);
      EXPECT_EQ(ours["token_ids"], theirs["token_ids"]) << question;
      EXPECT_GT(ours["speculation"]["acceptance_length"], 2) << question;
    }
  }
}

TEST(DeepseekV4Daemon, RefusesByNameWhatItDoesNotServe) {
  struct Case {
    const char* shape;
    const char* set;
    const char* says;
  };
  for (const auto& [shape, set, says] :
       {Case{kMtp, "speculative_config.use_mtp_vanilla=true",
             "speculative_config.use_mtp_vanilla: true, allowed false"},
        Case{kMtp, "speculative_config.decoding_type=DSpark",
             "speculative_config.decoding_type: DSpark, allowed MTP: this checkpoint has no DSpark stages"},
        Case{kDSpark, "speculative_config.decoding_type=MTP",
             "speculative_config.max_draft_len: 1, allowed 0: this checkpoint has no MTP modules and drafts "
             "with decoding_type DSpark"}}) {
    std::vector<std::string> arguments = {"serve", "--config", kConfig, "--set", "log.level=error"};
    for (const std::string& each : Sets({"speculative_config.max_draft_len=1", set}, shape)) {
      arguments.insert(arguments.end(), {"--set", each});
    }
    const RunResult result = Foredraft(arguments);
    EXPECT_EQ(result.exit_code, 1) << set;
    EXPECT_THAT(result.err, HasSubstr(says));
  }
}

TEST(DeepseekV4Daemon, CheckConfigSaysWhatTheCacheTakes) {
  std::vector<std::string> arguments = {"check-config", "--config", kConfig};
  for (const std::string& set : Sets({"speculative_config.max_draft_len=3"})) {
    arguments.insert(arguments.end(), {"--set", set});
  }
  const RunResult result = Foredraft(arguments);
  ASSERT_EQ(result.exit_code, 0) << result.err;
  // 2 CSA layers with (32 + 16) values per 4 tokens, one HCA layer with 32 per 128, BF16.
  EXPECT_THAT(result.out, HasSubstr(absl::StrCat(2 * 48 * 2 / 4, " a token")));
  EXPECT_THAT(result.out, HasSubstr("bytes a sequence"));
}

}  // namespace
}  // namespace foredraft
