#include "server/output/http_listener.h"

#include <civetweb.h>

#include <cstring>

#include "absl/strings/str_cat.h"

namespace foredraft {
namespace {

const char* ReasonPhrase(int status) {
  switch (status) {
    case 200:
      return "OK";
    case 401:
      return "Unauthorized";
    case 403:
      return "Forbidden";
    case 404:
      return "Not Found";
    case 405:
      return "Method Not Allowed";
    default:
      return "Service Unavailable";
  }
}

void Send(mg_connection* connection, const HttpAnswer& answer, bool with_body) {
  mg_printf(connection,
            "HTTP/1.1 %d %s\r\nContent-Type: %s\r\nContent-Length: %zu\r\nCache-Control: no-store\r\n"
            "Connection: close\r\n%s\r\n",
            answer.status, ReasonPhrase(answer.status), answer.content_type.c_str(), answer.body.size(),
            answer.status == 401 ? "WWW-Authenticate: Bearer\r\n" : "");
  if (with_body) mg_write(connection, answer.body.data(), answer.body.size());
}

}  // namespace

absl::StatusOr<std::unique_ptr<HttpListener>> HttpListener::Listen(const std::string& address,
                                                                   std::map<std::string, Page> pages) {
  static const unsigned initialised = mg_init_library(MG_FEATURES_DEFAULT);
  (void)initialised;
  std::unique_ptr<HttpListener> listener(new HttpListener(std::move(pages)));
  // A connection that sends nothing takes a thread until the timeout.
  const char* options[] = {
      "listening_ports",       address.c_str(), "num_threads", "16", "request_timeout_ms", "2000",
      "keep_alive_timeout_ms", "500",           nullptr};
  mg_callbacks callbacks;
  std::memset(&callbacks, 0, sizeof(callbacks));
  listener->context_ = mg_start(&callbacks, nullptr, options);
  if (listener->context_ == nullptr) {
    return absl::UnavailableError(
        absl::StrCat("server.metrics_address: ", address,
                     ": cannot listen: the port is in use or this host does not have the address"));
  }
  mg_server_port port{};
  if (mg_get_server_ports(listener->context_, 1, &port) > 0) listener->port_ = port.port;
  mg_set_request_handler(listener->context_, "/", Handle, listener.get());
  return listener;
}

HttpListener::~HttpListener() {
  if (context_ != nullptr) mg_stop(context_);
}

int HttpListener::Handle(mg_connection* connection, void* self) {
  const mg_request_info* request = mg_get_request_info(connection);
  const std::string method = request->request_method;
  const auto& pages = static_cast<const HttpListener*>(self)->pages_;
  const auto page = pages.find(request->local_uri == nullptr ? "" : request->local_uri);
  HttpAnswer answer;
  if (page == pages.end()) {
    answer = {.status = 404, .body = "no such page\n"};
  } else if (method != "GET" && method != "HEAD") {
    answer = {.status = 405, .body = "only GET\n"};
  } else {
    const char* authorization = mg_get_header(connection, "Authorization");
    answer = page->second(authorization == nullptr ? "" : authorization);
  }
  Send(connection, answer, method != "HEAD");
  return answer.status;
}

}  // namespace foredraft
