#include "server/api/responses/responses_wire.h"

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "server/api/openai/openai_error.h"
#include "server/api/request_validator.h"
#include "server/api/responses/responses_answer.h"
#include "server/api/responses/responses_request.h"

namespace foredraft {

const char* ResponsesWire::path() const {
  return path_ == Path::kResponses ? "/v1/responses" : "/v1/responses/input_tokens";
}

absl::StatusOr<HttpWire::ReadResult> ResponsesWire::Read(std::string_view body,
                                                         const ReadOptions& options) const {
  ASSIGN_OR_RETURN(ResponsesRequest request, ReadResponsesRequest(body, options));
  ResponseShape shape{.stream = request.stream && path_ == Path::kResponses,
                      .hides_thinking = request.hides_thinking,
                      .names = {NotedWire::kResponses, request.max_tokens_field},
                      .sent_tools = std::move(request.sent_tools),
                      .repeated = std::move(request.repeated)};
  shape.names.items = std::move(request.items);
  if (path_ == Path::kInputTokens) {
    request.page = [](const RequestValidator& validator,
                      const WireRequest& read) -> absl::StatusOr<std::string> {
      ASSIGN_OR_RETURN(const std::vector<int32_t> ids,
                       validator.PromptTokens(read.prompt_of(0), read.common));
      return absl::StrCat("{\"object\":\"response.input_tokens\",\"input_tokens\":", ids.size(), "}");
    };
  }
  auto format = std::make_unique<ResponsesFormat>(std::move(shape));
  return ReadResult{.request = std::move(request), .format = std::move(format)};
}

std::unique_ptr<AnswerFormat> ResponsesWire::ErrorFormat() const {
  return std::make_unique<ResponsesFormat>();
}

HttpAnswer ResponsesWire::Refusal(int status, const std::string& text) const {
  return ErrorAnswer(status, text);
}

}  // namespace foredraft
