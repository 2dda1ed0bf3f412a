#include "client/top_frame.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/grouped_digits.h"
#include "base/visible_text.h"

namespace foredraft {
namespace {

using Style = TopSpan::Style;

constexpr size_t kSamples = 11;      // ten intervals
constexpr size_t kTokenRates = 240;  // more than a screen is wide
constexpr int kHeadingWidth = 12;
constexpr int kBarWidth = 24;
constexpr char kTokens[] = "foredraft_generation_tokens_total";

// Counts the bytes that begin a UTF-8 character: every character of a frame takes one column.
int Columns(std::string_view text) {
  return static_cast<int>(
      std::count_if(text.begin(), text.end(), [](char byte) { return (byte & 0xC0) != 0x80; }));
}

std::string Repeat(std::string_view text, int count) {
  std::string out;
  for (int i = 0; i < count; ++i) out += text;
  return out;
}

// A bar of kBarWidth columns, in eighths of a column.
TopLine Bar(double share) {
  static constexpr const char* kEighths[] = {"", "▏", "▎", "▍", "▌", "▋", "▊", "▉"};
  const int eighths = static_cast<int>(std::lround(std::clamp(share, 0.0, 1.0) * kBarWidth * 8));
  const std::string full = absl::StrCat(Repeat("█", eighths / 8), kEighths[eighths % 8]);
  return {{.text = full, .style = share > 0.9 ? Style::kBad : Style::kGood},
          {.text = Repeat("·", kBarWidth - Columns(full)), .style = Style::kDim}};
}

std::string Sparkline(const std::deque<double>& values, int width) {
  static constexpr const char* kLevels[] = {"▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"};
  const size_t count = std::min(values.size(), static_cast<size_t>(std::max(width, 0)));
  const auto first = values.end() - static_cast<std::ptrdiff_t>(count);
  const double most = count == 0 ? 0 : *std::max_element(first, values.end());
  std::string out;
  for (auto value = first; value != values.end(); ++value) {
    out += kLevels[most > 0 ? std::lround(*value / most * 7) : 0];
  }
  return out;
}

std::string Number(const std::optional<double>& number, int decimals) {
  return number ? Grouped(*number, decimals) : "-";
}

std::optional<double> Ratio(const std::optional<double>& part, const std::optional<double>& whole) {
  if (!part || !whole || *whole <= 0) return std::nullopt;
  return *part / *whole;
}

std::string Percent(const std::optional<double>& share) {
  return share ? absl::StrFormat("%5.1f%%", 100 * *share) : "     -";
}

TopLine Headed(const std::string& heading, TopLine rest) {
  TopLine line = {
      {.text = absl::StrCat(heading, std::string(std::max(1, kHeadingWidth - Columns(heading)), ' ')),
       .style = Style::kDim}};
  line.insert(line.end(), rest.begin(), rest.end());
  return line;
}

TopLine Share(const std::string& heading, int64_t part, int64_t whole, const std::string& after) {
  if (whole <= 0) return Headed(heading, {{Grouped(part)}});
  TopLine line = Bar(static_cast<double>(part) / static_cast<double>(whole));
  line.push_back({absl::StrCat("  ", Grouped(part), " of ", Grouped(whole), after)});
  return Headed(heading, std::move(line));
}

// The mean of a histogram over the history, in milliseconds.
std::optional<double> MeanMs(const TopHistory& history, const std::string& name,
                             const MetricsPage::Labels& labels = {}) {
  const std::optional<double> mean =
      Ratio(history.Growth(absl::StrCat("foredraft_", name, "_sum"), labels),
            history.Growth(absl::StrCat("foredraft_", name, "_count"), labels));
  return mean ? std::optional<double>(*mean * 1e3) : std::nullopt;
}

TopLine TitleLine(const TopServer& server, const TopSample& now) {
  const bool serves = now.error.empty() && now.load.state() == "serving";
  return {{.text = absl::StrCat("foredraft ", server.model.version()), .style = Style::kBold},
          {absl::StrCat("   ", server.model.name(), " at ", server.address, "   ", server.model.backend(),
                        "   ")},
          {.text = now.error.empty() ? now.load.state() : "no answer",
           .style = serves ? Style::kGood : Style::kBad}};
}

void AddLoad(const TopServer& server, const v1::GetLoadResponse& load, std::vector<TopLine>& frame) {
  frame.push_back(Headed(
      "requests", {{absl::StrFormat("%d running   %d waiting   %d swapped out   %d calls open",
                                    load.running(), load.waiting(), load.swapped(), load.open_streams())}}));
  frame.push_back(Share("slots", load.slots_used(), server.slots, ""));
  const int64_t blocks = load.blocks_used() + load.blocks_free() + load.blocks_cached();
  frame.push_back(Share("KV blocks", load.blocks_used(), blocks,
                        absl::StrCat(", ", Grouped(load.blocks_cached()), " cached")));
}

void AddThroughput(const TopHistory& history, int width, std::vector<TopLine>& frame) {
  const std::string rate = absl::StrFormat("%9s  ", Number(history.LastRate(kTokens), 1));
  frame.push_back(
      Headed("tokens/s", {{.text = rate, .style = Style::kBold},
                          {.text = Sparkline(history.token_rates(), width - kHeadingWidth - Columns(rate)),
                           .style = Style::kGood}}));
  const MetricsPage& page = *history.newest().metrics;
  const std::optional<double> cached = Ratio(history.Growth("foredraft_prefix_cache_hit_tokens_total"),
                                             history.Growth("foredraft_prefix_cache_queried_tokens_total"));
  frame.push_back(Headed(
      "prompt/s",
      {{absl::StrFormat("%9s  %s of it cached   since the start: %s tokens, %s requests",
                        Number(history.LastRate("foredraft_prompt_tokens_total"), 1), Percent(cached),
                        Number(page.Sum(kTokens), 0), Number(page.Sum("foredraft_requests_total"), 0))}}));
}

void AddDrafts(const TopServer& server, const TopHistory& history, std::vector<TopLine>& frame) {
  const int draft_len = history.newest().load.draft_len();
  if (server.model.max_draft_len() == 0) {
    frame.push_back(Headed("drafts", {{"none: the daemon has no speculative_config"}}));
    return;
  }
  const std::optional<double> accepted = history.Growth("foredraft_spec_decode_accepted_tokens_total");
  const std::optional<double> steps = history.Growth("foredraft_spec_decode_drafts_total");
  const std::optional<double> per_step = Ratio(accepted, steps);
  TopLine line = {
      {absl::StrFormat("K %d   %s accepted   acceptance length %s", draft_len,
                       Percent(Ratio(accepted, history.Growth("foredraft_spec_decode_draft_tokens_total"))),
                       per_step ? absl::StrFormat("%.2f", 1 + *per_step) : "-")}};
  if (history.newest().metrics->Sum("foredraft_spec_decode_forced").value_or(0) > 0) {
    line.push_back({.text = "   FORCED: not the model's tokens", .style = Style::kBad});
  }
  frame.push_back(Headed("drafts", std::move(line)));
  for (int position = 1; position <= server.model.max_draft_len(); ++position) {
    const std::optional<double> share =
        Ratio(history.Growth("foredraft_spec_decode_accepted_tokens_per_position_total",
                             {{"position", absl::StrCat(position)}}),
              steps);
    TopLine bar = Bar(share.value_or(0));
    bar[0].style = Style::kGood;
    bar.push_back({absl::StrCat(" ", Percent(share), " of steps accept draft ", position)});
    frame.push_back(Headed(absl::StrCat("  draft ", position), std::move(bar)));
  }
}

void AddTimes(const TopHistory& history, std::vector<TopLine>& frame) {
  frame.push_back(
      Headed("latency, ms", {{absl::StrFormat("first token %s   per token %s   queue %s   whole request %s",
                                              Number(MeanMs(history, "time_to_first_token_seconds"), 1),
                                              Number(MeanMs(history, "time_per_output_token_seconds"), 2),
                                              Number(MeanMs(history, "queue_duration_seconds"), 1),
                                              Number(MeanMs(history, "e2e_request_duration_seconds"), 1))}}));
  const std::optional<double> batch = Ratio(history.Growth("foredraft_step_batch_size_sum"),
                                            history.Growth("foredraft_step_batch_size_count"));
  frame.push_back(
      Headed("step, ms",
             {{absl::StrFormat("decode %s   prefill %s   sequences per step %s",
                               Number(MeanMs(history, "step_duration_seconds", {{"kind", "decode"}}), 2),
                               Number(MeanMs(history, "step_duration_seconds", {{"kind", "prefill"}}), 2),
                               Number(batch, 1))}}));
}

// A row per rank, where there are several.
void AddRanks(const TopHistory& history, std::vector<TopLine>& frame) {
  const MetricsPage& page = *history.newest().metrics;
  const std::vector<std::string> ranks = page.ValuesOf("foredraft_kv_cache_usage_ratio", "rank");
  if (ranks.size() < 2) return;
  frame.push_back({});
  frame.push_back({{.text = absl::StrFormat("%-*s%-*s%8s%10s%12s", kHeadingWidth, "rank", kBarWidth + 8,
                                            "KV cache", "running", "prompt/s", "decode, ms"),
                    .style = Style::kDim}});
  for (const std::string& rank : ranks) {
    const MetricsPage::Labels of_rank = {{"rank", rank}};
    const std::optional<double> usage = page.Sum("foredraft_kv_cache_usage_ratio", of_rank);
    const std::optional<double> decode_s =
        page.Sum("foredraft_rank_step_seconds", {{"rank", rank}, {"kind", "decode"}});
    TopLine line = Bar(usage.value_or(0));
    line.push_back({absl::StrFormat(
        " %s%9s%10s%12s", Percent(usage), Number(page.Sum("foredraft_requests_running", of_rank), 0),
        Number(history.LastRate("foredraft_prefill_tokens_total", of_rank), 1),
        Number(decode_s ? std::optional<double>(*decode_s * 1e3) : std::nullopt, 2))});
    frame.push_back(Headed(absl::StrCat("  ", rank), std::move(line)));
  }
}

std::string_view EscapeOf(Style style) {
  switch (style) {
    case Style::kPlain:
      return "";
    case Style::kBold:
      return "\x1b[1m";
    case Style::kDim:
      return "\x1b[2m";
    case Style::kGood:
      return "\x1b[32m";
    case Style::kBad:
      return "\x1b[31m";
  }
  return "";
}

// The first `columns` characters.
std::string_view Cut(std::string_view text, int columns) {
  size_t end = 0;
  while (end < text.size() && (columns > 0 || (text[end] & 0xC0) == 0x80)) {
    if ((text[end] & 0xC0) != 0x80) --columns;
    ++end;
  }
  return text.substr(0, end);
}

}  // namespace

void TopHistory::Add(TopSample sample) {
  const bool answered = sample.error.empty() && sample.metrics.has_value();
  if (!samples_.empty()) {
    const TopSample& before = samples_.back();
    // Counters that fell show that the daemon began anew.
    const bool goes_on = answered && before.error.empty() && before.metrics.has_value() &&
                         sample.metrics->Sum(kTokens).value_or(0) >= before.metrics->Sum(kTokens).value_or(0);
    if (!goes_on) samples_.clear();
  }
  samples_.push_back(std::move(sample));
  if (samples_.size() > kSamples) samples_.pop_front();
  if (const std::optional<double> rate = LastRate(kTokens)) token_rates_.push_back(*rate);
  if (token_rates_.size() > kTokenRates) token_rates_.pop_front();
}

double TopHistory::seconds() const {
  return std::chrono::duration<double>(samples_.back().time - samples_.front().time).count();
}

std::optional<double> TopHistory::GrowthSince(const TopSample& before, const std::string& name,
                                              const MetricsPage::Labels& labels) const {
  const TopSample& now = samples_.back();
  if (&before == &now || !now.metrics || !before.metrics) return std::nullopt;
  const std::optional<double> value = now.metrics->Sum(name, labels);
  if (!value) return std::nullopt;
  return *value - before.metrics->Sum(name, labels).value_or(0);
}

std::optional<double> TopHistory::Growth(const std::string& name, const MetricsPage::Labels& labels) const {
  return GrowthSince(samples_.front(), name, labels);
}

std::optional<double> TopHistory::LastRate(const std::string& name, const MetricsPage::Labels& labels) const {
  if (samples_.size() < 2) return std::nullopt;
  const TopSample& before = samples_[samples_.size() - 2];
  const double seconds = std::chrono::duration<double>(samples_.back().time - before.time).count();
  const std::optional<double> growth = GrowthSince(before, name, labels);
  return growth && seconds > 0 ? std::optional<double>(*growth / seconds) : std::nullopt;
}

std::vector<TopLine> TopFrame(const TopServer& server, const TopHistory& history, int width) {
  const TopSample& now = history.newest();
  std::vector<TopLine> frame = {TitleLine(server, now), {}};
  if (!now.error.empty()) {
    frame.push_back({{.text = now.error, .style = Style::kBad}});
    return frame;
  }
  if (now.metrics) AddThroughput(history, width, frame);
  AddLoad(server, now.load, frame);
  frame.push_back({});
  if (!now.metrics) {
    frame.push_back(Headed("drafts", {{absl::StrCat("K ", now.load.draft_len())}}));
    frame.push_back({{.text = absl::StrCat("no rates: ", now.metrics_error), .style = Style::kBad}});
    return frame;
  }
  AddDrafts(server, history, frame);
  frame.push_back({});
  AddTimes(history, frame);
  AddRanks(history, frame);
  frame.push_back({});
  frame.push_back({{.text = absl::StrFormat("tokens/s: last interval; drafts and times: last %.0f s; %s",
                                            history.seconds(), server.metrics_address),
                    .style = Style::kDim}});
  return frame;
}

std::string TopText(const TopLine& line, int width, bool colour) {
  std::string out;
  for (const TopSpan& span : line) {
    const std::string visible = VisibleText(span.text);
    const std::string_view text = Cut(visible, width);
    if (text.empty()) continue;
    width -= Columns(text);
    const std::string_view escape = colour ? EscapeOf(span.style) : "";
    absl::StrAppend(&out, std::string(escape), std::string(text), escape.empty() ? "" : "\x1b[0m");
  }
  return out;
}

}  // namespace foredraft
