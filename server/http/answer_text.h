#pragma once

// Answers as the bytes that a connection sends.

#include <string>
#include <string_view>

#include "server/http/http_message.h"

namespace foredraft {

// What the connection adds to an answer.
struct AnswerFrame {
  HttpHeaders headers;
  bool close = false;     // the connection ends with this answer
  bool chunked = false;   // a stream: false for a client of HTTP/1.0, whose answer ends with the connection
  bool with_body = true;  // false for HEAD
};

// Head and body.
std::string WholeAnswer(const HttpAnswer& answer, const AnswerFrame& frame);
// The head of a stream.
std::string StreamHead(const HttpAnswer& answer, const AnswerFrame& frame);
// Appends a part of a stream to `out`; nothing for an empty part.
void AppendPart(std::string_view part, bool chunked, std::string& out);
inline constexpr std::string_view kLastChunk = "0\r\n\r\n";

}  // namespace foredraft
