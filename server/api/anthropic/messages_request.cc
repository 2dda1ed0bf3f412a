#include "server/api/anthropic/messages_request.h"

#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "base/status_macros.h"
#include "server/api/anthropic/content_blocks.h"
#include "server/api/anthropic/messages_tools.h"
#include "server/api/conversation/message_gatherer.h"
#include "server/api/fields/constraint_fields.h"
#include "server/api/fields/sampling_fields.h"
#include "server/api/fields/thinking_fields.h"

namespace foredraft {
namespace {

using nlohmann::json;

absl::StatusOr<MessagesRequest> ReadObject(const json& object, std::string_view body, FieldContext& context) {
  FieldReader fields(object, "", context);
  MessagesRequest request;
  request.model = fields.String("model").value_or("");
  request.stream = fields.Bool("stream", false);
  ClientRequest& common = request.common;
  common.wire = context.wire;
  common.lowers_max_tokens = true;
  request.max_tokens_field = ReadMaxTokens(fields, common);
  ReadCommonFields(fields, common);
  for (std::string& stop : fields.Strings("stop_sequences")) common.stop.push_back(std::move(stop));
  common.constraint = ReadConstraint(fields, body);
  request.hides_thinking = ReadThinking(fields, common);
  MessagesTools tools;
  tools.ReadList(fields, body);
  absl::StatusOr<GatheredMessages> read = ReadContentBlocks(fields, body, tools);
  fields.Keep(read.status());
  common.tools = tools.Take(fields);
  fields.End();
  RETURN_IF_ERROR(fields.status());
  common.choices.continues = !read->messages.empty() && CanBeContinued(read->messages.back());
  request.items = std::move(read->items);
  request.prompts.emplace_back(std::move(read->messages));
  return request;
}

}  // namespace

absl::StatusOr<MessagesRequest> ReadMessagesRequest(std::string_view body, const ReadOptions& options) {
  absl::StatusOr<MessagesRequest> request;
  RETURN_IF_ERROR(
      ReadBody(NotedWire::kMessages, body, options, [&](const json& object, FieldContext& context) {
        request = ReadObject(object, body, context);
        if (request.ok()) request->common.notes = context.notes;
        return request.status();
      }));
  return request;
}

}  // namespace foredraft
