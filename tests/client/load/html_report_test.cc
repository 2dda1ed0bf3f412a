#include "client/load/html_report.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <regex>
#include <set>
#include <string>
#include <string_view>

#include "absl/strings/str_replace.h"

namespace foredraft {
namespace {
using testing::HasSubstr;
using testing::IsSupersetOf;
using testing::Not;
using Json = nlohmann::json;

std::string Between(const std::string& text, const std::string& begin, const std::string& end) {
  const size_t at = text.find(begin) + begin.size();
  return text.substr(at, text.find(end, at) - at);
}
// The report that the page draws.
std::string ReportText(const std::string& page) {
  return Between(page, "<script type=\"application/json\" id=\"report\">", "</script>");
}
Json ReportOf(const std::string& page) { return Json::parse(ReportText(page)); }

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

// What would end an element, or begin one, if it were read as HTML.
constexpr char kName[] = "a <b> & \"c\" </script></pre>";

BenchSetup SomeSetup() {
  BenchSetup setup;
  setup.server.address = "127.0.0.1:1";
  setup.server.model.set_name(kName);
  setup.server.model.set_max_draft_len(2);
  setup.workload = "random";
  return setup;
}

class Numbered : public Workload {
 public:
  WorkItem Item(int64_t index) const override { return {.name = std::to_string(index)}; }
  std::string Description() const override { return "numbered"; }
};

// Scripts' operators look like tags. (A regular expression would recurse once per character of a script.)
std::string WithoutScripts(std::string page) {
  constexpr std::string_view kEnd = "</script>";
  for (size_t begin; (begin = page.find("<script")) != std::string::npos;) {
    const size_t end = page.find(kEnd, begin);
    page.erase(begin, end == std::string::npos ? end : end + kEnd.size() - begin);
  }
  return page;
}

// A page that is opened from a disk, without a network.
void ExpectSelfContained(const std::string& page) {
  const std::string elements = WithoutScripts(page);
  EXPECT_EQ(Unbalanced(elements), "");
  EXPECT_THAT(page, HasSubstr("prefers-color-scheme: dark"));
  EXPECT_THAT(elements, HasSubstr("a &lt;b&gt; &amp; \"c\" &lt;/script&gt;&lt;/pre&gt;"));
  EXPECT_THAT(ReportText(page), Not(HasSubstr("<")));
  EXPECT_EQ(ReportOf(page)["server"]["model"], kName);
  const std::string without_namespace = absl::StrReplaceAll(page, {{"'http://www.w3.org/2000/svg'", ""}});
  for (const char* needs :
       {"http://", "https://", "@import", "url(", "src=", "href=", "innerHTML", "@REPORT@", "@TEXT@"}) {
    EXPECT_THAT(without_namespace, Not(HasSubstr(needs)));
  }
}

std::set<std::string> KeysOf(const Json& json) {
  std::set<std::string> keys;
  for (const auto& [key, value] : json.items()) keys.insert(key);
  return keys;
}

TEST(HtmlReport, OneRunIsOnePageWithItsReportAndCharts) {
  const LoadResult result = Result(1, 0);
  const RunStats run = Evaluate(result);
  const std::string page = HtmlReport(SomeSetup(), run, ChartsOf(result));
  ExpectSelfContained(page);
  const Json report = ReportOf(page);
  EXPECT_THAT(KeysOf(report), IsSupersetOf(KeysOf(Json::parse(JsonReport(SomeSetup(), run)))));
  EXPECT_EQ(report["throughput"]["output_tokens_per_s"], 820);
  const Json& charts = report["charts"][0];
  EXPECT_EQ(charts["acceptance_rate_per_position"], Json({0.75, 0.25}));
  EXPECT_FALSE(charts["timeline"]["tokens_per_s"].empty());
  for (const char* latency : {"ttft", "tpot", "inter_token", "e2e"}) {
    EXPECT_EQ(charts["latency"][latency]["percentiles"].size(), 100u) << latency;
  }
  EXPECT_EQ(report["notes"][1], Json({"prompts", "random"}));
  EXPECT_THAT(page, HasSubstr("<noscript>"));
}

TEST(HtmlReport, HasCategoriesAsData) {
  LoadResult result = Result(1, 0);
  for (MeasuredRequest& request : result.requests) request.category = kName;
  const std::string page = HtmlReport(SomeSetup(), Evaluate(result), ChartsOf(result));
  ExpectSelfContained(page);
  const Json categories = ReportOf(page)["categories"];
  ASSERT_EQ(categories.size(), 1u);
  EXPECT_EQ(categories[0]["category"], kName);
  EXPECT_EQ(categories[0]["speculation"]["acceptance_rate_per_position"], Json({0.75, 0.25}));
}

TEST(HtmlReport, AHistogramHasEverySampleOnce) {
  const LoadResult result = Result(1, 0);
  const Json latencies =
      ReportOf(HtmlReport(SomeSetup(), Evaluate(result), ChartsOf(result)))["charts"][0]["latency"];
  for (const auto& [name, samples] : {std::pair("ttft", 40), std::pair("inter_token", 40 * 40)}) {
    int64_t counted = latencies[name]["beyond"];
    for (const int64_t count : latencies[name]["counts"]) counted += count;
    EXPECT_EQ(counted, samples) << name;
  }
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
  const Json report = ReportOf(page);
  EXPECT_EQ(report["charts"].size(), 2u);
  int with_ratios = 0;
  for (const Json& column : report["columns"]) {
    EXPECT_EQ(column["values"].size(), 2u);
    with_ratios += column.contains("ratios") ? 1 : 0;
  }
  EXPECT_EQ(with_ratios, 3);  // throughput, TTFT and TPOT
  // Round by round K=2 is the second run, the first, the second: 1.7, 1.8, 2.1 times as fast.
  const Json& ratio = report["columns"][0]["ratios"][1];
  EXPECT_NEAR(ratio["median"], 1.8, 1e-6);
  EXPECT_NEAR(ratio["min"], 1.7, 1e-6);
  EXPECT_NEAR(ratio["max"], 2.1, 1e-6);
  EXPECT_EQ(report["result"], "K=2 gives 1.80 (1.70..2.10) times the output tok/s of K=0");
  EXPECT_EQ(report["tokens"]["same_requests"], 40);
  EXPECT_EQ(report["broken"], false);
}

TEST(HtmlReport, ARunInWhichNothingCompletedIsAPageToo) {
  LoadResult result{
      .requests = {{.outcome = RequestOutcome::kFailed, .status = absl::UnavailableError("gone")}},
      .wall_s = 1};
  const std::string page = HtmlReport(SomeSetup(), Evaluate(result), ChartsOf(result));
  ExpectSelfContained(page);
  const Json report = ReportOf(page);
  EXPECT_TRUE(report["charts"][0]["latency"]["ttft"].is_null());
  EXPECT_THAT(report["notes"].back()[1], testing::EndsWith("UNAVAILABLE: gone"));
}

}  // namespace
}  // namespace foredraft
