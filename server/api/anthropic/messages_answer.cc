#include "server/api/anthropic/messages_answer.h"

#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/error_reason.h"
#include "config/json_text.h"
#include "server/api/http/client_error.h"
#include "server/api/prompt_size.h"

namespace foredraft {
namespace {

using json = nlohmann::ordered_json;
using Part = AnswerRun::Part;

// Anthropic's clients read it as a server that is too busy, and try again.
constexpr int kOverloaded = 529;

std::string Dump(const json& value) { return value.dump(-1, ' ', false, json::error_handler_t::replace); }

std::string Event(const char* type, const json& more) {
  json event = {{"type", type}};
  event.update(more);
  return absl::StrCat("event: ", type, "\ndata: ", Dump(event), "\n\n");
}

// A block without its text, as it begins in a stream.
json EmptyBlock(const AnswerBlock& block) {
  switch (block.part) {
    case Part::kThinking:
      return {{"type", "thinking"}, {"thinking", ""}, {"signature", ""}};
    case Part::kText:
      return {{"type", "text"}, {"text", ""}};
    case Part::kCall:
      break;
  }
  return {{"type", "tool_use"}, {"id", block.id}, {"name", block.name}, {"input", json::object()}};
}

// Returns {} for arguments that are no JSON object: an answer may be cut within them.
json InputOf(const std::string& arguments) {
  if (!IsJson(arguments)) return json::object();
  json input = json::parse(arguments);
  return input.is_object() ? input : json::object();
}

json WholeBlock(const AnswerBlock& block, const std::string& signature) {
  json whole = EmptyBlock(block);
  switch (block.part) {
    case Part::kThinking:
      whole["thinking"] = block.text;
      whole["signature"] = signature;
      break;
    case Part::kText:
      whole["text"] = block.text;
      break;
    case Part::kCall:
      whole["input"] = InputOf(block.text);
      break;
  }
  return whole;
}

json UsageOf(const RequestStats& stats) {
  return {{"input_tokens", stats.prompt_tokens - stats.cached_tokens},
          {"cache_creation_input_tokens", 0},
          {"cache_read_input_tokens", stats.cached_tokens},
          {"output_tokens", stats.completion_tokens},
          {"output_tokens_details", {{"thinking_tokens", stats.thinking_tokens}}},
          {"service_tier", "standard"}};
}

const char* StopReasonOf(const OutputEnd& end) {
  if (end.called_tools) return "tool_use";
  if (end.matched_stop.has_value()) return "stop_sequence";
  return end.finish == FinishReason::kLength ? "max_tokens" : "end_turn";
}

json StopOf(const OutputEnd& end) {
  const bool is_string = !end.called_tools && end.matched_stop.has_value();
  return {{"stop_reason", StopReasonOf(end)},
          {"stop_sequence", is_string ? json(*end.matched_stop) : json()}};
}

json MessageOf(const std::string& id, const std::string& model, json content, const json& stop, json usage) {
  return {{"id", id},
          {"type", "message"},
          {"role", "assistant"},
          {"model", model},
          {"content", std::move(content)},
          {"stop_reason", stop["stop_reason"]},
          {"stop_sequence", stop["stop_sequence"]},
          {"usage", std::move(usage)}};
}

// Writes the blocks of a stream as events.
class BlockEvents final : public BlockListener {
 public:
  explicit BlockEvents(const std::string& signature) : signature_(signature) {}

  void Opened(size_t index, const AnswerBlock& block) override {
    text_ += Event("content_block_start", {{"index", index}, {"content_block", EmptyBlock(block)}});
  }
  void Grew(size_t index, const AnswerBlock& block, std::string_view piece) override {
    switch (block.part) {
      case Part::kThinking:
        return Add(index, {{"type", "thinking_delta"}, {"thinking", std::string(piece)}});
      case Part::kText:
        return Add(index, {{"type", "text_delta"}, {"text", std::string(piece)}});
      case Part::kCall:
        return Add(index, {{"type", "input_json_delta"}, {"partial_json", std::string(piece)}});
    }
  }
  void Closed(size_t index, const AnswerBlock& block) override {
    if (block.part == Part::kThinking) Add(index, {{"type", "signature_delta"}, {"signature", signature_}});
    text_ += Event("content_block_stop", {{"index", index}});
  }

  std::string Take() { return std::move(text_); }

 private:
  void Add(size_t index, json delta) {
    text_ += Event("content_block_delta", {{"index", index}, {"delta", std::move(delta)}});
  }

