#pragma once

// The project's promise (README.md) for one model: runs under any setting give the tokens of a plain run, and
// every draft is the one that a from-scratch computation gives.

#include <gtest/gtest.h>

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tests/engine/engine_harness.h"
#include "tests/engine/from_scratch.h"

namespace foredraft {

struct SameTokensCase {
  std::string name;
  Setting setting;
  bool sampled = false;
};

// Fails where a logprob differs in any bit: another order of summation changes logprobs long before it
// changes a token.
void ExpectSameBits(const std::vector<TokenLogprob>& got, const std::vector<TokenLogprob>& expected);

class SameTokensFixture : public ::testing::Test {
 protected:
  using MakeRequests = std::function<std::vector<Request>(bool sampled)>;

  // Runs of one model share what they are compared with; it is computed once per test binary.
  SameTokensFixture(const LoadedModel& model, MakeRequests requests);

  // Runs the cases and checks that their settings took effect, over all of them.
  void ExpectTheSame(const std::vector<SameTokensCase>& cases);

  const LoadedModel& model_;

 private:
  struct References {
    std::map<std::pair<KvFormat, bool>, RunRecord> baselines;  // by kv_format and `sampled`
    std::map<std::tuple<KvFormat, bool, bool, int, int, int>, std::vector<int32_t>> drafts;
    std::map<KvFormat, std::unique_ptr<FromScratch>> scratch;  // by kv_format
  };
  static References& ReferencesOf(const LoadedModel& model);

  // The baseline: eager, no module, no overlap, one request at a time, no reuse.
  const RunRecord& Baseline(KvFormat kv_format, bool sampled);
  // The drafts after the first `token_count` output tokens of a request. Drafts of one step never change
  // those of the next, so one recomputation serves all settings (for Vanilla: those with the same first
  // step).
  const std::vector<int32_t>& Reference(const SameTokensCase& c, const Request& request, int id,
                                        int token_count, int first_step_count, const RequestRecord& record);
  void ExpectSameTokens(const SameTokensCase& c, const RunRecord& run);
  void ExpectDraftsFromScratch(const SameTokensCase& c, const RunRecord& run,
                               const std::vector<Request>& requests);

  const MakeRequests requests_;
  References& references_;
};

}  // namespace foredraft
