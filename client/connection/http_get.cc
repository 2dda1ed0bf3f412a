#include "client/connection/http_get.h"

#include <boost/asio/connect.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/core/tcp_stream.hpp>
#include <boost/beast/http/empty_body.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/read.hpp>
#include <boost/beast/http/string_body.hpp>
#include <boost/beast/http/write.hpp>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace foredraft {
namespace {

namespace net = boost::asio;
namespace http = boost::beast::http;
using boost::system::error_code;

constexpr uint64_t kMaxPageBytes = uint64_t{64} << 20;

// Beast has deadlines only for asynchronous calls, so each step starts one and runs it to its end.
class PageReader {
 public:
  PageReader(std::string host, std::string port, std::chrono::milliseconds timeout)
      : host_(std::move(host)), port_(std::move(port)) {
    stream_.expires_after(timeout);
    parser_.body_limit(kMaxPageBytes);
  }

  // Reads the answer, or says why there is none.
  error_code Read(const http::request<http::empty_body>& request) {
    error_code result;
    const auto addresses = net::ip::tcp::resolver(io_).resolve(host_, port_, result);
    if (result) return result;
    const auto finish = [&](const error_code& error) { result = error; };
    stream_.async_connect(addresses, [&](const error_code& error, const auto&) {
      if (error) return finish(error);
      http::async_write(stream_, request, [&](const error_code& write_error, size_t) {
        if (write_error) return finish(write_error);
        http::async_read(stream_, buffer_, parser_,
                         [&](const error_code& read_error, size_t) { finish(read_error); });
      });
    });
    io_.run();
    return result;
  }
  int status() const { return parser_.get().result_int(); }
  std::string TakeBody() { return std::move(parser_.get().body()); }

 private:
  const std::string host_;
  const std::string port_;
  net::io_context io_;
  boost::beast::tcp_stream stream_{io_};
  boost::beast::flat_buffer buffer_;
  http::response_parser<http::string_body> parser_;
};

absl::Status Failed(const std::string& address, const std::string& path, const std::string& why) {
  return absl::UnavailableError(absl::StrCat("http://", address, path, ": ", why));
}

}  // namespace

absl::StatusOr<HttpPage> HttpFetch(const std::string& address, const std::string& path,
                                   std::chrono::milliseconds timeout, const std::string& token) {
  const size_t colon = address.rfind(':');
  int port = 0;
  if (colon == std::string::npos || !absl::SimpleAtoi(address.substr(colon + 1), &port) || port < 1 ||
      port > 65535) {
    return absl::InvalidArgumentError(absl::StrCat(address, ": not HOST:PORT"));
  }
  std::string host = address.substr(0, colon);
  if (host.size() > 2 && host.front() == '[' && host.back() == ']') host = host.substr(1, host.size() - 2);
  http::request<http::empty_body> request(http::verb::get, path, 11);
  request.set(http::field::host, address);
  request.set(http::field::connection, "close");
  if (!token.empty()) request.set(http::field::authorization, absl::StrCat("Bearer ", token));
  PageReader reader(std::move(host), absl::StrCat(port), timeout);
  if (const error_code error = reader.Read(request); error) {
    return Failed(address, path,
                  error == net::error::connection_refused ? "nobody answers" : error.message());
  }
  return HttpPage{.status = reader.status(), .body = reader.TakeBody()};
}

absl::StatusOr<std::string> HttpGet(const std::string& address, const std::string& path,
                                    std::chrono::milliseconds timeout, const std::string& token) {
  ASSIGN_OR_RETURN(HttpPage page, HttpFetch(address, path, timeout, token));
  if (page.status != 200) return Failed(address, path, absl::StrCat("status ", page.status));
  return std::move(page.body);
}

}  // namespace foredraft
