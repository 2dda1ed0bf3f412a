#include "client/generate_report.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "base/visible_text.h"
#include "client/measure/table.h"

namespace foredraft {
namespace {

using Json = nlohmann::ordered_json;

double Rounded(double value) { return std::round(value * 1000) / 1000; }

using TokenTextMap = std::map<int32_t, std::string>;

// {"token_id": 5, "token": " a", "logprob": -0.1}; without `token` where the text is not known.
template <class Logprob>
Json TokenJson(const Logprob& logprob, const TokenTextMap& texts) {
  Json json = {{"token_id", logprob.token_id()}};
  if (const auto text = texts.find(logprob.token_id()); text != texts.end()) json["token"] = text->second;
  json["logprob"] = logprob.logprob();
  return json;
}

Json LogprobsJson(const v1::GenerateChunk& whole, const TokenTextMap& texts) {
  Json all = Json::array();
  for (const v1::TokenLogprob& logprob : whole.logprobs()) {
    Json top = Json::array();
    for (const v1::TopLogprob& one : logprob.top()) top.push_back(TokenJson(one, texts));
    Json json = TokenJson(logprob, texts);
    json["top"] = std::move(top);
    all.push_back(std::move(json));
  }
  return all;
}

Json OriginsJson(const v1::GenerateChunk& whole) {
  Json all = Json::array();
  for (const int origin : whole.token_origins()) {
    all.push_back(origin == v1::TOKEN_ORIGIN_FIRST     ? Json("first")
                  : origin == v1::TOKEN_ORIGIN_TARGET  ? Json("target")
                  : origin == v1::TOKEN_ORIGIN_DRAFTED ? Json("drafted")
                                                       : Json(nullptr));
  }
  return all;
}

// What a column shows of a token: its text in quotes, or its id if it has no text.
std::string TokenCell(int32_t id, const TokenTextMap& texts) {
  const auto text = texts.find(id);
  if (text == texts.end() || text->second.empty()) return absl::StrCat("#", id);
  return VisibleText(Json(text->second).dump(-1, ' ', false, Json::error_handler_t::replace));
}

// "-0.105"; "0.000", without a sign, for a token of probability 1.
std::string LogprobCell(double logprob) { return absl::StrFormat("%.3f", Rounded(logprob) + 0.0); }

}  // namespace

void GenerateReport::Add(const v1::GenerateChunk& chunk) {
  if (!chunk.token_ids().empty()) {
    last_token_ = Clock::now();
    if (whole_.token_ids().empty()) first_token_ = last_token_;
  }
  // Text, thinking, calls and fields with a value per token are deltas. Other fields replace their value in
  // earlier chunks.
  whole_.mutable_text()->append(chunk.text());
  whole_.mutable_thinking()->append(chunk.thinking());
  whole_.mutable_tool_calls()->MergeFrom(chunk.tool_calls());
  whole_.mutable_token_ids()->MergeFrom(chunk.token_ids());
  whole_.mutable_token_origins()->MergeFrom(chunk.token_origins());
  whole_.mutable_logprobs()->MergeFrom(chunk.logprobs());
  if (!chunk.request_id().empty()) whole_.set_request_id(chunk.request_id());
  if (!chunk.finish_reason().empty()) whole_.set_finish_reason(chunk.finish_reason());
  if (chunk.has_matched_stop()) whole_.set_matched_stop(chunk.matched_stop());
  if (chunk.has_matched_stop_token_id()) whole_.set_matched_stop_token_id(chunk.matched_stop_token_id());
  if (chunk.has_seed()) whole_.set_seed(chunk.seed());
  if (chunk.has_usage()) *whole_.mutable_usage() = chunk.usage();
  if (chunk.has_speculation()) *whole_.mutable_speculation() = chunk.speculation();
  if (chunk.has_timing()) *whole_.mutable_timing() = chunk.timing();
}

void GenerateReport::End(const std::string& reason) {
  if (!whole_.finish_reason().empty()) return;
  whole_.set_finish_reason(reason);
  // The last chunk, which has the timing, is missing: only the client's clock is left.
  own_times_ = true;
  const auto since_start_ms = [this](Clock::time_point time) {
    return std::chrono::duration<double, std::milli>(time - start_).count();
  };
  const int tokens = whole_.token_ids_size();
  v1::Timing& timing = *whole_.mutable_timing();
  timing.set_ttft_ms(since_start_ms(first_token_));
  timing.set_total_ms(since_start_ms(tokens > 0 ? last_token_ : Clock::now()));
  const double after_first_ms = timing.total_ms() - timing.ttft_ms();
  if (tokens > 1 && after_first_ms > 0) timing.set_tokens_per_second((tokens - 1) / after_first_ms * 1e3);
  if (!whole_.has_speculation()) whole_.mutable_speculation()->set_acceptance_length(1);
}

std::set<int32_t> GenerateReport::logprob_ids() const {
  std::set<int32_t> ids;
  for (const v1::TokenLogprob& logprob : whole_.logprobs()) {
    ids.insert(logprob.token_id());
    for (const v1::TopLogprob& one : logprob.top()) ids.insert(one.token_id());
  }
  return ids;
}

std::string GenerateReport::Json() const {
  const v1::Usage& usage = whole_.usage();
  const v1::Speculation& speculation = whole_.speculation();
  const v1::Timing& timing = whole_.timing();
  foredraft::Json json;
  json["request_id"] = whole_.request_id();
  json["text"] = whole_.text();
  json["thinking"] = whole_.thinking();
  json["tool_calls"] = foredraft::Json::array();
  for (const v1::ToolCall& call : whole_.tool_calls()) {
    json["tool_calls"].push_back({{"id", call.id()}, {"name", call.name()}, {"arguments", call.arguments()}});
  }
  json["token_ids"] = std::vector<int32_t>(whole_.token_ids().begin(), whole_.token_ids().end());
  json["token_origins"] = OriginsJson(whole_);
  json["finish_reason"] = whole_.finish_reason();
  json["matched_stop"] = nullptr;
  if (whole_.has_matched_stop()) json["matched_stop"] = whole_.matched_stop();
  if (whole_.has_matched_stop_token_id()) json["matched_stop"] = whole_.matched_stop_token_id();
  json["seed"] = whole_.seed();
  json["logprobs"] = LogprobsJson(whole_, token_texts_);
  json["usage"] = {{"prompt_tokens", usage.prompt_tokens()},
                   {"completion_tokens", usage.completion_tokens()},
                   {"cached_tokens", usage.cached_tokens()},
                   {"thinking_tokens", usage.thinking_tokens()}};
  json["speculation"] = {
      {"steps", speculation.steps()},
      {"draft_tokens", speculation.draft_tokens()},
      {"accepted_tokens", speculation.accepted_tokens()},
      {"acceptance_length", Rounded(speculation.acceptance_length())},
      {"accepted_per_position", std::vector<int32_t>(speculation.accepted_per_position().begin(),
                                                     speculation.accepted_per_position().end())},
      {"accepted_histogram", std::vector<int32_t>(speculation.accepted_histogram().begin(),
                                                  speculation.accepted_histogram().end())},
      {"relaxed_tokens", speculation.relaxed_tokens()},
      {"drafts_outside_grammar", speculation.drafts_outside_grammar()},
      {"forced_drafts", speculation.forced_drafts()},
      {"forced", speculation.forced()}};
  json["timing"] = {{"queue_ms", Rounded(timing.queue_ms())},
                    {"ttft_ms", Rounded(timing.ttft_ms())},
                    {"total_ms", Rounded(timing.total_ms())},
                    {"tokens_per_second", Rounded(timing.tokens_per_second())}};
  return json.dump(-1, ' ', false, foredraft::Json::error_handler_t::replace);
}

std::string GenerateReport::Summary() const {
  const v1::Usage& usage = whole_.usage();
  const v1::Speculation& speculation = whole_.speculation();
  const v1::Timing& timing = whole_.timing();
  if (whole_.token_ids().empty()) {
    return absl::StrFormat("%s   no token within %.1f ms", whole_.finish_reason(), timing.total_ms());
  }
  std::string text = absl::StrFormat(
      "%s   %d tokens (%d thinking) after %d of prompt (%d cached)   first %.1f ms, total %.1f ms, %.1f "
      "tok/s%s\n",
      whole_.finish_reason(), usage.completion_tokens(), usage.thinking_tokens(), usage.prompt_tokens(),
      usage.cached_tokens(), timing.ttft_ms(), timing.total_ms(), timing.tokens_per_second(),
      own_times_ ? " (by this client's clock)" : "");
  if (speculation.draft_tokens() > 0) {
    absl::StrAppendFormat(&text, "drafts %d of %d accepted, %.1f%% (by position %s)   acceptance length %.2f",
                          speculation.accepted_tokens(), speculation.draft_tokens(),
                          100.0 * speculation.accepted_tokens() / speculation.draft_tokens(),
                          absl::StrJoin(speculation.accepted_per_position(), " "),
                          speculation.acceptance_length());
  } else {
    text += "drafts none";
  }
  if (speculation.relaxed_tokens() > 0) {
    absl::StrAppendFormat(&text, "   relaxed %d", speculation.relaxed_tokens());
  }
  if (speculation.forced()) text += "   FORCED: not the model's tokens";
  absl::StrAppendFormat(&text, "   seed %u   request %s", whole_.seed(), whole_.request_id());
  return text;
}

std::string GenerateReport::LogprobsTable() const {
  size_t most = 0;
  for (const v1::TokenLogprob& token : whole_.logprobs()) most = std::max<size_t>(most, token.top_size());
  std::vector<std::string> head = {"token", "logprob"};
  for (size_t i = 0; i < most; ++i) head.push_back(absl::StrCat("top ", i + 1));
  Table table(head);
  for (const v1::TokenLogprob& token : whole_.logprobs()) {
    std::vector<std::string> row = {TokenCell(token.token_id(), token_texts_), LogprobCell(token.logprob())};
    for (const v1::TopLogprob& top : token.top()) {
      row.push_back(absl::StrCat(TokenCell(top.token_id(), token_texts_), " ", LogprobCell(top.logprob())));
    }
    row.resize(head.size());
    table.Add(std::move(row));
  }
  return table.Text();
}

}  // namespace foredraft
