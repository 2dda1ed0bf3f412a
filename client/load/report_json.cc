#include <cmath>

#include "absl/strings/str_cat.h"
#include "client/load/report.h"
#include "client/load/run_metrics.h"

namespace foredraft {
namespace {

using Json = nlohmann::ordered_json;

template <class T>
Json OrNull(const std::optional<T>& value) {
  return value ? Json(*value) : Json(nullptr);
}

Json ValueJson(int64_t value) { return value; }
Json ValueJson(double value) { return RoundedForJson(value); }
Json ValueJson(const Summary& summary) {
  if (summary.count == 0) return nullptr;
  Json json = {{"count", summary.count}};
  const auto add = [&json](const char* key, double value) { json[key] = RoundedForJson(value); };
  add("mean", summary.mean);
  add("p50", summary.p50);
  add("p90", summary.p90);
  add("p99", summary.p99);
  add("max", summary.max);
  return json;
}
template <class T>
Json ValueJson(const std::vector<T>& values) {
  Json json = Json::array();
  for (const T value : values) json.push_back(ValueJson(value));
  return json;
}

Json MetricJson(const RunMetric& metric, const RunStats& run) {
  return std::visit([](const auto& value) { return ValueJson(value); }, metric.value(run));
}

Json SamplingJson(const v1::SamplingParams& sampling) {
  Json json = Json::object();
  const auto add = [&json](const char* key, bool given, auto value) {
    json[key] = given ? Json(RoundedForJson(value)) : Json(nullptr);  // null: the checkpoint's default
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

double RoundedForJson(double value) { return std::round(value * 1e4) / 1e4; }

Json ServerJson(const MeasuredServer& server) {
  return {{"address", server.address},
          {"model", server.model.name()},
          {"backend", server.model.backend()},
          {"version", server.model.version()},
          {"numerics_class", server.model.numerics_class()},
          {"max_draft_len", server.model.max_draft_len()}};
}

Json SetupJson(const BenchSetup& setup) {
  const LoadOptions& load = setup.load;
  const v1::GenerateRequest& request = load.request;
  const std::string& effort = request.chat().reasoning_effort();
  Json json;
  json["server"] = ServerJson(setup.server);
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
      {"thinking", request.has_thinking() ? Json(request.thinking()) : Json(nullptr)},
      {"reasoning_effort", effort.empty() ? Json(nullptr) : Json(effort)},
      {"timeout_s", request.has_timeout_s() ? Json(request.timeout_s()) : Json(nullptr)},
      {"sampling", SamplingJson(request.sampling())}};
  return json;
}

Json CategoriesJson(const std::vector<CategoryStats>& categories) {
  Json json = Json::array();
  for (const CategoryStats& category : categories) {
    Json speculation = Json::object();
    for (const RunMetric& metric : RunMetrics()) {
      if (metric.object == std::string_view("speculation")) {
        speculation[metric.key] = MetricJson(metric, {.speculation = category.speculation});
      }
    }
    json.push_back({{"category", category.name},
                    {"completed_requests", category.completed},
                    {"output_tokens", category.output_tokens},
                    {"output_tokens_per_s_per_user", RoundedForJson(category.output_tokens_per_s_per_user())},
                    {"speculation", std::move(speculation)}});
  }
  return json;
}

Json RunJson(const RunStats& run) {
  Json json;
  json["interrupted"] = run.interrupted;
  json["gave_up"] = run.gave_up.empty() ? Json(nullptr) : Json(run.gave_up);
  json["errors"] = Json::array();
  for (const ErrorStats& error : run.errors) {
    json["errors"].push_back({{"status", absl::StatusCodeToString(error.code)},
                              {"count", error.count},
                              {"first_message", error.message}});
  }
  for (const RunMetric& metric : RunMetrics()) {
    Json& object = *metric.object == '\0' ? json : json[metric.object];
    object[metric.key] = MetricJson(metric, run);
  }
  json["categories"] = CategoriesJson(run.categories);
  json["speculation"]["forced"] = run.speculation.forced;
  json["client"]["bottleneck"] = !run.client.warnings.empty();
  json["client"]["warnings"] = run.client.warnings;
  return json;
}

std::string JsonReport(const BenchSetup& setup, const RunStats& run) {
  Json json = SetupJson(setup);
  json.update(RunJson(run));
  return json.dump(2, ' ', false, Json::error_handler_t::replace);
}

}  // namespace foredraft
