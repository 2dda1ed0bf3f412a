#include <cmath>

#include "absl/strings/str_cat.h"
#include "client/load/report.h"

namespace foredraft {
namespace {

using Json = nlohmann::ordered_json;

double Rounded(double value) { return std::round(value * 1e4) / 1e4; }

template <class T>
Json OrNull(const std::optional<T>& value) {
  return value ? Json(*value) : Json(nullptr);
}

// null where nothing was measured.
Json LatencyJson(const LatencySummary& latency) {
  if (latency.count == 0) return nullptr;
  return {{"count", latency.count},      {"mean", Rounded(latency.mean)}, {"p50", Rounded(latency.p50)},
          {"p90", Rounded(latency.p90)}, {"p99", Rounded(latency.p99)},   {"max", Rounded(latency.max)}};
}

Json SpeculationJson(const SpeculationFigures& speculation) {
  Json rates = Json::array();
  for (const int64_t accepted : speculation.accepted_per_position) {
    const double steps = static_cast<double>(speculation.steps);
    rates.push_back(steps > 0 ? Rounded(static_cast<double>(accepted) / steps) : 0);
  }
  return {{"steps", speculation.steps},
          {"draft_tokens", speculation.draft_tokens},
          {"accepted_tokens", speculation.accepted_tokens},
          {"acceptance_length", Rounded(speculation.acceptance_length())},
          {"acceptance_rate", Rounded(speculation.acceptance_rate())},
          {"accepted_per_position", speculation.accepted_per_position},
          {"acceptance_rate_per_position", std::move(rates)},
          {"relaxed_tokens", speculation.relaxed_tokens},
          {"forced", speculation.forced}};
}

Json SamplingJson(const v1::SamplingParams& sampling) {
  Json json = Json::object();
  const auto add = [&json](const char* key, bool given, auto value) {
    json[key] = given ? Json(Rounded(value)) : Json(nullptr);  // null: the checkpoint's own
  };
  add("temperature", sampling.has_temperature(), sampling.temperature());
  add("top_p", sampling.has_top_p(), sampling.top_p());
  add("top_k", sampling.has_top_k(), sampling.top_k());
  add("min_p", sampling.has_min_p(), sampling.min_p());
  add("repetition_penalty", sampling.has_repetition_penalty(), sampling.repetition_penalty());
  add("presence_penalty", sampling.has_presence_penalty(), sampling.presence_penalty());
  add("frequency_penalty", sampling.has_frequency_penalty(), sampling.frequency_penalty());
  return json;
}

}  // namespace

Json SetupJson(const BenchSetup& setup) {
  const LoadOptions& load = setup.load;
  const v1::GenerateRequest& request = load.request;
  Json json;
  json["server"] = {{"address", setup.address},
                    {"model", setup.model.name()},
                    {"backend", setup.model.backend()},
                    {"version", setup.model.version()},
                    {"numerics_class", setup.model.numerics_class()}};
  json["load"] = {{"mode", load.request_rate_per_s ? "open" : "closed"},
                  {"concurrency", load.concurrency > 0 ? Json(load.concurrency) : Json(nullptr)},
                  {"request_rate_per_s", OrNull(load.request_rate_per_s)},
                  {"num_requests", OrNull(load.request_count)},
                  {"duration_limit_s", OrNull(load.duration_s)},
                  {"warmup_requests", setup.warmup},
                  {"connections", setup.connections},
                  {"seed", load.seed},
                  {"prompts", setup.workload}};
  json["request"] = {
      {"max_draft_tokens", request.has_max_draft_tokens() ? Json(request.max_draft_tokens()) : Json(nullptr)},
      {"ignore_eos", request.ignore_eos()},
      {"strict_acceptance", request.strict_acceptance()},
      {"timeout_s", request.has_timeout_s() ? Json(request.timeout_s()) : Json(nullptr)},
      {"sampling", SamplingJson(request.sampling())}};
  return json;
}

Json FiguresJson(const RunFigures& figures) {
  Json json;
  json["duration_s"] = Rounded(figures.wall_s);
  json["interrupted"] = figures.interrupted;
  json["gave_up"] = figures.gave_up.empty() ? Json(nullptr) : Json(figures.gave_up);
  json["requests"] = {{"sent", figures.sent},
                      {"completed", figures.completed},
                      {"failed", figures.failed},
                      {"interrupted", figures.interrupted_requests}};
  json["errors"] = Json::array();
  for (const ErrorFigures& error : figures.errors) {
    json["errors"].push_back({{"status", absl::StatusCodeToString(error.code)},
                              {"count", error.count},
                              {"first_message", error.message}});
  }
  json["tokens"] = {{"input", figures.input_tokens},
                    {"cached_input", figures.cached_tokens},
                    {"output", figures.output_tokens}};
  json["throughput"] = {{"sent_requests_per_s", Rounded(figures.sent_per_s)},
                        {"requests_per_s", Rounded(figures.requests_per_s)},
                        {"input_tokens_per_s", Rounded(figures.input_tokens_per_s)},
                        {"output_tokens_per_s", Rounded(figures.output_tokens_per_s)}};
  json["ttft_ms"] = LatencyJson(figures.ttft_ms);
  json["tpot_ms"] = LatencyJson(figures.tpot_ms);
  json["inter_token_latency_ms"] = LatencyJson(figures.inter_token_ms);
  json["inter_chunk_latency_ms"] = LatencyJson(figures.inter_chunk_ms);
  json["e2e_latency_ms"] = LatencyJson(figures.e2e_ms);
  json["speculation"] = SpeculationJson(figures.speculation);
  json["client"] = {{"cpu_s", Rounded(figures.client.cpu_s)},
                    {"cpu_cores", Rounded(figures.client.cpu_cores)},
                    {"cpu_us_per_output_token", Rounded(figures.client.cpu_us_per_output_token)},
                    {"send_delay_ms", LatencyJson(figures.client.send_delay_ms)},
                    {"bottleneck", !figures.client.warnings.empty()},
                    {"warnings", figures.client.warnings}};
  return json;
}

std::string JsonReport(const BenchSetup& setup, const RunFigures& figures) {
  Json json = SetupJson(setup);
  json.update(FiguresJson(figures));
  return json.dump(2, ' ', false, Json::error_handler_t::replace);
}

}  // namespace foredraft
