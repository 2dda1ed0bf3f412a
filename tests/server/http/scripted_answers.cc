#include "tests/server/http/scripted_answers.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"

namespace foredraft {
namespace {

using json = nlohmann::ordered_json;
using Part = AnswerRun::Part;

// A token for every four bytes.
void Count(const std::vector<ScriptedPart>& parts, size_t sent, RequestStats& stats) {
  size_t thinking = 0;
  for (const ScriptedPart& part : parts) {
    if (part.part == Part::kThinking) thinking += part.text.size();
  }
  stats.prompt_tokens = 40;
  stats.cached_tokens = 32;
  stats.completion_tokens = static_cast<int>(sent / 4 + 1);
  stats.thinking_tokens = static_cast<int>(std::min(sent, thinking) / 4);
  stats.steps = stats.completion_tokens / 2;
  stats.accepted_tokens = stats.completion_tokens - 1 - stats.steps;
  stats.draft_tokens = stats.accepted_tokens + 1;
}

}  // namespace

std::vector<ScriptedAnswer> ScriptedAnswers() {
  const OutputEnd called = {.finish = FinishReason::kStop, .called_tools = true};
  const OutputEnd cut = {.finish = FinishReason::kLength};
  return {
      {"text", {{Part::kText, "2 + 2 = 4, \"naïvely\"\n"}}},
      {"thinking", {{Part::kThinking, "I add."}, {Part::kText, "4"}}},
      {"calls",
       {{Part::kThinking, "Two calls."},
        {Part::kText, "I look. "},
        {Part::kCall, "{\"city\": \"Zürich\", \"days\": 12345678901234567890}", "get_weather"},
        {Part::kCall, "{}", "now"}},
       called},
      {"text_behind_calls",
       {{Part::kCall, "{\"a\": [1, 2]}", "now"}, {Part::kText, "And so on."}},
       {.finish = FinishReason::kStop}},
      {"cut_in_thinking", {{Part::kThinking, "I wonder wh"}}, cut},
      {"cut_in_call", {{Part::kText, "So:"}, {Part::kCall, "{\"city\": \"Zü", "get_weather", false}}, cut},
      {"stopped", {{Part::kText, "one, two, "}}, {.finish = FinishReason::kStop, .matched_stop = "three"}},
      {"stopped_in_call",
       {{Part::kCall, "{\"city\": \"", "get_weather", false}},
       {.finish = FinishReason::kStop, .matched_stop = "three"}},
      {"custom",
       {{Part::kCall, "{\"input\": \"*** \\u00fc \\ud83d\\ude00\\n\\\"quoted\\\"\"}", "apply_patch"}},
       called},
      {"namespaced", {{Part::kCall, "{\"path\": \"a\"}", "files__read"}}, called},
      {"empty", {}},
  };
}

std::vector<OutputDelta> DeltasOf(const ScriptedAnswer& answer, size_t bytes) {
  std::vector<OutputDelta> deltas;
  size_t sent = 0;
  int call_count = 0;
  const auto begin = [&] {
    deltas.emplace_back();
    Count(answer.parts, sent, deltas.back().stats);
  };
  begin();
  for (const ScriptedPart& part : answer.parts) {
    const int call = part.part == Part::kCall ? call_count++ : 0;
    for (size_t at = 0; at == 0 || at < part.text.size();) {
      // Pieces are whole characters.
      size_t size = bytes == 0 ? part.text.size() : std::min(bytes, part.text.size() - at);
      while (at + size < part.text.size() && (part.text[at + size] & 0xc0) == 0x80) ++size;
      const std::string piece = part.text.substr(at, size);
      if (bytes != 0) begin();
      OutputDelta& delta = deltas.back();
      AppendRun(delta.runs, {part.part, call, piece.size()});
      if (part.part == Part::kThinking) delta.thinking += piece;
      if (part.part == Part::kText) delta.text += piece;
      if (part.part == Part::kCall) {
        CallDelta next{.index = call, .arguments = piece};
        if (at == 0) next.id = absl::StrCat("call_x_", call);
        if (at == 0) next.name = part.name;
        next.complete = part.complete && at + size >= part.text.size();
        AppendCalls(delta.calls, {std::move(next)});
      }
      at += std::max<size_t>(size, 1);
      sent += size;
      delta.token_ids.push_back(1);
      Count(answer.parts, sent, delta.stats);
    }
  }
  return deltas;
}

OutputDelta WholeOf(const ScriptedAnswer& answer) {
  OutputDelta whole;
  for (OutputDelta& delta : DeltasOf(answer, 1)) whole.Append(std::move(delta));
  return whole;
}

AnswerLabels TestLabels() {
  return {.request_id = "r-1", .model = "abacus", .fingerprint = "numerics", .created = 1'700'000'000};
}

std::string StreamOf(AnswerFormat& format, const ScriptedAnswer& answer, size_t bytes) {
  const ResponseLabels labels{.request_id = "r-1", .seed = 7};
  std::string stream;
  const std::vector<OutputDelta> deltas = DeltasOf(answer, bytes);
  for (size_t i = 0; i < deltas.size(); ++i) {
    stream += format.Delta(0, deltas[i], i + 1 == deltas.size() ? &answer.end : nullptr, labels);
  }
  return stream +
         format.StreamEnd({{.whole = {.stats = deltas.back().stats}, .end = answer.end, .labels = labels}});
}

std::vector<SentEvent> SentEvents(const std::string& stream) {
  constexpr std::string_view kType = "event: ", kData = "\ndata: ";
  std::vector<SentEvent> events;
  for (size_t at = 0; at < stream.size();) {
    const size_t end = stream.find("\n\n", at);
    CHECK(end != std::string::npos) << stream.substr(at);
    const std::string event = stream.substr(at, end - at);
    const size_t data = event.find(kData);
    CHECK(event.starts_with(kType) && data != std::string::npos) << event;
    events.push_back(
        {event.substr(kType.size(), data - kType.size()), json::parse(event.substr(data + kData.size()))});
    CHECK_EQ(events.back().type, events.back().data["type"].get<std::string>());
    at = end + 2;
  }
  return events;
}

json JoinedMessage(const std::vector<SentEvent>& events) {
  json message;
  std::string input;
  bool is_open = false, is_over = false;
  for (const auto& [type, data] : events) {
    CHECK(!is_over) << type << " behind message_stop";
    CHECK_EQ(message.is_null(), type == "message_start") << type;
    if (type == "message_start") {
      message = data["message"];
    } else if (type == "content_block_start") {
      CHECK(!is_open && data["index"] == message["content"].size()) << data.dump();
      is_open = true;
      message["content"].push_back(data["content_block"]);
      input.clear();
    } else if (type == "content_block_delta") {
      CHECK(is_open && data["index"] == message["content"].size() - 1) << data.dump();
      json& block = message["content"].back();
      for (const auto& [key, value] : data["delta"].items()) {
        if (key == "partial_json") input += value.get<std::string>();
        if (key == "thinking" || key == "text" || key == "signature") {
          block[key] = block[key].get<std::string>() + value.get<std::string>();
        }
      }
    } else if (type == "content_block_stop") {
      CHECK(is_open && data["index"] == message["content"].size() - 1) << data.dump();
      is_open = false;
      json& block = message["content"].back();
      const json parsed = json::parse(input, nullptr, /*allow_exceptions=*/false);
      if (block["type"] == "tool_use" && parsed.is_object()) block["input"] = parsed;
    } else if (type == "message_delta") {
      CHECK(!is_open) << data.dump();
      message["usage"] = data["usage"];
      for (const auto& [key, value] : data["delta"].items()) message[key] = value;
    } else if (type == "ping") {
      CHECK_EQ(data.size(), 1u) << data.dump();
    } else {
      CHECK_EQ(type, "message_stop");
      is_over = true;
    }
  }
  CHECK(is_over) << "no message_stop";
  return message;
}

}  // namespace foredraft
