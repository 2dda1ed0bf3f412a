// DeepSeek-V4 in the engine: tokens do not depend on drafts, chunks, graphs or swaps, and every draft is the
// one that a from-scratch computation on a poisoned cache gives. The sequences are long enough that entries
// of 128 tokens are written and read, that the indexer chooses among more entries than it may keep, and that
// windows slide and are given back. Plans are made by hand (tests/engine/v4_driver.h).

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <random>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "engine/spec/drafter_kind.h"
#include "engine/spec/dspark/dspark_drafter.h"
#include "engine/spec/eagle/eagle_drafter.h"
#include "nlohmann/json.hpp"
#include "tests/engine/engine_harness.h"
#include "tests/engine/from_scratch.h"
#include "tests/engine/v4_driver.h"

namespace foredraft {
namespace {

constexpr int kLongest = 640;
constexpr int kMostDrafts = 7;

// A checkpoint, and the drafter that it has.
struct Subject {
  const char* name;
  const char* checkpoint;
  const DrafterKind* drafter;
  int max_draft_len;
  int window = 0;  // sliding_window instead of the checkpoint's
};
// The checkpoints' windows are so short that what compressors keep hides their lookback. V4-Flash's is as
// long as a span of 128 tokens: there a block reads one position more than anything else.
const Subject kSubjects[] = {{"deepseek_v4", "deepseek_v4", &kEagle, kMostDrafts},
                             {"dspark", "deepseek_v4_dspark", &kDSpark, 5},
                             {"dspark_fp4", "deepseek_v4_dspark_fp4", &kDSpark, 5},
                             {"dspark_window_128", "deepseek_v4_dspark", &kDSpark, 5, 128}};

const LoadedModel& ModelOf(const Subject& subject) {
  const std::string dir = absl::StrCat("tests/golden/checkpoints/", subject.checkpoint);
  if (subject.window == 0) return LoadModelOnce(dir);
  const std::filesystem::path other =
      std::filesystem::path(::testing::TempDir()) / absl::StrCat(subject.name, "_", getpid());
  if (!std::filesystem::exists(other)) {
    std::filesystem::create_directory(other);
    std::filesystem::create_symlink(std::filesystem::absolute(dir + "/model.safetensors"),
                                    other / "model.safetensors");
    nlohmann::json config = nlohmann::json::parse(std::ifstream(dir + "/config.json"));
    config["sliding_window"] = subject.window;
    std::ofstream(other / "config.json") << config;
  }
  return LoadModelOnce(other.string());
}

std::unique_ptr<RankEngine> MakeEngine(const Subject& subject, bool drafts, bool graphs, bool cuts = false) {
  const LoadedModel& model = ModelOf(subject);
  EngineOptions options;
  options.max_batch_size = 4;
  options.max_num_tokens = 2048;
  options.max_seq_len = kLongest;
  UseDrafter(subject.drafter, drafts ? subject.max_draft_len : 0, model.config, options);
  options.cuts_drafts = cuts;
  options.tokens_per_block = 16;
  options.block_count = 1 + 4 * (kLongest / 128 + 1);
  options.batch_sizes = {1, 2, 4};
  options.host_cache_bytes = int64_t{16} << 20;
  options.capture_graphs = graphs;
  options.poison_cache = true;
  options.step_timeout = std::chrono::seconds(300);
  auto engine = RankEngine::Create(options, model.config, *CreateDevice("cpu", {.threads = 2}),
                                   WeightsFor(model.weights, options));
  EXPECT_TRUE(engine.ok()) << engine.status();
  return *std::move(engine);
}

// Prompts of 1 token, about one HCA entry, several of them; greedy and sampled. Repetition makes drafts
// match. The block behind 319 tokens begins to read at the last position of a block of 16.
std::vector<DrivenRequest> Requests() {
  std::vector<DrivenRequest> requests;
  std::mt19937 random(11);
  for (const int prompt_len : {1, 125, 319, 515}) {
    DrivenRequest& request = requests.emplace_back();
    while (static_cast<int>(request.prompt.size()) < prompt_len) request.prompt.push_back(random() % 64);
    request.max_tokens = prompt_len == 1 ? 160 : 24;
    request.sampling.seed = 100 + requests.size();
    if (prompt_len == 1 || prompt_len == 319) request.sampling.temperature = 0.8f;
  }
  return requests;
}

class V4Engine : public ::testing::TestWithParam<Subject> {
 protected:
  // What the runs of a subject are compared with.
  struct Expected {
    std::vector<DrivenRun> baseline;  // without drafts
    std::unique_ptr<FromScratch> scratch;
    // By request and output tokens; with confidences where the drafter has them.
    std::map<std::pair<int, int>, FromScratch::BlockDrafts> drafts;
  };

  static Expected& ExpectedOf(const Subject& subject) {
    static auto* const all = new std::map<std::string, Expected>;
    Expected& expected = (*all)[subject.name];
    if (expected.scratch == nullptr) {
      const auto engine = MakeEngine(subject, /*drafts=*/false, /*graphs=*/false);
      expected.baseline = V4Driver(*engine).Run(Requests(), {});
      const LoadedModel& model = ModelOf(subject);
      expected.scratch = std::make_unique<FromScratch>(*model.device, model.config, model.weights,
                                                       kLongest + 2 * kMostDrafts);
    }
    return expected;
  }

