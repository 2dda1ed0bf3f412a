#include "server/api/openai/token_pages.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/cord.h"
#include "absl/strings/str_cat.h"
#include "base/grouped_digits.h"
#include "base/status_macros.h"
#include "server/api/fields/field_reader.h"
#include "server/api/openai/openai_error.h"
#include "server/api/openai/openai_request.h"
#include "server/api/request_validator.h"
#include "server/text/byte_alphabet.h"

namespace foredraft {
namespace {

using nlohmann::json;

std::string Quoted(std::string_view text) {
  return json(text).dump(-1, ' ', false, json::error_handler_t::replace);
}

// The token as the vocabulary writes it.
std::string TokenName(const Tokenizer& tokenizer, int32_t id) {
  const std::string_view bytes = tokenizer.TokenBytes(id);
  return tokenizer.AddedTokenId(bytes) == id ? std::string(bytes) : TokenOfBytes(bytes);
}

// Appends each token to a text: a list of JSON values would take many times the memory.
std::string TokensBody(const RequestValidator& validator, std::span<const int32_t> ids, bool with_names) {
  std::string body = absl::StrCat(
      "{\"count\":", ids.size(), ",\"max_model_len\":", validator.limits().size.max_seq_len, ",\"tokens\":[");
  const char* separator = "";
  for (const int32_t id : ids) absl::StrAppend(&body, std::exchange(separator, ","), id);
  body += "],\"token_strs\":";
  if (!with_names) return body + "null}";
  separator = "[";
  for (const int32_t id : ids) {
    absl::StrAppend(&body, std::exchange(separator, ","), Quoted(TokenName(validator.tokenizer(), id)));
  }
  return body + (ids.empty() ? "[]}" : "]}");
}

absl::StatusOr<std::string> Tokenized(const RequestValidator& validator, const WireRequest& request,
                                      bool with_names) {
  const PromptInput& input = request.prompt_of(0);
  ASSIGN_OR_RETURN(const std::vector<int32_t> ids, validator.PromptTokens(input, request.common));
  const RequestLimits& limits = validator.limits();
  const auto most = std::max<size_t>(limits.max_detokenize_ids, limits.size.max_seq_len);
  if (ids.size() <= most) return TokensBody(validator, ids, with_names);
  return absl::InvalidArgumentError(absl::StrCat(
      std::holds_alternative<ChatMessages>(input) ? "messages: " : "prompt: ", Grouped(ids.size()),
      " tokens, allowed at most ", Grouped(most),
      " (server.max_detokenize_ids, or the context where it is longer)"));
}

// Renames the list in the status from token_ids to tokens, the request's name.
absl::Status OfTokens(const absl::Status& status) {
  constexpr std::string_view kOurs = "token_ids";
  const std::string text(status.message());
  if (!text.starts_with(kOurs)) return status;
  absl::Status renamed(status.code(), absl::StrCat("tokens", text.substr(kOurs.size())));
  renamed.SetPayload(kClientField, absl::Cord("tokens"));
  return renamed;
}

absl::StatusOr<std::string> Detokenized(const RequestValidator& validator, const WireRequest& request) {
  const auto& ids = std::get<std::vector<int32_t>>(request.prompt_of(0));
  const absl::StatusOr<std::string> text = validator.Detokenize(ids);
  if (!text.ok()) return OfTokens(text.status());
  return absl::StrCat("{\"prompt\":", Quoted(*text), "}");
}

}  // namespace

absl::StatusOr<HttpWire::ReadResult> TokenizePage::Read(std::string_view body,
                                                        const ReadOptions& options) const {
  ASSIGN_OR_RETURN(OpenAiRequest request, ReadTokenizeRequest(body, options));
  auto format = MakeOpenAiFormat(request.kind, &request);
  request.page = [with_names = request.return_token_strs](const RequestValidator& validator,
                                                          const WireRequest& read) {
    return Tokenized(validator, read, with_names);
  };
  return ReadResult{.request = std::move(request), .format = std::move(format)};
}

std::unique_ptr<AnswerFormat> TokenizePage::ErrorFormat() const {
  return MakeOpenAiFormat(OpenAiKind::kCompletion, nullptr);
}

HttpAnswer TokenizePage::Refusal(int status, const std::string& text) const {
  return ErrorAnswer(status, text);
}

absl::StatusOr<HttpWire::ReadResult> DetokenizePage::Read(std::string_view body,
                                                          const ReadOptions& options) const {
  WireRequest request;
  RETURN_IF_ERROR(ReadBody(noted(), body, options, [&](const json& object, FieldContext& context) {
    FieldReader fields(object, "", context);
    request.model = fields.String("model").value_or("");
    if (fields.Find("tokens") == nullptr) fields.Refuse("tokens", "absent, required");
    request.prompts.emplace_back(fields.Ids("tokens"));
    fields.End();
    request.common.notes = context.notes;
    return fields.status();
  }));
  request.page = Detokenized;
  return ReadResult{.request = std::move(request), .format = ErrorFormat()};
}

std::unique_ptr<AnswerFormat> DetokenizePage::ErrorFormat() const {
  return MakeOpenAiFormat(OpenAiKind::kCompletion, nullptr);
}

HttpAnswer DetokenizePage::Refusal(int status, const std::string& text) const {
  return ErrorAnswer(status, text);
}

}  // namespace foredraft
