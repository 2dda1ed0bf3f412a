#include "tests/engine/same_tokens_fixture.h"

#include <chrono>
#include <cstdio>

#include "absl/strings/str_cat.h"

namespace foredraft {
namespace {

// A matrix takes minutes on some machines: where it is ended early, the cases that passed are known.
void PrintProgress(size_t passed, size_t cases, std::chrono::steady_clock::time_point start) {
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
  std::printf("%zu of %zu cases passed, %.1f s\n", passed, cases, seconds.count());
  std::fflush(stdout);
}

}  // namespace

void ExpectSameBits(const std::vector<TokenLogprob>& got, const std::vector<TokenLogprob>& expected) {
  ASSERT_EQ(got.size(), expected.size());
  for (size_t i = 0; i < got.size(); ++i) {
    ASSERT_EQ(got[i].logprob, expected[i].logprob) << "token " << i;
    ASSERT_EQ(got[i].top.size(), expected[i].top.size());
    for (size_t j = 0; j < got[i].top.size(); ++j) {
      ASSERT_EQ(got[i].top[j].logprob, expected[i].top[j].logprob) << "token " << i << ", top " << j;
    }
  }
}

SameTokensFixture::SameTokensFixture(const LoadedModel& model, MakeRequests requests)
    : model_(model), requests_(std::move(requests)), references_(ReferencesOf(model)) {}

SameTokensFixture::References& SameTokensFixture::ReferencesOf(const LoadedModel& model) {
  static auto* const references = new std::map<const LoadedModel*, References>;
  return (*references)[&model];
}

const RunRecord& SameTokensFixture::Baseline(KvFormat kv_format, bool sampled) {
  const auto found = references_.baselines.find({kv_format, sampled});
  if (found != references_.baselines.end()) return found->second;
  Setting plain;
  plain.mtp = false;
  plain.overlap = false;
  plain.graphs = false;
  plain.max_batch_size = 1;
  plain.reuse = false;
  plain.kv_format = kv_format;
  return references_.baselines
      .emplace(std::pair(kv_format, sampled), RunRequests(model_, plain, requests_(sampled)))
      .first->second;
}

const std::vector<int32_t>& SameTokensFixture::Reference(const SameTokensCase& c, const Request& request,
                                                         int id, int token_count, int first_step_count,
                                                         const RequestRecord& record) {
  std::unique_ptr<FromScratch>& scratch = references_.scratch[c.setting.kv_format];
  if (scratch == nullptr) {
    scratch = std::make_unique<FromScratch>(*model_.device, model_.config, model_.weights, 400,
                                            c.setting.kv_format);
  }
  const int prompt_len = static_cast<int>(request.prompt_ids.size());
  const int first_step_end =
      c.setting.vanilla && first_step_count > 0 ? prompt_len + first_step_count - 1 : -1;
  std::vector<int32_t>& entry =
      references_
          .drafts[{c.setting.kv_format, c.sampled, c.setting.vanilla, id, token_count, first_step_end}];
  if (entry.empty()) {
    std::vector<int32_t> tokens = request.prompt_ids;
    tokens.insert(tokens.end(), record.token_ids.begin(), record.token_ids.begin() + token_count);
    const int modules = model_.config.num_nextn_predict_layers;
    scratch->SetRules(request);
    if (DraftsInBlocks(model_.config)) {
      entry =
          scratch->DSparkDrafts(tokens, prompt_len, model_.config.dspark->block_size, request.sampling).ids;
    } else if (c.setting.vanilla) {
      entry = scratch->VanillaDrafts(tokens, prompt_len, modules, modules, first_step_end, request.sampling);
    } else {
      entry = scratch->Drafts(tokens, prompt_len, 7, request.sampling);
    }
  }
  return entry;
}

void SameTokensFixture::ExpectSameTokens(const SameTokensCase& c, const RunRecord& run) {
  const RunRecord& baseline = Baseline(c.setting.kv_format, c.sampled);
  for (size_t id = 0; id < run.requests.size(); ++id) {
    const RequestRecord& request = run.requests[id];
    ASSERT_EQ(request.token_ids, baseline.requests[id].token_ids) << "tokens of request " << id;
    ASSERT_EQ(request.finish, baseline.requests[id].finish) << "request " << id;
    ASSERT_NO_FATAL_FAILURE(ExpectSameBits(request.logprobs, baseline.requests[id].logprobs))
        << "of request " << id;
    if (request.token_ids.empty()) continue;  // it ended before its first token
    ASSERT_EQ(static_cast<int>(request.token_ids.size()), 1 + request.steps + request.accepted_tokens)
        << "accounting of request " << id;
  }
}

void SameTokensFixture::ExpectDraftsFromScratch(const SameTokensCase& c, const RunRecord& run,
                                                const std::vector<Request>& requests) {
  for (size_t id = 0; id < run.requests.size(); ++id) {
    const RequestRecord& request = run.requests[id];
    for (const StepRecord& step : request.records) {
      if (step.drafts.empty()) continue;
      const std::vector<int32_t>& reference =
          Reference(c, requests[id], static_cast<int>(id), step.token_count, step.first_step_count, request);
      const std::vector<int32_t> expected(reference.begin(), reference.begin() + step.drafts.size());
      ASSERT_EQ(step.drafts, expected)
          << "drafts of request " << id << " after " << step.token_count << " tokens";
    }
  }
}

void SameTokensFixture::ExpectTheSame(const std::vector<SameTokensCase>& cases) {
  bool swapped = false;
  bool reused = false;
  uint64_t replayed_tokens = 0;
  int drafts_checked = 0;
  size_t passed = 0;
  const auto start = std::chrono::steady_clock::now();
  for (const SameTokensCase& c : cases) {
    SCOPED_TRACE(absl::StrCat(c.setting.DebugString(), c.sampled ? ", sampled" : ", greedy", ", ", c.name));
    const std::vector<Request> requests = requests_(c.sampled);
    const RunRecord run = RunRequests(model_, c.setting, requests);
    ExpectSameTokens(c, run);
    ExpectDraftsFromScratch(c, run, requests);
    if (HasFatalFailure()) return;
    EXPECT_EQ(run.load.blocks_used, 0);
    EXPECT_EQ(run.load.slots_used, 0);
    EXPECT_EQ(run.replays > 0, c.setting.graphs);
    swapped |= run.load.preemptions > 0;
    reused |= run.load.prefix_hit_tokens > 0;
    replayed_tokens += run.load.replayed_tokens;
    for (const RequestRecord& request : run.requests) {
      for (const StepRecord& step : request.records) drafts_checked += static_cast<int>(step.drafts.size());
    }
    PrintProgress(++passed, cases.size(), start);
  }
  EXPECT_TRUE(swapped);
  EXPECT_TRUE(reused);
  EXPECT_GT(replayed_tokens, 50u);
  EXPECT_GT(drafts_checked, 1000);
}

}  // namespace foredraft
