// Peers that open a connection and do not go on, and the certificates that handshakes use: an expired one is
// no start, and no replacement.

#include <gmock/gmock.h>
#include <grpcpp/create_channel.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <mutex>
#include <sstream>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/log.h"
#include "net/certificates.h"
#include "tests/base/dial.h"
#include "tests/server/serving_fixture.h"

namespace foredraft {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;
using testing::ContainsRegex;

// An authority, a certificate that it has signed for 127.0.0.1, and one with the same key that has expired.
class Handshake : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    dir_ = testing::TempDir() + "/handshake_" + std::to_string(getpid());
    std::filesystem::create_directories(dir_);
    const std::string command =
        "cd " + dir_ +
        " && exec >openssl.log 2>&1 && set -e"
        " && printf 'subjectAltName=IP:127.0.0.1' > san"
        " && openssl req -x509 -newkey rsa:2048 -nodes -keyout ca.key -out ca.pem -days 2 -subj /CN=ca"
        " && openssl req -newkey rsa:2048 -nodes -keyout server.key -out server.csr -subj /CN=server"
        " && for days in 2 0; do openssl x509 -req -in server.csr -CA ca.pem -CAkey ca.key -CAcreateserial"
        "   -out server_$days.pem -days $days -extfile san; done"
        " && cp server_2.pem valid.pem && cp server_0.pem expired.pem && sleep 1";  // until 0 days are over
    ASSERT_EQ(std::system(command.c_str()), 0) << "see " << dir_ << "/openssl.log";
  }
  static void TearDownTestSuite() { std::filesystem::remove_all(dir_); }
  static std::string Path(const std::string& name) { return dir_ + "/" + name; }
  static void Install(const std::string& certificate) {
    std::filesystem::copy_file(Path(certificate), Path("live.pem"),
                               std::filesystem::copy_options::overwrite_existing);
  }
  static TlsConfig Tls() { return {.cert = Path("live.pem"), .key = Path("server.key"), .client_ca = ""}; }
  static std::shared_ptr<grpc::ChannelCredentials> Trust() {
    std::stringstream ca;
    ca << std::ifstream(Path("ca.pem")).rdbuf();
    grpc::SslCredentialsOptions trust;
    trust.pem_root_certs = ca.str();
    return grpc::SslCredentials(trust);
  }

  static std::string dir_;
};
std::string Handshake::dir_;

// How long the other end takes to close, up to a minute.
steady_clock::duration UntilClosed(int fd) {
  const auto begin = steady_clock::now();
  while (steady_clock::now() - begin < std::chrono::minutes(1)) {
    pollfd polled = {.fd = fd, .events = POLLIN, .revents = 0};
    char bytes[4096];
    if (poll(&polled, 1, 1000) > 0 && recv(fd, bytes, sizeof(bytes), 0) <= 0) break;  // else its own settings
  }
  return steady_clock::now() - begin;
}

bool Answers(const std::shared_ptr<grpc::Channel>& channel) {
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(60));
  context.set_wait_for_ready(true);
  v1::GetModelResponse response;
  return v1::GenerationService::NewStub(channel)->GetModel(&context, {}, &response).ok();
}

// In plain text a peer owes HTTP/2's preface and settings, with TLS its hello first.
TEST_F(Handshake, APeerThatDoesNotGoOnIsClosedAfterTheTimeout) {
  Install("valid.pem");
  for (const bool tls : {false, true}) {
    TestServerOptions options;
    options.frontend.server.handshake_timeout_s = 1;
    if (tls) options.frontend.server.tls = Tls();
    TestServer server(options);
    for (const std::string& begin :
         {std::string(), std::string("PRI * HTTP/2.0\r\n"), std::string("\x16\x03\x01")}) {
      if (!tls && begin[0] == '\x16') continue;  // an error in plain text, closed at once
      if (tls && begin[0] == 'P') continue;
      SCOPED_TRACE(testing::Message() << "tls " << tls << ", begins with " << begin.size() << " bytes");
      const int peer = Dial(server.listeners().grpc_port());
      ASSERT_GE(peer, 0);
      if (!begin.empty()) send(peer, begin.data(), begin.size(), MSG_NOSIGNAL);
      const auto closed = UntilClosed(peer);
      EXPECT_GE(closed, milliseconds(900));
      EXPECT_LT(closed, std::chrono::seconds(30));  // a busy machine; without the timeout it stays open
      close(peer);
    }
    if (tls) continue;
    const auto& channel = server.channel();
    EXPECT_TRUE(Answers(channel));
    EXPECT_EQ(channel->WaitForStateChange(GRPC_CHANNEL_READY,
                                          std::chrono::system_clock::now() + std::chrono::seconds(3)),
              false)
        << "a connection whose handshake is done stays, also while it is idle";
  }
}

