#include "server/http/http_pages.h"

namespace foredraft {

std::optional<HttpAnswer> HttpPages::AnswerHead(const HttpRequest& head) {
  const auto page = pages_.find(head.path);
  if (page == pages_.end()) return Refusal(head.path, 404, "no such page");
  if (head.method != "GET" && head.method != "HEAD") {
    HttpAnswer answer = Refusal(head.path, 405, "only GET");
    answer.headers.emplace_back("Allow", "GET, HEAD");
    return answer;
  }
  return page->second(head);
}

}  // namespace foredraft
