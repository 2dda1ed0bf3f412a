#include "server/api/anthropic/messages_wire.h"

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "server/api/anthropic/messages_answer.h"
#include "server/api/anthropic/messages_request.h"
#include "server/api/request_validator.h"

namespace foredraft {

const char* MessagesWire::path() const {
  return path_ == Path::kMessages ? "/v1/messages" : "/v1/messages/count_tokens";
}

absl::StatusOr<HttpWire::ReadResult> MessagesWire::Read(std::string_view body,
                                                        const ReadOptions& options) const {
  ASSIGN_OR_RETURN(MessagesRequest request, ReadMessagesRequest(body, options));
  if (path_ == Path::kCountTokens) {
    request.page = [](const RequestValidator& validator,
                      const WireRequest& read) -> absl::StatusOr<std::string> {
      ASSIGN_OR_RETURN(const std::vector<int32_t> ids,
                       validator.PromptTokens(read.prompt_of(0), read.common));
      return absl::StrCat("{\"input_tokens\":", ids.size(), "}");
    };
  }
  FieldNames names(NotedWire::kMessages, request.max_tokens_field);
  names.items = std::move(request.items);
  auto format = std::make_unique<MessagesFormat>(request.hides_thinking, std::move(names));
  return ReadResult{.request = std::move(request), .format = std::move(format)};
}

std::unique_ptr<AnswerFormat> MessagesWire::ErrorFormat() const { return std::make_unique<MessagesFormat>(); }

HttpAnswer MessagesWire::Refusal(int status, const std::string& text) const {
  return MessagesError(status, text, "");
}

}  // namespace foredraft
