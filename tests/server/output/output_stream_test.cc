#include "server/output/output_stream.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

namespace foredraft {
namespace {

using testing::ElementsAre;

class OutputStreamTest : public testing::Test {
 protected:
  OutputStreamTest()
      : tokenizer_(*Tokenizer::Load("deploy/models/abacus/tokenizer.json")),
        metrics_({.model_name = "test", .max_draft_len = 7}) {}

  std::vector<int32_t> Encode(const std::string& text) {
    return *tokenizer_->Encode(text, {.add_bos = false});
  }

  OutputStream Open(std::vector<std::string> stop = {}, bool keeps_stop = false, int32_t thought_limit = -1) {
    OutputSpec spec;
    spec.id = 1;
    spec.request_id = "r";
    spec.prompt_tokens = 3;
    spec.stop = std::move(stop);
    spec.keeps_stop = keeps_stop;
    spec.stop_token_ids = {9};
    spec.thinking.begin = *tokenizer_->AddedTokenId("<think>");
    spec.thinking.end = *tokenizer_->AddedTokenId("</think>");
    spec.thought_limit = thought_limit;
    spec.arrival = std::chrono::steady_clock::now();
    return OutputStream(std::move(spec), *tokenizer_, metrics_);
  }

  static RequestUpdate First(std::vector<int32_t> ids) {
    RequestUpdate update{.request_id = 1, .token_ids = std::move(ids), .first_token = true};
    update.has_step = update.token_ids.size() > 1;
    update.step.drafts_verified = static_cast<int>(update.token_ids.size()) - 1;
    return update;
  }
  static RequestUpdate Step(std::vector<int32_t> ids, int verified,
                            FinishReason finish = FinishReason::kNone) {
    RequestUpdate update{.request_id = 1, .token_ids = std::move(ids), .has_step = true, .finish = finish};
    update.step = {.drafts_verified = verified, .accepted = static_cast<int>(update.token_ids.size()) - 1};
    return update;
  }
  OutputDelta Apply(OutputStream& stream, const RequestUpdate& update) {
    return stream.Apply(update, std::chrono::steady_clock::now());
  }
  double Counter(const std::string& name) {
    metrics_.PublishCounts();
    double sum = 0;
    for (const prometheus::MetricFamily& family : metrics_.Collect()) {
      if (family.name != "foredraft_" + name) continue;
      for (const prometheus::ClientMetric& metric : family.metric) sum += metric.counter.value;
    }
    return sum;
  }

