#include "server/http/request_head.h"

#include <algorithm>
#include <array>
#include <boost/beast/http/empty_body.hpp>
#include <boost/beast/http/parser.hpp>
#include <limits>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace foredraft {
namespace {

namespace http = boost::beast::http;

constexpr std::array<std::string_view, 10> kSingleFields = {
    "host",   "content-length", "transfer-encoding", "content-type", "authorization",
    "expect", "origin",         "x-request-id",      "traceparent",  "access-control-request-method"};
constexpr size_t kShown = 100;  // bytes of a client's text that an answer repeats

std::string Text(boost::beast::string_view view) { return {view.data(), view.size()}; }

std::string Shown(std::string_view text) { return std::string(text.substr(0, kShown)); }

bool IsDigits(std::string_view text) {
  return !text.empty() &&
         std::all_of(text.begin(), text.end(), [](char c) { return absl::ascii_isdigit(c); });
}

bool IsPort(std::string_view text) {
  int port = 0;
  return text.empty() ||
         (IsDigits(text) && absl::SimpleAtoi(absl::string_view(text.data(), text.size()), &port) &&
          port <= 65535);
}

// A name or an IPv4 address, or an IPv6 address in brackets, and perhaps a port. Other characters that RFC
// 3986 allows, such as a comma or "@", are in no host's name, and readers split lists and users at them.
bool IsAuthority(std::string_view text) {
  const bool bracketed = !text.empty() && text.front() == '[';
  const size_t host_end = bracketed ? text.find(']') + 1 : std::min(text.find(':'), text.size());
  if (bracketed && host_end == 0) return false;
  const std::string_view rest = text.substr(host_end);
  if (!rest.empty() && (rest.front() != ':' || !IsPort(rest.substr(1)))) return false;
  const std::string_view host = bracketed ? text.substr(1, host_end - 2) : text.substr(0, host_end);
  return !host.empty() && std::all_of(host.begin(), host.end(), [&](char c) {
    if (bracketed) return absl::ascii_isxdigit(c) || c == ':' || c == '.';
    return absl::ascii_isalnum(c) || c == '-' || c == '.' || c == '_' || c == '~';
  });
}

}  // namespace

bool IsSingleField(std::string_view lower_name) {
  return std::find(kSingleFields.begin(), kSingleFields.end(), lower_name) != kSingleFields.end();
}

bool RequestHead::Refuse(int status, std::string text) {
  refusal_ = {.status = status, .text = std::move(text)};
  return false;
}

size_t RequestHead::Take(std::string_view bytes) {
  for (size_t i = 0; i < bytes.size(); ++i) {
    if (++bytes_ > limits_.max_head_bytes) {
      Refuse(431, absl::StrCat("head: larger than ", limits_.max_head_bytes, " bytes"));
      return i;
    }
    const LineReader::Taken taken = line_.Take(bytes[i]);
    if (taken == LineReader::Taken::kBroken) Refuse(400, absl::StrCat("head: ", line_.fault()));
    if (taken == LineReader::Taken::kLine) TakeLine();
    if (refusal_.has_value() || is_whole_) return i + 1;
  }
  return bytes.size();
}

bool RequestHead::TakeLine() {
  const std::string& line = line_.line();
  if (lines_ == 0 && line.empty() && !std::exchange(skipped_empty_, true)) {
    line_.Next();
    return true;
  }
  if (lines_ == 0 && !absl::EndsWith(line, " HTTP/1.1") && !absl::EndsWith(line, " HTTP/1.0")) {
    const size_t version = line.rfind(" HTTP/");
    if (version == std::string::npos) return Refuse(400, "head: its first line is no request of HTTP/1.1");
    return Refuse(505, absl::StrCat(Shown(line.substr(version + 1)), ": allowed HTTP/1.1, HTTP/1.0"));
  }
  if (lines_ > 0 && !line.empty() && (line.front() == ' ' || line.front() == '\t')) {
    return Refuse(400, "head: a field that goes on in the next line (obsolete line folding)");
  }
  if (++lines_ > limits_.max_head_fields + 1 && !line.empty()) {
    return Refuse(431, absl::StrCat("head: more than ", limits_.max_head_fields, " fields"));
  }
  absl::StrAppend(&text_, line, "\r\n");
  is_whole_ = line.empty();
  line_.Next();
  return true;
}

bool RequestHead::Read(HttpRequest& request) {
  std::string target;
  const bool taken = Parse(request, target) && CheckSingle(request) && CheckHost(request) &&
                     ReadTarget(target, request) && ReadLength(request) && ReadExpect(request);
  text_ = {};
  return taken;
}

