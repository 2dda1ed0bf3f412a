#include "server/http/request_reader.h"

#include <algorithm>

namespace foredraft {

RequestReader::RequestReader(const HttpLimits& limits, const std::string& peer)
    : head_(limits), chunks_(limits) {
  request_.peer = peer;
}

RequestReader::Progress RequestReader::Feed(std::string& input) {
  return in_body_ ? ReadBody(input) : ReadHead(input);
}

RequestReader::Progress RequestReader::ReadHead(std::string& input) {
  input.erase(0, head_.Take(input));
  if (head_.refusal().has_value()) return Refuse(*head_.refusal());
  if (!head_.is_whole()) return Progress::kMore;
  if (!head_.Read(request_)) return Refuse(*head_.refusal());
  in_body_ = true;
  return Progress::kHead;
}

RequestReader::Progress RequestReader::ReadBody(std::string& input) {
  if (head_.is_chunked()) {
    input.erase(0, chunks_.Take(input, request_.body));
    if (chunks_.refusal().has_value()) return Refuse(*chunks_.refusal());
    return chunks_.is_whole() ? Progress::kWhole : Progress::kMore;
  }
  const auto length = static_cast<size_t>(head_.content_length());
  const size_t count = std::min(length - request_.body.size(), input.size());
  request_.body.append(input, 0, count);
  input.erase(0, count);
  return request_.body.size() == length ? Progress::kWhole : Progress::kMore;
}

RequestReader::Progress RequestReader::Refuse(const HttpRefusal& refusal) {
  refusal_ = refusal;
  return Progress::kRefused;
}

}  // namespace foredraft
