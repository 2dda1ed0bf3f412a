#include "client/load/html_report.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <regex>

#include "client/load/svg_chart.h"

namespace foredraft {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

// Opened elements that are not closed in order; "" = the page is well formed.
std::string Unbalanced(const std::string& page) {
  std::vector<std::string> open;
  const std::regex tag("<(/?)([a-zA-Z1-6]+)((?:[^>\"]|\"[^\"]*\")*?)(/?)>");
  const std::string body = page.substr(page.find("<html"));
  for (std::sregex_iterator match(body.begin(), body.end(), tag), end; match != end; ++match) {
    const std::string name = (*match)[2];
    if (name == "meta" || (*match)[4] == "/") continue;
    if ((*match)[1] != "/") {
      open.push_back(name);
    } else if (open.empty() || open.back() != name) {
      return "</" + name + "> closes " + (open.empty() ? "nothing" : open.back());
    } else {
      open.pop_back();
    }
  }
  return open.empty() ? "" : open.back() + " stays open";
}

int Count(const std::string& text, const std::string& part) {
  int count = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++count;
  return count;
}

LoadResult Result(double speed, int seed) {
  LoadResult result{.wall_s = 2 / speed};
  for (int i = 0; i < 40; ++i) {
    MeasuredRequest request{.index = i, .sent_s = 0.04 * i / speed};
    request.first_token_s = request.sent_s + (0.01 + 0.0002 * ((i * 7 + seed) % 11)) / speed;
    for (int step = 0; step < 20; ++step)
      request.gaps.push_back({.gap_ms = static_cast<float>(4 / speed), .token_count = 2});
    request.last_token_s = request.first_token_s + 0.08 / speed;
    request.output_tokens = 41;
    request.speculation.set_steps(20);
    request.speculation.set_draft_tokens(40);
    request.speculation.set_accepted_tokens(20);
    for (const int accepted : {15, 5}) request.speculation.add_accepted_per_position(accepted);
    result.requests.push_back(request);
  }
  return result;
}

BenchSetup SomeSetup() {
  BenchSetup setup;
  setup.server.address = "127.0.0.1:1";
  setup.server.model.set_name("a <b> & \"c\"");
  setup.server.model.set_max_draft_len(2);
  setup.workload = "random";
  return setup;
}

class Numbered : public Workload {
 public:
  WorkItem Item(int64_t index) const override { return {.name = std::to_string(index)}; }
  std::string Description() const override { return "numbered"; }
};

// A page that is opened from a disk, without a network.
void ExpectSelfContained(const std::string& page) {
  EXPECT_EQ(Unbalanced(page), "");
  EXPECT_THAT(page,
              AllOf(HasSubstr("prefers-color-scheme: dark"), HasSubstr("a &lt;b&gt; &amp; &quot;c&quot;")));
  for (const char* needs :
       {"<script", "http://", "https://", "@import", "url(", "src=", "href=", "nan", "inf\""}) {
    EXPECT_THAT(page, Not(HasSubstr(needs)));
  }
}

TEST(HtmlReport, OneRunIsOnePageWithItsChartsAndFigures) {
  const LoadResult result = Result(1, 0);
  const std::string page = HtmlReport(SomeSetup(), Evaluate(result), ChartsOf(result));
  ExpectSelfContained(page);
  EXPECT_EQ(Count(page, "<svg"), 2 + 4 + 1);  // over time, latencies, acceptance
  EXPECT_THAT(
      page, AllOf(HasSubstr("820.0 <span class=\"unit\">tok/s"), HasSubstr(">75.0%<"), HasSubstr(">25.0%<")));
  EXPECT_THAT(page, AllOf(HasSubstr(">p50 "), HasSubstr(">p99 "), HasSubstr("2.00")));
}

TEST(HtmlReport, AComparisonShowsRatiosWithTheirSpread) {
  const std::vector<ComparisonSetting> settings = {ComparisonSetting::OfDraftLen(0),
                                                   ComparisonSetting::OfDraftLen(2)};
  int run = 0;
  const Comparison comparison =
      Compare(settings, 3, [&run](const ComparisonSetting& setting, const std::string&) {
        ++run;
        return Result(setting.max_draft_tokens == 2 ? 1.5 + 0.1 * run : 1, run);
      });
  const BenchSetup setup = SomeSetup();
  const std::optional<MeasuredServer> none;
  const Numbered workload;
  const std::string page = HtmlReport({setup, none, comparison, workload});
  ExpectSelfContained(page);
  EXPECT_EQ(Count(page, "<svg"),
            3 + 2 + 4);  // ratios of throughput, TTFT and TPOT; over time, acceptance; latencies
  EXPECT_EQ(Count(page, "class=\"range s1\""), 3);
  // Round by round K=2 is the second run, the first, the second: 1.7, 1.8, 2.1 times as fast.
  EXPECT_THAT(page, AllOf(HasSubstr("× 1.80 <tspan class=\"label\">1.70 to 2.10"),
                          HasSubstr("K=2 gives 1.80 times the output tokens per second of K=0"),
                          HasSubstr("The same tokens in 40 of 40 requests")));
}

TEST(HtmlReport, ARunInWhichNothingCompletedIsAPageToo) {
  LoadResult result{
      .requests = {{.outcome = RequestOutcome::kFailed, .status = absl::UnavailableError("gone")}},
      .wall_s = 1};
  const std::string page = HtmlReport(SomeSetup(), Evaluate(result), ChartsOf(result));
  ExpectSelfContained(page);
  EXPECT_THAT(page, AllOf(HasSubstr("nothing was measured"), HasSubstr("UNAVAILABLE: gone")));
}

TEST(SvgChart, TicksAreRoundNumbersThatCoverTheValues) {
  for (const double most : {0.003, 0.9, 1.0, 7.0, 9.99, 10.0, 43.0, 100.0, 1234.0}) {
    const AxisTicks ticks = TicksUpTo(most);
    EXPECT_GE(ticks.high, most * (1 - 1e-9));
    const double count = ticks.high / ticks.step;
    EXPECT_NEAR(count, std::round(count), 1e-6);
    EXPECT_GE(count, 3) << most;
    EXPECT_LE(count, 8) << most;
  }
}

}  // namespace
}  // namespace foredraft