  // The drafts after some output tokens of a request. They do not depend on the setting.
  static const FromScratch::BlockDrafts& Reference(int id, const DrivenRequest& request, int token_count) {
    Expected& expected = ExpectedOf(GetParam());
    FromScratch::BlockDrafts& entry = expected.drafts[{id, token_count}];
    if (entry.ids.empty()) {
      std::vector<int32_t> tokens = request.prompt;
      const std::vector<int32_t>& output = expected.baseline[id].tokens;
      tokens.insert(tokens.end(), output.begin(), output.begin() + token_count);
      const int prompt_len = static_cast<int>(request.prompt.size()), count = GetParam().max_draft_len;
      if (GetParam().drafter == &kDSpark) {
        entry = expected.scratch->DSparkDrafts(tokens, prompt_len, count, request.sampling);
      } else {
        entry.ids = expected.scratch->Drafts(tokens, prompt_len, count, request.sampling);
      }
    }
    return entry;
  }

  static void ExpectTheSame(V4Driver& driver, const DriveSetting& setting) {
    SCOPED_TRACE(absl::StrCat("K ", absl::StrJoin(setting.draft_lens, " "), ", rows for ",
                              absl::StrJoin(setting.verify_lens, " "), ", chunks of ", setting.chunk,
                              ", swapped every ", setting.swap_every));
    const std::vector<DrivenRequest> requests = Requests();
    const std::vector<DrivenRun> runs = driver.Run(requests, setting);
    int checked = 0, with_confidence = 0, accepted = 0, rejected = 0;
    for (size_t id = 0; id < requests.size(); ++id) {
      ASSERT_EQ(runs[id].tokens, ExpectedOf(GetParam()).baseline[id].tokens) << "request " << id;
      accepted += runs[id].accepted;
      rejected += runs[id].rejected;
      for (const DrivenDrafts& step : runs[id].drafts) {
        if (step.drafts.empty()) continue;
        FromScratch::BlockDrafts expected = Reference(static_cast<int>(id), requests[id], step.token_count);
        expected.ids.resize(step.drafts.size());
        ASSERT_EQ(step.drafts, expected.ids)
            << "request " << id << " after " << step.token_count << " tokens";
        expected.confidences.resize(step.confidences.size());
        ASSERT_EQ(step.confidences, expected.confidences)
            << "request " << id << " after " << step.token_count << " tokens";
        with_confidence += static_cast<int>(step.confidences.size());
        checked += static_cast<int>(step.drafts.size());
      }
    }
    if (setting.draft_lens == std::vector<int>{0}) return;
    EXPECT_GT(checked, 20);
    EXPECT_EQ(with_confidence, setting.verify_lens == std::vector<int>{0} ? 0 : checked);
    EXPECT_GT(accepted, 0);
    EXPECT_GT(rejected, 20);
  }
};

TEST_P(V4Engine, GivesTheSameTokensAndDraftsFromGraphs) {
  const auto engine = MakeEngine(GetParam(), /*drafts=*/true, /*graphs=*/true);
  V4Driver driver(*engine);
  ExpectTheSame(driver, {.draft_lens = {GetParam().max_draft_len}});
  ExpectTheSame(driver, {.draft_lens = {3}, .chunk = 16, .swap_every = 3});
  ExpectTheSame(driver, {.draft_lens = {0}, .chunk = 200});
  EXPECT_GT(driver.blocks_given_back(), 100);
  EXPECT_GT(driver.swaps(), 10);
}

TEST_P(V4Engine, GivesTheSameTokensAndDraftsEagerly) {
  const auto engine = MakeEngine(GetParam(), /*drafts=*/true, /*graphs=*/false);
  V4Driver driver(*engine);
  ExpectTheSame(driver, {.draft_lens = {1}, .chunk = 100, .swap_every = 5});
  ExpectTheSame(driver, {.draft_lens = {0, GetParam().max_draft_len, 1, 3}, .chunk = 16});
}

// Steps with fewer rows than drafts: which drafts are verified depends on the neighbours' confidences, and no
// token does.
TEST_P(V4Engine, GivesTheSameTokensDraftsAndConfidencesInStepsThatCutDrafts) {
  if (GetParam().drafter != &kDSpark) return;
  for (const bool graphs : {false, true}) {
    const auto engine = MakeEngine(GetParam(), /*drafts=*/true, graphs, /*cuts=*/true);
    V4Driver driver(*engine);
    ExpectTheSame(driver, {.draft_lens = {5}, .verify_lens = {1}});
    ExpectTheSame(driver,
                  {.draft_lens = {5, 3, 5}, .verify_lens = {2, 1, 4, 3}, .chunk = 16, .swap_every = 3});
  }
}

TEST_P(V4Engine, CapturesTheSameStepAgain) {
  const auto engine = MakeEngine(GetParam(), /*drafts=*/true, /*graphs=*/true);
  const StepKey key = {.bucket = 4, .draft_len = 3};
  const auto before = engine->CaptureStep(key);
  V4Driver(*engine).Run(Requests(), {.draft_lens = {3}});
  EXPECT_TRUE(before->SameNodes(*engine->CaptureStep(key)));
}

INSTANTIATE_TEST_SUITE_P(Checkpoints, V4Engine, ::testing::ValuesIn(kSubjects),
                         [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace foredraft
