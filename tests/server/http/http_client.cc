#include "tests/server/http/http_client.h"

#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>
#include <zlib.h>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace foredraft {

HttpClient::HttpClient(int port, std::chrono::seconds patience)
    : fd_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  EXPECT_EQ(connect(fd_, reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
  const timeval timeout{.tv_sec = patience.count(), .tv_usec = 0};
  setsockopt(fd_, SOL_SOCKET, SO_RCVTIMEO, &timeout, sizeof(timeout));
}

void HttpClient::Close() {
  if (fd_ >= 0) close(fd_);
  fd_ = -1;
}

void HttpClient::EndSending() { EXPECT_EQ(shutdown(fd_, SHUT_WR), 0); }

bool HttpClient::Send(const std::string& bytes) {
  size_t sent = 0;
  while (sent < bytes.size()) {
    const ssize_t count = send(fd_, bytes.data() + sent, bytes.size() - sent, MSG_NOSIGNAL);
    if (count <= 0) return false;
    sent += static_cast<size_t>(count);
  }
  return true;
}

std::string HttpClient::ReadSome() {
  char buffer[16384];
  const ssize_t count = recv(fd_, buffer, sizeof(buffer), 0);
  return count <= 0 ? std::string() : std::string(buffer, static_cast<size_t>(count));
}

bool HttpClient::IsClosedWithin(std::chrono::milliseconds patience) {
  const auto end = std::chrono::steady_clock::now() + patience;
  while (true) {
    const auto left =
        std::chrono::duration_cast<std::chrono::milliseconds>(end - std::chrono::steady_clock::now());
    pollfd polled = {.fd = fd_, .events = POLLIN, .revents = 0};
    if (left.count() <= 0 || poll(&polled, 1, static_cast<int>(left.count())) <= 0) return false;
    if (ReadSome().empty()) return true;
  }
}

std::string HttpClient::ReadLine() {
  size_t end = 0;
  while ((end = input_.find("\r\n")) == std::string::npos) {
    const std::string more = ReadSome();
    if (more.empty()) return "";
    input_ += more;
  }
  std::string line = input_.substr(0, end);
  input_.erase(0, end + 2);
  return line;
}

std::string HttpClient::ReadBytes(size_t count) {
  while (input_.size() < count) {
    const std::string more = ReadSome();
    if (more.empty()) break;
    input_ += more;
  }
  std::string bytes = input_.substr(0, count);
  input_.erase(0, bytes.size());
  return bytes;
}

HttpReply HttpClient::ReadHead() {
  HttpReply reply;
  const std::string line = ReadLine();
  if (line.size() < 12 || !absl::SimpleAtoi(line.substr(9, 3), &reply.status)) return reply;
  for (std::string header = ReadLine(); !header.empty(); header = ReadLine()) {
    const size_t colon = header.find(": ");
    reply.headers[absl::AsciiStrToLower(header.substr(0, colon))] = header.substr(colon + 2);
  }
  return reply;
}

HttpReply HttpClient::Read() {
  HttpReply reply = ReadHead();
  while (reply.status == 100) reply = ReadHead();
  if (reply.headers.contains("transfer-encoding")) {
    while (true) {
      const size_t size = std::stoul("0" + ReadLine(), nullptr, 16);
      if (size > 0) reply.body += ReadBytes(size);
      ReadLine();
      if (size == 0) return reply;
    }
  }
  size_t length = 0;
  if (absl::SimpleAtoi(reply.headers["content-length"], &length)) {
    reply.body = ReadBytes(length);
  } else if (reply.status != 204) {
    for (std::string more = ReadBytes(1); !more.empty(); more = ReadBytes(1)) reply.body += more;
  }
  return reply;
}

std::string HttpText(const std::string& method, const std::string& path, const std::string& body,
                     const std::vector<std::string>& headers) {
  std::string text = absl::StrCat(method, " ", path, " HTTP/1.1\r\nHost: localhost\r\n");
  for (const std::string& header : headers) absl::StrAppend(&text, header, "\r\n");
  if (method == "POST") {
    absl::StrAppend(&text, "Content-Type: application/json\r\nContent-Length: ", body.size(), "\r\n");
  }
  return absl::StrCat(text, "\r\n", body);
}

HttpReply Ask(int port, const std::string& method, const std::string& path, const std::string& body,
              const std::vector<std::string>& headers) {
  HttpClient client(port);
  EXPECT_TRUE(client.Send(HttpText(method, path, body, headers)));
  return client.Read();
}

std::string Compressed(const std::string& text, bool gzip) {
  constexpr int kWindowBits = 15;
  constexpr int kGzipBit = 16;  // asks zlib for gzip's head and tail
  z_stream stream = {};
  EXPECT_EQ(deflateInit2(&stream, 9, Z_DEFLATED, kWindowBits + (gzip ? kGzipBit : 0), 8, Z_DEFAULT_STRATEGY),
            Z_OK);
  std::string out(deflateBound(&stream, text.size()), '\0');
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(text.data()));
  stream.avail_in = text.size();
  stream.next_out = reinterpret_cast<Bytef*>(out.data());
  stream.avail_out = out.size();
  EXPECT_EQ(deflate(&stream, Z_FINISH), Z_STREAM_END);
  out.resize(stream.total_out);
  deflateEnd(&stream);
  return out;
}

Bomb MakeBomb(int mib) {
  z_stream stream = {};
  EXPECT_EQ(deflateInit2(&stream, 9, Z_DEFLATED, 15 + 16, 9, Z_DEFAULT_STRATEGY), Z_OK);
  const std::string zeros(1 << 20, '\0');
  const auto next = [&] {
    std::string out(1 << 16, '\0');
    stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(zeros.data()));
    stream.avail_in = zeros.size();
    stream.next_out = reinterpret_cast<Bytef*>(out.data());
    stream.avail_out = out.size();
    EXPECT_EQ(deflate(&stream, Z_FULL_FLUSH), Z_OK);
    return out.substr(0, out.size() - stream.avail_out);
  };
  Bomb bomb{.bytes = next()};
  const std::string block = next();
  deflateEnd(&stream);
  bomb.first_bytes = bomb.bytes.size();
  bomb.block_bytes = block.size();
  for (int i = 1; i < mib; ++i) bomb.bytes += block;
  return bomb;
}

std::vector<std::string> EventsOf(const std::string& stream) {
  constexpr std::string_view kData = "data: ";
  std::vector<std::string> events;
  for (size_t begin = 0; begin < stream.size();) {
    const size_t end = stream.find("\n\n", begin);
    EXPECT_NE(end, std::string::npos) << stream.substr(begin);
    if (end == std::string::npos) break;
    EXPECT_EQ(stream.compare(begin, kData.size(), kData), 0) << stream.substr(begin, 40);
    events.push_back(stream.substr(begin + kData.size(), end - begin - kData.size()));
    begin = end + 2;
  }
  return events;
}

}  // namespace foredraft
