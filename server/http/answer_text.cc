#include "server/http/answer_text.h"

#include <algorithm>
#include <boost/beast/http/status.hpp>

#include "absl/strings/str_cat.h"

namespace foredraft {
namespace {

bool HasHeader(const HttpAnswer& answer, std::string_view name) {
  return std::any_of(answer.headers.begin(), answer.headers.end(),
                     [name](const auto& header) { return header.first == name; });
}

std::string Head(const HttpAnswer& answer, const AnswerFrame& frame) {
  const auto reason = boost::beast::http::obsolete_reason(boost::beast::http::int_to_status(answer.status));
  std::string head =
      absl::StrCat("HTTP/1.1 ", answer.status, " ", std::string(reason.data(), reason.size()), "\r\n");
  if (!answer.content_type.empty()) absl::StrAppend(&head, "Content-Type: ", answer.content_type, "\r\n");
  // No page of another origin may show an answer or embed it, and no script in an answer runs.
  absl::StrAppend(&head,
                  "Cache-Control: no-store\r\nX-Content-Type-Options: nosniff\r\nVary: Origin\r\n"
                  "Cross-Origin-Resource-Policy: same-origin\r\n");
  if (!HasHeader(answer, "Content-Security-Policy")) {
    absl::StrAppend(&head, "Content-Security-Policy: default-src 'none'; frame-ancestors 'none'\r\n");
  }
  for (const HttpHeaders* headers : {&answer.headers, &frame.headers}) {
    for (const auto& [name, value] : *headers) absl::StrAppend(&head, name, ": ", value, "\r\n");
  }
  if (frame.close) absl::StrAppend(&head, "Connection: close\r\n");
  return head;
}

}  // namespace

std::string WholeAnswer(const HttpAnswer& answer, const AnswerFrame& frame) {
  std::string text = Head(answer, frame);
  if (answer.status != 204) absl::StrAppend(&text, "Content-Length: ", answer.body.size(), "\r\n");
  text.append("\r\n");
  if (frame.with_body) text.append(answer.body);
  return text;
}

std::string StreamHead(const HttpAnswer& answer, const AnswerFrame& frame) {
  return absl::StrCat(Head(answer, frame), frame.chunked ? "Transfer-Encoding: chunked\r\n" : "", "\r\n");
}

void AppendPart(std::string_view part, bool chunked, std::string& out) {
  if (part.empty()) return;
  if (chunked) absl::StrAppend(&out, absl::Hex(part.size()), "\r\n");
  out.append(part);
  if (chunked) out.append("\r\n");
}

}  // namespace foredraft
