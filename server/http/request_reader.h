#pragma once

// Reads one request of a connection from the bytes that have come so far (HTTP/1.0 and 1.1). What could be
// read in two ways, so that a proxy and this server would see different requests, is refused. No sockets. Not
// thread-safe.

#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http/dynamic_body.hpp>
#include <boost/beast/http/parser.hpp>
#include <cstdint>
#include <string>

#include "server/http/http_limits.h"
#include "server/http/http_message.h"

namespace foredraft {

class RequestReader {
 public:
  enum class Progress {
    kMore,     // more bytes are needed
    kHead,     // the head is whole: once, before the body is read
    kWhole,    // the request is whole, and what follows it is left
    kRefused,  // refusal_status() and refusal_text(): no request can follow on this connection
  };

  RequestReader(const HttpLimits& limits, const std::string& peer);

  // Takes from the front of `input` what belongs to the request.
  Progress Feed(std::string& input);

  const HttpRequest& request() const { return request_; }
  // After kWhole.
  HttpRequest TakeRequest() { return std::move(request_); }

  // After kHead.
  bool keep_alive() const { return parser_.get().keep_alive(); }
  bool is_http_1_0() const { return parser_.get().version() < 11; }
  bool has_body() const { return !parser_.is_done(); }
  bool expects_continue() const;

  int64_t body_bytes() const { return static_cast<int64_t>(parser_.get().body().size()); }
  int refusal_status() const { return refusal_status_; }
  const std::string& refusal_text() const { return refusal_text_; }

 private:
  using Body = boost::beast::http::basic_dynamic_body<boost::beast::flat_buffer>;

  Progress ReadHead(std::string& input);
  Progress ReadBody(std::string& input);
  bool IsPieceOfLastChunk(const std::string& input, size_t at) const;
  // Fields that would make the length of the body ambiguous.
  bool CheckLength();
  Progress Refuse(int status, std::string text);
  Progress Refuse(const boost::beast::error_code& error);

  const HttpLimits& limits_;
  boost::beast::http::request_parser<Body> parser_;
  HttpRequest request_;
  int refusal_status_ = 0;
  std::string refusal_text_;
};

}  // namespace foredraft