bool RequestHead::Parse(HttpRequest& request, std::string& target) {
  http::request_parser<http::empty_body> parser;
  parser.header_limit(static_cast<uint32_t>(limits_.max_head_bytes));
  parser.body_limit(std::numeric_limits<uint64_t>::max());  // ReadLength bounds it
  boost::beast::error_code error;
  parser.put(boost::asio::buffer(text_), error);
  if (error || !parser.is_header_done()) {
    return Refuse(400, absl::StrCat("not a request of HTTP/1.1: ", error.message()));
  }
  const auto& head = parser.get();
  request.method = Text(head.method_string());
  target = Text(head.target());
  for (const auto& field : head) {
    request.headers.emplace_back(absl::AsciiStrToLower(Text(field.name_string())), Text(field.value()));
  }
  is_http_1_0_ = head.version() < 11;
  keep_alive_ = head.keep_alive();
  return true;
}

bool RequestHead::CheckSingle(const HttpRequest& request) {
  for (const std::string_view name : kSingleFields) {
    const auto count = std::count_if(request.headers.begin(), request.headers.end(),
                                     [&](const auto& header) { return header.first == name; });
    if (count > 1) {
      return Refuse(400, absl::StrCat(absl::string_view(name.data(), name.size()), ": ", count,
                                      " fields of this name, allowed one"));
    }
  }
  return true;
}

// RFC 9112, section 3.2.
bool RequestHead::CheckHost(const HttpRequest& request) {
  const auto host = std::find_if(request.headers.begin(), request.headers.end(),
                                 [](const auto& header) { return header.first == "host"; });
  if (host == request.headers.end()) {
    return is_http_1_0_ || Refuse(400, "host: a request of HTTP/1.1 has this field");
  }
  if (IsAuthority(host->second)) return true;
  return Refuse(400, absl::StrCat("host: ", absl::CEscape(Shown(host->second)), ", allowed HOST[:PORT]"));
}

// In its absolute form the target names the host, whatever the field Host says (RFC 9112, section 3.2.2).
bool RequestHead::ReadTarget(const std::string& target, HttpRequest& request) {
  absl::string_view rest = target;
  if (absl::StrContains(rest, "#")) return Refuse(400, "target: has a fragment (#)");
  const bool is_absolute =
      absl::StartsWithIgnoreCase(rest, "http://") || absl::StartsWithIgnoreCase(rest, "https://");
  if (is_absolute) {
    rest.remove_prefix(rest.find("://") + 3);
    const std::string authority(rest.substr(0, rest.find_first_of("/?")));
    if (!IsAuthority(authority)) return Refuse(400, "target: allowed http://HOST[:PORT]/PATH");
    rest.remove_prefix(authority.size());
    std::erase_if(request.headers, [](const auto& header) { return header.first == "host"; });
    request.headers.emplace_back("host", authority);
  } else if (!absl::StartsWith(rest, "/") && rest != "*" && request.method != "CONNECT") {
    return Refuse(400, "target: allowed /PATH, http://HOST[:PORT]/PATH");
  }
  request.path = std::string(rest.substr(0, rest.find('?')));
  if (is_absolute && request.path.empty()) request.path = "/";
  return true;
}

// Finds what ends the body (RFC 9112, sections 6.1 and 6.3). Refuses the forms that other readers refuse or
// mistake.
bool RequestHead::ReadLength(const HttpRequest& request) {
  const std::string_view encoding = request.Header("transfer-encoding");
  const std::string_view length = request.Header("content-length");
  const auto has = [&](std::string_view name) {
    return std::any_of(request.headers.begin(), request.headers.end(),
                       [&](const auto& header) { return header.first == name; });
  };
  if (has("transfer-encoding")) {
    if (has("content-length")) {
      return Refuse(400, "Content-Length, Transfer-Encoding: both, allowed one of them");
    }
    if (is_http_1_0_) return Refuse(400, "Transfer-Encoding: not in HTTP/1.0");
    is_chunked_ = absl::EqualsIgnoreCase(absl::string_view(encoding.data(), encoding.size()), "chunked");
    return is_chunked_ || Refuse(501, "Transfer-Encoding: allowed chunked");
  }
  if (!has("content-length")) return true;
  if (!IsDigits(length)) return Refuse(400, "Content-Length: allowed one number");
  if (!absl::SimpleAtoi(absl::string_view(length.data(), length.size()), &content_length_) ||
      content_length_ > limits_.max_body_bytes) {
    return Refuse(413, absl::StrCat("body: larger than ", limits_.max_body_bytes, " bytes"));
  }
  return true;
}

bool RequestHead::ReadExpect(const HttpRequest& request) {
  const std::string_view expect = request.Header("expect");
  if (expect.empty()) return true;
  if (!absl::EqualsIgnoreCase(absl::string_view(expect.data(), expect.size()), "100-continue")) {
    return Refuse(417, "Expect: allowed 100-continue");
  }
  expects_continue_ = !is_http_1_0_;
  return true;
}

}  // namespace foredraft
