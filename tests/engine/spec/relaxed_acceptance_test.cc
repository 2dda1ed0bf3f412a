// Relaxed acceptance on an engine (docs/speculation.md section 2): it takes likely drafts between the
// thinking tokens and nowhere else. The phase is right for every row, also after chunks, cache hits and
// swaps.

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "tests/engine/engine_harness.h"
#include "tests/engine/from_scratch.h"
#include "tests/engine/test_requests.h"
#include "tools/synth/synth.h"

namespace foredraft {
namespace {

// Random weights: the drafts seldom agree with the target, so relaxation decides nearly every row.
// It takes any of the 400 most probable of 640 tokens.
constexpr AcceptanceRule kRelaxed = {.relaxed_topk = 400, .relaxed_delta = 1.0f};

std::string RandomCheckpoint() {
  const std::string dir = absl::StrCat(testing::TempDir(), "/relaxed_acceptance_test");
  std::filesystem::remove_all(dir);
  const auto report = WriteRandomCheckpoint(
      {.config_json = absl::StrCat(kAbacusDir, "/config.json"), .out_dir = dir, .seed = 5});
  CHECK(report.ok()) << report.status().ToString();
  return dir;
}

const LoadedModel& RandomModel() {
  static const auto* const dir = new std::string(RandomCheckpoint());
  return LoadModelOnce(*dir);
}

// Two tokens that the model emits often, so that phases open and close throughout, also inside accepted runs.
ThinkingIds FrequentTokens() {
  std::map<int32_t, int> counts;
  const RunRecord run = RunRequests(RandomModel(), {.draft_len = 3}, TestRequests({}));
  for (const RequestRecord& request : run.requests) {
    for (const int32_t token : request.token_ids) ++counts[token];
  }
  std::vector<std::pair<int, int32_t>> order;
  for (const auto& [token, count] : counts) order.push_back({-count, token});
  std::sort(order.begin(), order.end());
  return {.begin = order.at(0).second, .end = order.at(1).second};
}

// Chats whose prompts end inside the thinking phase. Every fourth closes it in the prompt, every fourth opts
// out, every fourth is sampled: those stay strict. Some open the phase a second time on the way.
std::vector<Request> ThinkingRequests(const ThinkingIds& ids) {
  std::vector<Request> requests = TestRequests({});
  for (size_t i = 0; i < requests.size(); ++i) {
    Request& request = requests[i];
    request.thinking = ids;
    request.max_tokens = std::max(request.max_tokens, 24);
    request.stop_ids.clear();
    request.prompt_ids.push_back(i % 2 == 0 ? ids.begin : ids.end);
    for (const int32_t id : request.prompt_ids)
      request.prompt_phase = ids.PhaseAfter(request.prompt_phase, id);
    request.strict_acceptance = i % 4 == 2;
    if (i % 8 == 3) request.sampling.temperature = 0.7f;
  }
  return requests;
}

bool StaysStrict(const Request& request) {
  return request.strict_acceptance || request.sampling.temperature > 0;
}

class RelaxedAcceptance : public ::testing::Test {
 protected:
  const LoadedModel& model_ = RandomModel();
  const ThinkingIds ids_ = FrequentTokens();
  const std::vector<Request> requests_ = ThinkingRequests(ids_);
};

TEST_F(RelaxedAcceptance, GivesTheSameTokensOverChunksCacheHitsSwapsAndBatches) {
  for (const bool vanilla : {false, true}) {
    const Setting plain{.draft_len = 3,
                        .vanilla = vanilla,
                        .overlap = false,
                        .graphs = false,
                        .max_batch_size = 1,
                        .reuse = false,
                        .acceptance = kRelaxed};
    std::vector<Setting> settings(4, {.draft_len = 3, .vanilla = vanilla, .acceptance = kRelaxed});
    settings[1].max_num_tokens = 16;
    settings[2].small_pool = true;
    settings[3] = {.draft_len = 3,
                   .vanilla = vanilla,
                   .max_batch_size = 4,
                   .max_num_tokens = 16,
                   .small_pool = true,
                   .acceptance = kRelaxed};
    const RunRecord reference = RunRequests(model_, plain, requests_);
    int relaxed = 0;
    for (const RequestRecord& request : reference.requests) relaxed += request.relaxed_tokens;
    EXPECT_GT(relaxed, 10) << "relaxation had little to do";
    bool swapped = false;
    bool reused = false;
    for (const Setting& setting : settings) {
      SCOPED_TRACE(setting.DebugString());
      const RunRecord run = RunRequests(model_, setting, requests_);
      swapped |= run.load.preemptions > 0;
      reused |= run.load.prefix_hit_tokens > 0;
      for (size_t id = 0; id < run.requests.size(); ++id) {
        SCOPED_TRACE(absl::StrCat("request ", id));
        ASSERT_EQ(run.requests[id].token_ids, reference.requests[id].token_ids);
        EXPECT_EQ(run.requests[id].relaxed_tokens, reference.requests[id].relaxed_tokens);
        EXPECT_EQ(run.requests[id].accepted_per_position, reference.requests[id].accepted_per_position);
      }
    }
    EXPECT_TRUE(swapped);
    EXPECT_TRUE(reused);
  }
}

// Every token that is not the target's own choice is in the thinking phase of a request that may be relaxed,
// and is counted, also where a limit ended the step there.
TEST_F(RelaxedAcceptance, TakesOtherTokensThanTheTargetsInTheThinkingPhaseOnly) {
  const RunRecord run = RunRequests(model_, {.draft_len = 3, .acceptance = kRelaxed}, requests_);
  FromScratch scratch(*model_.device, model_.config, model_.weights, 400);
  int others = 0;
  int answer_tokens = 0;
  for (size_t id = 0; id < requests_.size(); ++id) {
    SCOPED_TRACE(absl::StrCat("request ", id));
    const Request& request = requests_[id];
    if (StaysStrict(request)) continue;
    std::vector<int32_t> tokens = request.prompt_ids;
    Phase phase = request.prompt_phase;
    int differing = 0;
    for (const int32_t token : run.requests[id].token_ids) {
      const int32_t own = scratch.GreedyToken(tokens, static_cast<int>(request.prompt_ids.size()));
      if (phase == Phase::kAnswer) {
        ASSERT_EQ(token, own) << "in the answer, at position " << tokens.size();
        ++answer_tokens;
      }
      differing += token != own;
      phase = ids_.PhaseAfter(phase, token);
      tokens.push_back(token);
    }
    EXPECT_EQ(run.requests[id].relaxed_tokens, differing);
    others += differing;
  }
  EXPECT_GT(others, 10);  // 20 with AVX2: which logits are close depends on the instruction path
  EXPECT_GT(answer_tokens, 20);
}

// An entry of the logprobs is the token that was emitted, with its logprob in the row's raw logits. Relaxed
// candidates are among the top ones, which have it once more.
TEST_F(RelaxedAcceptance, LogprobsAreThoseOfTheEmittedTokens) {
  std::vector<Request> requests = requests_;
  for (Request& request : requests) request.logprob_count = 20;
  const AcceptanceRule candidates = {.relaxed_topk = 15, .relaxed_delta = 1.0f};
  for (const AcceptanceRule& rule : {candidates, AcceptanceRule{.forced_length = 2.5f}}) {
    const bool forced = rule.forced_length > 0;
    SCOPED_TRACE(forced ? "forced" : "relaxed");
    const RunRecord run = RunRequests(model_, {.draft_len = 3, .acceptance = rule}, requests);
    int others = 0;
    for (size_t id = 0; id < requests.size(); ++id) {
      const RequestRecord& request = run.requests[id];
      ASSERT_EQ(request.logprobs.size(), request.token_ids.size());
      const bool sampled = requests[id].sampling.temperature > 0;
      for (size_t i = 0; i < request.token_ids.size(); ++i) {
        SCOPED_TRACE(absl::StrCat("request ", id, ", token ", i));
        const TokenLogprob& entry = request.logprobs[i];
        ASSERT_EQ(entry.token_id, request.token_ids[i]);
        others += entry.token_id != entry.top[0].token_id;
        const auto among = std::find_if(entry.top.begin(), entry.top.end(), [&](const TopLogprob& top) {
          return top.token_id == entry.token_id;
        });
        if (among != entry.top.end()) {
          EXPECT_EQ(entry.logprob, among->logprob);
        } else {
          EXPECT_TRUE(forced || sampled) << "it is no candidate";
          EXPECT_LE(entry.logprob, entry.top.back().logprob);
        }
      }
    }
    EXPECT_GT(others, 10);  // 20 with AVX2: which logits are close depends on the instruction path
  }
}

TEST_F(RelaxedAcceptance, LeavesStrictAndSampledRequestsOfTheSameBatchAlone) {
  const RunRecord strict = RunRequests(model_, {.draft_len = 3}, requests_);
  const RunRecord relaxed = RunRequests(model_, {.draft_len = 3, .acceptance = kRelaxed}, requests_);
  int changed = 0;
  for (size_t id = 0; id < requests_.size(); ++id) {
    EXPECT_EQ(strict.requests[id].relaxed_tokens, 0);
    if (!StaysStrict(requests_[id])) {
      changed += strict.requests[id].token_ids != relaxed.requests[id].token_ids;
      continue;
    }
    EXPECT_EQ(strict.requests[id].token_ids, relaxed.requests[id].token_ids) << "request " << id;
    EXPECT_EQ(relaxed.requests[id].relaxed_tokens, 0) << "request " << id;
  }
  EXPECT_GT(changed, 0) << "relaxation had nothing to do";
}

}  // namespace
}  // namespace foredraft
