#include "client/load/statistics.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_format.h"
#include "base/check.h"

namespace foredraft {
namespace {

constexpr double kBusyCores = 0.8;  // more: the client was short of time
constexpr double kLateMs = 10;  // p99 of an open loop's send delay. A closed loop has none to keep: its first
                                // requests are all due at once

// Sorted samples with running counts, asked by rank as if every sample stood there `weight` times.
class Ranked {
 public:
  explicit Ranked(std::vector<WeightedSample> samples) : samples_(std::move(samples)) {
    std::sort(samples_.begin(), samples_.end(),
              [](const WeightedSample& a, const WeightedSample& b) { return a.value < b.value; });
    for (const WeightedSample& sample : samples_) ends_.push_back(count_ += sample.weight);
  }

  int64_t count() const { return count_; }
  double max() const { return samples_.back().value; }
  double Percentile(double percent) const {
    const double rank = percent / 100 * static_cast<double>(count_ - 1);
    const int64_t below = static_cast<int64_t>(rank);
    const double low = At(below), high = At(std::min(below + 1, count_ - 1));
    return low + (high - low) * (rank - static_cast<double>(below));
  }

 private:
  double At(int64_t rank) const {
    return samples_[std::upper_bound(ends_.begin(), ends_.end(), rank) - ends_.begin()].value;
  }

