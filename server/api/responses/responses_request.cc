#include "server/api/responses/responses_request.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/status_macros.h"
#include "server/api/conversation/message_gatherer.h"
#include "server/api/fields/constraint_fields.h"
#include "server/api/fields/sampling_fields.h"
#include "server/api/fields/thinking_fields.h"
#include "server/api/responses/input_items.h"
#include "server/text/json_slice.h"

namespace foredraft {
namespace {

using nlohmann::json;

constexpr const char* kRepeated[] = {"instructions",
                                     "max_output_tokens",
                                     "metadata",
                                     "parallel_tool_calls",
                                     "prompt_cache_key",
                                     "reasoning",
                                     "safety_identifier",
                                     "temperature",
                                     "text",
                                     "tool_choice",
                                     "tools",
                                     "top_logprobs",
                                     "top_p",
                                     "truncation",
                                     "user"};

// The copies live as long as the answer, so their size is bounded: instructions and tools may be larger than
// other fields, and a field beyond its bound is not repeated.
std::map<std::string, std::string> RepeatedFields(std::string_view body) {
  constexpr size_t kMostBytes = size_t{64} << 10, kMostPromptBytes = size_t{4} << 20;
  std::map<std::string, std::string> repeated;
  for (const auto& [name, text] : MemberTexts(body)) {
    const bool is_repeated =
        std::find(std::begin(kRepeated), std::end(kRepeated), name) != std::end(kRepeated);
    const bool is_prompt = name == "instructions" || name == "tools";
    if (is_repeated && text.size() <= (is_prompt ? kMostPromptBytes : kMostBytes)) repeated[name] = text;
  }
  return repeated;
}

absl::StatusOr<ResponsesRequest> ReadObject(const json& object, std::string_view body,
                                            FieldContext& context) {
  FieldReader fields(object, "", context);
  ResponsesRequest request;
  request.model = fields.String("model").value_or("");
  request.stream = fields.Bool("stream", false);
  ClientRequest& common = request.common;
  common.wire = context.wire;
  common.lowers_max_tokens = true;
  request.max_tokens_field = ReadMaxTokens(fields, common, "max_output_tokens");
  ReadCommonFields(fields, common);
  common.constraint = ReadConstraint(fields, body);
  request.hides_thinking = ReadThinking(fields, common);
  if (fields.String("truncation").value_or("disabled") != "disabled") fields.Drop("truncation");
  ResponseTools tools;
  if (const json* list = fields.Find("tools"); list != nullptr) {
    fields.Keep(tools.AddList(*list, MemberText(body, "tools"), "tools", context));
  }
  absl::StatusOr<GatheredMessages> read = ReadInputItems(fields, body, tools);
  fields.Keep(read.status());
  common.tools = tools.Take(fields);
  fields.End();
  RETURN_IF_ERROR(fields.status());
  request.sent_tools = tools.TakeSent();
  request.items = std::move(read->items);
  request.prompts.emplace_back(std::move(read->messages));
  request.repeated = RepeatedFields(body);
  return request;
}

}  // namespace

absl::StatusOr<ResponsesRequest> ReadResponsesRequest(std::string_view body, const ReadOptions& options) {
  absl::StatusOr<ResponsesRequest> request;
  RETURN_IF_ERROR(
      ReadBody(NotedWire::kResponses, body, options, [&](const json& object, FieldContext& context) {
        request = ReadObject(object, body, context);
        if (request.ok()) request->common.notes = context.notes;
        return request.status();
      }));
  return request;
}

}  // namespace foredraft
