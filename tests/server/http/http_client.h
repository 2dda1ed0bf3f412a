#pragma once

// A connection that sends what it is told, byte by byte if need be, and reads answers of HTTP/1.1.

#include <chrono>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace foredraft {

struct HttpReply {
  int status = 0;                              // 0: the connection ended without an answer
  std::map<std::string, std::string> headers;  // names in lower case
  std::string body;                            // of a stream: its parts joined
};

class HttpClient {
 public:
  // patience: how long a read waits for the next bytes.
  explicit HttpClient(int port, std::chrono::seconds patience = std::chrono::seconds(20));
  ~HttpClient() { Close(); }
  HttpClient(const HttpClient&) = delete;
  HttpClient& operator=(const HttpClient&) = delete;

  // False: the connection is gone.
  bool Send(const std::string& bytes);
  // The next answer, whole.
  HttpReply Read();
  // The head of the next answer; what follows is read by ReadSome.
  HttpReply ReadHead();
  // The next bytes; empty at the end, and after `patience`.
  std::string ReadSome();
  // Whether the peer has closed, within `patience`.
  bool IsClosedWithin(std::chrono::milliseconds patience);
  // Ends its own side; what comes is still read.
  void EndSending();
  void Close();

 private:
  std::string ReadLine();
  std::string ReadBytes(size_t count);

  int fd_;
  std::string input_;
};

// "GET /x" or "POST /x" with a body of JSON; `headers` are whole lines without their end.
std::string HttpText(const std::string& method, const std::string& path, const std::string& body = "",
                     const std::vector<std::string>& headers = {});
// One request on a connection of its own.
HttpReply Ask(int port, const std::string& method, const std::string& path, const std::string& body = "",
              const std::vector<std::string>& headers = {});

// As Content-Encoding gzip, or deflate, has it.
std::string Compressed(const std::string& text, bool gzip = true);

// A gzip stream of zeros without its end: blocks that each stand for one MiB.
struct Bomb {
  std::string bytes;
  size_t first_bytes = 0;
  size_t block_bytes = 0;

  std::string_view OfMib(int mib) const {
    return std::string_view(bytes).substr(0, first_bytes + (mib - 1) * block_bytes);
  }
};

Bomb MakeBomb(int mib);

// The data of a stream's events, "[DONE]" included.
std::vector<std::string> EventsOf(const std::string& stream);

}  // namespace foredraft
