#include "server/api/responses/responses_answer.h"

#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "base/error_reason.h"
#include "server/api/openai/openai_error.h"
#include "server/api/prompt_size.h"

namespace foredraft {
namespace {

using json = nlohmann::ordered_json;
using Part = AnswerRun::Part;

std::string Dump(const json& value) { return value.dump(-1, ' ', false, json::error_handler_t::replace); }

json UsageOf(const RequestStats& stats) {
  return {{"input_tokens", stats.prompt_tokens},
          {"input_tokens_details", {{"cached_tokens", stats.cached_tokens}, {"cache_write_tokens", 0}}},
          {"output_tokens", stats.completion_tokens},
          {"output_tokens_details",
           {{"reasoning_tokens", stats.thinking_tokens},
            {"accepted_prediction_tokens", stats.accepted_tokens},
            {"rejected_prediction_tokens", stats.draft_tokens - stats.accepted_tokens}}},
          {"total_tokens", stats.prompt_tokens + stats.completion_tokens}};
}

// The content of a thought or message, which is always one part.
json PartOf(const AnswerBlock& block, const std::string& text) {
  if (block.part == Part::kThinking) return {{"type", "reasoning_text"}, {"text", text}};
  return {
      {"type", "output_text"}, {"text", text}, {"annotations", json::array()}, {"logprobs", json::array()}};
}

bool IsCut(const OutputEnd& end) { return end.finish == FinishReason::kLength; }

}  // namespace

const SentTool* ResponsesFormat::SentOf(const AnswerBlock& block) const {
  const auto found = shape_.sent_tools.find(block.name);
  return found == shape_.sent_tools.end() ? nullptr : &found->second;
}

std::string ResponsesFormat::ItemId(size_t index, const AnswerBlock& block) const {
  const SentTool* sent = SentOf(block);
  const char* kind = block.part == Part::kThinking        ? "rs_"
                     : block.part == Part::kText          ? "msg_"
                     : sent != nullptr && sent->is_custom ? "ctc_"
                                                          : "fc_";
  return absl::StrCat(kind, labels_.request_id, "_", index);
}

json ResponsesFormat::ItemOf(size_t index, const AnswerBlock& block, const char* status) const {
  const std::string id = ItemId(index, block);
  // An item that is added to a stream has no content yet.
  const auto content = [&] {
    return block.text.empty() ? json::array() : json::array({PartOf(block, block.text)});
  };
  if (block.part == Part::kThinking) {
    return {{"id", id},
            {"type", "reasoning"},
            {"summary", json::array()},
            {"content", content()},
            {"encrypted_content", nullptr},
            {"status", status}};
  }
  if (block.part == Part::kText) {
    return {
        {"id", id}, {"type", "message"}, {"role", "assistant"}, {"status", status}, {"content", content()}};
  }
  const SentTool* sent = SentOf(block);
  const bool is_custom = sent != nullptr && sent->is_custom;
  json item = {{"id", id},
               {"type", is_custom ? "custom_tool_call" : "function_call"},
               {"status", status},
               {"call_id", block.id},
               {"name", sent == nullptr ? block.name : sent->name}};
  if (sent != nullptr && !sent->name_space.empty()) item["namespace"] = sent->name_space;
  if (is_custom) {
    item["input"] = JsonStringReader().Read(block.text);
  } else {
    item["arguments"] = block.text;
  }
  return item;
}

// A call that is not whole is incomplete; so is a last thought or text that the length limit cut.
const char* ResponsesFormat::StatusOf(size_t index, const OutputEnd* end) const {
  const AnswerBlock& block = blocks_.blocks()[index];
  const bool is_last = index + 1 == blocks_.blocks().size();
  const bool is_cut = is_last && end != nullptr && IsCut(*end);
  const bool is_broken = block.part == Part::kCall && !block.complete;
  return is_broken || (is_cut && block.part != Part::kCall) ? "incomplete" : "completed";
}

json ResponsesFormat::Repeated(const char* field, json absent) const {
  const auto found = shape_.repeated.find(field);
  if (found == shape_.repeated.end()) return absent;
  json value = json::parse(found->second, nullptr, /*allow_exceptions=*/false);
  return value.is_discarded() || value.is_null() ? absent : value;
}

json ResponsesFormat::Response(const char* status) const {
  json reasoning = Repeated("reasoning", json::object());
  const auto of_reasoning = [&](const char* name) {
    return reasoning.is_object() && reasoning.contains(name) ? reasoning[name] : json();
  };
  return {{"id", absl::StrCat("resp_", labels_.request_id)},
          {"object", "response"},
          {"created_at", labels_.created},
          {"completed_at", nullptr},
          {"status", status},
          {"background", false},
          {"error", nullptr},
          {"incomplete_details", nullptr},
          {"instructions", nullptr},
          {"max_output_tokens", Repeated("max_output_tokens", nullptr)},
          {"max_tool_calls", nullptr},
          {"metadata", Repeated("metadata", json::object())},
          {"model", labels_.model},
          {"output", json::array()},
          {"parallel_tool_calls", Repeated("parallel_tool_calls", true)},
          {"previous_response_id", nullptr},
          {"prompt_cache_key", Repeated("prompt_cache_key", nullptr)},
          {"reasoning", {{"effort", of_reasoning("effort")}, {"summary", nullptr}}},
          {"safety_identifier", Repeated("safety_identifier", nullptr)},
          {"service_tier", "default"},
          {"store", false},
          {"temperature", Repeated("temperature", nullptr)},
          {"text", Repeated("text", {{"format", {{"type", "text"}}}})},
          {"tool_choice", Repeated("tool_choice", "auto")},
          {"tools", json::array()},
          {"top_logprobs", Repeated("top_logprobs", 0)},
          {"top_p", Repeated("top_p", nullptr)},
          {"truncation", Repeated("truncation", "disabled")},
          {"usage", nullptr},
          {"user", Repeated("user", nullptr)},
          {"system_fingerprint", labels_.fingerprint}};
}

json ResponsesFormat::EndedResponse(const ChoiceEnd& choice) const {
  const bool is_cut = IsCut(choice.end);
  json response = Response(is_cut ? "incomplete" : "completed");
  const RequestStats& stats = choice.whole.stats;
  if (is_cut) {
    response["incomplete_details"] = {{"reason", "max_output_tokens"}};
  } else {
    response["completed_at"] = labels_.created + static_cast<int64_t>(stats.total_ms / 1e3);
  }
  response["instructions"] = Repeated("instructions", nullptr);
  response["tools"] = Repeated("tools", json::array());
  for (size_t i = 0; i < blocks_.blocks().size(); ++i) {
    response["output"].push_back(ItemOf(i, blocks_.blocks()[i], StatusOf(i, &choice.end)));
  }
  response["usage"] = UsageOf(stats);
  response["seed"] = choice.labels.seed;
  return response;
}

// Codex recognizes a full context by this code alone; after any other error it tries again.
json ResponsesFormat::FailedResponse(const absl::Status& status) const {
  json response = Response("failed");
  const bool is_too_long = PromptSizeOf(status).has_value();
  response["error"] = {{"code", is_too_long ? "context_length_exceeded" : "server_error"},
                       {"message", ClientText(shape_.names, status)}};
  for (size_t i = 0; i < blocks_.blocks().size(); ++i) {
    response["output"].push_back(ItemOf(i, blocks_.blocks()[i], "incomplete"));
  }
  return response;
}

void ResponsesFormat::Send(const char* type, const json& more) {
  json event = {{"type", type}, {"sequence_number", sequence_number_++}};
  event.update(more);
  absl::StrAppend(&events_, "event: ", type, "\ndata: ", Dump(event), "\n\n");
}

void ResponsesFormat::SendBegin() {
  if (std::exchange(has_begun_, true)) return;
  const json response = Response("in_progress");
  Send("response.created", {{"response", response}});
  Send("response.in_progress", {{"response", response}});
}

void ResponsesFormat::Opened(size_t index, const AnswerBlock& block) {
  custom_input_ = JsonStringReader();
  Send("response.output_item.added",
       {{"output_index", index}, {"item", ItemOf(index, block, "in_progress")}});
  if (block.part == Part::kCall) return;
  Send("response.content_part.added", {{"item_id", ItemId(index, block)},
                                       {"output_index", index},
                                       {"content_index", 0},
                                       {"part", PartOf(block, "")}});
}

void ResponsesFormat::Grew(size_t index, const AnswerBlock& block, std::string_view piece) {
  json delta = {{"item_id", ItemId(index, block)}, {"output_index", index}};
  if (block.part != Part::kCall) {
    delta["content_index"] = 0;
    delta["delta"] = std::string(piece);
    if (block.part == Part::kThinking) return Send("response.reasoning_text.delta", delta);
    delta["logprobs"] = json::array();
    return Send("response.output_text.delta", delta);
  }
  const SentTool* sent = SentOf(block);
  if (sent == nullptr || !sent->is_custom) {
    delta["delta"] = std::string(piece);
    return Send("response.function_call_arguments.delta", delta);
  }
  std::string input = custom_input_.Read(piece);
  if (input.empty()) return;
  delta["delta"] = std::move(input);
  Send("response.custom_tool_call_input.delta", delta);
}

void ResponsesFormat::Closed(size_t index, const AnswerBlock& block) {
  const json item = ItemOf(index, block, StatusOf(index, end_));
  json done = {{"item_id", ItemId(index, block)}, {"output_index", index}};
  if (block.part == Part::kCall) {
    const bool is_custom = item.contains("input");
    const char* field = is_custom ? "input" : "arguments";
    done[field] = item[field];
    if (!is_custom) done["name"] = item["name"];
    Send(is_custom ? "response.custom_tool_call_input.done" : "response.function_call_arguments.done", done);
  } else {
    done["content_index"] = 0;
    json part = done;
    done["text"] = block.text;
    if (block.part == Part::kText) done["logprobs"] = json::array();
    Send(block.part == Part::kText ? "response.output_text.done" : "response.reasoning_text.done", done);
    part["part"] = PartOf(block, block.text);
    Send("response.content_part.done", part);
  }
  Send("response.output_item.done", {{"output_index", index}, {"item", item}});
}

std::string ResponsesFormat::Delta(int /*index*/, const OutputDelta& delta, const OutputEnd* end,
                                   const ResponseLabels& /*labels*/) {
  SendBegin();
  blocks_.Add(delta, *this);
  if (end != nullptr) {
    end_ = end;
    blocks_.End(*this);
    end_ = nullptr;
  }
  return TakeEvents();
}

std::string ResponsesFormat::KeepAlive() {
  SendBegin();
  Send("keepalive", json::object());
  return TakeEvents();
}

std::string ResponsesFormat::StreamEnd(const std::vector<ChoiceEnd>& choices) {
  const ChoiceEnd& choice = choices.front();
  Send(IsCut(choice.end) ? "response.incomplete" : "response.completed",
       {{"response", EndedResponse(choice)}});
  return TakeEvents();
}

std::string ResponsesFormat::FailedStream(const absl::Status& status) {
  Send("response.failed", {{"response", FailedResponse(status)}});
  return TakeEvents();
}

std::string ResponsesFormat::Whole(const std::vector<ChoiceEnd>& choices) {
  blocks_.Add(choices.front().whole, *this);
  events_.clear();  // nobody reads them
  return Dump(EndedResponse(choices.front()));
}

HttpAnswer ResponsesFormat::Failed(const absl::Status& status, const std::string& /*request_id*/) {
  const bool is_too_long = PromptSizeOf(status).has_value();
  if (is_too_long && shape_.stream) {
    SendBegin();
    return {.status = 200, .body = FailedStream(status), .content_type = "text/event-stream"};
  }
  if (is_too_long) return ErrorAnswer(shape_.names, status, "context_length_exceeded");
  if (ParamOf(shape_.names, status) == "previous_response_id") {
    return ErrorAnswer(shape_.names, status, "previous_response_not_found");
  }
  HttpAnswer answer = ErrorAnswer(shape_.names, status);
  // Codex gives up at the first 429, and tries again at 503.
  if (ReasonOf(status) == kReasonQueueFull) answer.status = 503;
  return answer;
}

}  // namespace foredraft