  std::unique_ptr<Tokenizer> tokenizer_;
  Metrics metrics_;
};

TEST_F(OutputStreamTest, CountsCachedTokensWithTheFirstTokenThatIsSent) {
  const std::vector<int32_t> ids = Encode("some text");
  RequestUpdate first = First({ids[0]});
  first.cached_tokens = 2;
  OutputStream answered = Open();
  EXPECT_EQ(Apply(answered, first).stats.cached_tokens, 2);
  OutputStream cancelled = Open();  // the scheduler has its first token, but the client left before
  cancelled.EndEarly(FinishReason::kCancelled, absl::CancelledError("cancelled by the client"),
                     std::chrono::steady_clock::now());
  EXPECT_EQ(Counter("prefix_cache_hit_tokens_total"), 2);
}

TEST_F(OutputStreamTest, FindsAStopStringWhereverTheChunksAreCut) {
  const std::string whole = "The sum of 12 and 34 is 46. STOP here, not there.";
  const std::vector<int32_t> ids = Encode(whole);
  std::mt19937 random(7);
  for (int round = 0; round < 200; ++round) {
    const bool keeps_stop = round % 2 == 1;
    OutputStream stream = Open({"STOP here", "nowhere"}, keeps_stop);
    std::string text;
    size_t at = 1;
    text += Apply(stream, First({ids[0]})).text;
    while (at < ids.size() && !stream.end()) {
      const size_t count = std::min<size_t>(1 + random() % 4, ids.size() - at);
      text += Apply(stream, Step({ids.begin() + at, ids.begin() + at + count}, 3)).text;
      at += count;
    }
    ASSERT_TRUE(stream.end().has_value()) << "round " << round;
    EXPECT_EQ(text, std::string("The sum of 12 and 34 is 46. ") + (keeps_stop ? "STOP here" : ""))
        << "round " << round;
    EXPECT_EQ(stream.end()->finish, FinishReason::kStop);
    EXPECT_EQ(stream.end()->matched_stop, "STOP here");
    EXPECT_TRUE(stream.ended_by_text());
    const RequestStats& stats = stream.stats();
    EXPECT_EQ(stats.completion_tokens, 1 + stats.steps + stats.accepted_tokens) << "round " << round;
  }
}

TEST_F(OutputStreamTest, DoesNotCountTokensPastAStopString) {
  const std::vector<int32_t> first = Encode("a"), dot = Encode("."), more = Encode("7");
  OutputStream stream = Open({"."});
  Apply(stream, First({first[0]}));
  const OutputDelta delta = Apply(stream, Step({more[0], dot[0], more[0], more[0]}, 3));
  EXPECT_THAT(delta.token_ids, ElementsAre(more[0], dot[0]));
  EXPECT_EQ(delta.text, "7");
  EXPECT_EQ(stream.stats().completion_tokens, 3);
  EXPECT_EQ(stream.stats().steps, 1);
  EXPECT_EQ(stream.stats().draft_tokens, 3);
  EXPECT_EQ(stream.stats().accepted_tokens, 1);
  EXPECT_EQ(Counter("generation_tokens_total"), 3);
  EXPECT_EQ(Counter("spec_decode_accepted_tokens_total"), 1);
  EXPECT_EQ(Counter("spec_decode_draft_tokens_total"), 3);
}

TEST_F(OutputStreamTest, AStopInTheFirstTokenLeavesNoStep) {
  const std::vector<int32_t> dot = Encode(".");
  OutputStream stream = Open({"."});
  const OutputDelta delta = Apply(stream, First({dot[0], 300, 301}));
  EXPECT_THAT(delta.token_ids, ElementsAre(dot[0]));
  EXPECT_EQ(stream.stats().steps, 0);
  EXPECT_EQ(stream.stats().draft_tokens, 0);
  EXPECT_EQ(stream.stats().acceptance_length(), 1.0);
  EXPECT_EQ(stream.stats().completion_tokens, 1);
}

TEST_F(OutputStreamTest, CountsAStopTokenButDoesNotShowIt) {
  const std::vector<int32_t> word = Encode("7");
  for (const auto& [stop_id, is_own] : std::vector<std::pair<int32_t, bool>>{{9, true}, {1, false}}) {
    OutputStream stream = Open();
    Apply(stream, First({word[0]}));
    const OutputDelta delta = Apply(stream, Step({word[0], stop_id}, 3, FinishReason::kStop));
    EXPECT_EQ(delta.text, "7");
    EXPECT_THAT(delta.token_ids, ElementsAre(word[0], stop_id));
    EXPECT_EQ(stream.stats().completion_tokens, 3);
    EXPECT_EQ(stream.end()->matched_stop_token_id.has_value(), is_own);
    EXPECT_FALSE(stream.end()->matched_stop.has_value());
    EXPECT_FALSE(stream.ended_by_text());
  }
}

TEST_F(OutputStreamTest, HoldsBackHalfACharacterUntilItIsWholeOrTheEnd) {
  const std::vector<int32_t> ids = Encode("🧮");  // no merges: one token per byte
  ASSERT_GT(ids.size(), 1u);
  OutputStream whole = Open();
  std::string text = Apply(whole, First({ids[0]})).text;
  EXPECT_EQ(text, "");
  for (size_t i = 1; i < ids.size(); ++i) text += Apply(whole, Step({ids[i]}, 0)).text;
  EXPECT_EQ(text, "🧮");

  OutputStream half = Open();
  Apply(half, First({ids[0]}));
  const OutputDelta last = Apply(half, Step({ids[1]}, 0, FinishReason::kLength));
  EXPECT_EQ(last.text.substr(0, 3), "\xEF\xBF\xBD");  // U+FFFD
}

TEST_F(OutputStreamTest, SendsHeldBackTextOnceItCannotBeginAStopString) {
  const std::vector<int32_t> word = Encode("7"), dot = Encode(".");
  OutputStream stream = Open({"7."});
  EXPECT_EQ(Apply(stream, First({word[0]})).text, "");
  EXPECT_EQ(Apply(stream, Step({word[0]}, 0, FinishReason::kLength)).text, "77");
}

TEST_F(OutputStreamTest, CountsThinkingTokensBetweenTheMarkers) {
  const int32_t begin = *tokenizer_->AddedTokenId("<think>"), end = *tokenizer_->AddedTokenId("</think>");
  OutputStream stream = Open();
  Apply(stream, First({begin}));
  Apply(stream, Step({300, 301, end, 302}, 3));
  EXPECT_EQ(stream.stats().thinking_tokens, 2);
  EXPECT_EQ(stream.stats().completion_tokens, 5);
}

// A forced token is known by its place: behind a spent budget, in a thought.
TEST_F(OutputStreamTest, SaysOnceThatABudgetWasReached) {
  const int32_t begin = *tokenizer_->AddedTokenId("<think>"), end = *tokenizer_->AddedTokenId("</think>");
  OutputStream free = Open();
  Apply(free, First({begin}));
  Apply(free, Step({300, 301, end, 302}, 3));
  EXPECT_FALSE(free.stats().budget_reached);
  OutputStream unspent = Open({}, /*keeps_stop=*/false, /*thought_limit=*/3);
  Apply(unspent, First({begin}));
  Apply(unspent, Step({300, 301, end, 302}, 3));
  EXPECT_FALSE(unspent.stats().budget_reached);
  EXPECT_EQ(Counter("thinking_budget_reached_total"), 0);
  OutputStream spent = Open({}, /*keeps_stop=*/false, /*thought_limit=*/2);
  Apply(spent, First({begin}));
  Apply(spent, Step({300, 301, end, begin}, 3));
  Apply(spent, Step({end, 302}, 1));
  EXPECT_TRUE(spent.stats().budget_reached);
  EXPECT_EQ(Counter("thinking_budget_reached_total"), 1);
}

std::vector<TokenOrigin> Origins(const OutputDelta& delta) {
  std::vector<TokenOrigin> origins;
  for (const TokenMark& mark : delta.marks) origins.push_back(mark.origin);
  return origins;
}
constexpr TokenOrigin kFirst = TokenOrigin::kFirst, kTarget = TokenOrigin::kTarget,
                      kDrafted = TokenOrigin::kDrafted;

TEST_F(OutputStreamTest, MarksWhereEachTokenComesFrom) {
  OutputStream stream = Open();
  EXPECT_THAT(Origins(Apply(stream, First({300}))), ElementsAre(kFirst));
  EXPECT_THAT(Origins(Apply(stream, Step({301}, 3))), ElementsAre(kTarget));  // every draft was rejected
  EXPECT_THAT(Origins(Apply(stream, Step({301, 302, 303, 304}, 3))),
              ElementsAre(kDrafted, kDrafted, kDrafted, kTarget));
  EXPECT_THAT(Origins(Apply(stream, Step({301}, 0))), ElementsAre(kTarget));  // K 0

  OutputStream at_once = Open();  // a prompt that ends in an iteration takes part in its decode step
  EXPECT_THAT(Origins(Apply(at_once, First({300, 301, 302}))), ElementsAre(kFirst, kDrafted, kTarget));
}

// The text of the first min_tokens tokens neither ends the output nor begins a stop string.
TEST_F(OutputStreamTest, StopStringsCountFromMinTokensOn) {
  const std::vector<int32_t> ids = Encode("one STOP here, then STOP here again");
  std::string text;
  int first_end = 0;  // tokens up to the end of the first stop string
  Detokenizer detokenizer(*tokenizer_);
  for (; text.find("STOP here") == std::string::npos; ++first_end)
    text += detokenizer.Append({&ids[first_end], 1});
  for (const int min_tokens : {0, first_end - 1, first_end}) {
    OutputSpec spec;
    spec.stop = {"STOP here"};
    spec.min_tokens = min_tokens;
    OutputStream stream(std::move(spec), *tokenizer_, metrics_);
    std::string sent = Apply(stream, First({ids[0]})).text;
    for (size_t i = 1; i < ids.size() && !stream.end().has_value(); ++i)
      sent += Apply(stream, Step({ids[i]}, 0)).text;
    ASSERT_TRUE(stream.end().has_value());
    EXPECT_EQ(sent, min_tokens == 0 ? "one " : "one STOP here, then ") << min_tokens;
  }
}

// A stop string and a stop token may cut a step anywhere: the origins still add up to the accounting, but for
// the draft that a cut step ends in.
TEST_F(OutputStreamTest, OriginsAddUpToTheAccountingWhereverAStepIsCut) {
  const int32_t word = Encode("7")[0], dot = Encode(".")[0];
  for (int length = 1; length <= 4; ++length) {
    for (const std::string by : {"text", "target", "draft"}) {
      for (const bool in_first : {false, true}) {
        SCOPED_TRACE(testing::Message() << length << " tokens, cut by " << by << ", " << in_first);
        const bool by_token = by != "text";
        OutputStream stream = Open({"."});
        std::vector<TokenOrigin> origins;
        if (!in_first) origins = Origins(Apply(stream, First({word})));
        std::vector<int32_t> ids(length - 1, word);
        ids.push_back(by_token ? 9 : dot);
        RequestUpdate update = in_first ? First(ids) : Step(ids, 4);
        if (by_token) {
          update.finish = FinishReason::kStop;
          update.step.ends_in_draft = by == "draft" && update.has_step;
        } else {
          update.token_ids.push_back(word);  // computed past the stop string
          update.has_step = true;
          update.step.drafts_verified = 4;
        }
        const OutputDelta delta = Apply(stream, update);
        ASSERT_EQ(delta.marks.size(), delta.token_ids.size());
        const std::vector<TokenOrigin> more = Origins(delta);
        origins.insert(origins.end(), more.begin(), more.end());
        const auto count = [&](TokenOrigin origin) {
          return std::count(origins.begin(), origins.end(), origin);
        };
        const int cut = stream.stats().steps > 0 && by != "target" ? 1 : 0;
        EXPECT_EQ(count(kFirst), 1);
        EXPECT_EQ(count(kTarget), stream.stats().steps - cut);
        EXPECT_EQ(count(kDrafted), stream.stats().accepted_tokens + cut);
        EXPECT_EQ(origins.back(), cut > 0 ? kDrafted : stream.stats().steps > 0 ? kTarget : kFirst);
      }
    }
  }
}

// Of the tokens that a step emits the last one may be a draft, too, and be relaxed.
TEST_F(OutputStreamTest, ARelaxedDraftThatEndsACutStepIsCounted) {
  for (const bool ends_in_draft : {false, true}) {
    OutputStream stream = Open();
    Apply(stream, First({300}));
    RequestUpdate update = Step({301, 302, 303}, 5, FinishReason::kLength);
    update.step.relaxed = ends_in_draft ? 3 : 2;
    update.step.ends_in_draft = ends_in_draft;
    Apply(stream, update);
    EXPECT_EQ(stream.stats().relaxed_tokens, ends_in_draft ? 3 : 2);
    EXPECT_EQ(stream.stats().accepted_tokens, 2);
    EXPECT_EQ(stream.stats().steps, 1);
  }
}

TEST_F(OutputStreamTest, TheBytesOfTheTokensAreTheText) {
  const std::string whole = "The sum is 46. 🧮 done";
  const std::vector<int32_t> ids = Encode(whole);
  OutputStream stream = Open({"46. never"});  // text is held back, and comes
  std::string text;
  int64_t bytes = 0;
  for (size_t i = 0; i < ids.size(); ++i) {
    const FinishReason finish = i + 1 == ids.size() ? FinishReason::kLength : FinishReason::kNone;
    const OutputDelta delta = Apply(stream, i == 0 ? First({ids[0]}) : Step({ids[i]}, 0, finish));
    text += delta.text;
    ASSERT_EQ(delta.marks.size(), 1u);
    bytes += delta.marks[0].text_bytes;
    const std::string so_far =
        tokenizer_->Decode({ids.begin(), ids.begin() + static_cast<std::ptrdiff_t>(i) + 1});
    if (so_far.ends_with("\xEF\xBF\xBD")) continue;  // half a character
    EXPECT_EQ(bytes, static_cast<int64_t>(so_far.size())) << i;
  }
  EXPECT_EQ(text, whole);
}

TEST_F(OutputStreamTest, EndsEarlyWithTheTokensSoFarAndCountsOnce) {
  OutputStream stream = Open();
  Apply(stream, First({300}));
  RequestUpdate update{.request_id = 1, .finish = FinishReason::kDeadline};
  Apply(stream, update);
  EXPECT_EQ(stream.end()->status.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_EQ(stream.stats().completion_tokens, 1);
  EXPECT_EQ(Counter("requests_total"), 1);
  EXPECT_EQ(Counter("prompt_tokens_total"), 3);
}

TEST_F(OutputStreamTest, NamesTheRequestInAnInternalError) {
  OutputStream stream = Open();
  RequestUpdate update{
      .request_id = 1, .finish = FinishReason::kError, .error = absl::InternalError("what happened")};
  Apply(stream, update);
  EXPECT_EQ(stream.end()->status.message(), "what happened, request r");
}

}  // namespace
}  // namespace foredraft
