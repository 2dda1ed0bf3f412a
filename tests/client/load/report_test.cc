#include "client/load/report.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "client/load/progress_line.h"

namespace foredraft {
namespace {

using testing::HasSubstr;
using testing::Not;

BenchSetup Asked() {
  BenchSetup setup{.connections = 1, .workload = "random, 40 tokens in, 6 out", .warmup = 2};
  setup.server.address = "127.0.0.1:50051";
  v1::GetModelResponse& model = setup.server.model;
  model.set_name("abacus");
  model.set_backend("cpu");
  model.set_version("0.1.0");
  model.set_numerics_class("7f3a91c2");
  model.set_max_draft_len(3);
  setup.load.concurrency = 16;
  setup.load.request_count = 1200;
  setup.load.seed = 7;
  setup.load.request.set_ignore_eos(true);
  setup.load.request.set_max_draft_tokens(3);
  setup.load.request.mutable_sampling()->set_temperature(0);
  return setup;
}

RunStats Measured() {
  RunStats run;
  run.wall_s = 12.345;
  run.sent = 1200;
  run.completed = 1197;
  run.failed = 3;
  run.errors = {{.code = absl::StatusCode::kResourceExhausted, .count = 3, .message = "queue full"}};
  run.input_tokens = 48000;
  run.cached_tokens = 12000;
  run.output_tokens = 7182;
  run.sent_per_s = 97.5;
  run.requests_per_s = 96.96;
  run.input_tokens_per_s = 3888.2;
  run.output_tokens_per_s = 581.77;
  run.ttft_ms = {.count = 1197, .mean = 14.2, .p50 = 13.9, .p90 = 18, .p99 = 20.814, .max = 1031.5};
  run.tpot_ms = {.count = 1197, .mean = 2.3, .p50 = 2.2, .p90 = 2.5, .p99 = 3, .max = 4};
  run.inter_token_ms = {.count = 5000, .mean = 2.1, .p50 = 2, .p90 = 2.4, .p99 = 2.9, .max = 5};
  run.inter_chunk_ms = {.count = 2000, .mean = 6.1, .p50 = 6, .p90 = 6.4, .p99 = 6.9, .max = 7};
  run.e2e_ms = {.count = 1197, .mean = 27, .p50 = 26, .p90 = 30, .p99 = 35, .max = 1050};
  run.speculation.steps = 2000;
  run.speculation.draft_tokens = 6000;
  run.speculation.accepted_tokens = 3640;
  run.speculation.accepted_per_position = {1800, 1140, 700};
  run.client.cpu_s = 0.5;
  run.client.cpu_cores = 0.0412;
  run.client.cpu_us_per_output_token = 69.6;
  run.client.send_delay_ms = {.count = 1200, .mean = 0.02, .p50 = 0.01, .p90 = 0.03, .p99 = 0.2, .max = 1};
  return run;
}

TEST(BenchReport, HasTheExpectedText) {
  EXPECT_EQ(TextReport(Asked(), Measured()),
            R"(server      abacus at 127.0.0.1:50051, cpu, foredraft 0.1.0, numerics 7f3a91c2, drafts up to 3
load        closed loop, 16 at once, 1,200 requests; 2 requests to warm up; 1 connection
prompts     random, 40 tokens in, 6 out
sampling    greedy, EOS ignored, drafts up to 3; seed 7

requests    1,197 completed   3 failed   12.35 s
  error     3 RESOURCE_EXHAUSTED: queue full
tokens      48,000 in   12,000 of them from the prefix cache   7,182 out
throughput  97.50 requests/s sent   96.96 requests/s completed   3,888.2 input tok/s   581.8 output tok/s

latency, ms   mean    p50    p90    p99       max
TTFT         14.20  13.90  18.00  20.81  1,031.50
TPOT          2.30   2.20   2.50   3.00      4.00
inter-token   2.10   2.00   2.40   2.90      5.00
inter-chunk   6.10   6.00   6.40   6.90      7.00
end to end   27.00  26.00  30.00  35.00  1,050.00

drafts      6,000 verified   3,640 accepted   60.7% acceptance rate   90.0% 57.0% 35.0% by position   2.82 acceptance length
client      4.1% of one core   69.6 us CPU per output token   0.02 (p99 0.20) ms from due to sent
)");
}

CategoryStats Category(const std::string& name, int64_t completed, int64_t accepted) {
  return {.name = name,
          .completed = completed,
          .output_tokens = 1000 * completed,
          .request_seconds = 8.0 * static_cast<double>(completed),
          .speculation = {.steps = 400,
                          .draft_tokens = 800,
                          .accepted_tokens = accepted,
                          .accepted_per_position = {accepted / 2, accepted / 2}}};
}

TEST(BenchReport, HasARowForEachCategory) {
  RunStats run = Measured();
  run.categories = {Category("coding", 3, 400), Category("math", 1, 200)};
  EXPECT_THAT(TextReport(Asked(), run), HasSubstr(R"(
category  requests  tokens out  tok/s per user  length  accepted  by position
coding           3       3,000           125.0    2.00     50.0%  50.0% 50.0%
math             1       1,000           125.0    1.50     25.0%  25.0% 25.0%
all              4       4,000           125.0    1.75     37.5%  37.5% 37.5%

drafts      )"));
  const nlohmann::json json = nlohmann::json::parse(JsonReport(Asked(), run))["categories"];
  ASSERT_EQ(json.size(), 2u);
  EXPECT_EQ(json[1],
            nlohmann::json::parse(R"({"category": "math", "completed_requests": 1, "output_tokens": 1000,
    "output_tokens_per_s_per_user": 125,
    "speculation": {"steps": 400, "draft_tokens": 800, "accepted_tokens": 200, "acceptance_rate": 0.25,
                    "accepted_per_position": [100, 100], "acceptance_rate_per_position": [0.25, 0.25],
                    "acceptance_length": 1.5, "relaxed_tokens": 0}})"));
}

TEST(BenchReport, SaysHowAnswersThink) {
  BenchSetup setup = Asked();
  setup.load.request.set_ignore_eos(false);
  setup.load.request.set_thinking(false);
  EXPECT_THAT(TextReport(setup, Measured()), HasSubstr("greedy, no thinking, ends at EOS"));
  setup.load.request.set_thinking(true);
  setup.load.request.mutable_chat()->set_reasoning_effort("high");
  EXPECT_THAT(TextReport(setup, Measured()), HasSubstr("greedy, thinking, effort high, ends at EOS"));
  const nlohmann::json request = nlohmann::json::parse(JsonReport(setup, Measured()))["request"];
  EXPECT_EQ(request["thinking"], true);
  EXPECT_EQ(request["reasoning_effort"], "high");
}

TEST(BenchReport, WarnsOfDoubtfulMetrics) {
  BenchSetup setup = Asked();
  setup.load.request_rate_per_s = 100;
  RunStats run = Measured();
  run.interrupted = true;
  run.interrupted_requests = 5;
  run.gave_up = "the last 100 requests were UNAVAILABLE";
  run.speculation.forced = true;
  run.client.warnings = {"the client kept 0.95 cores busy"};
  const std::string text = TextReport(setup, run);
  EXPECT_THAT(
      text, HasSubstr("load        open loop, 100 requests/s (Poisson), at most 16 at once, 1,200 requests"));
  EXPECT_THAT(text, HasSubstr("3 failed   5 interrupted   12.35 s\n"));
  EXPECT_THAT(text, HasSubstr("\nFORCED      "));
  EXPECT_THAT(text, HasSubstr("\ninterrupted the metrics cover what ran before the interruption\n"));
  EXPECT_THAT(text, HasSubstr("\ngave up     the last 100 requests were UNAVAILABLE\n"));
  EXPECT_THAT(text, HasSubstr("\nwarning     the client kept 0.95 cores busy\n"));
}

TEST(BenchReport, ShowsADashWhereNothingWasMeasured) {
  const std::string text = TextReport(Asked(), {.completed = 1, .ttft_ms = {.count = 1}});
  EXPECT_THAT(text, HasSubstr("\nTTFT         0.00  0.00  0.00  0.00  0.00\n"));
  EXPECT_THAT(text, HasSubstr("\nTPOT            -     -     -     -     -\n"));
}

TEST(BenchReport, HasNoLatenciesWhereNoRequestCompleted) {
  EXPECT_THAT(TextReport(Asked(), {}), Not(HasSubstr("TTFT")));
}

TEST(BenchReport, HasAJsonObjectWithStableKeys) {
  const nlohmann::json json = nlohmann::json::parse(JsonReport(Asked(), Measured()));
  const nlohmann::json expected = nlohmann::json::parse(R"({
    "server": {"address": "127.0.0.1:50051", "model": "abacus", "backend": "cpu", "version": "0.1.0",
               "numerics_class": "7f3a91c2", "max_draft_len": 3},
    "load": {"mode": "closed", "concurrency": 16, "request_rate_per_s": null, "num_requests": 1200,
             "duration_limit_s": null, "warmup_requests": 2, "connections": 1, "seed": 7,
             "prompts": "random, 40 tokens in, 6 out"},
    "request": {"max_draft_tokens": 3, "ignore_eos": true, "strict_acceptance": false, "thinking": null,
                "reasoning_effort": null, "timeout_s": null,
                "sampling": {"temperature": 0, "top_p": null, "top_k": null, "min_p": null,
                             "repetition_penalty": null, "presence_penalty": null, "frequency_penalty": null}},
    "duration_s": 12.345, "interrupted": false, "gave_up": null,
    "requests": {"sent": 1200, "completed": 1197, "failed": 3, "interrupted": 0},
    "categories": [],
    "errors": [{"status": "RESOURCE_EXHAUSTED", "count": 3, "first_message": "queue full"}],
    "tokens": {"input": 48000, "cached_input": 12000, "output": 7182},
    "throughput": {"sent_requests_per_s": 97.5, "requests_per_s": 96.96, "input_tokens_per_s": 3888.2,
                   "output_tokens_per_s": 581.77},
    "ttft_ms": {"count": 1197, "mean": 14.2, "p50": 13.9, "p90": 18, "p99": 20.814, "max": 1031.5},
    "tpot_ms": {"count": 1197, "mean": 2.3, "p50": 2.2, "p90": 2.5, "p99": 3, "max": 4},
    "inter_token_latency_ms": {"count": 5000, "mean": 2.1, "p50": 2, "p90": 2.4, "p99": 2.9, "max": 5},
    "inter_chunk_latency_ms": {"count": 2000, "mean": 6.1, "p50": 6, "p90": 6.4, "p99": 6.9, "max": 7},
    "e2e_latency_ms": {"count": 1197, "mean": 27, "p50": 26, "p90": 30, "p99": 35, "max": 1050},
    "speculation": {"steps": 2000, "draft_tokens": 6000, "accepted_tokens": 3640, "acceptance_length": 2.82,
                    "acceptance_rate": 0.6067, "accepted_per_position": [1800, 1140, 700],
                    "acceptance_rate_per_position": [0.9, 0.57, 0.35], "relaxed_tokens": 0, "forced": false},
    "client": {"cpu_s": 0.5, "cpu_cores": 0.0412, "cpu_us_per_output_token": 69.6,
               "send_delay_ms": {"count": 1200, "mean": 0.02, "p50": 0.01, "p90": 0.03, "p99": 0.2, "max": 1},
               "bottleneck": false, "warnings": []}})");
  EXPECT_EQ(json, expected) << nlohmann::json::diff(expected, json);
}

TEST(BenchReport, HasNullForLatenciesWithoutSamples) {
  const nlohmann::json json = nlohmann::json::parse(JsonReport(Asked(), {}));
  EXPECT_TRUE(json["ttft_ms"].is_null());
  EXPECT_EQ(json["requests"]["sent"], 0);
}

TEST(BenchReport, SurvivesAMessageThatIsNotUtf8) {
  RunStats run = Measured();
  run.errors[0].message = "\xff";
  EXPECT_THAT(JsonReport(Asked(), run), Not(HasSubstr("\xff")));
}

TEST(ProgressLine, SaysHowFarTheRunIs) {
  ProgressLine line(/*terminal=*/false, "", 200);
  EXPECT_EQ(line.Text({.done = 20, .running = 16, .output_tokens = 500, .elapsed_s = 0.5}),
            "20 / 200 requests   16 running   1,000 tok/s   0.5 s");
  EXPECT_EQ(line.Text({.done = 60, .failed = 2, .running = 16, .output_tokens = 3000, .elapsed_s = 1.5}),
            "60 / 200 requests   16 running   2,000 tok/s   1.5 s   2 failed");
  // The rate covers the time since the last line at least a second ago: 500 tokens in 1 s.
  EXPECT_EQ(line.Text({.done = 70, .running = 16, .output_tokens = 3500, .elapsed_s = 2.5}),
            "70 / 200 requests   16 running   500 tok/s   2.5 s");
  EXPECT_EQ(line.Text({.done = 71, .running = 16, .output_tokens = 3600, .elapsed_s = 2.6}),
            "71 / 200 requests   16 running   500 tok/s   2.6 s");
}

TEST(ProgressLine, HasALabelAndNoTotalWhereTimeIsTheLimit) {
  ProgressLine line(/*terminal=*/false, "K=3 round 1 of 3", std::nullopt);
  EXPECT_EQ(line.Text({.done = 20, .running = 1, .output_tokens = 500, .elapsed_s = 2}),
            "K=3 round 1 of 3   20 requests   1 running   250 tok/s   2.0 s");
}

}  // namespace
}  // namespace foredraft
