// DeepSeek-V4, the models of DeepSeek-V3's family with sparse attention, and Eagle3 heads, through scheduler
// and engine on backend cuda: the same tokens and the same bits of logprobs with and without drafts, from
// graphs and eagerly, in chunks, and over two ranks. One sequence is long enough that an entry of 128 tokens
// is read, that windows slide, and that the indexer has to choose.

#include <gtest/gtest.h>

#include <random>
#include <string>
#include <utility>
#include <vector>

#include "tests/engine/eagle3_heads.h"
#include "tests/engine/engine_harness.h"
#include "tests/engine/from_scratch.h"

namespace foredraft {
namespace {

struct PromptShape {
  int prompt_len;
  int max_tokens;
};

std::vector<Request> Requests(const std::vector<PromptShape>& shapes) {
  std::vector<Request> requests;
  std::mt19937 random(7);
  for (const PromptShape& shape : shapes) {
    Request& request = requests.emplace_back();
    request.prompt_ids.resize(shape.prompt_len);
    for (int32_t& id : request.prompt_ids) id = static_cast<int32_t>(2 + random() % 62);
    request.max_tokens = shape.max_tokens;
    request.sampling.seed = 100 + requests.size();
    request.sampling.temperature = requests.size() % 2 == 0 ? 0.8f : 0.0f;
    request.logprob_count = 1;
  }
  return requests;
}

void ExpectTheSame(const RunRecord& run, const RunRecord& plain) {
  for (size_t id = 0; id < plain.requests.size(); ++id) {
    SCOPED_TRACE(id);
    const RequestRecord &ours = run.requests[id], &theirs = plain.requests[id];
    EXPECT_EQ(ours.token_ids, theirs.token_ids);
    ASSERT_EQ(ours.logprobs.size(), theirs.logprobs.size());
    for (size_t i = 0; i < ours.logprobs.size(); ++i) {
      EXPECT_EQ(ours.logprobs[i].logprob, theirs.logprobs[i].logprob) << i;
    }
  }
}

// Eager, without a module, one request at a time.
Setting Plain() {
  return {.mtp = false, .overlap = false, .graphs = false, .max_batch_size = 1, .max_num_tokens = 64};
}

// A setting with an FP8 cache.
Setting InFp8(Setting setting) {
  setting.kv_format = DType::kF8E4M3;
  return setting;
}

Setting Drafting(int draft_len, bool graphs, int ranks) {
  return {.ranks = ranks,
          .draft_len = draft_len,
          .max_draft_len = 3,
          .graphs = graphs,
          .max_batch_size = 2,
          .max_num_tokens = 40};
}

TEST(V4OnHost, TokensAndLogprobsAreTheSame) {
  const LoadedModel& model = LoadModelOnce("tests/golden/checkpoints/deepseek_v4");
  const std::vector<Request> requests = Requests({{131, 6}, {5, 12}, {30, 8}});
  const RunRecord plain = RunRequests(model, Plain(), requests);
  int accepted = 0, rejected = 0;
  for (const Setting& setting :
       {Drafting(1, /*graphs=*/true, 1), Drafting(2, /*graphs=*/false, 1), Drafting(3, /*graphs=*/true, 1),
        Drafting(0, /*graphs=*/false, 2), Drafting(3, /*graphs=*/true, 2)}) {
    SCOPED_TRACE(setting.DebugString());
    const RunRecord run = RunRequests(model, setting, requests);
    EXPECT_EQ(run.replays > 0, setting.graphs);
    EXPECT_GT(run.requests_of_rank.back(), 0);
    ExpectTheSame(run, plain);
    for (const RequestRecord& request : run.requests) {
      accepted += request.accepted_tokens;
      rejected += request.draft_tokens - request.accepted_tokens;
    }
  }
  EXPECT_GT(accepted, 0);
  EXPECT_GT(rejected, 0);
}

TEST(V4OnHost, TokensAndLogprobsAreTheSameWithAnFp8Cache) {
  for (const auto& [name, longest] : {std::pair("deepseek_v4", 131), std::pair("deepseek_v4_dspark", 21)}) {
    SCOPED_TRACE(name);
    const LoadedModel& model = LoadModelOnce(std::string("tests/golden/checkpoints/") + name);
    const std::vector<Request> requests = Requests({{7, 4}, {longest, 3}});
    const RunRecord plain = RunRequests(model, InFp8(Plain()), requests);
    const RunRecord in_bf16 = RunRequests(model, Plain(), {requests[0]});
    EXPECT_NE(plain.requests[0].logprobs.at(0).logprob, in_bf16.requests[0].logprobs.at(0).logprob);
    ExpectTheSame(RunRequests(model, InFp8(Drafting(3, /*graphs=*/true, 1)), requests), plain);
  }
}

// Experts in FP4, other projections in FP8 with scales in powers of two.
TEST(V4OnHost, TokensAndLogprobsAreTheSameWithQuantisedWeights) {
  const LoadedModel& model = LoadModelOnce("tests/golden/checkpoints/deepseek_v4_fp4");
  const std::vector<Request> requests = Requests({{9, 6}, {22, 5}});
  const RunRecord plain = RunRequests(model, Plain(), requests);
  ExpectTheSame(RunRequests(model, Drafting(2, /*graphs=*/true, 1), requests), plain);
  ExpectTheSame(RunRequests(model, Drafting(1, /*graphs=*/false, 2), requests), plain);
}

// index_topk is 32.
TEST(SparseAttentionOnHost, TokensAndLogprobsAreTheSame) {
  for (const char* name : {"deepseek_v32", "glm_moe_dsa"}) {
    SCOPED_TRACE(name);
    const LoadedModel& model = LoadModelOnce(std::string("tests/golden/checkpoints/") + name);
    const std::vector<Request> requests = Requests({{45, 4}, {29, 6}});
    const RunRecord plain = RunRequests(model, Plain(), requests);
    ExpectTheSame(RunRequests(model, Drafting(3, /*graphs=*/true, 1), requests), plain);
  }
}

// Blocks from graphs and eagerly, on one rank and two: every draft is the one of a computation from the
// committed tokens alone, on a poisoned cache.
TEST(V4OnHost, DSparkDraftsDoNotDependOnHowTheyWereComputed) {
  const LoadedModel& model = LoadModelOnce("tests/golden/checkpoints/deepseek_v4_dspark");
  const std::vector<Request> requests = Requests({{33, 5}, {1, 9}});
  const RunRecord plain = RunRequests(model, Plain(), requests);
  FromScratch scratch(*model.device, model.config, model.weights, 64);
  int checked = 0;
  Setting cutting = Drafting(3, /*graphs=*/true, 1);
  cutting.verify_len = 1;
  int confidences = 0;
  for (const Setting& setting :
       {Drafting(3, /*graphs=*/true, 1), Drafting(2, /*graphs=*/false, 2), cutting}) {
    SCOPED_TRACE(setting.DebugString());
    const RunRecord run = RunRequests(model, setting, requests);
    ExpectTheSame(run, plain);
    for (size_t id = 0; id < requests.size(); ++id) {
      const Request& request = requests[id];
      for (const StepRecord& step : run.requests[id].records) {
        if (step.drafts.empty()) continue;
        std::vector<int32_t> tokens = request.prompt_ids;
        const std::vector<int32_t>& output = run.requests[id].token_ids;
        tokens.insert(tokens.end(), output.begin(), output.begin() + step.token_count);
        FromScratch::BlockDrafts expected =
            scratch.DSparkDrafts(tokens, static_cast<int>(request.prompt_ids.size()),
                                 static_cast<int>(step.drafts.size()), request.sampling);
        EXPECT_EQ(step.drafts, expected.ids)
            << "request " << id << " after " << step.token_count << " tokens";
        expected.confidences.resize(step.confidences.size());
        EXPECT_EQ(step.confidences, expected.confidences)
            << "request " << id << " after " << step.token_count << " tokens";
        confidences += static_cast<int>(step.confidences.size());
        checked += static_cast<int>(step.drafts.size());
      }
    }
  }
  EXPECT_GT(checked, 20);
  EXPECT_GT(confidences, 10);
}

// Drafts of a head from graphs and eagerly, on one rank and two: every draft is the one of a computation from
// the committed tokens alone, on a poisoned cache.
TEST(HeadsOnHost, TokensAreTheSameAndDraftsDoNotDependOnHowTheyWereComputed) {
  constexpr char kTarget[] = "tests/golden/checkpoints/kimi_k2";
  const LoadedModel& model = LoadModelOnce(std::string(kTarget) + "+" + RandomHeadDir(kKimiHead, kTarget));
  const std::vector<Request> requests = Requests({{21, 5}, {1, 7}});
  const RunRecord plain = RunRequests(model, Plain(), requests);
  FromScratch scratch(*model.device, model.config, model.weights, 64);
  int checked = 0;
  for (const Setting& setting : {Drafting(3, /*graphs=*/true, 1), Drafting(2, /*graphs=*/false, 2)}) {
    SCOPED_TRACE(setting.DebugString());
    const RunRecord run = RunRequests(model, setting, requests);
    EXPECT_EQ(run.replays > 0, setting.graphs);
    ExpectTheSame(run, plain);
    for (size_t id = 0; id < requests.size(); ++id) {
      const Request& request = requests[id];
      scratch.SetRules(request);
      for (const StepRecord& step : run.requests[id].records) {
        if (step.drafts.empty()) continue;
        std::vector<int32_t> tokens = request.prompt_ids;
        const std::vector<int32_t>& output = run.requests[id].token_ids;
        tokens.insert(tokens.end(), output.begin(), output.begin() + step.token_count);
        EXPECT_EQ(step.drafts, scratch.Drafts(tokens, static_cast<int>(request.prompt_ids.size()),
                                              static_cast<int>(step.drafts.size()), request.sampling))
            << "request " << id << " after " << step.token_count << " tokens";
        checked += static_cast<int>(step.drafts.size());
      }
    }
  }
  EXPECT_GT(checked, 20);
}

}  // namespace
}  // namespace foredraft