// A byte in time prolongs no handshake, and those who do so hold up nobody.
TEST_F(Handshake, ADrippedHelloIsClosedAndCallsGoOn) {
  Install("valid.pem");
  TestServerOptions options;
  options.frontend.server.handshake_timeout_s = 1;
  options.frontend.server.tls = Tls();
  options.frontend.probe_period = milliseconds(200);
  TestServer server(options);
  std::vector<int> peers;
  for (int i = 0; i < 100; ++i) peers.push_back(Dial(server.listeners().grpc_port()));
  const std::string hello("\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 11);
  const auto begin = steady_clock::now();
  for (const char byte : hello) {
    for (const int peer : peers) send(peer, &byte, 1, MSG_NOSIGNAL);
    std::this_thread::sleep_for(milliseconds(50));
  }
  EXPECT_TRUE(Answers(grpc::CreateChannel(server.address(), Trust())));
  for (const int peer : peers) {
    UntilClosed(peer);
    close(peer);
  }
  EXPECT_LT(steady_clock::now() - begin, std::chrono::seconds(30));
  EXPECT_EQ(server.Metric("connections_closed_total", {{"reason", "handshake"}}), 100);
  EXPECT_EQ(server.Metric("port_probe_failures_total"), 0);
}

TEST_F(Handshake, OnlyClientsOfHttp2UnderTls12AndLaterComeIn) {
  Install("valid.pem");
  TestServerOptions options;
  options.frontend.server.tls = Tls();
  TestServer server(options);
  for (const auto& [flags, taken] : {std::pair<std::string, bool>{"-alpn h2", true},
                                     {"-alpn h2 -tls1_2", true},
                                     {"-alpn h2 -tls1_1 -cipher ALL:@SECLEVEL=0", false},
                                     {"-alpn http/1.1", false}}) {
    const std::string command =
        "openssl s_client -connect 127.0.0.1:" + std::to_string(server.listeners().grpc_port()) +
        " -CAfile " + Path("ca.pem") + " " + flags + " </dev/null >/dev/null 2>&1";
    EXPECT_EQ(std::system(command.c_str()) == 0, taken) << flags;
  }
}

TEST_F(Handshake, ManyStreamsAndLargeRequestsPassUnderTls) {
  Install("valid.pem");
  TestServerOptions options;
  options.frontend.server.tls = Tls();
  options.frontend.max_queue_size = options.loop.max_queue_size = 4096;
  TestServer server(options);
  const auto channel = grpc::CreateChannel(server.address(), Trust());
  const auto stub = v1::GenerationService::NewStub(channel);
  std::vector<std::thread> calls;
  for (int i = 0; i < 128; ++i) {
    calls.emplace_back([&stub, i] {
      EXPECT_TRUE(ReadStream(*stub, SimpleRequest(static_cast<uint64_t>(i), 50)).status.ok());
    });
  }
  for (std::thread& call : calls) call.join();
  v1::GenerateRequest large = SimpleRequest(1, 2);
  large.set_text(std::string(4 << 20, 'x'));
  EXPECT_EQ(ReadStream(*stub, large).status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  v1::DetokenizeRequest ids;
  for (int i = 0; i < 100'000; ++i) ids.add_token_ids(5);
  grpc::ClientContext context;
  v1::DetokenizeResponse text;
  EXPECT_TRUE(stub->Detokenize(&context, ids, &text).ok());
  EXPECT_GE(text.text().size(), 100'000u);
  EXPECT_EQ(server.Metric("connections_slowed_total", {{"who", "client"}}), 0);
}

TEST_F(Handshake, AnExpiredCertificateIsNoStart) {
  Install("expired.pem");
  FrontendOptions options = TestServerOptions().frontend;
  options.server.tls = Tls();
  const auto frontend = Frontend::Listen(options, {});
  ASSERT_FALSE(frontend.ok());
  EXPECT_THAT(std::string(frontend.status().message()),
              ContainsRegex("^server.tls.cert: .*live.pem: expired on 20[0-9-]+ [0-9:]+ UTC, so every client "
                            "refuses it; allowed a certificate that is valid now$"));
}

TEST_F(Handshake, AnExpiredCertificateReplacesNone) {
  Install("valid.pem");
  TestServerOptions options;
  options.frontend.server.tls = Tls();
  options.frontend.file_period = std::chrono::hours(1);  // reloaded here alone
  TestServer server(options);
  const double expiry = server.Metric("tls_certificate_expiry_timestamp_seconds");
  std::mutex mutex;
  std::vector<std::string> lines;
  InstallLogSink([&](LogLevel, std::string_view line, const LogFields&) {
    std::lock_guard<std::mutex> lock(mutex);
    lines.emplace_back(line);
  });
  Install("expired.pem");
  server.frontend().ReloadFiles();
  InstallLogSink([](LogLevel, std::string_view, const LogFields&) {});
  EXPECT_THAT(lines, testing::Contains(ContainsRegex(
                         "^the certificate in use stays: server.tls.cert: .*live.pem: expired on ")));
  EXPECT_EQ(server.Metric("tls_certificate_expiry_timestamp_seconds"), expiry);
  const auto until = steady_clock::now() + std::chrono::seconds(3);  // gRPC looks for new files every second
  do {
    EXPECT_TRUE(Answers(grpc::CreateChannel(server.address(), Trust())));
  } while (steady_clock::now() < until);
  InstallLogSink(nullptr);
}

}  // namespace
}  // namespace foredraft
