#include "server/page/chat_page.h"

#include <openssl/sha.h>

#include <string_view>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "base/check.h"

namespace foredraft {

extern const char kChatPage[];  // chat_page.html

namespace {

// What a Content-Security-Policy calls the one element `tag` of the page: a hash of the text between its tags
// (https://www.w3.org/TR/CSP3, section 2.3.1).
std::string SourceHash(std::string_view page, const std::string& tag) {
  const std::string open = absl::StrCat("<", tag, ">"), close = absl::StrCat("</", tag, ">");
  const size_t begin = page.find(open), end = page.find(close);
  CHECK(begin != std::string_view::npos && end != std::string_view::npos) << "chat_page.html has no " << tag;
  const std::string_view text = page.substr(begin + open.size(), end - begin - open.size());
  unsigned char digest[SHA256_DIGEST_LENGTH];
  SHA256(reinterpret_cast<const unsigned char*>(text.data()), text.size(), digest);
  return absl::StrCat("'sha256-",
                      absl::Base64Escape(absl::string_view(reinterpret_cast<char*>(digest), sizeof(digest))),
                      "'");
}

// Only the page's own script, style and images may be used, and it may call only its own origin. No other
// page may show it in a frame, or keep a reference to its window.
HttpHeaders SecurityHeaders() {
  return {{"Content-Security-Policy",
           absl::StrCat("default-src 'none'; script-src ", SourceHash(kChatPage, "script"), "; style-src ",
                        SourceHash(kChatPage, "style"),
                        "; img-src data:; connect-src 'self'; base-uri 'none'; form-action 'none'; "
                        "frame-ancestors 'none'; require-trusted-types-for 'script'")},
          {"Cross-Origin-Opener-Policy", "same-origin"},
          {"Referrer-Policy", "no-referrer"}};
}

}  // namespace

ChatPage::ChatPage(HttpService& api)
    : api_(api),
      page_{.body = kChatPage, .content_type = "text/html; charset=utf-8", .headers = SecurityHeaders()} {}

std::optional<HttpAnswer> ChatPage::AnswerHead(const HttpRequest& head) {
  if (head.path != "/") return api_.AnswerHead(head);
  if (head.method == "GET" || head.method == "HEAD") return page_;
  HttpAnswer refusal = api_.Refusal(head.path, 405, "method: allowed GET, HEAD");
  refusal.headers.emplace_back("Allow", "GET, HEAD");
  return refusal;
}

}  // namespace foredraft
