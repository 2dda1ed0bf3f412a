#include "server/api/http/http_router.h"

#include <algorithm>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/out_of_memory.h"
#include "base/status_macros.h"
#include "config/json_text.h"
#include "server/api/http/bearer_token.h"
#include "server/api/http/generation_answer.h"
#include "server/api/http/model_pages.h"
#include "server/api/http/paths.h"
#include "server/api/request_id.h"
#include "server/http/body_coding.h"
#include "server/output/request_log.h"

namespace foredraft {
namespace {

constexpr char kModelsPath[] = "/v1/models";
constexpr char kHealthPath[] = "/health";
constexpr char kPingPath[] = "/ping";  // SageMaker's name for /health
constexpr char kVersionPath[] = "/version";
constexpr char kMetricsPath[] = "/metrics";
// Bounds the model's name in a request: every event repeats a name that matched an alias with a *.
constexpr size_t kMaxNameBytes = 256;

// Compares the media type without its parameters: JSON has none.
bool IsJsonType(std::string_view content_type) {
  const std::string_view type = content_type.substr(0, content_type.find(';'));
  return absl::EqualsIgnoreCase(absl::StripAsciiWhitespace(absl::string_view(type.data(), type.size())),
                                "application/json");
}

// The id of a choice in the log, no longer than a client's own id may be.
std::string ChoiceId(const std::string& request_id, int index) {
  const std::string suffix = absl::StrCat("-", index);
  return request_id.substr(0, kMaxRequestIdBytes - suffix.size()) + suffix;
}

}  // namespace

HttpRouter::HttpRouter(std::vector<const HttpWire*> wires, Admission& admission, const Access& access,
                       const Health& health, HttpRouterOptions options)
    : wires_(std::move(wires)),
      admission_(admission),
      access_(access),
      health_(health),
      options_(std::move(options)),
      started_(absl::ToUnixSeconds(absl::Now())) {}

const HttpWire* HttpRouter::WireOf(const std::string& path) const {
  const auto found = std::find_if(wires_.begin(), wires_.end(),
                                  [&path](const HttpWire* wire) { return path == wire->path(); });
  return found == wires_.end() ? nullptr : *found;
}

HttpAnswer HttpRouter::Refusal(const std::string& path, int status, std::string text) {
  const HttpWire* wire = WireOf(NormalPath(path));
  return (wire == nullptr ? first_wire() : *wire).Refusal(status, text);
}

HttpAnswer HttpRouter::UnknownPath(const std::string& path) const {
  std::string text = absl::StrCat(path.substr(0, 100), ": not here, allowed ");
  if (const HttpWire* meant = WireOf("/v1" + path); meant != nullptr) {
    return first_wire().Refusal(404, text + meant->path());
  }
  for (const HttpWire* wire : wires_) absl::StrAppend(&text, wire->path(), ", ");
  return first_wire().Refusal(404, absl::StrCat(text, kModelsPath, ", ", kHealthPath));
}

HttpAnswer HttpRouter::OnlyMethods(const HttpWire& wire, const std::string& method,
                                   const char* methods) const {
  HttpAnswer answer = method == "OPTIONS" ? HttpAnswer{.status = 204}
                                          : wire.Refusal(405, absl::StrCat("method: allowed ", methods));
  answer.headers.emplace_back("Allow", methods);
  return answer;
}

std::optional<HttpAnswer> HttpRouter::AnswerHead(const HttpRequest& head) {
  const std::string path = NormalPath(head.path);
  if (const HttpWire* wire = WireOf(path); wire != nullptr) return CheckPost(head, *wire);
  std::optional<HttpAnswer> page = AnswerPage(head, path);
  return page.has_value() ? std::move(page) : UnknownPath(path);
}

std::optional<HttpAnswer> HttpRouter::AnswerPage(const HttpRequest& head, const std::string& path) const {
  const bool is_models = path == kModelsPath || absl::StartsWith(path, absl::StrCat(kModelsPath, "/"));
  const bool is_health = path == kHealthPath || path == kPingPath;
  const bool is_metrics = path == kMetricsPath;
  if (!is_models && !is_health && !is_metrics && path != kVersionPath) return std::nullopt;
  if (head.method != "GET" && head.method != "HEAD") {
    return OnlyMethods(first_wire(), head.method, "GET, HEAD");
  }
  if (is_health) return HealthPage();  // probes have no tokens
  if (path == kVersionPath) return VersionPage();
  const absl::Status allowed = access_.Check(AuthorizationOf(head), Role::kApi).status();
  if (!allowed.ok()) return RefuseCaller(head, first_wire(), allowed, "");
  return is_metrics ? MetricsPage() : Models(path);
}

HttpAnswer HttpRouter::MetricsPage() const {
  if (options_.metrics) return {.body = options_.metrics(), .content_type = kMetricsPageType};
  return first_wire().Refusal(
      404, absl::StrCat("/metrics: not on this listener (metrics.on_http is false)",
                        options_.metrics_address.empty() ? "" : ", allowed on server.metrics_address, ",
                        options_.metrics_address));
}

HttpAnswer HttpRouter::RefuseCaller(const HttpRequest& head, const HttpWire& wire,
                                    const absl::Status& refused, const std::string& request_id) const {
  HttpAnswer answer = wire.ErrorFormat()->Failed(refused, request_id);
  answer.delay = access_.HoldBack(refused, AuthorizationOf(head), foredraft::ClientOf(head.peer));
  return answer;
}

// Strangers are refused before they may send a body.
std::optional<HttpAnswer> HttpRouter::CheckPost(const HttpRequest& head, const HttpWire& wire) const {
  if (head.method != "POST") return OnlyMethods(wire, head.method, "POST");
  const absl::Status allowed = access_.Check(AuthorizationOf(head), Role::kApi).status();
  if (!allowed.ok()) {
    admission_.CountRefusal(allowed);
    const std::string id = MakeRequestId();
    LogRefusal(id, head.peer, allowed, ReadTraceParent(head.Header(kTraceParentHeader)));
    HttpAnswer answer = RefuseCaller(head, wire, allowed, id);
    answer.headers.emplace_back(kRequestIdMetadata, id);
    return answer;
  }
  if (CodingOf(head) == BodyCoding::kOther) {
    const absl::Status coded = absl::InvalidArgumentError(
        absl::StrCat("Content-Encoding: ", ShowJson(std::string(head.Header("content-encoding"))),
                     ", allowed one of gzip, deflate, identity"));
    admission_.CountRefusal(coded);
    HttpAnswer answer = wire.Refusal(415, std::string(coded.message()));
    answer.headers.emplace_back("Accept-Encoding", "gzip, deflate");
    return answer;
  }
  // A browser sends JSON to another origin only after it has asked (server/http/browser_policy.h).
  if (IsJsonType(head.Header("content-type"))) return std::nullopt;
  const absl::Status other_type = absl::InvalidArgumentError(absl::StrCat(
      "Content-Type: ", ShowJson(std::string(head.Header("content-type"))), ", allowed application/json"));
  admission_.CountRefusal(other_type);
  return wire.Refusal(415, std::string(other_type.message()));
}

HttpAnswer HttpRouter::HealthPage() const {
  const ServingState state = health_.state();
  return {.status = state == ServingState::kServing ? 200 : 503,
          .body = absl::StrCat("{\"status\":\"", ServingStateName(state), "\"}"),
          .content_type = "application/json"};
}

HttpAnswer HttpRouter::VersionPage() const {
  const absl::StatusOr<const ServingParts*> parts = admission_.Parts();
  if (!parts.ok()) return first_wire().ErrorFormat()->Failed(parts.status(), "");
  return {.body = VersionBody((*parts)->model), .content_type = "application/json"};
}

HttpAnswer HttpRouter::Models(const std::string& path) const {
  const absl::StatusOr<const ServingParts*> parts = admission_.Parts();
  if (!parts.ok()) return first_wire().ErrorFormat()->Failed(parts.status(), "");
  const ModelCard& card = (*parts)->model;
  HttpAnswer answer{.content_type = "application/json"};
  if (path == kModelsPath) {
    answer.body = ModelsBody(card, started_);
    return answer;
  }
  // Everything after the prefix is the name, slashes included.
  const std::optional<std::string> name =
      PercentDecoded(std::string_view(path).substr(std::string_view(kModelsPath).size() + 1));
  if (!name.has_value()) {
    return first_wire().ErrorFormat()->Failed(
        absl::InvalidArgumentError("path: a % without two hexadecimal digits, or %00"), "");
  }
  if (!IsServed(*name, card)) {
    return first_wire().ErrorFormat()->Failed(absl::NotFoundError(absl::StrCat("model: allowed ", card.name)),
                                              "");
  }
  ModelCard asked = card;
  asked.name = *name;
  answer.body = ModelBody(asked, started_);
  return answer;
}

absl::StatusOr<HttpWire::ReadResult> HttpRouter::Read(const HttpRequest& http, const HttpWire& wire,
                                                      FieldNotes& notes) const {
  ASSIGN_OR_RETURN(const ServingParts* parts, admission_.Parts());
  ASSIGN_OR_RETURN(ReadResult read,
                   wire.Read(http.body, {.max_prompt_ids = parts->validator->limits().size.max_seq_len,
                                         .refuses_unknown = refuses_unknown_.load(),
                                         .notes = &notes}));
  std::string& id = read.request.common.request_id;
  if (!http.Header(kRequestIdMetadata).empty()) id = http.Header(kRequestIdMetadata);
  if (id.empty()) id = MakeRequestId();
  const std::string& model = read.request.model;
  read.format->Begin({.request_id = PrintableId(id),
                      .model = IsServed(model, parts->model) ? model : parts->model.name,
                      .fingerprint = parts->model.numerics_class,
                      .created = absl::ToUnixSeconds(absl::Now()),
                      .tokenizer = parts->tokenizer});
  return read;
}

bool HttpRouter::IsServed(const std::string& name, const ModelCard& card) const {
  if (name == card.name) return true;
  const auto stands_for = [&name](std::string_view alias) {
    if (!alias.ends_with('*')) return name == alias;
    alias.remove_suffix(1);
    return name.starts_with(alias) && name.size() <= kMaxNameBytes;
  };
  return std::ranges::any_of(options_.model_aliases, stands_for);
}

absl::Status HttpRouter::Check(const WireRequest& request) const {
  ASSIGN_OR_RETURN(const ServingParts* parts, admission_.Parts());
  if (!request.model.empty() && !IsServed(request.model, parts->model)) {
    return absl::NotFoundError(
        absl::StrCat("model: ", ShowJson(request.model.substr(0, 64)), ", allowed ", parts->model.name));
  }
  RETURN_IF_ERROR(parts->validator->CheckLengths(request.common));
  if (request.page != nullptr) {
    return absl::OkStatus();  // the length is bounded only by RequestValidator::Tokenize
  }
  for (const PromptInput& prompt : request.prompts) {
    RETURN_IF_ERROR(parts->validator->CheckPromptLength(prompt, request.common.tools));
  }
  return absl::OkStatus();
}

std::string HttpRouter::ClientOf(const HttpRequest& request) {
  return ClientName(request.peer,
                    access_.Check(AuthorizationOf(request), Role::kApi).value_or(std::string()));
}

void HttpRouter::Refuse(const std::shared_ptr<HttpExchange>& exchange, NotedWire wire,
                        std::unique_ptr<AnswerFormat> format, const absl::Status& status,
                        const FieldNotes& notes) {
  const auto answer =
      std::make_shared<GenerationAnswer>(exchange, std::move(format), WireRequest{.prompts = {{}}});
  const std::shared_ptr<GenerationCall> call =
      answer->AddChoice(admission_.OpenCall(), options_.max_pending_tokens);
  if (!notes.empty()) {
    answer->SetIgnored(notes);
    admission_.RecordNotes(wire, notes);
  }
  admission_.Refuse(std::string(exchange->request().Header(kRequestIdMetadata)), status, call);
  answer->AllSubmitted();
}

void HttpRouter::Serve(std::shared_ptr<HttpExchange> exchange) {
  const MustHaveMemory scope;
  const HttpRequest& http = exchange->request();
  const HttpWire& wire = *WireOf(NormalPath(http.path));  // not null: AnswerHead has checked the path
  FieldNotes notes;
  absl::StatusOr<ReadResult> read = OrOutOfMemory([&] { return Read(http, wire, notes); });
  if (!read.ok()) return Refuse(exchange, wire.noted(), wire.ErrorFormat(), read.status(), notes);
  // Checked before any of the choices has a copy.
  const absl::Status checked = OrOutOfMemory([&] { return Check(read->request); });
  if (!checked.ok()) return Refuse(exchange, wire.noted(), std::move(read->format), checked, notes);
  if (read->request.page != nullptr) return SendPage(exchange, wire, *std::move(read));
  const auto request = std::make_shared<WireRequest>(std::move(read->request));
  const std::string request_id = request->common.request_id;
  Submit(request, request_id, exchange->body_memory(),
         std::make_shared<GenerationAnswer>(exchange, std::move(read->format), *request));
}

void HttpRouter::SendPage(const std::shared_ptr<HttpExchange>& exchange, const HttpWire& wire,
                          ReadResult read) {
  const auto request = std::make_shared<WireRequest>(std::move(read.request));
  const auto answer = std::make_shared<GenerationAnswer>(exchange, std::move(read.format), *request);
  const std::string id = PrintableId(request->common.request_id);
  answer->SetRequestId(id);
  answer->SetIgnored(request->common.notes);
  if (!request->common.notes.empty()) admission_.RecordNotes(wire.noted(), request->common.notes);
  const size_t bytes = TextBytes(request->prompt_of(0)) + TextBytes(request->common.tools);
  // The body's memory is held until the prompt is tokenized.
  admission_.Tokenize(ClientOf(exchange->request()), bytes,
                      [this, request, answer, memory = exchange->body_memory()](const absl::Status& may) {
                        const MustHaveMemory scope;
                        absl::StatusOr<std::string> body =
                            OrOutOfMemory([&]() -> absl::StatusOr<std::string> {
                              RETURN_IF_ERROR(may);
                              return request->page(*(*admission_.Parts())->validator, *request);
                            });
                        if (body.ok()) return answer->SendBody(*std::move(body));
                        admission_.CountRefusal(body.status());
                        answer->SendError(body.status());
                      });
}

void HttpRouter::Submit(const std::shared_ptr<WireRequest>& request, const std::string& request_id,
                        const std::shared_ptr<const void>& memory,
                        const std::shared_ptr<GenerationAnswer>& answer) {
  answer->SetRequestId(PrintableId(request_id));
  answer->SetIgnored(request->common.notes);
  const int count = request->choice_count();
  const ClientRequest& common = request->common;
  const bool is_constrained =
      common.constraint.has_value() || common.tools.constrain() || common.tools.has_removed;
  const size_t tool_bytes = TextBytes(common.tools);
  for (int i = 0; i < count && !answer->has_failed(); ++i) {
    admission_.Submit(access_,
                      {.request_id = count == 1 ? request_id : ChoiceId(request_id, i),
                       .is_constrained = is_constrained,
                       .choices = i % request->choices_per_prompt == 0 ? request->choices_per_prompt : 0,
                       .text_bytes = count * (TextBytes(request->prompt_of(i)) + tool_bytes),
                       .take = [request, memory, i] { return request->TakeChoice(i); }},
                      answer->AddChoice(admission_.OpenCall(), options_.max_pending_tokens));
  }
  answer->AllSubmitted();
}

}  // namespace foredraft