  const std::string& signature_;
  std::string text_;
};

// Ignores the blocks' events: the blocks of a whole answer are read once complete.
class NoEvents final : public BlockListener {
 public:
  void Opened(size_t, const AnswerBlock&) override {}
  void Grew(size_t, const AnswerBlock&, std::string_view) override {}
  void Closed(size_t, const AnswerBlock&) override {}
};

const char* TypeOf(int http_status) {
  switch (http_status) {
    case 401:
      return "authentication_error";
    case 403:
      return "permission_error";
    case 404:
      return "not_found_error";
    case 413:
      return "request_too_large";
    case 503:
    case kOverloaded:
      return "overloaded_error";
    case 504:
      return "timeout_error";
    default:
      return http_status < 500 ? "invalid_request_error" : "api_error";
  }
}

json ErrorJson(int http_status, const std::string& text, const std::string& request_id) {
  return {{"type", "error"},
          {"error", {{"type", TypeOf(http_status)}, {"message", text}}},
          {"request_id", request_id.empty() ? json() : json(request_id)}};
}

int HttpStatusOf(const absl::Status& status) {
  return ReasonOf(status) == kReasonQueueFull ? kOverloaded : ErrorKindOf(status).http_status;
}

// Claude Code recognizes a prompt that is too long by these words, and reads both numbers.
std::string TextOf(const absl::Status& status, const FieldNames& names) {
  if (const std::optional<PromptSize> size = PromptSizeOf(status)) {
    return absl::StrCat("prompt is too long: ", size->tokens, " tokens > ", size->most, " maximum");
  }
  return ClientText(names, status);
}

}  // namespace

void MessagesFormat::Begin(AnswerLabels labels) {
  id_ = absl::StrCat("msg_", labels.request_id);
  request_id_ = std::move(labels.request_id);
  model_ = std::move(labels.model);
}

std::string MessagesFormat::BeginEvent(const RequestStats& stats) {
  if (std::exchange(has_begun_, true)) return "";
  json usage = UsageOf(stats);
  usage["output_tokens"] = 0;
  const json stop = {{"stop_reason", nullptr}, {"stop_sequence", nullptr}};
  return Event("message_start", {{"message", MessageOf(id_, model_, json::array(), stop, std::move(usage))}});
}

std::string MessagesFormat::KeepAlive() { return BeginEvent({}) + Event("ping", json::object()); }

std::string MessagesFormat::Delta(int /*index*/, const OutputDelta& delta, const OutputEnd* end,
                                  const ResponseLabels& /*labels*/) {
  std::string text = BeginEvent(delta.stats);
  BlockEvents events(id_);
  blocks_.Add(delta, events);
  if (end != nullptr) {
    blocks_.AddEmptyText(events);
    blocks_.End(events);
  }
  text += events.Take();
  if (end != nullptr) {
    text += Event("message_delta", {{"delta", StopOf(*end)}, {"usage", UsageOf(delta.stats)}});
  }
  return text;
}

std::string MessagesFormat::StreamEnd(const std::vector<ChoiceEnd>& /*choices*/) {
  return Event("message_stop", json::object());
}

std::string MessagesFormat::FailedStream(const absl::Status& status) {
  return Event("error", ErrorJson(HttpStatusOf(status), TextOf(status, names_), request_id_));
}

std::string MessagesFormat::Whole(const std::vector<ChoiceEnd>& choices) {
  const ChoiceEnd& choice = choices.front();
  NoEvents none;
  blocks_.Add(choice.whole, none);
  blocks_.AddEmptyText(none);
  json content = json::array();
  for (const AnswerBlock& block : blocks_.blocks()) content.push_back(WholeBlock(block, id_));
  return Dump(MessageOf(id_, model_, std::move(content), StopOf(choice.end), UsageOf(choice.whole.stats)));
}

HttpAnswer MessagesFormat::Failed(const absl::Status& status, const std::string& request_id) {
  HttpAnswer answer = MessagesError(HttpStatusOf(status), TextOf(status, names_), request_id);
  if (answer.status == 401) answer.headers.emplace_back("WWW-Authenticate", "Bearer");
  return answer;
}

HttpHeaders MessagesFormat::Headers(const std::string& request_id) const {
  return {{"request-id", request_id}};
}

HttpAnswer MessagesError(int http_status, const std::string& text, const std::string& request_id) {
  HttpAnswer answer{.status = http_status,
                    .body = Dump(ErrorJson(http_status, text, request_id)),
                    .content_type = "application/json"};
  if (http_status == 503 || http_status == kOverloaded) answer.headers.emplace_back("Retry-After", "1");
  return answer;
}

}  // namespace foredraft
