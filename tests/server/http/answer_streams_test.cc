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
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/error_reason.h"
#include "server/api/anthropic/messages_answer.h"
#include "server/api/conversation/message_gatherer.h"
#include "server/api/http/client_error.h"
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

TEST(MessagesStream, LeavesHiddenThinkingOut) {
  const ScriptedAnswer thinking = ScriptedAnswers()[1];
  const json whole = json::parse(WholeAnswer(*MessagesFormatOf(/*hides_thinking=*/true), thinking));
  ASSERT_EQ(whole["content"].size(), 1u);
  EXPECT_EQ(whole["content"][0]["text"], "4");
  EXPECT_GT(whole["usage"]["output_tokens_details"]["thinking_tokens"], 0);
  EXPECT_EQ(JoinedMessage(SentEvents(StreamOf(*MessagesFormatOf(true), thinking, 1))), whole);
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
