// The project's promise (README.md): tokens do not depend on how they were computed, and every draft is the
// one a from-scratch computation gives. Fast tier: a covering array of strength 2 over all settings; with
// FOREDRAFT_FULL set in the environment: of strength 3.

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <set>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/check.h"
#include "engine/model/deepseek_v3/deepseek_v3_weights.h"
#include "tests/engine/covering_array.h"
#include "tests/engine/engine_harness.h"
#include "tests/engine/from_scratch.h"
#include "tests/engine/input_scales.h"
#include "tests/engine/same_tokens_fixture.h"
#include "tests/engine/test_requests.h"
#include "tools/quantize/quantize_checkpoint.h"

namespace foredraft {
namespace {

constexpr int kDraftLens[] = {0, 1, 3, 7};
constexpr DraftPolicyKind kPolicies[] = {DraftPolicyKind::kFixed, DraftPolicyKind::kSchedule,
                                         DraftPolicyKind::kAdaptive};
// K, overlap, graphs (padded, none, exact sizes), batch, budget, reuse, small pool, draft caps, K changing on
// the way, drafter, sampled, policy, losses of the rank, format of the KV cache
std::vector<int> Levels() {
  return {4, 2, 3, 2, 2, 2, 2, 2, 2, 3, 2, 3, 2, static_cast<int>(std::size(kKvFormats))};
}

SameTokensCase CaseOf(const std::vector<int>& row) {
  SameTokensCase c{.name = absl::StrCat("row [", absl::StrJoin(row, " "), "]"), .setting = {}};
  c.setting.draft_len = kDraftLens[row[0]];
  c.setting.overlap = row[1] == 0;
  c.setting.graphs = row[2] != 1;
  c.setting.padding = row[2] != 2;
  c.setting.max_batch_size = row[3] == 0 ? 32 : 1;
  c.setting.max_num_tokens = row[4] == 0 ? 8192 : 16;
  c.setting.reuse = row[5] == 0;
  c.setting.small_pool = row[6] == 1;
  c.setting.draft_caps = row[7] == 1;
  if (row[8] == 1) c.setting.draft_len_changes = {3, 0, 7, 1, 1, 2};
  c.setting.vanilla = row[9] == 1;
  c.setting.mtp = row[9] != 2 || c.setting.draft_len > 0 || row[8] == 1;
  c.sampled = row[10] == 1;
  c.setting.policy = kPolicies[row[11]];
  if (row[12] == 1) c.setting.losses = {4, 11, 30};  // the second one is in the replay after the first
  c.setting.kv_format = kKvFormats[row[13]];
  return c;
}

std::vector<SameTokensCase> CasesOf(const std::vector<std::vector<int>>& rows) {
  std::vector<SameTokensCase> cases;
  for (const std::vector<int>& row : rows) cases.push_back(CaseOf(row));
  return cases;
}

// The tests of a model. Those of abacus in BF16 are all below; SameTokensInt4 has some of them.
class SameTokens : public SameTokensFixture {
 protected:
  explicit SameTokens(const LoadedModel& model = LoadModelOnce(kAbacusDir))
      : SameTokensFixture(model, [](bool sampled) { return TestRequests({.sampled = sampled}); }) {}
};

bool IsFullTier() { return std::getenv("FOREDRAFT_FULL") != nullptr; }

TEST_F(SameTokens, OverSettingsAndEveryDraftEqualsTheFromScratchOne) {
  ExpectTheSame(CasesOf(CoveringArray(Levels(), /*strength=*/IsFullTier() ? 3 : 2)));
}

// abacus as `foredraft quantize` writes it; once for a format.
const LoadedModel& AbacusIn(const WeightFormat& format, const ModelClass& model_class = {}) {
  const std::string dir = absl::StrCat(testing::TempDir(), "/same_tokens_", NameOf(format));
  static std::set<std::string>* const written = new std::set<std::string>;
  if (written->insert(dir).second) {
    std::filesystem::remove_all(dir);
    const auto report = QuantizeCheckpoint({.in_dir = kAbacusDir, .out_dir = dir, .format = format}, nullptr);
    CHECK(report.ok()) << report.status().ToString();
  }
  return LoadModelOnce(dir, TestBackend(), {}, model_class);
}

class SameTokensInt4 : public SameTokens {
 protected:
  SameTokensInt4() : SameTokens(AbacusIn(kInt4Format)) {}
};

// Experts in NVFP4; attention and MTP modules in BF16.
class SameTokensNvfp4 : public SameTokens {
 protected:
  SameTokensNvfp4() : SameTokens(AbacusIn(kNvfp4Format)) {}
};

// In the fast tier one row of three, among them one that swaps.
TEST_F(SameTokensNvfp4, OverSettingsAndEveryDraftEqualsTheFromScratchOne) {
  const V3Weights& weights = *model_.weights.Find<V3Weights>();
  ASSERT_EQ(weights.layers[1].moe.expert_gate_up.first.format, kNvfp4Format);
  ASSERT_EQ(weights.mtp_modules[2].layer.self_attn.qkv_a.format, kBf16Format);
  const auto rows = CoveringArray(Levels(), 2);
  std::vector<std::vector<int>> chosen;
  for (size_t i = 0; i < rows.size(); ++i) {
    if (IsFullTier() || i % 3 == 0) chosen.push_back(rows[i]);
  }
  ExpectTheSame(CasesOf(chosen));
}

// The same with inputs of experts rounded, in the same rows of the array.
const LoadedModel& AbacusWithRoundedInputs() {
  const std::string dir = absl::StrCat(testing::TempDir(), "/same_tokens_inputs");
  static const bool written = [&] {
    CopyWithInputScales(AbacusIn(kNvfp4Format).dir, dir, AlikeInputScale);
    return true;
  }();
  CHECK(written);
  return LoadModelOnce(dir, TestBackend(), {}, {.nvfp4_inputs = true});
}

class SameTokensNvfp4Inputs : public SameTokens {
 protected:
  SameTokensNvfp4Inputs() : SameTokens(AbacusWithRoundedInputs()) {}
};

TEST_F(SameTokensNvfp4Inputs, OverSettingsAndEveryDraftEqualsTheFromScratchOne) {
  const V3Weights& weights = *model_.weights.Find<V3Weights>();
  ASSERT_TRUE(weights.layers[1].moe.gate_up_inputs.alike);
  ASSERT_TRUE(weights.layers[1].moe.down_inputs);
  ASSERT_FALSE(weights.mtp_modules[2].layer.moe.gate_up_inputs) << "experts in BF16";
  const auto rows = CoveringArray(Levels(), 2);
  std::vector<std::vector<int>> chosen;
  for (size_t i = 0; i < rows.size(); ++i) {
    if (IsFullTier() || i % 3 == 0) chosen.push_back(rows[i]);
  }
  ExpectTheSame(CasesOf(chosen));
}

// With rows rounded to 8 bits, which the target and the modules multiply.
class SameTokensInt8Inputs : public SameTokens {
 protected:
  SameTokensInt8Inputs() : SameTokens(AbacusIn(kInt4Format, {.int8_inputs = true})) {}
};

// In the fast tier one row of three.
TEST_F(SameTokensInt8Inputs, OverSettingsAndEveryDraftEqualsTheFromScratchOne) {
  if (TestBackend() != "cpu") return;  // an option of the CPU
  const auto rows = CoveringArray(Levels(), 2);
  std::vector<std::vector<int>> chosen;
  for (size_t i = 0; i < rows.size(); ++i) {
    if (IsFullTier() || i % 3 == 0) chosen.push_back(rows[i]);
  }
  ExpectTheSame(CasesOf(chosen));
  const std::vector<Request> requests = TestRequests({.count = 3, .logprobs = true});
  const RunRecord rounded = RunRequests(model_, {.mtp = false}, requests);
  const RunRecord plain = RunRequests(AbacusIn(kInt4Format), {.mtp = false}, requests);
  EXPECT_NE(rounded.requests[1].logprobs.at(1).logprob, plain.requests[1].logprobs.at(1).logprob)
      << "inputs were not rounded";
}

// In the fast tier two rows of three.
TEST_F(SameTokensInt4, OverSettingsAndEveryDraftEqualsTheFromScratchOne) {
  const V3Weights& weights = *model_.weights.Find<V3Weights>();
  ASSERT_EQ(weights.layers[1].moe.expert_gate_up.first.format.code, DType::kInt4);
  ASSERT_EQ(weights.mtp_modules[2].layer.self_attn.qkv_a.format.code, DType::kInt4);
  const auto rows = CoveringArray(Levels(), 2);
  std::vector<std::vector<int>> chosen;
  for (size_t i = 0; i < rows.size(); ++i) {
    if (IsFullTier() || i % 3 != 2) chosen.push_back(rows[i]);
  }
  ExpectTheSame(CasesOf(chosen));
}

// Wrong drafts change the speed but no tokens, so the acceptance counts are compared.
TEST_F(SameTokens, AcceptancePerPositionIsTheSameWithOverlapAndWithCacheHits) {
  Setting plain{.draft_len = 3, .overlap = false, .max_batch_size = 32, .reuse = false};
  std::vector<Setting> settings(5, plain);
  settings[1].overlap = true;
  settings[2].reuse = true;
  settings[3] = {.draft_len = 3, .max_batch_size = 2, .max_num_tokens = 16};
  settings[4].small_pool = true;  // swapped sequences keep their drafts
  const RunRecord reference = RunRequests(model_, plain, TestRequests({}));
  for (const Setting& setting : settings) {
    SCOPED_TRACE(setting.DebugString());
    const RunRecord run = RunRequests(model_, setting, TestRequests({}));
    for (size_t id = 0; id < run.requests.size(); ++id) {
      EXPECT_EQ(run.requests[id].accepted_per_position, reference.requests[id].accepted_per_position);
      EXPECT_EQ(run.requests[id].draft_tokens, reference.requests[id].draft_tokens);
      EXPECT_EQ(run.requests[id].steps, reference.requests[id].steps);
    }
  }
}

TEST_F(SameTokens, TokensOfGreedyRequestsAreThoseOfAFromScratchForward) {
  const std::vector<Request> requests = TestRequests({.count = 6});
  const RunRecord run = RunRequests(model_, {.draft_len = 3}, requests);
  FromScratch scratch(*model_.device, model_.config, model_.weights, 400);
  for (size_t id = 0; id < requests.size(); ++id) {
    std::vector<int32_t> tokens = requests[id].prompt_ids;
    for (const int32_t token : run.requests[id].token_ids) {
      ASSERT_EQ(token, scratch.GreedyToken(tokens, static_cast<int>(requests[id].prompt_ids.size())))
          << "request " << id << " at position " << tokens.size();
      tokens.push_back(token);
    }
  }
}

void ExpectSameLogprobs(const RunRecord& plain, const RunRecord& busy) {
  for (size_t id = 0; id < plain.requests.size(); ++id) {
    ASSERT_EQ(plain.requests[id].logprobs.size(), busy.requests[id].logprobs.size());
    for (size_t i = 0; i < plain.requests[id].logprobs.size(); ++i) {
      const TokenLogprob& a = plain.requests[id].logprobs[i];
      const TokenLogprob& b = busy.requests[id].logprobs[i];
      EXPECT_EQ(a.token_id, b.token_id);
      EXPECT_EQ(a.logprob, b.logprob);
      ASSERT_EQ(a.top.size(), b.top.size());
      for (size_t j = 0; j < a.top.size(); ++j) EXPECT_EQ(a.top[j].logprob, b.top[j].logprob);
    }
  }
}

TEST_F(SameTokens, LogprobsHaveTheSameBitsInEveryMode) {
  std::set<float> first;  // of each format
  for (const KvFormat kv_format : kKvFormats) {
    SCOPED_TRACE(KvFormatName(kv_format));
    const RunRecord plain = RunRequests(
        model_,
        {.mtp = false, .overlap = false, .graphs = false, .max_batch_size = 1, .kv_format = kv_format},
        TestRequests({.logprobs = true}));
    const RunRecord busy = RunRequests(model_, {.draft_len = 3, .max_num_tokens = 16, .kv_format = kv_format},
                                       TestRequests({.logprobs = true}));
    ExpectSameLogprobs(plain, busy);
    first.insert(plain.requests[1].logprobs.at(1).logprob);  // of a decode step
  }
  EXPECT_EQ(first.size(), std::size(kKvFormats)) << "a format was not heeded";
}

// Drafting overruns the context by up to 2 Kmax rows; the tokens there are those of a run without drafts.
TEST_F(SameTokens, InTheLastPositionsOfTheContext) {
  std::vector<Request> requests = TestRequests({.count = 10});
  for (size_t i = 0; i < requests.size(); ++i) {
    const std::vector<int32_t> piece = requests[i].prompt_ids;
    std::vector<int32_t>& prompt = requests[i].prompt_ids;
    const size_t length = kMaxSeqLen - 1 - i;  // room for 1 to 10 tokens
    while (prompt.size() < length) prompt.insert(prompt.end(), piece.begin(), piece.end());
    prompt.resize(length);
    requests[i].max_tokens = static_cast<int>(1 + i);
    requests[i].stop_ids.clear();
  }
  const RunRecord plain = RunRequests(model_, {.mtp = false, .overlap = false}, requests);
  for (const bool vanilla : {false, true}) {
    const RunRecord run = RunRequests(model_, {.draft_len = 7, .vanilla = vanilla}, requests);
    for (size_t i = 0; i < requests.size(); ++i) {
      EXPECT_EQ(run.requests[i].token_ids.size(), 1 + i);
      EXPECT_EQ(run.requests[i].token_ids, plain.requests[i].token_ids)
          << "request " << i << ", vanilla " << vanilla;
      EXPECT_EQ(run.requests[i].finish, FinishReason::kLength);
    }
  }
}

TEST_F(SameTokens, DraftsPaySoMostStepsEmitMoreThanOneToken) {
  const RunRecord run = RunRequests(model_, {.draft_len = 3}, TestRequests({}));
  int steps = 0;
  int accepted = 0;
  for (const RequestRecord& request : run.requests) {
    steps += request.steps;
    accepted += request.accepted_tokens;
  }
  ASSERT_GT(steps, 0);
  EXPECT_GT(1.0 + double(accepted) / steps, 1.3) << "acceptance length";
}

// A vocabulary that is padded beyond its tokenizer, or has ids within that the tokenizer lacks. abacus is cut
// here far within its tokens, so that its own choice is often one that it must not take.
class PaddedVocabulary : public testing::TestWithParam<bool> {};

TEST_P(PaddedVocabulary, OnlyTokensAreChosenAndDrafted) {
  LoadedModel model = LoadModel(kAbacusDir, TestBackend(), {}, {.threads = 2});
  ASSERT_EQ(model.config.choices(), model.config.vocab_size);
  const bool has_holes = GetParam();
  if (!has_holes) model.config.token_count = 300;
  for (int32_t id = 0; has_holes && id < model.config.vocab_size; ++id) {
    if (id % 3 == 1) model.config.missing_tokens.push_back(id);
  }
  const auto may_come = [has_holes](int32_t id) { return has_holes ? id % 3 != 1 : id < 300; };
  for (const bool sampled : {false, true}) {
    std::vector<Request> requests = TestRequests({.count = 12, .sampled = sampled, .logprobs = true});
    for (size_t i = 0; i < requests.size(); ++i) {
      requests[i].stop_ids.clear();
      requests[i].max_tokens = 30;
      requests[i].logprob_count = i % 2 == 0 ? -1 : 1;
      if (sampled && i % 3 == 0) requests[i].sampling.temperature = 2;
    }
    const Setting plain = {
        .mtp = false, .overlap = false, .graphs = false, .max_batch_size = 1, .reuse = false};
    const RunRecord alone = RunRequests(model, plain, requests);
    const Setting settings[] = {{},
                                {.draft_len = 3},
                                {.draft_len = 3, .vanilla = true, .graphs = false},
                                {.ranks = 2, .draft_len = 7, .max_batch_size = 2}};
    int top_ones = 0;
    for (const Setting& setting : settings) {
      SCOPED_TRACE(setting.DebugString());
      const RunRecord run = RunRequests(model, setting, requests);
      for (size_t i = 0; i < requests.size(); ++i) {
        SCOPED_TRACE(absl::StrCat("request ", i));
        const RequestRecord& request = run.requests[i];
        ASSERT_EQ(request.token_ids, alone.requests[i].token_ids);
        EXPECT_EQ(request.token_ids.size(), 30u);
        for (const int32_t id : request.token_ids) EXPECT_TRUE(may_come(id)) << id;
        for (const StepRecord& step : request.records) {
          for (const int32_t draft : step.drafts) EXPECT_TRUE(may_come(draft)) << draft;
        }
        // Raw logprobs know the whole vocabulary.
        for (size_t t = 0; t < request.logprobs.size(); ++t) {
          EXPECT_EQ(request.logprobs[t].logprob, alone.requests[i].logprobs[t].logprob);
          top_ones += may_come(request.logprobs[t].top[0].token_id) ? 0 : 1;
        }
      }
    }
    EXPECT_GT(top_ones, 50);
  }
}
INSTANTIATE_TEST_SUITE_P(Vocabularies, PaddedVocabulary, testing::Bool(),
                         [](const auto& info) { return info.param ? "Holes" : "Padding"; });

}  // namespace
}  // namespace foredraft
