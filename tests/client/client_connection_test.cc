#include "client/connection/client_connection.h"

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <string>
#include <thread>

#include "absl/strings/str_cat.h"

namespace foredraft {
namespace {

using testing::HasSubstr;

grpc::Status Refused() {
  return {grpc::StatusCode::UNAVAILABLE, "failed to connect to all addresses; last error: x"};
}

// Answers each connection with this text, and closes it.
class Answerer {
 public:
  explicit Answerer(const std::string& text) : fd_(socket(AF_INET, SOCK_STREAM, 0)) {
    sockaddr_in any{.sin_family = AF_INET, .sin_addr = {.s_addr = htonl(INADDR_LOOPBACK)}};
    socklen_t size = sizeof(any);
    EXPECT_EQ(bind(fd_, reinterpret_cast<sockaddr*>(&any), size), 0);
    EXPECT_EQ(listen(fd_, 8), 0);
    getsockname(fd_, reinterpret_cast<sockaddr*>(&any), &size);
    address_ = absl::StrCat("127.0.0.1:", ntohs(any.sin_port));
    thread_ = std::thread([this, text] {
      for (int client; (client = accept(fd_, nullptr, nullptr)) >= 0; close(client)) {
        char request[1024];
        if (read(client, request, sizeof(request)) > 0) (void)!write(client, text.data(), text.size());
      }
    });
  }
  ~Answerer() {
    shutdown(fd_, SHUT_RDWR);
    thread_.join();
    close(fd_);
  }
  const std::string& address() const { return address_; }

 private:
  const int fd_;
  std::string address_;
  std::thread thread_;
};

std::string Named(const std::string& answer) {
  const Answerer server(answer);
  return std::string(WithListener(CallError(server.address(), Refused()), server.address())
                         .message()
                         .substr(server.address().size()));
}

TEST(ClientConnection, SaysWhatListensInThePlaceOfGrpc) {
  const std::string head = "HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n";
  EXPECT_THAT(Named(head + "foredraft_state 1\n"), HasSubstr(": here is the page of metrics"));
  EXPECT_THAT(Named(head + "{\"status\":\"serving\"}"), HasSubstr(": here is OpenAI's API"));
  EXPECT_THAT(Named(head + "<html>"),
              HasSubstr(": here is something that speaks HTTP; this command speaks gRPC"));
  EXPECT_THAT(Named("HTTP/1.1 404 Not Found\r\nConnection: close\r\n\r\n"),
              HasSubstr("something that speaks HTTP"));
  EXPECT_THAT(Named("\x15\x03\x01"),
              HasSubstr(": something listens here, but no gRPC connection comes about"));
}

TEST(ClientConnection, OtherErrorsStay) {
  const absl::Status nobody = CallError("127.0.0.1:1", Refused());
  EXPECT_THAT(nobody.message(), HasSubstr("nobody answers: is `foredraft serve` running?"));
  EXPECT_EQ(WithListener(nobody, "127.0.0.1:1"), nobody);
  const Answerer server("HTTP/1.1 200 OK\r\nConnection: close\r\n\r\nforedraft_state");
  const absl::Status loading =
      CallError(server.address(), {grpc::StatusCode::UNAVAILABLE, "loading the model"});
  EXPECT_EQ(WithListener(loading, server.address()), loading);
  EXPECT_EQ(WithListener(CallError("unix:/x", Refused()), "unix:/x"), CallError("unix:/x", Refused()));
}

TEST(ClientConnection, AUrlIsNoAddress) {
  for (const char* url : {"http://127.0.0.1:8000", "https://a/v1", "dns:///http://a"}) {
    EXPECT_THAT(OpenChannel({.address = url}).status().message(), HasSubstr(absl::StrCat(url, ": is a URL")));
  }
  for (const char* address : {"127.0.0.1:50051", "dns:///a:1", "unix:/run/x", "[::1]:5"}) {
    EXPECT_TRUE(OpenChannel({.address = address}).ok()) << address;
  }
}

}  // namespace
}  // namespace foredraft
