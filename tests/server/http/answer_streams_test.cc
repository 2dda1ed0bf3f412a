// Answers of the wires with blocks: the events of a stream are those of a golden file whatever the cut of the
// deltas is, and say what the whole answer says.
//
// FOREDRAFT_RECORD_STREAMS=1 writes the golden files anew.

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/error_reason.h"
#include "server/api/anthropic/messages_answer.h"
#include "server/api/conversation/message_gatherer.h"
#include "server/api/fields/json_string_reader.h"
#include "server/api/http/client_error.h"
#include "server/api/prompt_size.h"
#include "server/api/responses/responses_answer.h"
#include "tests/server/http/scripted_answers.h"

namespace foredraft {
namespace {

using json = nlohmann::ordered_json;

std::unique_ptr<AnswerFormat> MessagesFormatOf(bool hides_thinking = false) {
  auto format = std::make_unique<MessagesFormat>(hides_thinking);
  format->Begin(TestLabels());
  return format;
}

std::string WholeAnswer(AnswerFormat& format, const ScriptedAnswer& answer) {
  return format.Whole({{.whole = WholeOf(answer), .end = answer.end, .labels = {.seed = 7}}});
}

std::string ReadText(const std::string& path) {
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

void ExpectGolden(const std::string& name, const std::string& stream) {
  const std::string path = absl::StrCat("tests/golden/streams/", name, ".sse");
  if (std::getenv("FOREDRAFT_RECORD_STREAMS") != nullptr) std::ofstream(path) << stream;
  EXPECT_EQ(stream, ReadText(path)) << path << "; FOREDRAFT_RECORD_STREAMS=1 writes it anew";
}

constexpr size_t kCuts[] = {0, 1, 2, 3, 5, 7, 1000};

TEST(MessagesStream, IsTheWholeAnswerHoweverItIsCut) {
  for (const ScriptedAnswer& answer : ScriptedAnswers()) {
    SCOPED_TRACE(answer.name);
    const json whole = json::parse(WholeAnswer(*MessagesFormatOf(), answer));
    for (const size_t cut : kCuts) {
      EXPECT_EQ(JoinedMessage(SentEvents(StreamOf(*MessagesFormatOf(), answer, cut))), whole) << cut;
    }
    ExpectGolden(absl::StrCat("messages_", answer.name), StreamOf(*MessagesFormatOf(), answer, 0));
  }
}

// With a sign of life before, between and behind all of its pieces.
std::string StreamWithKeepAlives(AnswerFormat& format, const ScriptedAnswer& answer) {
  const ResponseLabels labels{.request_id = "r-1", .seed = 7};
  std::string stream = format.KeepAlive();
  const std::vector<OutputDelta> deltas = DeltasOf(answer, 1);
  for (size_t i = 0; i < deltas.size(); ++i) {
    stream += format.Delta(0, deltas[i], i + 1 == deltas.size() ? &answer.end : nullptr, labels);
    stream += format.KeepAlive();
  }
  return stream +
         format.StreamEnd({{.whole = {.stats = deltas.back().stats}, .end = answer.end, .labels = labels}});
}

TEST(MessagesStream, StaysWhatItIsWithPings) {
  for (const ScriptedAnswer& answer : ScriptedAnswers()) {
    const json whole = json::parse(WholeAnswer(*MessagesFormatOf(), answer));
    EXPECT_EQ(JoinedMessage(SentEvents(StreamWithKeepAlives(*MessagesFormatOf(), answer))), whole)
        << answer.name;
  }
}

TEST(MessagesStream, LeavesHiddenThinkingOut) {
  const ScriptedAnswer thinking = ScriptedAnswers()[1];
  const json whole = json::parse(WholeAnswer(*MessagesFormatOf(/*hides_thinking=*/true), thinking));
  ASSERT_EQ(whole["content"].size(), 1u);
  EXPECT_EQ(whole["content"][0]["text"], "4");
  EXPECT_GT(whole["usage"]["output_tokens_details"]["thinking_tokens"], 0);
  EXPECT_EQ(JoinedMessage(SentEvents(StreamOf(*MessagesFormatOf(true), thinking, 1))), whole);
}

ResponseShape ShapeOf() {
  ResponseShape shape;
  shape.sent_tools = {{"apply_patch", {.name = "apply_patch", .is_custom = true}},
                      {"files__read", {.name = "read", .name_space = "files"}}};
  shape.repeated = {{"instructions", "\"Add.\""},
                    {"tools", R"([{"type": "function", "name": "now"}])"},
                    {"reasoning", R"({"effort": "high"})"},
                    {"temperature", "0.5"}};
  return shape;
}

std::unique_ptr<AnswerFormat> ResponsesFormatOf(ResponseShape shape = ShapeOf()) {
  auto format = std::make_unique<ResponsesFormat>(std::move(shape));
  format->Begin(TestLabels());
  return format;
}

TEST(ResponsesStream, IsTheWholeAnswerHoweverItIsCut) {
  for (const ScriptedAnswer& answer : ScriptedAnswers()) {
    SCOPED_TRACE(answer.name);
    const json whole = json::parse(WholeAnswer(*ResponsesFormatOf(), answer));
    for (const size_t cut : kCuts) {
      EXPECT_EQ(JoinedResponse(SentEvents(StreamOf(*ResponsesFormatOf(), answer, cut))), whole) << cut;
    }
    ExpectGolden(absl::StrCat("responses_", answer.name), StreamOf(*ResponsesFormatOf(), answer, 0));
  }
}

TEST(ResponsesStream, StaysWhatItIsWithKeepalives) {
  for (const ScriptedAnswer& answer : ScriptedAnswers()) {
    const json whole = json::parse(WholeAnswer(*ResponsesFormatOf(), answer));
    EXPECT_EQ(JoinedResponse(SentEvents(StreamWithKeepAlives(*ResponsesFormatOf(), answer))), whole)
        << answer.name;
  }
}

TEST(ResponsesStream, TheItemThatTheAnswerEndsInIsIncomplete) {
  const auto statuses = [](const char* name) {
    std::vector<std::string> found;
    for (const ScriptedAnswer& answer : ScriptedAnswers()) {
      if (answer.name != std::string(name)) continue;
      const json whole = json::parse(WholeAnswer(*ResponsesFormatOf(), answer));
      found.push_back(whole["status"]);
      for (const json& item : whole["output"]) found.push_back(item["status"]);
    }
    return found;
  };
  using Statuses = std::vector<std::string>;
  EXPECT_EQ(statuses("calls"), (Statuses{"completed", "completed", "completed", "completed", "completed"}));
  EXPECT_EQ(statuses("cut_in_thinking"), (Statuses{"incomplete", "incomplete"}));
  EXPECT_EQ(statuses("cut_in_call"), (Statuses{"incomplete", "completed", "incomplete"}));
  EXPECT_EQ(statuses("stopped_in_call"), (Statuses{"completed", "incomplete"}));
}

TEST(ResponsesStream, CallsComeBackAsTheToolsThatWereSent) {
  const auto item = [](const char* name) {
    for (const ScriptedAnswer& answer : ScriptedAnswers()) {
      if (answer.name == std::string(name)) {
        return json::parse(WholeAnswer(*ResponsesFormatOf(), answer))["output"][0];
      }
    }
    return json();
  };
  const json custom = item("custom");
  EXPECT_EQ(custom["type"], "custom_tool_call");
  EXPECT_EQ(custom["input"], "*** \u00fc \U0001F600\n\"quoted\"");
  const json namespaced = item("namespaced");
  EXPECT_EQ(namespaced["type"], "function_call");
  EXPECT_EQ(namespaced["name"], "read");
  EXPECT_EQ(namespaced["namespace"], "files");
}

TEST(ResponsesErrors, ALostRankFailsTheResponse) {
  const std::unique_ptr<AnswerFormat> format = ResponsesFormatOf();
  const std::string begin = format->Delta(0, DeltasOf(ScriptedAnswers()[0], 0)[0], nullptr, {});
  const json response =
      JoinedResponse(SentEvents(begin + format->FailedStream(absl::UnavailableError("rank 1 is lost"))));
  EXPECT_EQ(response["error"], (json{{"code", "server_error"}, {"message", "rank 1 is lost"}}));
  EXPECT_EQ(response["output"][0]["status"], "incomplete");
}

TEST(ResponsesErrors, HaveTheStatusThatCodexTriesAgainAt) {
  const absl::Status full = WithReason(absl::ResourceExhaustedError("8 wait"), kReasonQueueFull);
  const HttpAnswer busy = ResponsesFormat().Failed(full, "r-1");
  EXPECT_EQ(busy.status, 503);
  EXPECT_EQ(json::parse(busy.body)["error"]["code"], "queue_full");
  EXPECT_EQ(busy.headers.at(0), std::pair(std::string("Retry-After"), std::string("1")));
  const absl::Status longer =
      WithPromptSize(absl::InvalidArgumentError("chat: prompt of 600 tokens"), {.tokens = 600, .most = 511});
  const HttpAnswer refused = ResponsesFormatOf()->Failed(longer, "r-1");
  EXPECT_EQ(refused.status, 400);
  EXPECT_EQ(json::parse(refused.body)["error"]["code"], "context_length_exceeded");
  EXPECT_EQ(json::parse(refused.body)["error"]["param"], "input");
  ResponseShape streamed = ShapeOf();
  streamed.stream = true;
  const HttpAnswer events = ResponsesFormatOf(streamed)->Failed(longer, "r-1");
  EXPECT_EQ(events.status, 200);
  EXPECT_EQ(events.content_type, "text/event-stream");
  EXPECT_EQ(JoinedResponse(SentEvents(events.body))["error"]["code"], "context_length_exceeded");
}

TEST(JsonStringReader, GivesTheStringHoweverItsJsonIsCut) {
  const std::pair<const char*, const char*> cases[] = {
      {R"({"input": "a\"b\\c\/d\n"})", "a\"b\\c/d\n"},
      {R"({ "input" :  "\ud83d\ude00ü\u00e9" })", "\U0001F600\u00fc\u00e9"},
      {R"({"input": "\ud83dx\ude00\ud83d\n"})", "\uFFFDx\uFFFD\uFFFD\n"},
      {R"({"input": "\ud83d"})", "\uFFFD"},
      {R"({"input": ""})", ""},
      {R"({"in:put": "a"})", "a"},
      {R"({"input": 7})", ""},
      {R"({"input": "cut \u00)", "cut "}};
  for (const auto& [text, value] : cases) {
    for (const size_t cut : {1, 2, 3, 100}) {
      JsonStringReader reader;
      std::string read;
      for (size_t at = 0; at < std::string(text).size(); at += cut) {
        read += reader.Read(std::string(text).substr(at, cut));
      }
      EXPECT_EQ(read, value) << text << " by " << cut;
    }
  }
}

TEST(MessagesErrors, HaveTheStatusThatClientsTryAgainAt) {
  const absl::Status full = WithReason(absl::ResourceExhaustedError("8 wait"), kReasonQueueFull);
  const struct {
    absl::Status status;
    int http_status;
    const char* type;
    bool again;
  } cases[] = {{full, 529, "overloaded_error", true},
               {absl::UnavailableError("loading"), 503, "overloaded_error", true},
               {absl::UnauthenticatedError("no token"), 401, "authentication_error", false},
               {absl::PermissionDeniedError("role"), 403, "permission_error", false},
               {absl::NotFoundError("model"), 404, "not_found_error", false},
               {absl::DeadlineExceededError("late"), 504, "timeout_error", false},
               {absl::InternalError("NaN"), 500, "api_error", false},
               {absl::InvalidArgumentError("x"), 400, "invalid_request_error", false}};
  for (const auto& [status, http_status, type, again] : cases) {
    const HttpAnswer answer = MessagesFormat().Failed(status, "r-1");
    EXPECT_EQ(answer.status, http_status);
    const json body = json::parse(answer.body);
    EXPECT_EQ(body["error"]["type"], type);
    EXPECT_EQ(body["request_id"], "r-1");
    const auto retries = [](const auto& header) { return header.first == "Retry-After"; };
    EXPECT_EQ(std::any_of(answer.headers.begin(), answer.headers.end(), retries), again) << type;
  }
  EXPECT_EQ(MessagesError(413, "x", "").status, 413);
  EXPECT_EQ(json::parse(MessagesError(413, "x", "").body)["error"]["type"], "request_too_large");
}

TEST(MessagesErrors, EndAStreamThatHasBegun) {
  const std::unique_ptr<AnswerFormat> format = MessagesFormatOf();
  (void)format->Delta(0, DeltasOf(ScriptedAnswers()[0], 0)[0], nullptr, {});
  const std::vector<SentEvent> events =
      SentEvents(format->FailedStream(absl::InternalError("rank 1 is lost")));
  ASSERT_EQ(events.size(), 1u);
  EXPECT_EQ(events[0].type, "error");
  EXPECT_EQ(events[0].data["error"]["message"], "rank 1 is lost");
}

TEST(MessagesErrors, NameTheClientsItem) {
  FieldNames names(NotedWire::kMessages, "max_tokens");
  names.items = {GatheredMessages::kHead, 0, 0, 1};
  const auto text = [&](const char* message) {
    return ClientText(names, absl::InvalidArgumentError(message));
  };
  EXPECT_EQ(text("chat.messages[2].role: \"x\""), "messages[0].role: \"x\"");
  EXPECT_EQ(text("chat.messages[3].tool_call_id: \"x\", allowed an id of chat.messages[0].tool_calls"),
            "messages[1].tool_call_id: \"x\", allowed an id of system");
  EXPECT_EQ(text("chat.messages: empty"), "messages: empty");
  EXPECT_EQ(text("stop[3]: empty"), "stop_sequences[3]: empty");
}

}  // namespace
}  // namespace foredraft
