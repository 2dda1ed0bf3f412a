#pragma once

// Frames of HTTP/2 by hand, as attackers write them.

#include <cstdint>
#include <string>
#include <string_view>

namespace foredraft {

inline constexpr uint8_t kData = 0;
inline constexpr uint8_t kHeaders = 1;
inline constexpr uint8_t kRstStream = 3;
inline constexpr uint8_t kSettings = 4;
inline constexpr uint8_t kPing = 6;
inline constexpr uint8_t kWindowUpdate = 8;
inline constexpr uint8_t kContinuation = 9;
inline constexpr uint8_t kEndStream = 1;
inline constexpr uint8_t kEndHeaders = 4;

inline std::string Http2Frame(uint8_t type, uint8_t flags, uint32_t stream, std::string_view payload) {
  const size_t size = payload.size();
  std::string frame;
  for (const size_t byte : {size >> 16, size >> 8, size, size_t{type}, size_t{flags}, size_t{stream >> 24},
                            size_t{stream >> 16}, size_t{stream >> 8}, size_t{stream}}) {
    frame += static_cast<char>(byte & 0xff);
  }
  return frame.append(payload);
}

inline std::string HeadersFrame(uint32_t stream, std::string_view block, int flags) {
  return Http2Frame(kHeaders, static_cast<uint8_t>(flags), stream, block);
}

// The payload of an RST_STREAM that cancels, of a WINDOW_UPDATE.
inline const std::string kFourBytes = std::string("\0\0\0\10", 4);
inline const std::string kPreface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
inline const std::string kClientBegin = kPreface + Http2Frame(kSettings, 0, 0, "");

// A header of HPACK that no table has; both up to 126 bytes.
inline std::string HpackHeader(std::string_view name, std::string_view value) {
  std::string text(1, '\0');
  text += static_cast<char>(name.size());
  text += name;
  text += static_cast<char>(value.size());
  return text.append(value);
}

// The headers of a call without a token.
inline std::string CallHeaders(std::string_view path) {
  return HpackHeader(":method", "POST") + HpackHeader(":scheme", "http") + HpackHeader(":path", path) +
         HpackHeader(":authority", "localhost") + HpackHeader("te", "trailers") +
         HpackHeader("content-type", "application/grpc");
}

}  // namespace foredraft
