// OpenAI's API under TLS.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/server/http/http_client.h"
#include "tests/server/resident_memory.h"
#include "tests/server/serving_fixture.h"

namespace foredraft {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

// A server whose certificate and whose clients' an authority of the test has signed.
class TlsTest : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    dir_ = testing::TempDir() + "/openai_tls_" + std::to_string(getpid());
    std::filesystem::create_directories(dir_);
    const std::string command =
        "cd " + dir_ +
        " && exec >openssl.log 2>&1 && set -e"
        " && openssl req -x509 -newkey rsa:2048 -nodes -keyout ca.key -out ca.pem -days 2 -subj /CN=ca"
        " && for name in server client next; do"
        "   openssl req -newkey rsa:2048 -nodes -keyout $name.key -out $name.csr -subj /CN=$name;"
        "   openssl x509 -req -in $name.csr -CA ca.pem -CAkey ca.key -CAcreateserial -out $name.pem "
        "-days 2; done";
    ASSERT_EQ(std::system(command.c_str()), 0) << "see " << dir_ << "/openssl.log";
  }
  static TestServerOptions WithTls() {
    TestServerOptions options;
    options.frontend.server.http_address = "127.0.0.1:0";
    options.frontend.server.tls = {.cert = dir_ + "/live.pem", .key = dir_ + "/live.key"};
    Install("server");
    return options;
  }
  static void Install(const std::string& name) {
    for (const char* ending : {".pem", ".key"}) {
      std::filesystem::copy_file(dir_ + "/" + name + ending, dir_ + "/live" + ending,
                                 std::filesystem::copy_options::overwrite_existing);
    }
  }
  // What openssl's client reads from /health, after the name of the server's certificate.
  static std::string Health(const TestServer& server, const std::string& flags = "") {
    const std::string command = absl::StrCat(
        "cd ", dir_,
        " && printf 'GET /health HTTP/1.1\\r\\nHost: localhost\\r\\nConnection: close\\r\\n\\r\\n' | timeout "
        "20 "
        "openssl "
        "s_client -quiet -verify_return_error -CAfile ca.pem ",
        flags, " -connect 127.0.0.1:", const_cast<TestServer&>(server).listeners().http_port(), " 2>&1");
    FILE* pipe = popen(command.c_str(), "r");
    std::string output;
    char buffer[4096];
    for (size_t count; (count = fread(buffer, 1, sizeof(buffer), pipe)) > 0;) output.append(buffer, count);
    pclose(pipe);
    return output;
  }

  static inline std::string dir_;
};

TEST_F(TlsTest, ServesUnderTheCertificateThatIsThere) {
  TestServer server(WithTls());
  EXPECT_THAT(Health(server), AllOf(HasSubstr("CN = server"), HasSubstr("HTTP/1.1 200 OK")));
  EXPECT_THAT(Health(server, "-tls1_1"), Not(HasSubstr("200 OK")));
  Install("next");
  server.frontend().ReloadFiles();
  EXPECT_THAT(Health(server), AllOf(HasSubstr("CN = next"), HasSubstr("HTTP/1.1 200 OK")));
  HttpClient plain(server.listeners().http_port());
  plain.Send(HttpText("GET", "/health"));
  EXPECT_TRUE(plain.IsClosedWithin(std::chrono::seconds(5)));
}

TEST_F(TlsTest, HalfHandshakesCostLittleAndGiveWay) {
  TestServerOptions options = WithTls();
  options.frontend.server.memory_quota_mib = 64;
  TestServer server(options);
  EXPECT_THAT(Health(server), HasSubstr("200 OK"));
  const std::string half_hello("\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03 and so on", 21);
  constexpr int kMost = (16 << 20) / kHandshakeBytes / 2;  // of one address: half of a quarter of the quota
  std::vector<std::unique_ptr<HttpClient>> peers;
  const int64_t before = ResidentBytes();
  for (int i = 0; i < kMost; ++i) {
    peers.push_back(std::make_unique<HttpClient>(server.listeners().http_port()));
    peers.back()->Send(half_hello);
  }
  std::this_thread::sleep_for(std::chrono::seconds(1));
  EXPECT_LT(ResidentBytes() - before, kMost * kHandshakeBytes + kQuarantineBytes);
  EXPECT_FALSE(peers.front()->IsClosedWithin(std::chrono::milliseconds(100)));
  peers.push_back(std::make_unique<HttpClient>(server.listeners().http_port()));
  EXPECT_TRUE(peers.front()->IsClosedWithin(std::chrono::seconds(5)));
  EXPECT_THAT(Health(server), HasSubstr("200 OK"));
}

TEST_F(TlsTest, AsksForAClientCertificateWhereGrpcDoes) {
  TestServerOptions options = WithTls();
  options.frontend.server.tls.client_ca = dir_ + "/ca.pem";
  TestServer server(options);
  EXPECT_THAT(Health(server), Not(HasSubstr("200 OK")));
  EXPECT_THAT(Health(server, "-cert client.pem -key client.key"), HasSubstr("HTTP/1.1 200 OK"));
}

}  // namespace
}  // namespace foredraft
