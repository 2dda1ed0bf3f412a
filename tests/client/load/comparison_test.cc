#include "client/load/comparison.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "client/load/comparison_report.h"

namespace foredraft {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

MeasuredRequest Completed(int64_t index, uint64_t hash) {
  MeasuredRequest request{.index = index, .sent_s = 0, .first_token_s = 0.01, .last_token_s = 0.11};
  request.output_tokens = 11;
  request.token_hash = hash;
  return request;
}

MeasuredRequest Failed(int64_t index) {
  return {.index = index, .outcome = RequestOutcome::kFailed, .status = absl::UnavailableError("gone")};
}

class Numbered : public Workload {
 public:
  WorkItem Item(int64_t index) const override { return {.name = "request " + std::to_string(index)}; }
  std::string Description() const override { return "numbered"; }
};

TEST(TokenAgreement, NamesRequestsWhoseTokensDifferAndTheRuns) {
  TokenAgreement tokens;
  tokens.Add("a", {Completed(0, 5), Completed(1, 6), Completed(2, 7)});
  tokens.Add("b", {Completed(2, 7), Completed(1, 99), Completed(0, 5)});
  tokens.Add("c", {Completed(0, 5), Completed(1, 98), Completed(2, 7)});
  EXPECT_EQ(tokens.compared(), 3);
  EXPECT_EQ(tokens.agreed(), 2);
  EXPECT_EQ(tokens.incomplete(), 0);
  const auto differences = tokens.differences();
  ASSERT_EQ(differences.size(), 1u);
  EXPECT_EQ(differences[0].index, 1);
  EXPECT_EQ(differences[0].run, "a");
  EXPECT_EQ(differences[0].other_run, "b");
}

TEST(TokenAgreement, ComparesWhatCompletedEverywhere) {
  TokenAgreement tokens;
  tokens.Add("a", {Failed(0), Completed(1, 6), Completed(2, 7)});
  tokens.Add("b", {Completed(0, 5), Completed(1, 6), Failed(2)});
  EXPECT_EQ(tokens.compared(), 1);
  EXPECT_EQ(tokens.agreed(), 1);
  EXPECT_EQ(tokens.incomplete(), 2);
}

TEST(TokenAgreement, SeesADifferenceThatFollowsAFailure) {
  TokenAgreement tokens;
  tokens.Add("a", {Failed(0)});
  tokens.Add("b", {Completed(0, 5)});
  tokens.Add("c", {Completed(0, 6)});
  ASSERT_EQ(tokens.differences().size(), 1u);
  EXPECT_EQ(tokens.differences()[0].run, "b");
}

// Wall time per (round, setting); the tokens are always 11.
Comparison Timed(const std::vector<std::vector<double>>& wall_s, std::vector<std::string>* order = nullptr) {
  std::vector<int> settings;
  for (size_t i = 0; i < wall_s[0].size(); ++i) settings.push_back(static_cast<int>(i));
  std::vector<int> runs(settings.size());
  return Compare(
      settings, static_cast<int>(wall_s.size()), [&, runs](int setting, const std::string& name) mutable {
        if (order != nullptr) order->push_back(name);
        return LoadResult{.requests = {Completed(0, 5)}, .wall_s = wall_s[runs[setting]++][setting]};
      });
}

TEST(Comparison, RotatesTheOrderFromRoundToRound) {
  std::vector<std::string> order;
  Timed({{1, 1}, {1, 1}, {1, 1}}, &order);
  EXPECT_THAT(order, ElementsAre("K=0 round 1", "K=1 round 1", "K=1 round 2", "K=0 round 2", "K=0 round 3",
                                 "K=1 round 3"));
}

TEST(Comparison, PairsRatiosWithinTheirRound) {
  // 11, 5.5, 2.2 tok/s against 22, 5.5, 5.5: ratios 2, 1, 2.5.
  const std::vector<SettingFigures> settings = Timed({{1, 0.5}, {2, 2}, {5, 2}}).Settings();
  ASSERT_EQ(settings.size(), 2u);
  EXPECT_EQ(settings[0].output_tokens_per_s.median, 5.5);
  EXPECT_EQ(settings[0].output_tokens_per_s_ratio.max, 1);
  EXPECT_EQ(settings[1].output_tokens_per_s.median, 5.5);
  EXPECT_EQ(settings[1].output_tokens_per_s_ratio.median, 2);
  EXPECT_EQ(settings[1].output_tokens_per_s_ratio.min, 1);
  EXPECT_EQ(settings[1].output_tokens_per_s_ratio.max, 2.5);
  EXPECT_NEAR(settings[1].tpot_p50_ms.median, 10, 1e-9);
  EXPECT_NEAR(settings[1].ttft_p50_ms.median, 10, 1e-9);
}

TEST(Comparison, KeepsWholeRoundsOfAnInterruptedOne) {
  int runs = 0;
  const Comparison comparison = Compare({0, 3}, 3, [&runs](int, const std::string&) {
    return LoadResult{.requests = {Completed(0, 5)}, .wall_s = 1, .interrupted = ++runs == 4};
  });
  EXPECT_TRUE(comparison.interrupted);
  EXPECT_EQ(comparison.rounds.size(), 1u);
  EXPECT_EQ(runs, 4);
}

TEST(Comparison, StopsAfterTheRoundInWhichTheServerWent) {
  int runs = 0;
  const Comparison comparison = Compare({0, 3}, 3, [&runs](int, const std::string&) {
    ++runs;
    return LoadResult{.requests = {Failed(0)}, .wall_s = 1, .gave_up = "gone"};
  });
  EXPECT_EQ(runs, 2);
  EXPECT_TRUE(comparison.gave_up);
  EXPECT_TRUE(comparison.AllFailed());
}

Comparison Differing(bool forced) {
  return Compare({0, 3}, 1, [forced](int setting, const std::string&) {
    LoadResult result{.requests = {Completed(0, 5), Completed(1, setting)}, .wall_s = 1};
    result.requests[0].speculation.set_forced(forced);
    return result;
  });
}

TEST(ComparisonReport, MakesDifferentTokensAnErrorThatNamesTheRequest) {
  const Comparison comparison = Differing(/*forced=*/false);
  EXPECT_TRUE(comparison.Broken());
  const std::string text = TextReport({}, comparison, Numbered());
  EXPECT_THAT(text, HasSubstr("the same in 1 of 2 requests"));
  EXPECT_THAT(text, HasSubstr("ERROR       request 1: K=3 round 1 gave other tokens than K=0 round 1\n"));
  const nlohmann::json json = nlohmann::json::parse(JsonReport({}, comparison, Numbered()));
  EXPECT_EQ(json["tokens"]["same_requests"], 1);
  EXPECT_EQ(json["tokens"]["differences"][0]["request"], "request 1");
}

TEST(ComparisonReport, AllowsThemWhereAcceptanceIsForced) {
  const Comparison comparison = Differing(/*forced=*/true);
  EXPECT_FALSE(comparison.Broken());
  const std::string text = TextReport({}, comparison, Numbered());
  EXPECT_THAT(text, HasSubstr("forced or relaxed acceptance is configured: they may differ"));
  EXPECT_THAT(text, Not(HasSubstr("ERROR")));
}

TEST(ComparisonReport, PutsSettingsInRowsAndTheResultLast) {
  const std::string text = TextReport({}, Timed({{1, 0.5}, {2, 2}, {5, 2}}), Numbered());
  EXPECT_THAT(text, HasSubstr("\n0             5.5  x 1                         10.00  x 1 "));
  EXPECT_THAT(text,
              HasSubstr("\n1             5.5  x 2.00 (1.00..2.50)         10.00  x 1.00 (1.00..1.00) "));
  EXPECT_THAT(text, testing::EndsWith("K = 1 gives 2.00 (1.00..2.50) times the output tok/s of K = 0\n"));
}

TEST(ComparisonReport, SumsErrorsUpBySettingAndWarnsOfThem) {
  const Comparison comparison = Compare({0, 3}, 2, [](int setting, const std::string&) {
    LoadResult result{.requests = {Completed(0, 5), Completed(1, 6)}, .wall_s = 1};
    if (setting == 3) result.requests[1] = Failed(1);
    return result;
  });
  const std::string text = TextReport({}, comparison, Numbered());
  EXPECT_THAT(text, HasSubstr("  error     K=3: 2 UNAVAILABLE: gone\n"
                              "warning     requests failed: the settings did not do the same work\n"
                              "tokens      the same in 1 of 1 requests; 1 did not complete in every run\n"));
}

}  // namespace
}  // namespace foredraft
