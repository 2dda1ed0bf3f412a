#include "server/api/openai/openai_error.h"

#include <nlohmann/json.hpp>
#include <string_view>

namespace foredraft {
namespace {

using json = nlohmann::ordered_json;

std::string Dump(const json& value) { return value.dump(-1, ' ', false, json::error_handler_t::replace); }

json ErrorJson(const char* type, const char* code, const std::string& param, std::string_view text) {
  return {{"error",
           {{"message", std::string(text)},
            {"type", type},
            {"param", param.empty() ? json(nullptr) : json(param)},
            {"code", code}}}};
}

}  // namespace

json ErrorJson(const FieldNames& names, const absl::Status& status) {
  const ErrorKind error = ErrorKindOf(status);
  if (error.http_status != 400) return ErrorJson(error.type, error.code, "", std::string(status.message()));
  return ErrorJson(error.type, error.code, ParamOf(names, status), ClientText(names, status));
}

HttpAnswer ErrorAnswer(const FieldNames& names, const absl::Status& status, const char* code) {
  const ErrorKind error = ErrorKindOf(status);
  json body = ErrorJson(names, status);
  if (code != nullptr) body["error"]["code"] = code;
  HttpAnswer answer{.status = error.http_status, .body = Dump(body), .content_type = "application/json"};
  if (error.http_status == 401) answer.headers.emplace_back("WWW-Authenticate", "Bearer");
  if (error.http_status == 429 || error.http_status == 503) answer.headers.emplace_back("Retry-After", "1");
  return answer;
}

HttpAnswer ErrorAnswer(int http_status, const std::string& text) {
  HttpAnswer answer{
      .status = http_status,
      .body = Dump(ErrorJson(http_status < 500 ? "invalid_request_error" : "service_unavailable_error",
                             http_status == 404 ? "unknown_url" : "refused", "", text)),
      .content_type = "application/json"};
  if (http_status == 503) answer.headers.emplace_back("Retry-After", "1");
  return answer;
}

}  // namespace foredraft
