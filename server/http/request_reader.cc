#include "server/http/request_reader.h"

#include <algorithm>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace foredraft {
namespace {

namespace http = boost::beast::http;

std::string Text(boost::beast::string_view view) { return {view.data(), view.size()}; }

}  // namespace

RequestReader::RequestReader(const HttpLimits& limits, const std::string& peer) : limits_(limits) {
  parser_.header_limit(static_cast<uint32_t>(limits.max_head_bytes));
  parser_.body_limit(static_cast<uint64_t>(limits.max_body_bytes));
  request_.peer = peer;
}

RequestReader::Progress RequestReader::Feed(std::string& input) {
  return parser_.is_header_done() ? ReadBody(input) : ReadHead(input);
}

RequestReader::Progress RequestReader::ReadHead(std::string& input) {
  if (input.empty()) return Progress::kMore;
  boost::beast::error_code error;
  const size_t used = parser_.put(boost::asio::buffer(input), error);
  input.erase(0, used);
  if (error == http::error::need_more) return Progress::kMore;
  if (error) return Refuse(error);
  const auto& head = parser_.get();
  request_.method = Text(head.method_string());
  const std::string target = Text(head.target());
  request_.path = target.substr(0, target.find_first_of("?#"));
  for (const auto& field : head) {
    request_.headers.emplace_back(absl::AsciiStrToLower(Text(field.name_string())), Text(field.value()));
  }
  if (!CheckLength()) return Progress::kRefused;
  parser_.eager(true);
  return Progress::kHead;
}

bool RequestReader::CheckLength() {
  int lengths = 0;
  int encodings = 0;
  for (const auto& [name, value] : request_.headers) {
    lengths += name == "content-length";
    encodings += name == "transfer-encoding";
    if (name == "transfer-encoding" && !absl::EqualsIgnoreCase(value, "chunked")) {
      Refuse(501, "Transfer-Encoding: allowed chunked");
      return false;
    }
  }
  if (lengths + encodings <= 1) return true;
  Refuse(400, "Content-Length, Transfer-Encoding: more than one of them, allowed one");
  return false;
}

// Beast aborts where the last chunk of a body is its first and comes in pieces: with "0", CRLF it has seen
// the chunk, asks for more, and asserts that the next call has five bytes.
bool RequestReader::IsPieceOfLastChunk(const std::string& input, size_t at) const {
  constexpr size_t kLeast = 5;  // "0", CRLF, CRLF
  return parser_.chunked() && input.size() - at < kLeast && input[at] == '0';
}

RequestReader::Progress RequestReader::ReadBody(std::string& input) {
  boost::beast::error_code error;
  size_t read = 0;
  while (!parser_.is_done() && read < input.size() && !IsPieceOfLastChunk(input, read)) {
    const size_t used = parser_.put(boost::asio::buffer(input) + read, error);
    read += used;
    if (error || used == 0) break;
  }
  input.erase(0, read);
  if (error && error != http::error::need_more) return Refuse(error);
  if (!parser_.is_done()) return Progress::kMore;
  const auto body = parser_.get().body().data();
  request_.body.assign(static_cast<const char*>(body.data()), body.size());
  return Progress::kWhole;
}

bool RequestReader::expects_continue() const {
  const std::string_view expect = request_.Header("expect");
  return absl::EqualsIgnoreCase(absl::string_view(expect.data(), expect.size()), "100-continue");
}

RequestReader::Progress RequestReader::Refuse(int status, std::string text) {
  refusal_status_ = status;
  refusal_text_ = std::move(text);
  return Progress::kRefused;
}

RequestReader::Progress RequestReader::Refuse(const boost::beast::error_code& error) {
  if (error == http::error::header_limit) {
    return Refuse(431, absl::StrCat("head: larger than ", limits_.max_head_bytes, " bytes"));
  }
  if (error == http::error::body_limit) {
    return Refuse(413, absl::StrCat("body: larger than ", limits_.max_body_bytes, " bytes"));
  }
  return Refuse(400, absl::StrCat("not a request of HTTP/1.1: ", error.message()));
}

}  // namespace foredraft
