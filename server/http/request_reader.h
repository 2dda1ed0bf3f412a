#pragma once

// Reads one request of a connection from the bytes that have come so far (HTTP/1.0 and 1.1). Refuses whatever
// could be read in two ways, so that a proxy and this server never see different requests. The outcome does
// not depend on the pieces in which the bytes come. No sockets. Not thread-safe.

#include <cstdint>
#include <optional>
#include <string>
#include <utility>

#include "server/http/chunked_body.h"
#include "server/http/http_limits.h"
#include "server/http/http_message.h"
#include "server/http/request_head.h"

namespace foredraft {

class RequestReader {
 public:
  enum class Progress {
    kMore,     // more bytes are needed
    kHead,     // the head is whole: once, before the body is read
    kWhole,    // the request is whole, and what follows it is left
    kRefused,  // refusal(): no request can follow on this connection
  };

  // `limits` outlives the reader.
  RequestReader(const HttpLimits& limits, const std::string& peer);

  // Takes from the front of `input` what belongs to the request: all, until it is whole or refused.
  Progress Feed(std::string& input);

  const HttpRequest& request() const { return request_; }
  // After kWhole.
  HttpRequest TakeRequest() { return std::move(request_); }

  // After kHead.
  bool keep_alive() const { return head_.keep_alive(); }
  bool is_http_1_0() const { return head_.is_http_1_0(); }
  bool has_body() const { return head_.is_chunked() || head_.content_length() > 0; }
  bool expects_continue() const { return head_.expects_continue(); }

  // Bytes of memory that the body takes.
  int64_t body_bytes() const { return static_cast<int64_t>(request_.body.size()) + chunks_.held_bytes(); }
  // After kRefused.
  const HttpRefusal& refusal() const { return *refusal_; }

 private:
  Progress ReadHead(std::string& input);
  Progress ReadBody(std::string& input);
  Progress Refuse(const HttpRefusal& refusal);

  RequestHead head_;
  ChunkedBody chunks_;
  bool in_body_ = false;
  HttpRequest request_;
  std::optional<HttpRefusal> refusal_;
};

}  // namespace foredraft
