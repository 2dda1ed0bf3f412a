#pragma once

// A few pages over plain HTTP: metrics and probes (CivetWeb). Pages are made on its threads.

#include <functional>
#include <map>
#include <memory>
#include <string>

#include "absl/status/statusor.h"

struct mg_context;
struct mg_connection;

namespace foredraft {

struct HttpAnswer {
  int status = 200;
  std::string body;
  std::string content_type = "text/plain; charset=utf-8";
};

class HttpListener {
 public:
  // Receives the Authorization header, empty without one. Thread-safe.
  using Page = std::function<HttpAnswer(const std::string& authorization)>;

  // `pages` by path, "/metrics". The error names the address.
  static absl::StatusOr<std::unique_ptr<HttpListener>> Listen(const std::string& address,
                                                              std::map<std::string, Page> pages);
  ~HttpListener();  // waits up to 2 s for a connection that sends nothing

  int port() const { return port_; }

 private:
  explicit HttpListener(std::map<std::string, Page> pages) : pages_(std::move(pages)) {}
  static int Handle(mg_connection* connection, void* self);

  const std::map<std::string, Page> pages_;
  mg_context* context_ = nullptr;
  int port_ = 0;
};

}  // namespace foredraft
