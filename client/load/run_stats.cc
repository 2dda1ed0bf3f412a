#include "client/load/run_stats.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_format.h"

namespace foredraft {
namespace {

// Above these the client may have been the bottleneck.
constexpr double kBusyCores = 0.8;
// p99 of the send delay. Open loop only: the first requests of a closed loop are all due at once.
constexpr double kLateMs = 10;

SpeculationStats StatsOf(const v1::Speculation& speculation) {
  return {.steps = speculation.steps(),
          .draft_tokens = speculation.draft_tokens(),
          .accepted_tokens = speculation.accepted_tokens(),
          .relaxed_tokens = speculation.relaxed_tokens(),
          .accepted_per_position = {speculation.accepted_per_position().begin(),
                                    speculation.accepted_per_position().end()},
          .forced = speculation.forced()};
}

CategoryStats CategoryOf(const MeasuredRequest& completed) {
  return {.name = completed.category,
          .completed = 1,
          .output_tokens = completed.output_tokens,
          .request_seconds = completed.output_tokens > 0 ? completed.last_token_s - completed.sent_s : 0,
          .speculation = StatsOf(completed.speculation)};
}

void Warn(ClientStats& client, bool open_loop) {
  if (client.cpu_cores > kBusyCores) {
    client.warnings.push_back(
        absl::StrFormat("the client kept %.2f cores busy (over %.1f): it may have limited what was measured",
                        client.cpu_cores, kBusyCores));
  }
  if (open_loop && client.send_delay_ms.p99 > kLateMs) {
    client.warnings.push_back(absl::StrFormat(
        "requests were sent %.1f ms late at p99 (over %.0f): the load was lighter than requested",
        client.send_delay_ms.p99, kLateMs));
  }
}

}  // namespace

void AddError(const ErrorStats& error, std::vector<ErrorStats>& errors) {
  for (ErrorStats& known : errors) {
    if (known.code != error.code) continue;
    known.count += error.count;
    return;
  }
  errors.push_back(error);
}

double CategoryStats::output_tokens_per_s_per_user() const {
  return request_seconds > 0 ? static_cast<double>(output_tokens) / request_seconds : 0;
}

void CategoryStats::Add(const CategoryStats& other) {
  completed += other.completed;
  output_tokens += other.output_tokens;
  request_seconds += other.request_seconds;
  speculation.Add(other.speculation);
}

void AddCategory(const CategoryStats& category, std::vector<CategoryStats>& categories) {
  const auto at =
      std::lower_bound(categories.begin(), categories.end(), category.name,
                       [](const CategoryStats& known, const std::string& name) { return known.name < name; });
  if (at != categories.end() && at->name == category.name) {
    at->Add(category);
  } else {
    categories.insert(at, category);
  }
}

void LatencySamples::Add(const MeasuredRequest& request) {
  if (request.outcome != RequestOutcome::kCompleted || request.output_tokens == 0) return;
  ttft_ms.push_back({(request.first_token_s - request.sent_s) * 1e3, 1});
  e2e_ms.push_back({(request.last_token_s - request.sent_s) * 1e3, 1});
  if (request.output_tokens > 1) {
    tpot_ms.push_back(
        {(request.last_token_s - request.first_token_s) * 1e3 / (request.output_tokens - 1), 1});
  }
  for (const ChunkGap& gap : request.gaps) {
    inter_chunk_ms.push_back({gap.gap_ms, 1});
    inter_token_ms.push_back({gap.gap_ms / gap.token_count, gap.token_count});
  }
}

void LatencySamples::Append(const LatencySamples& other) {
  const auto append = [](std::vector<WeightedSample>& to, const std::vector<WeightedSample>& from) {
    to.insert(to.end(), from.begin(), from.end());
  };
  append(ttft_ms, other.ttft_ms);
  append(tpot_ms, other.tpot_ms);
  append(inter_token_ms, other.inter_token_ms);
  append(inter_chunk_ms, other.inter_chunk_ms);
  append(e2e_ms, other.e2e_ms);
}

void SpeculationStats::Add(const SpeculationStats& other) {
  steps += other.steps;
  draft_tokens += other.draft_tokens;
  accepted_tokens += other.accepted_tokens;
  relaxed_tokens += other.relaxed_tokens;
  forced |= other.forced;
  accepted_per_position.resize(std::max(accepted_per_position.size(), other.accepted_per_position.size()));
  for (size_t i = 0; i < other.accepted_per_position.size(); ++i) {
    accepted_per_position[i] += other.accepted_per_position[i];
  }
}

double SpeculationStats::acceptance_length() const {
  return steps == 0 ? 1 : 1 + static_cast<double>(accepted_tokens) / static_cast<double>(steps);
}

double SpeculationStats::acceptance_rate() const {
  return draft_tokens == 0 ? 0 : static_cast<double>(accepted_tokens) / static_cast<double>(draft_tokens);
}

std::vector<double> SpeculationStats::acceptance_rate_per_position() const {
  std::vector<double> rates;
  for (const int64_t accepted : accepted_per_position) {
    rates.push_back(steps == 0 ? 0 : static_cast<double>(accepted) / static_cast<double>(steps));
  }
  return rates;
}

RunStats Evaluate(const LoadResult& result) {
  RunStats stats{.wall_s = result.wall_s, .interrupted = result.interrupted, .gave_up = result.gave_up};
  LatencySamples samples;
  std::vector<WeightedSample> send_delay_ms;
  int64_t received_tokens = 0;  // failed requests included: they cost the client CPU time too
  double last_sent_s = 0;
  for (const MeasuredRequest& request : result.requests) {
    ++stats.sent;
    last_sent_s = std::max(last_sent_s, request.sent_s);
    received_tokens += request.output_tokens;
    send_delay_ms.push_back({(request.sent_s - request.due_s) * 1e3, 1});
    if (request.outcome == RequestOutcome::kFailed) {
      ++stats.failed;
      AddError({.code = request.status.code(), .count = 1, .message = std::string(request.status.message())},
               stats.errors);
      continue;
    }
    stats.input_tokens += request.usage.prompt_tokens();
    stats.cached_tokens += request.usage.cached_tokens();
    stats.output_tokens += request.output_tokens;
    stats.speculation.Add(StatsOf(request.speculation));
    if (request.outcome == RequestOutcome::kInterrupted) {
      ++stats.interrupted_requests;
    } else {
      ++stats.completed;
      samples.Add(request);
      if (!request.category.empty()) AddCategory(CategoryOf(request), stats.categories);
    }
  }
  std::stable_sort(stats.errors.begin(), stats.errors.end(),
                   [](const ErrorStats& a, const ErrorStats& b) { return a.count > b.count; });
  const auto per_second = [&result](int64_t count) {
    return result.wall_s > 0 ? static_cast<double>(count) / result.wall_s : 0;
  };
  stats.sent_per_s = last_sent_s > 0 ? static_cast<double>(stats.sent - 1) / last_sent_s : 0;
  stats.requests_per_s = per_second(stats.completed);
  stats.input_tokens_per_s = per_second(stats.input_tokens);
  stats.output_tokens_per_s = per_second(stats.output_tokens);
  stats.ttft_ms = Summarize(std::move(samples.ttft_ms));
  stats.tpot_ms = Summarize(std::move(samples.tpot_ms));
  stats.inter_token_ms = Summarize(std::move(samples.inter_token_ms));
  stats.inter_chunk_ms = Summarize(std::move(samples.inter_chunk_ms));
  stats.e2e_ms = Summarize(std::move(samples.e2e_ms));
  ClientStats& client = stats.client;
  client.cpu_s = result.cpu_s;
  client.cpu_cores = result.wall_s > 0 ? result.cpu_s / result.wall_s : 0;
  client.cpu_us_per_output_token =
      received_tokens > 0 ? result.cpu_s * 1e6 / static_cast<double>(received_tokens) : 0;
  client.send_delay_ms = Summarize(std::move(send_delay_ms));
  if (received_tokens > 0) Warn(client, result.open_loop);
  return stats;
}

}  // namespace foredraft
