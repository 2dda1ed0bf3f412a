#include "client/load/comparison_report.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/strip.h"
#include "base/grouped_digits.h"
#include "client/measure/table.h"

namespace foredraft {
namespace {

using Json = nlohmann::ordered_json;
using Kind = RunMetric::Column::Kind;

constexpr size_t kMaxDifferencesShown = 10;

std::string RangeText(const Summary& ratio) {
  return absl::StrFormat("%.2f (%.2f..%.2f)", ratio.p50, ratio.min, ratio.max);
}

std::string RatioText(const Summary& ratio) {
  if (ratio.count == 0) return "-";
  return absl::StrCat("x ", RangeText(ratio));
}

std::string SettingsTable(const Comparison& comparison) {
  std::vector<std::string> head = {"setting"};
  for (const ComparedMetric& compared : comparison.MetricsOf(0)) {
    head.push_back(compared.metric->column.heading);
    if (compared.metric->column.kind == Kind::kByRound) head.push_back("ratio (range)");
  }
  Table table(head);
  for (size_t i = 0; i < comparison.settings.size(); ++i) {
    std::vector<std::string> row = {comparison.settings[i].name};
    for (const ComparedMetric& compared : comparison.MetricsOf(i)) {
      const RunMetric::Text& text = compared.metric->text;
      const std::string number = NumberText(compared.value.p50, text.decimals, text.style);
      row.push_back(number.empty() ? "-" : number);
      if (compared.metric->column.kind == Kind::kByRound) {
        row.push_back(i == 0 ? "x 1" : RatioText(compared.ratio));
      }
    }
    table.Add(std::move(row));
  }
  return table.Text();
}

// A row per category over all rounds together; empty if settings completed different categories.
std::string CategoriesText(const Comparison& comparison) {
  std::vector<std::vector<CategoryStats>> all;
  std::vector<std::string> head = {"category"};
  for (size_t i = 0; i < comparison.settings.size(); ++i) {
    all.push_back(comparison.CategoriesOf(i));
    // Requests failed, which the errors say.
    if (!std::ranges::equal(all[i], all[0], {}, &CategoryStats::name, &CategoryStats::name)) return "";
    head.push_back(comparison.settings[i].name + " tok/s per user");
    head.push_back("length");
  }
  if (all[0].empty()) return "";
  Table table(head);
  for (size_t row = 0; row < all[0].size(); ++row) {
    std::vector<std::string> cells = {all[0][row].name};
    for (const std::vector<CategoryStats>& setting : all) {
      cells.push_back(Grouped(setting[row].output_tokens_per_s_per_user(), 1));
      cells.push_back(Grouped(setting[row].speculation.acceptance_length(), 2));
    }
    table.Add(std::move(cells));
  }
  return table.Text() + "\n";
}

// "question "a" (data.jsonl:4), turn 2": later turns of a chat are named by their number.
std::string RequestName(const TokenAgreement::Difference& difference, const Workload& workload) {
  const std::string name = workload.Item(difference.index).name;
  return difference.turn == 0 ? name : absl::StrCat(name, ", turn ", difference.turn + 1);
}

std::string TokensText(const Comparison& comparison, const Workload& workload) {
  const TokenAgreement& tokens = comparison.tokens;
  std::string line =
      absl::StrCat("the same in ", Grouped(tokens.agreed()), " of ", Grouped(tokens.compared()), " requests");
  if (tokens.incomplete() > 0) {
    absl::StrAppend(&line, "; ", Grouped(tokens.incomplete()), " did not complete in every run");
  }
  std::string text = TextRow("tokens", line);
  if (comparison.TokensMayDiffer()) {
    return text + TextRow("", "forced or relaxed acceptance is configured: they may differ");
  }
  const std::vector<TokenAgreement::Difference> differences = tokens.differences();
  for (size_t i = 0; i < std::min(differences.size(), kMaxDifferencesShown); ++i) {
    text +=
        TextRow("ERROR", absl::StrCat(RequestName(differences[i], workload), ": ", differences[i].other_run,
                                      " gave other tokens than ", differences[i].run));
  }
  if (differences.size() > kMaxDifferencesShown) {
    text +=
        TextRow("ERROR", absl::StrCat("and ", Grouped(differences.size() - kMaxDifferencesShown), " more"));
  }
  return text;
}

// Errors by setting, over all rounds, then warnings by run.
std::string ErrorsText(const Comparison& comparison) {
  std::string errors, warnings;
  for (size_t i = 0; i < comparison.settings.size(); ++i) {
    const std::string& setting = comparison.settings[i].name;
    std::vector<ErrorStats> by_code;
    for (size_t round = 0; round < comparison.rounds.size(); ++round) {
      const RunStats& run = comparison.rounds[round][i];
      const std::string name = absl::StrCat(setting, " round ", round + 1, ": ");
      for (const ErrorStats& error : run.errors) AddError(error, by_code);
      if (!run.gave_up.empty()) warnings += TextRow("gave up", name + run.gave_up);
      for (const std::string& warning : run.client.warnings) warnings += TextRow("warning", name + warning);
    }
    for (const ErrorStats& error : by_code) {
      errors += TextRow("  error", absl::StrCat(setting, ": ", Grouped(error.count), " ",
                                                absl::StatusCodeToString(error.code), ": ", error.message));
    }
  }
  if (!errors.empty()) errors += TextRow("warning", "requests failed: the settings did not do the same work");
  return errors + warnings;
}

Json SpreadJson(const Summary& summary) {
  return {{"median", summary.p50}, {"min", summary.min}, {"max", summary.max}};
}

// "output_tokens_per_s" and "output_tokens_per_s_ratio"; for a latency "tpot_p50_ms" and "tpot_p50_ratio".
void AddMetricJson(const ComparedMetric& compared, Json& json) {
  const std::string key = compared.metric->key;
  if (compared.metric->column.kind == Kind::kPooled) {
    json[key] = compared.value.p50;
    return;
  }
  const bool is_latency = compared.metric->text.line == kLatencyTable;
  const std::string stem = is_latency ? absl::StrCat(absl::StripSuffix(key, "_ms"), "_p50") : key;
  json[is_latency ? stem + "_ms" : key] = SpreadJson(compared.value);
  json[stem + "_ratio"] = SpreadJson(compared.ratio);
}

Json SettingsJson(const Comparison& comparison) {
  Json settings = Json::array();
  for (size_t i = 0; i < comparison.settings.size(); ++i) {
    const ComparisonSetting& setting = comparison.settings[i];
    Json json = {{"name", setting.name}};
    json["max_draft_tokens"] = setting.max_draft_tokens ? Json(*setting.max_draft_tokens) : Json(nullptr);
    for (const ComparedMetric& compared : comparison.MetricsOf(i)) AddMetricJson(compared, json);
    json["categories"] = CategoriesJson(comparison.CategoriesOf(i));
    json["runs"] = Json::array();
    for (const std::vector<RunStats>& round : comparison.rounds) json["runs"].push_back(RunJson(round[i]));
    settings.push_back(std::move(json));
  }
  return settings;
}

Json TokensJson(const Comparison& comparison, const Workload& workload) {
  Json differences = Json::array();
  for (const TokenAgreement::Difference& difference : comparison.tokens.differences()) {
    differences.push_back({{"index", difference.index},
                           {"turn", difference.turn},
                           {"request", RequestName(difference, workload)},
                           {"run", difference.run},
                           {"other_run", difference.other_run}});
  }
  return {{"compared_requests", comparison.tokens.compared()},
          {"same_requests", comparison.tokens.agreed()},
          {"incomplete_requests", comparison.tokens.incomplete()},
          {"may_differ", comparison.TokensMayDiffer()},
          {"differences", std::move(differences)}};
}

// Explains what "no drafts" means in this comparison: K=0, or a daemon without speculative_config.
std::string NoDraftsText(const ComparisonReport& report) {
  const auto& settings = report.comparison.settings;
  const bool has_k0 = std::any_of(settings.begin(), settings.end(),
                                  [](const auto& setting) { return setting.max_draft_tokens == 0; });
  std::string text;
  if (report.setup.server.model.max_draft_len() == 0) {
    text += TextRow("note", "the daemon has no speculative_config: it drafts nothing at any K");
  } else if (has_k0) {
    text +=
        TextRow("note", "K=0 drafts nothing, but each step still runs the drafter to keep its cache warm");
    if (!report.baseline) {
      text += TextRow("", "--baseline ADDRESS adds a daemon without speculative_config, which does not");
    }
  }
  if (report.baseline && report.baseline->model.max_draft_len() > 0) {
    text += TextRow("warning", "the daemon of --baseline has a speculative_config: it drafts too");
  }
  return text;
}

// Servers, load and rounds.
std::string ConditionsText(const ComparisonReport& report) {
  const Comparison& comparison = report.comparison;
  std::string text = TextRow("server", ServerText(report.setup.server));
  if (report.baseline) text += TextRow("baseline", ServerText(*report.baseline));
  text += SetupText(report.setup);
  text += TextRow("rounds",
                  absl::StrCat(comparison.rounds.size(), comparison.interrupted ? ", then interrupted" : "",
                               "; medians, and ratios to the first setting in the same round"));
  text +=
      TextRow("", "every daemon received the prompts once before, so all runs find the same prefix cache");
  return text + NoDraftsText(report);
}

// Which setting gives the most, and by how much.
std::string WinnerText(const Comparison& comparison) {
  // The best setting except the first, which has no ratio to itself.
  size_t best = 0;
  Summary ratio;
  for (size_t i = 1; i < comparison.settings.size(); ++i) {
    const Summary other = comparison.MetricsOf(i)[0].ratio;
    if (other.count == 0 || (best > 0 && other.p50 <= ratio.p50)) continue;
    best = i;
    ratio = other;
  }
  const std::string& first = comparison.settings[0].name;
  if (best == 0) return absl::StrCat(first, " gives the most output tok/s");
  const std::string gives = absl::StrFormat("%s gives %s times the output tok/s of %s",
                                            comparison.settings[best].name, RangeText(ratio), first);
  if (ratio.min < 1 && ratio.max > 1) return absl::StrCat("no clear difference: ", gives);
  return ratio.p50 > 1 ? gives : absl::StrCat(first, " gives the most output tok/s");
}

// The settings that were slower than the first setting in every round.
std::string LosersText(const Comparison& comparison) {
  std::string text;
  for (size_t i = 1; i < comparison.settings.size(); ++i) {
    const Summary ratio = comparison.MetricsOf(i)[0].ratio;
    if (ratio.count == 0 || ratio.max >= 1) continue;
    absl::StrAppend(&text, "; ", comparison.settings[i].name, " is clearly slower: ", RangeText(ratio));
  }
  return text;
}

}  // namespace

std::string TextReport(const ComparisonReport& report) {
  const Comparison& comparison = report.comparison;
  std::string text =
      absl::StrCat(ConditionsText(report), "\n", SettingsTable(comparison), "\n", CategoriesText(comparison),
                   ErrorsText(comparison), TokensText(comparison, report.workload));
  if (!comparison.AllFailed()) absl::StrAppend(&text, ResultText(comparison), "\n");
  return text;
}

std::string ResultText(const Comparison& comparison) {
  return absl::StrCat(WinnerText(comparison), LosersText(comparison));
}

std::string NotesText(const ComparisonReport& report) {
  return absl::StrCat(ConditionsText(report), ErrorsText(report.comparison),
                      TokensText(report.comparison, report.workload));
}

std::string JsonReport(const ComparisonReport& report) {
  const Comparison& comparison = report.comparison;
  Json json = SetupJson(report.setup);
  json["baseline"] = report.baseline ? ServerJson(*report.baseline) : Json(nullptr);
  json["interrupted"] = comparison.interrupted;
  json["rounds"] = comparison.rounds.size();
  json["settings"] = SettingsJson(comparison);
  json["tokens"] = TokensJson(comparison, report.workload);
  return json.dump(2, ' ', false, Json::error_handler_t::replace);
}

}  // namespace foredraft
