#include "client/top_frame.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"

namespace foredraft {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

TEST(MetricsPage, ReadsSamplesWithTheirLabels) {
  const MetricsPage page(
      "# HELP a_total What it is.\n"
      "# TYPE a_total counter\n"
      "a_total{model=\"m\",phase=\"thinking\"} 3\n"
      "a_total{model=\"m\",phase=\"answer\"} 4.5 1700000000\n"
      "escaped{label=\"a\\\"b\\\\c,}\"} 1\n"
      "plain 1e3\n"
      "broken{label=\"x\n"
      "none\n");
  EXPECT_EQ(page.Sum("a_total"), 7.5);
  EXPECT_EQ(page.Sum("a_total", {{"phase", "answer"}}), 4.5);
  EXPECT_EQ(page.Sum("a_total", {{"phase", "other"}}), std::nullopt);
  EXPECT_EQ(page.Sum("escaped", {{"label", "a\"b\\c,}"}}), 1);
  EXPECT_EQ(page.Sum("plain"), 1000);
  EXPECT_EQ(page.Sum("broken"), std::nullopt);
  EXPECT_EQ(page.Sum("none"), std::nullopt);
}

TEST(MetricsPage, RanksAreInOrderOfTheirNumbers) {
  const MetricsPage page("g{rank=\"10\"} 1\ng{rank=\"2\"} 1\ng{rank=\"2\"} 1\n");
  EXPECT_THAT(page.ValuesOf("g", "rank"), ElementsAre("2", "10"));
}

TopServer Server() {
  TopServer server{.address = "127.0.0.1:50051", .slots = 16, .metrics_address = "127.0.0.1:9464"};
  server.model.set_name("abacus");
  server.model.set_backend("cpu");
  server.model.set_max_draft_len(2);
  return server;
}

// `second` seconds after the first sample, with 100 tokens and 10 requests more in each second.
TopSample Sample(int second) {
  TopSample sample;
  sample.time = std::chrono::steady_clock::time_point() + std::chrono::seconds(second);
  sample.load.set_state("serving");
  sample.load.set_running(3);
  sample.load.set_slots_used(4);
  sample.load.set_blocks_used(30);
  sample.load.set_blocks_free(50);
  sample.load.set_blocks_cached(20);
  sample.load.set_draft_len(2);
  const int steps = 40 * second;
  sample.metrics.emplace(absl::StrCat(
      "foredraft_generation_tokens_total ", 100 * second, "\nforedraft_spec_decode_drafts_total ", steps,
      "\nforedraft_spec_decode_draft_tokens_total ", 2 * steps,
      "\nforedraft_spec_decode_accepted_tokens_total ", steps,
      "\nforedraft_spec_decode_accepted_tokens_per_position_total{position=\"1\"} ", steps * 3 / 4,
      "\nforedraft_spec_decode_accepted_tokens_per_position_total{position=\"2\"} ", steps / 4,
      "\nforedraft_time_to_first_token_seconds_sum ", 0.05 * second,
      "\nforedraft_time_to_first_token_seconds_count ", 10 * second,
      "\nforedraft_kv_cache_usage_ratio{rank=\"0\"} 0.3\nforedraft_kv_cache_usage_ratio{rank=\"1\"} 0.1\n"
      "foredraft_requests_running{rank=\"1\"} 2\nforedraft_rank_step_seconds{kind=\"decode\",rank=\"1\"} "
      "0.0125\n"
      "foredraft_prefill_tokens_total{rank=\"1\"} ",
      30 * second, "\n"));
  return sample;
}

std::string Text(const TopHistory& history, int width = 100) {
  std::string text;
  for (const TopLine& line : TopFrame(Server(), history, width)) text += TopText(line, width, false) + "\n";
  return text;
}

TEST(TopFrame, ShowsRatesOfAnIntervalAndStateNow) {
  TopHistory history;
  history.Add(Sample(1));
  history.Add(Sample(3));
  const std::string text = Text(history);
  EXPECT_THAT(text, HasSubstr("abacus at 127.0.0.1:50051   cpu   serving"));
  EXPECT_THAT(text, HasSubstr("tokens/s        100.0  █"));
  EXPECT_THAT(text, HasSubstr("3 running   0 waiting"));
  EXPECT_THAT(text, HasSubstr("4 of 16"));
  EXPECT_THAT(text, HasSubstr("30 of 100, 20 cached"));
  EXPECT_THAT(text, HasSubstr("K 2    50.0% accepted   acceptance length 2.00"));
  EXPECT_THAT(text,
              AllOf(HasSubstr("75.0% of steps accept draft 1"), HasSubstr("25.0% of steps accept draft 2")));
  EXPECT_THAT(text, HasSubstr("first token 5.0"));
  EXPECT_THAT(text, AllOf(HasSubstr("\n  0 "), HasSubstr("\n  1 "),
                          HasSubstr("10.0%        2      30.0       12.50\n")));
}

TEST(TopFrame, HasNoRatesAfterOneSample) {
  TopHistory history;
  history.Add(Sample(1));
  EXPECT_THAT(Text(history), AllOf(HasSubstr("tokens/s            -"), HasSubstr("acceptance length -")));
}

TEST(TopFrame, SaysWhatDoesNotAnswer) {
  TopHistory history;
  history.Add(Sample(1));
  TopSample without_metrics = Sample(2);
  without_metrics.metrics.reset();
  without_metrics.metrics_error = "http://127.0.0.1:9464/metrics: nobody answers";
  history.Add(without_metrics);
  EXPECT_THAT(Text(history), AllOf(HasSubstr("no rates: http://127.0.0.1:9464/metrics: nobody answers"),
                                   HasSubstr("4 of 16"), HasSubstr("K 2")));
  history.Add({.error = "127.0.0.1:50051: UNAVAILABLE nobody answers"});
  EXPECT_THAT(Text(history), AllOf(HasSubstr("no answer"), HasSubstr("UNAVAILABLE nobody answers"),
                                   Not(HasSubstr("slots"))));
}

TEST(TopFrame, ADaemonThatBeganAnewGivesNoNegativeRates) {
  TopHistory history;
  history.Add(Sample(5));
  history.Add(Sample(1));
  EXPECT_EQ(history.LastRate("foredraft_generation_tokens_total"), std::nullopt);
  history.Add(Sample(2));
  EXPECT_EQ(history.LastRate("foredraft_generation_tokens_total"), 100);
}

TEST(TopFrame, NoLineIsWiderThanTheScreen) {
  TopHistory history;
  for (int second = 0; second < 300; ++second) history.Add(Sample(second));
  for (const int width : {1, 20, 79, 200}) {
    for (const TopLine& line : TopFrame(Server(), history, width)) {
      const std::string text = TopText(line, width, false);
      EXPECT_LE(std::count_if(text.begin(), text.end(), [](char byte) { return (byte & 0xC0) != 0x80; }),
                width)
          << text;
    }
  }
}

TEST(TopFrame, ColourIsEscapesOnly) {
  const TopLine line = {{.text = "ab", .style = TopSpan::Style::kGood}, {"cd"}};
  EXPECT_EQ(TopText(line, 3, true), "\x1b[32mab\x1b[0mc");
  EXPECT_EQ(TopText(line, 3, false), "abc");
}

TEST(TopFrame, ADaemonsTextCannotDriveTheTerminal) {
  EXPECT_EQ(TopText({{.text = "m\x1b[2J\xe2\x80\xae"}}, 40, false), "m\\x1b[2J\\u202e");
}

}  // namespace
}  // namespace foredraft
