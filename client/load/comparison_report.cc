#include "client/load/comparison_report.h"

#include <algorithm>
#include <map>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/grouped_digits.h"

namespace foredraft {
namespace {

using Json = nlohmann::ordered_json;

constexpr size_t kMostDifferences = 10;  // shown, of those there are

std::string RatioText(const Spread& ratio) {
  if (ratio.median == 0) return "-";
  return absl::StrFormat("x %.2f (%.2f..%.2f)", ratio.median, ratio.min, ratio.max);
}

// Columns: K, then thrice a median and its ratio, then the drafts.
constexpr char kRow[] = "%-3s%14s  %-20s%13s  %-20s%13s  %-20s%9s%8s\n";

std::string SettingRow(const SettingFigures& setting, bool first) {
  const auto ratio = [first](const Spread& spread) { return first ? std::string("x 1") : RatioText(spread); };
  const std::string rate = setting.speculation.draft_tokens == 0
                               ? "-"
                               : absl::StrFormat("%.1f%%", 100 * setting.speculation.acceptance_rate());
  return absl::StrFormat(
      kRow, absl::StrCat(setting.max_draft_tokens), GroupedDecimal(setting.output_tokens_per_s.median, 1),
      ratio(setting.output_tokens_per_s_ratio), GroupedDecimal(setting.tpot_p50_ms.median, 2),
      ratio(setting.tpot_p50_ratio), GroupedDecimal(setting.ttft_p50_ms.median, 2),
      ratio(setting.ttft_p50_ratio), rate, GroupedDecimal(setting.speculation.acceptance_length(), 2));
}

std::string DifferenceText(const TokenAgreement::Difference& difference, const Workload& workload) {
  return absl::StrCat(workload.Item(difference.index).name, ": ", difference.other_run,
                      " gave other tokens than ", difference.run);
}

std::string TokensText(const Comparison& comparison, const Workload& workload) {
  const TokenAgreement& tokens = comparison.tokens;
  std::string text = absl::StrCat("tokens      the same in ", Grouped(tokens.agreed()), " of ",
                                  Grouped(tokens.compared()), " requests");
  if (tokens.incomplete() > 0) {
    absl::StrAppend(&text, "; ", Grouped(tokens.incomplete()), " did not complete in every run");
  }
  text += "\n";
  const std::vector<TokenAgreement::Difference> differences = tokens.differences();
  if (comparison.TokensMayDiffer()) {
    return text + "            forced or relaxed acceptance is configured: they may differ\n";
  }
  for (size_t i = 0; i < std::min(differences.size(), kMostDifferences); ++i) {
    absl::StrAppend(&text, "ERROR       ", DifferenceText(differences[i], workload), "\n");
  }
  if (differences.size() > kMostDifferences) {
    absl::StrAppend(&text, "ERROR       and ", Grouped(differences.size() - kMostDifferences), " more\n");
  }
  return text;
}

// What went wrong or warped the figures: errors by setting, over all rounds, and warnings by run.
std::string NotesText(const Comparison& comparison) {
  std::string errors, warnings;
  for (size_t i = 0; i < comparison.max_draft_tokens.size(); ++i) {
    const std::string setting = absl::StrCat("K=", comparison.max_draft_tokens[i]);
    std::map<absl::StatusCode, ErrorFigures> by_code;
    for (size_t round = 0; round < comparison.rounds.size(); ++round) {
      const RunFigures& figures = comparison.rounds[round][i];
      const std::string run = absl::StrCat(setting, " round ", round + 1, ": ");
      for (const ErrorFigures& error : figures.errors) {
        by_code.try_emplace(error.code, ErrorFigures{.message = error.message}).first->second.count +=
            error.count;
      }
      if (!figures.gave_up.empty()) absl::StrAppend(&warnings, "gave up     ", run, figures.gave_up, "\n");
      for (const std::string& warning : figures.client.warnings) {
        absl::StrAppend(&warnings, "warning     ", run, warning, "\n");
      }
    }
    for (const auto& [code, error] : by_code) {
      absl::StrAppend(&errors, "  error     ", setting, ": ", Grouped(error.count), " ",
                      absl::StatusCodeToString(code), ": ", error.message, "\n");
    }
  }
  if (!errors.empty())
    warnings = "warning     requests failed: the settings did not do the same work\n" + warnings;
  return errors + warnings;
}

std::string ResultText(const std::vector<SettingFigures>& settings) {
  const SettingFigures& best = *std::max_element(
      settings.begin(), settings.end(), [](const SettingFigures& a, const SettingFigures& b) {
        return a.output_tokens_per_s_ratio.median < b.output_tokens_per_s_ratio.median;
      });
  if (best.max_draft_tokens == settings[0].max_draft_tokens) {
    return absl::StrFormat("K = %d gives the most output tok/s\n", best.max_draft_tokens);
  }
  return absl::StrFormat("K = %d gives %.2f (%.2f..%.2f) times the output tok/s of K = %d\n",
                         best.max_draft_tokens, best.output_tokens_per_s_ratio.median,
                         best.output_tokens_per_s_ratio.min, best.output_tokens_per_s_ratio.max,
                         settings[0].max_draft_tokens);
}

Json SpreadJson(const Spread& spread) {
  return {{"median", spread.median}, {"min", spread.min}, {"max", spread.max}};
}

}  // namespace

std::string TextReport(const BenchSetup& setup, const Comparison& comparison, const Workload& workload) {
  const std::vector<SettingFigures> settings = comparison.Settings();
  std::string text =
      absl::StrCat(TextHeader(setup), "rounds      ", comparison.rounds.size(),
                   comparison.interrupted ? ", then interrupted" : "",
                   "; medians of them, and ratios to the first setting (range over the rounds); the prompts "
                   "had been sent before\n\n",
                   absl::StrFormat(kRow, "K", "output tok/s", "", "TPOT p50, ms", "", "TTFT p50, ms", "",
                                   "accepted", "length"));
  for (size_t i = 0; i < settings.size(); ++i) text += SettingRow(settings[i], i == 0);
  absl::StrAppend(&text, "\n", NotesText(comparison), TokensText(comparison, workload));
  if (!comparison.AllFailed()) text += ResultText(settings);
  return text;
}

std::string JsonReport(const BenchSetup& setup, const Comparison& comparison, const Workload& workload) {
  Json json = SetupJson(setup);
  json["interrupted"] = comparison.interrupted;
  json["rounds"] = comparison.rounds.size();
  json["settings"] = Json::array();
  const std::vector<SettingFigures> settings = comparison.Settings();
  for (size_t i = 0; i < settings.size(); ++i) {
    const SettingFigures& setting = settings[i];
    Json runs = Json::array();
    for (const std::vector<RunFigures>& round : comparison.rounds) runs.push_back(FiguresJson(round[i]));
    json["settings"].push_back({{"max_draft_tokens", setting.max_draft_tokens},
                                {"output_tokens_per_s", SpreadJson(setting.output_tokens_per_s)},
                                {"output_tokens_per_s_ratio", SpreadJson(setting.output_tokens_per_s_ratio)},
                                {"tpot_p50_ms", SpreadJson(setting.tpot_p50_ms)},
                                {"tpot_p50_ratio", SpreadJson(setting.tpot_p50_ratio)},
                                {"ttft_p50_ms", SpreadJson(setting.ttft_p50_ms)},
                                {"ttft_p50_ratio", SpreadJson(setting.ttft_p50_ratio)},
                                {"acceptance_rate", setting.speculation.acceptance_rate()},
                                {"acceptance_length", setting.speculation.acceptance_length()},
                                {"runs", std::move(runs)}});
  }
  Json differences = Json::array();
  for (const TokenAgreement::Difference& difference : comparison.tokens.differences()) {
    differences.push_back({{"index", difference.index},
                           {"request", workload.Item(difference.index).name},
                           {"run", difference.run},
                           {"other_run", difference.other_run}});
  }
  json["tokens"] = {{"compared_requests", comparison.tokens.compared()},
                    {"same_requests", comparison.tokens.agreed()},
                    {"incomplete_requests", comparison.tokens.incomplete()},
                    {"may_differ", comparison.TokensMayDiffer()},
                    {"differences", std::move(differences)}};
  return json.dump(2, ' ', false, Json::error_handler_t::replace);
}

}  // namespace foredraft
