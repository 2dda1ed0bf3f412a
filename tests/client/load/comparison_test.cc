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

TEST(TokenAgreement, ComparesRequestsThatCompletedInEveryRun) {
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

std::vector<ComparisonSetting> DraftLens(const std::vector<int>& draft_lens) {
  std::vector<ComparisonSetting> settings;
  for (const int draft_len : draft_lens) settings.push_back(ComparisonSetting::OfDraftLen(draft_len));
  return settings;
}

// Settings K=0, K=1, ... that take this wall time: [round][setting]. Each generates 11 tokens.
Comparison Timed(const std::vector<std::vector<double>>& wall_s, std::vector<std::string>* order = nullptr) {
  std::vector<ComparisonSetting> settings;
  for (size_t i = 0; i < wall_s[0].size(); ++i) {
    settings.push_back(ComparisonSetting::OfDraftLen(static_cast<int>(i)));
  }
  std::vector<int> runs(settings.size());
  return Compare(settings, static_cast<int>(wall_s.size()),
                 [&, runs](const ComparisonSetting& setting, const std::string& name) mutable {
                   if (order != nullptr) order->push_back(name);
                   const int i = *setting.max_draft_tokens;
                   return LoadResult{.requests = {Completed(0, 5)}, .wall_s = wall_s[runs[i]++][i]};
                 });
}

const ComparedMetric& Compared(const std::vector<ComparedMetric>& metrics, const std::string& key) {
  for (const ComparedMetric& compared : metrics) {
    if (compared.metric->key == key) return compared;
  }
  ADD_FAILURE() << "no metric " << key;
  return metrics.front();
}

TEST(Comparison, RotatesTheOrderFromRoundToRound) {
  std::vector<std::string> order;
  Timed({{1, 1}, {1, 1}, {1, 1}}, &order);
  EXPECT_THAT(order, ElementsAre("K=0 round 1", "K=1 round 1", "K=1 round 2", "K=0 round 2", "K=0 round 3",
                                 "K=1 round 3"));
}

TEST(Comparison, PairsRatiosWithinTheirRound) {
  // 11, 5.5, 2.2 tok/s against 22, 5.5, 5.5: ratios 2, 1, 2.5.
  const Comparison comparison = Timed({{1, 0.5}, {2, 2}, {5, 2}});
  EXPECT_EQ(comparison.MetricsOf(0)[0].value.p50, 5.5);
  EXPECT_EQ(comparison.MetricsOf(0)[0].ratio.max, 1);
  const std::vector<ComparedMetric> k1 = comparison.MetricsOf(1);
  EXPECT_EQ(k1[0].metric->key, std::string("output_tokens_per_s"));
  EXPECT_EQ(k1[0].value.p50, 5.5);
  EXPECT_EQ(k1[0].ratio.p50, 2);
  EXPECT_EQ(k1[0].ratio.min, 1);
  EXPECT_EQ(k1[0].ratio.max, 2.5);
  EXPECT_NEAR(Compared(k1, "tpot_ms").value.p50, 10, 1e-9);
  EXPECT_NEAR(Compared(k1, "ttft_ms").value.p50, 10, 1e-9);
}

TEST(Comparison, KeepsWholeRoundsOfAnInterruptedOne) {
  int runs = 0;
  const Comparison comparison =
      Compare(DraftLens({0, 3}), 3, [&runs](const ComparisonSetting&, const std::string&) {
        return LoadResult{.requests = {Completed(0, 5)}, .wall_s = 1, .interrupted = ++runs == 4};
      });
  EXPECT_TRUE(comparison.interrupted);
  EXPECT_EQ(comparison.rounds.size(), 1u);
  EXPECT_EQ(runs, 4);
}

TEST(Comparison, StopsAfterTheRoundInWhichTheServerWentAway) {
  int runs = 0;
  const Comparison comparison =
      Compare(DraftLens({0, 3}), 3, [&runs](const ComparisonSetting&, const std::string&) {
        ++runs;
        return LoadResult{.requests = {Failed(0)}, .wall_s = 1, .gave_up = "gone"};
      });
  EXPECT_EQ(runs, 2);
  EXPECT_TRUE(comparison.gave_up);
  EXPECT_TRUE(comparison.AllFailed());
}

Comparison Differing(bool forced) {
  return Compare(DraftLens({0, 3}), 1, [forced](const ComparisonSetting& setting, const std::string&) {
    LoadResult result{
        .requests = {Completed(0, 5), Completed(1, static_cast<uint64_t>(*setting.max_draft_tokens))},
        .wall_s = 1};
    result.requests[0].speculation.set_forced(forced);
    return result;
  });
}

struct Reported {
  BenchSetup setup;
  std::optional<MeasuredServer> baseline;
  Comparison comparison;

  std::string Text() const { return TextReport({setup, baseline, comparison, Numbered()}); }
  nlohmann::json Json() const {
    return nlohmann::json::parse(JsonReport({setup, baseline, comparison, Numbered()}));
  }
};

MeasuredServer Server(const std::string& address, int max_draft_len) {
  MeasuredServer server{.address = address};
  server.model.set_name("abacus");
  server.model.set_max_draft_len(max_draft_len);
  return server;
}

TEST(ComparisonReport, MakesDifferentTokensAnErrorThatNamesTheRequest) {
  const Reported report{.comparison = Differing(/*forced=*/false)};
  EXPECT_TRUE(report.comparison.Broken());
  EXPECT_THAT(report.Text(), HasSubstr("the same in 1 of 2 requests"));
  EXPECT_THAT(report.Text(),
              HasSubstr("ERROR       request 1: K=3 round 1 gave other tokens than K=0 round 1\n"));
  EXPECT_EQ(report.Json()["tokens"]["same_requests"], 1);
  EXPECT_EQ(report.Json()["tokens"]["differences"][0]["request"], "request 1");
}

TEST(TokenAgreement, TellsTheTurnsOfAChatApart) {
  MeasuredRequest second = Completed(1, 7), other = Completed(1, 8);
  second.turn = other.turn = 1;
  TokenAgreement tokens;
  tokens.Add("a", {Completed(1, 5), second});
  tokens.Add("b", {other, Completed(1, 5)});
  EXPECT_EQ(tokens.compared(), 2);
  ASSERT_EQ(tokens.differences().size(), 1u);
  EXPECT_EQ(tokens.differences()[0].turn, 1);
}

// Two chats, one per category; with K=3 the second turn of chat 1 has other tokens.
Comparison OfChats() {
  return Compare(DraftLens({0, 3}), 2, [](const ComparisonSetting& setting, const std::string&) {
    const bool drafts = *setting.max_draft_tokens == 3;
    LoadResult result{.requests = {Completed(0, 5), Completed(1, 5), Completed(1, drafts ? 6 : 7)},
                      .wall_s = 1};
    for (MeasuredRequest& request : result.requests) {
      request.category = request.index == 0 ? "coding" : "math";
      request.speculation.set_steps(drafts ? 4 : 10);
      request.speculation.set_accepted_tokens(drafts ? 6 : 0);
    }
    result.requests[2].turn = 1;
    return result;
  });
}

TEST(ComparisonReport, ComparesSettingsByCategoryOverAllRounds) {
  const Reported report{.comparison = OfChats()};
  EXPECT_THAT(report.Text(),
              HasSubstr("\ncategory  K=0 tok/s per user  length  K=3 tok/s per user  length\n"
                        "coding                 100.0    1.00               100.0    2.50\n"
                        "math                   100.0    1.00               100.0    2.50\n\n"));
  const nlohmann::json math = report.Json()["settings"][1]["categories"][1];
  EXPECT_EQ(math["category"], "math");
  EXPECT_EQ(math["completed_requests"], 4);  // two turns in each of two rounds
  EXPECT_EQ(math["speculation"]["acceptance_length"], 2.5);
  EXPECT_THAT(report.Text(), HasSubstr("ERROR       request 1, turn 2: K=3 round 1 gave other tokens"));
  EXPECT_EQ(report.Json()["tokens"]["differences"][0]["turn"], 1);
}

TEST(ComparisonReport, ComparesOnlyEqualCategories) {
  const Reported report{
      .comparison = Compare(DraftLens({0, 3}), 1, [](const ComparisonSetting& setting, const std::string&) {
        LoadResult result{.requests = {Completed(0, 5)}, .wall_s = 1};
        result.requests[0].category = *setting.max_draft_tokens == 3 ? "math" : "coding";
        return result;
      })};
  EXPECT_THAT(report.Text(), testing::Not(HasSubstr("\ncategory")));
}

TEST(ComparisonReport, AllowsDifferentTokensWhereAcceptanceIsForced) {
  const Reported report{.comparison = Differing(/*forced=*/true)};
  EXPECT_FALSE(report.comparison.Broken());
  EXPECT_THAT(report.Text(), HasSubstr("forced or relaxed acceptance is configured: they may differ"));
  EXPECT_THAT(report.Text(), Not(HasSubstr("ERROR")));
}

TEST(ComparisonReport, PutsSettingsInRowsAndTheResultLast) {
  const Reported report{.comparison = Timed({{1, 0.5}, {2, 2}, {5, 2}})};
  EXPECT_THAT(report.Text(), HasSubstr("\nsetting  output tok/s        ratio (range)  TTFT p50, ms "));
  EXPECT_THAT(report.Text(), HasSubstr("\nK=0               5.5                  x 1         10.00 "));
  EXPECT_THAT(report.Text(), HasSubstr(" x 1         -    1.00\n"));  // no drafts, hence no acceptance rate
  EXPECT_THAT(report.Text(),
              HasSubstr("\nK=1               5.5  x 2.00 (1.00..2.50)         10.00  x 1.00 (1.00..1.00) "));
  EXPECT_THAT(report.Text(),
              testing::EndsWith("K=1 gives 2.00 (1.00..2.50) times the output tok/s of K=0\n"));
}

TEST(ComparisonReport, RoundsThatDisagreeGiveNoResult) {
  // Output tok/s of K=1 over those of K=0, round by round.
  const struct {
    const char* name;
    std::vector<std::vector<double>> seconds;
    const char* result;
  } cases[] = {
      {"once slower",
       {{1, 2}, {2, 1}, {2, 1}},
       "no clear difference: K=1 gives 2.00 (0.50..2.00) times the output tok/s of K=0"},
      {"once faster",
       {{1, 2}, {2, 1}, {1, 2}},
       "no clear difference: K=1 gives 0.50 (0.50..2.00) times the output tok/s of K=0"},
      {"always faster", {{2, 1}, {4, 1}}, "K=1 gives 3.00 (2.00..4.00) times the output tok/s of K=0"},
      {"never slower", {{1, 1}, {4, 2}}, "K=1 gives 1.50 (1.00..2.00) times the output tok/s of K=0"},
      {"always slower",
       {{1, 2}, {1, 4}},
       "K=0 gives the most output tok/s; K=1 is clearly slower: 0.38 (0.25..0.50)"}};
  for (const auto& [name, seconds, result] : cases) {
    EXPECT_EQ(ResultText(Timed(seconds)), result) << name;
  }
}

TEST(ComparisonReport, HasAJsonObjectWithStableKeys) {
  const nlohmann::json json = Reported{.comparison = Timed({{1, 0.5}})}.Json();
  EXPECT_TRUE(json["baseline"].is_null());
  EXPECT_EQ(json["rounds"], 1);
  const nlohmann::json& k1 = json["settings"][1];
  EXPECT_EQ(k1["name"], "K=1");
  EXPECT_EQ(k1["max_draft_tokens"], 1);
  EXPECT_EQ(k1["output_tokens_per_s"]["median"], 22);
  EXPECT_EQ(k1["output_tokens_per_s_ratio"]["median"], 2);
  for (const char* key : {"tpot_p50_ms", "tpot_p50_ratio", "ttft_p50_ms", "ttft_p50_ratio"}) {
    EXPECT_TRUE(k1[key].contains("min")) << key;
  }
  EXPECT_EQ(k1["acceptance_length"], 1);
  EXPECT_EQ(k1["acceptance_rate"], 0);
  EXPECT_EQ(k1["runs"][0]["throughput"]["output_tokens_per_s"], 22);
}

TEST(ComparisonReport, ExplainsKEqualTo0) {
  Reported report{.setup = {.server = Server("a:1", 3)}, .comparison = Timed({{1, 1}})};
  EXPECT_THAT(report.Text(),
              HasSubstr("note        K=0 drafts nothing, but each step still runs the drafter"));
  EXPECT_THAT(report.Text(), HasSubstr("--baseline ADDRESS"));

  report.baseline = Server("b:2", 0);
  report.comparison.settings = {ComparisonSetting::Baseline(), ComparisonSetting::OfDraftLen(0)};
  EXPECT_THAT(report.Text(), HasSubstr("\nbaseline    abacus at b:2"));
  EXPECT_THAT(report.Text(), HasSubstr("K=0 drafts nothing"));
  EXPECT_THAT(report.Text(), Not(HasSubstr("--baseline ADDRESS")));
  EXPECT_EQ(report.Json()["baseline"]["address"], "b:2");
  EXPECT_TRUE(report.Json()["settings"][0]["max_draft_tokens"].is_null());

  report.baseline = Server("b:2", 3);
  EXPECT_THAT(report.Text(), HasSubstr("warning     the daemon of --baseline has a speculative_config"));

  report.setup.server.model.set_max_draft_len(0);
  EXPECT_THAT(report.Text(), HasSubstr("note        the daemon has no speculative_config"));
}

TEST(ComparisonReport, CountsErrorsBySettingAndWarns) {
  const Reported report{
      .comparison = Compare(DraftLens({0, 3}), 2, [](const ComparisonSetting& setting, const std::string&) {
        LoadResult result{.requests = {Completed(0, 5), Completed(1, 6)}, .wall_s = 1};
        if (setting.max_draft_tokens == 3) result.requests[1] = Failed(1);
        return result;
      })};
  EXPECT_THAT(report.Text(),
              HasSubstr("  error     K=3: 2 UNAVAILABLE: gone\n"
                        "warning     requests failed: the settings did not do the same work\n"
                        "tokens      the same in 1 of 1 requests; 1 did not complete in every run\n"));
}

}  // namespace
}  // namespace foredraft
