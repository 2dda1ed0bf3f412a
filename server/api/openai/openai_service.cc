#include "server/api/openai/openai_service.h"

#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/out_of_memory.h"
#include "base/status_macros.h"
#include "config/json_text.h"
#include "server/api/openai/completion_answer.h"
#include "server/api/openai/openai_answer.h"
#include "server/api/request_id.h"
#include "server/output/request_log.h"

namespace foredraft {
namespace {

constexpr char kChatPath[] = "/v1/chat/completions";
constexpr char kCompletionPath[] = "/v1/completions";
constexpr char kModelsPath[] = "/v1/models";
constexpr char kHealthPath[] = "/health";

OpenAiKind KindOf(const std::string& path) {
  return path == kCompletionPath ? OpenAiKind::kCompletion : OpenAiKind::kChat;
}

// The media type without its parameters, of which JSON has none.
bool IsJsonType(std::string_view content_type) {
  const std::string_view type = content_type.substr(0, content_type.find(';'));
  return absl::EqualsIgnoreCase(absl::StripAsciiWhitespace(absl::string_view(type.data(), type.size())),
                                "application/json");
}

// A coding of the body other than none.
const std::string* FindCoding(const HttpRequest& head) {
  for (const auto& [name, value] : head.headers) {
    if (name == "content-encoding" && !absl::EqualsIgnoreCase(value, "identity")) return &value;
  }
  return nullptr;
}

// The id of a choice in the log, no longer than a client's own may be.
std::string ChoiceId(const std::string& request_id, int index) {
  const std::string suffix = absl::StrCat("-", index);
  return request_id.substr(0, kMaxRequestIdBytes - suffix.size()) + suffix;
}

HttpAnswer OnlyMethods(const char* methods) {
  HttpAnswer answer = ErrorAnswer(405, absl::StrCat("method: allowed ", methods));
  answer.headers.emplace_back("Allow", methods);
  return answer;
}

}  // namespace

OpenAiService::OpenAiService(Admission& admission, const Access& access, const Health& health,
                             int max_pending_tokens)
    : admission_(admission),
      access_(access),
      health_(health),
      max_pending_tokens_(max_pending_tokens),
      started_(absl::ToUnixSeconds(absl::Now())) {}

HttpAnswer OpenAiService::Refusal(int status, std::string text) { return ErrorAnswer(status, text); }

std::optional<HttpAnswer> OpenAiService::AnswerHead(const HttpRequest& head) {
  const bool is_post = head.path == kChatPath || head.path == kCompletionPath;
  const bool is_models =
      head.path == kModelsPath || absl::StartsWith(head.path, absl::StrCat(kModelsPath, "/"));
  if (!is_post && !is_models && head.path != kHealthPath) {
    return ErrorAnswer(404, absl::StrCat(head.path.substr(0, 100), ": not here, allowed ", kChatPath, ", ",
                                         kCompletionPath, ", ", kModelsPath, ", ", kHealthPath));
  }
  if (is_post) return CheckPost(head);
  if (head.method != "GET" && head.method != "HEAD") return OnlyMethods("GET, HEAD");
  if (!is_models) return HealthPage();  // probes have no tokens
  const absl::Status allowed = access_.Check(head.Header("authorization"), Role::kApi).status();
  return allowed.ok() ? Models(head.path) : RefuseCaller(head, allowed);
}

HttpAnswer OpenAiService::RefuseCaller(const HttpRequest& head, const absl::Status& refused) const {
  HttpAnswer answer = ErrorAnswer(KindOf(head.path), refused);
  answer.delay = access_.HoldBack(refused, head.Header("authorization"), foredraft::ClientOf(head.peer));
  return answer;
}

// Strangers are refused before they may send a body.
std::optional<HttpAnswer> OpenAiService::CheckPost(const HttpRequest& head) const {
  if (head.method != "POST") return OnlyMethods("POST");
  const absl::Status allowed = access_.Check(head.Header("authorization"), Role::kApi).status();
  if (!allowed.ok()) {
    admission_.CountRefusal(allowed);
    const std::string id = MakeRequestId();
    LogRefusal(id, head.peer, allowed, ReadTraceParent(head.Header(kTraceParentHeader)));
    HttpAnswer answer = RefuseCaller(head, allowed);
    answer.headers.emplace_back(kRequestIdMetadata, id);
    return answer;
  }
  if (const std::string* coding = FindCoding(head); coding != nullptr) {
    const absl::Status coded = absl::InvalidArgumentError(
        absl::StrCat("Content-Encoding: ", ShowJson(*coding), ", allowed a body without one (identity)"));
    admission_.CountRefusal(coded);
    HttpAnswer answer = ErrorAnswer(415, std::string(coded.message()));
    answer.headers.emplace_back("Accept-Encoding", "identity");
    return answer;
  }
  // A browser sends JSON to another origin only after it has asked (server/http/browser_policy.h).
  if (IsJsonType(head.Header("content-type"))) return std::nullopt;
  const absl::Status other_type = absl::InvalidArgumentError(absl::StrCat(
      "Content-Type: ", ShowJson(std::string(head.Header("content-type"))), ", allowed application/json"));
  admission_.CountRefusal(other_type);
  return ErrorAnswer(415, std::string(other_type.message()));
}

HttpAnswer OpenAiService::HealthPage() const {
  const ServingState state = health_.state();
  return {.status = state == ServingState::kServing ? 200 : 503,
          .body = absl::StrCat("{\"status\":\"", ServingStateName(state), "\"}"),
          .content_type = "application/json"};
}

HttpAnswer OpenAiService::Models(const std::string& path) const {
  const absl::StatusOr<const ServingParts*> parts = admission_.Parts();
  if (!parts.ok()) return ErrorAnswer(OpenAiKind::kChat, parts.status());
  const ModelCard& card = (*parts)->model;
  HttpAnswer answer{.content_type = "application/json"};
  if (path == kModelsPath) {
    answer.body = ModelsBody(card, started_);
  } else if (path.substr(std::string_view(kModelsPath).size() + 1) == card.name) {
    answer.body = ModelBody(card, started_);
  } else {
    return ErrorAnswer(OpenAiKind::kChat, absl::NotFoundError(absl::StrCat("model: allowed ", card.name)));
  }
  return answer;
}

absl::StatusOr<OpenAiRequest> OpenAiService::Read(const HttpRequest& http, FieldNotes& notes) const {
  ASSIGN_OR_RETURN(const ServingParts* parts, admission_.Parts());
  ASSIGN_OR_RETURN(OpenAiRequest request,
                   ReadOpenAiRequest(KindOf(http.path), http.body,
                                     {.max_prompt_ids = parts->validator->limits().size.max_seq_len,
                                      .refuses_unknown = refuses_unknown_.load(),
                                      .notes = &notes}));
  if (!request.model.empty() && request.model != parts->model.name) {
    return absl::NotFoundError(
        absl::StrCat("model: ", ShowJson(request.model.substr(0, 64)), ", allowed ", parts->model.name));
  }
  // Once for all choices, before any of them has a copy.
  std::string& id = request.common.request_id;
  if (!http.Header(kRequestIdMetadata).empty()) id = http.Header(kRequestIdMetadata);
  if (id.empty()) id = MakeRequestId();
  RETURN_IF_ERROR(parts->validator->CheckLengths(request.common));
  for (const PromptInput& prompt : request.prompts) {
    RETURN_IF_ERROR(parts->validator->CheckPromptLength(prompt, request.common.tools));
  }
  return request;
}

std::string OpenAiService::ClientOf(const HttpRequest& request) {
  return ClientName(request.peer,
                    access_.Check(request.Header("authorization"), Role::kApi).value_or(std::string()));
}

void OpenAiService::Serve(std::shared_ptr<HttpExchange> exchange) {
  const MustHaveMemory scope;
  const HttpRequest& http = exchange->request();
  FieldNotes notes;
  absl::StatusOr<OpenAiRequest> read = OrOutOfMemory([&] { return Read(http, notes); });
  AnswerShape shape{.kind = KindOf(http.path), .created = absl::ToUnixSeconds(absl::Now())};
  if (!read.ok()) {
    const auto answer = std::make_shared<CompletionAnswer>(exchange, shape, OpenAiRequest{.prompts = {{}}});
    const std::shared_ptr<GenerationCall> call =
        answer->AddChoice(admission_.OpenCall(), max_pending_tokens_);
    if (!notes.empty()) {
      answer->SetIgnored(notes);
      admission_.RecordNotes(WireOf(shape.kind), notes);
    }
    admission_.Refuse(std::string(http.Header(kRequestIdMetadata)), read.status(), call);
    return answer->AllSubmitted();
  }
  const auto request = std::make_shared<OpenAiRequest>(*std::move(read));
  const std::string request_id = request->common.request_id;
  const ServingParts& parts = **admission_.Parts();  // Read has seen them
  shape.id = absl::StrCat(shape.kind == OpenAiKind::kChat ? "chatcmpl-" : "cmpl-", PrintableId(request_id));
  shape.model = parts.model.name;
  shape.fingerprint = parts.model.numerics_class;
  shape.has_logprobs = request->common.logprobs.has_value();
  shape.return_token_ids = request->return_token_ids;
  shape.include_usage = request->include_usage;
  shape.continuous_usage = request->continuous_usage;
  shape.tokens_as_ids = request->tokens_as_ids;
  shape.hides_thinking = request->hides_thinking;
  shape.tokenizer = parts.tokenizer;
  shape.max_tokens_field = request->max_tokens_field;
  Submit(request, request_id, exchange->body_memory(),
         std::make_shared<CompletionAnswer>(exchange, std::move(shape), *request));
}

void OpenAiService::Submit(const std::shared_ptr<OpenAiRequest>& request, const std::string& request_id,
                           const std::shared_ptr<const void>& memory,
                           const std::shared_ptr<CompletionAnswer>& answer) {
  answer->SetRequestId(PrintableId(request_id));
  answer->SetIgnored(request->common.notes);
  const int count = request->choice_count();
  const ClientRequest& common = request->common;
  const bool is_constrained = common.constraint.has_value() || common.tools.constrain();
  const size_t tool_bytes = TextBytes(common.tools);
  for (int i = 0; i < count && !answer->has_failed(); ++i) {
    admission_.Submit(access_,
                      {.request_id = count == 1 ? request_id : ChoiceId(request_id, i),
                       .is_constrained = is_constrained,
                       .text_bytes = count * (TextBytes(request->prompt_of(i)) + tool_bytes),
                       .take = [request, memory, i] { return request->TakeChoice(i); }},
                      answer->AddChoice(admission_.OpenCall(), max_pending_tokens_));
  }
  answer->AllSubmitted();
}

}  // namespace foredraft