  std::vector<WeightedSample> samples_;
  std::vector<int64_t> ends_;  // of each sample, the count of all up to it
  int64_t count_ = 0;
};

void AddSpeculation(const v1::Speculation& one, SpeculationFigures& all) {
  all.steps += one.steps();
  all.draft_tokens += one.draft_tokens();
  all.accepted_tokens += one.accepted_tokens();
  all.relaxed_tokens += one.relaxed_tokens();
  all.forced |= one.forced();
  const size_t positions =
      std::max<size_t>(all.accepted_per_position.size(), one.accepted_per_position_size());
  all.accepted_per_position.resize(positions);
  for (int i = 0; i < one.accepted_per_position_size(); ++i) {
    all.accepted_per_position[i] += one.accepted_per_position(i);
  }
}

void AddError(const absl::Status& status, std::vector<ErrorFigures>& errors) {
  for (ErrorFigures& error : errors) {
    if (error.code != status.code()) continue;
    ++error.count;
    return;
  }
  errors.push_back({.code = status.code(), .count = 1, .message = std::string(status.message())});
}

struct Samples {
  std::vector<WeightedSample> ttft_ms, tpot_ms, inter_token_ms, inter_chunk_ms, e2e_ms, send_delay_ms;
};

void AddLatencies(const MeasuredRequest& request, Samples& samples) {
  if (request.output_tokens == 0) return;
  samples.ttft_ms.push_back({(request.first_token_s - request.sent_s) * 1e3, 1});
  samples.e2e_ms.push_back({(request.last_token_s - request.sent_s) * 1e3, 1});
  if (request.output_tokens > 1) {
    samples.tpot_ms.push_back(
        {(request.last_token_s - request.first_token_s) * 1e3 / (request.output_tokens - 1), 1});
  }
  for (const ChunkGap& gap : request.gaps) {
    samples.inter_chunk_ms.push_back({gap.gap_ms, 1});
    samples.inter_token_ms.push_back({gap.gap_ms / gap.token_count, gap.token_count});
  }
}

void Warn(ClientFigures& client, bool open_loop) {
  if (client.cpu_cores > kBusyCores) {
    client.warnings.push_back(
        absl::StrFormat("the client kept %.2f cores busy (over %.1f): what is measured may be the client",
                        client.cpu_cores, kBusyCores));
  }
  if (open_loop && client.send_delay_ms.p99 > kLateMs) {
    client.warnings.push_back(absl::StrFormat(
        "requests left %.1f ms late at p99 (over %.0f): the load was not quite the one asked for",
        client.send_delay_ms.p99, kLateMs));
  }
}

}  // namespace

LatencySummary Summarize(std::vector<WeightedSample> samples) {
  if (samples.empty()) return {};
  LatencySummary summary;
  double sum = 0;
  for (const WeightedSample& sample : samples) sum += sample.value * static_cast<double>(sample.weight);
  const Ranked ranked(std::move(samples));
  summary.count = ranked.count();
  summary.mean = sum / static_cast<double>(summary.count);
  summary.p50 = ranked.Percentile(50);
  summary.p90 = ranked.Percentile(90);
  summary.p99 = ranked.Percentile(99);
  summary.max = ranked.max();
  return summary;
}

double Median(std::vector<double> values) {
  CHECK(!values.empty());
  std::vector<WeightedSample> samples;
  for (const double value : values) samples.push_back({value, 1});
  return Summarize(std::move(samples)).p50;
}

double SpeculationFigures::acceptance_length() const {
  return steps == 0 ? 1 : 1 + static_cast<double>(accepted_tokens) / static_cast<double>(steps);
}

double SpeculationFigures::acceptance_rate() const {
  return draft_tokens == 0 ? 0 : static_cast<double>(accepted_tokens) / static_cast<double>(draft_tokens);
}

RunFigures Evaluate(const LoadResult& result) {
  RunFigures figures{.wall_s = result.wall_s, .interrupted = result.interrupted, .gave_up = result.gave_up};
  Samples samples;
  int64_t received_tokens = 0;  // by failed requests too: they cost the client as much
  double last_sent_s = 0;
  for (const MeasuredRequest& request : result.requests) {
    ++figures.sent;
    last_sent_s = std::max(last_sent_s, request.sent_s);
    received_tokens += request.output_tokens;
    samples.send_delay_ms.push_back({(request.sent_s - request.due_s) * 1e3, 1});
    if (request.outcome == RequestOutcome::kFailed) {
      ++figures.failed;
      AddError(request.status, figures.errors);
      continue;
    }
    figures.input_tokens += request.usage.prompt_tokens();
    figures.cached_tokens += request.usage.cached_tokens();
    figures.output_tokens += request.output_tokens;
    AddSpeculation(request.speculation, figures.speculation);
    if (request.outcome == RequestOutcome::kInterrupted) {
      ++figures.interrupted_requests;
    } else {
      ++figures.completed;
      AddLatencies(request, samples);
    }
  }
  std::stable_sort(figures.errors.begin(), figures.errors.end(),
                   [](const ErrorFigures& a, const ErrorFigures& b) { return a.count > b.count; });
  const auto per_second = [&result](int64_t count) {
    return result.wall_s > 0 ? static_cast<double>(count) / result.wall_s : 0;
  };
  figures.sent_per_s = last_sent_s > 0 ? static_cast<double>(figures.sent - 1) / last_sent_s : 0;
  figures.requests_per_s = per_second(figures.completed);
  figures.input_tokens_per_s = per_second(figures.input_tokens);
  figures.output_tokens_per_s = per_second(figures.output_tokens);
  figures.ttft_ms = Summarize(std::move(samples.ttft_ms));
  figures.tpot_ms = Summarize(std::move(samples.tpot_ms));
  figures.inter_token_ms = Summarize(std::move(samples.inter_token_ms));
  figures.inter_chunk_ms = Summarize(std::move(samples.inter_chunk_ms));
  figures.e2e_ms = Summarize(std::move(samples.e2e_ms));
  ClientFigures& client = figures.client;
  client.cpu_s = result.cpu_s;
  client.cpu_cores = result.wall_s > 0 ? result.cpu_s / result.wall_s : 0;
  client.cpu_us_per_output_token =
      received_tokens > 0 ? result.cpu_s * 1e6 / static_cast<double>(received_tokens) : 0;
  client.send_delay_ms = Summarize(std::move(samples.send_delay_ms));
  if (received_tokens > 0) Warn(client, result.open_loop);
  return figures;
}

}  // namespace foredraft
