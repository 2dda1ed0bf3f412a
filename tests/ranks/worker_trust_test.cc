// Who may join a group, with real certificates: workers by a secret, a token or an authority of their own,
// and clients of the API by none of theirs.

#include "ranks/worker_trust.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "base/log.h"
#include "ranks/leader.h"
#include "ranks/worker_session.h"

namespace foredraft {
namespace {

using std::chrono::milliseconds;
using testing::HasSubstr;

constexpr char kToken[] = "a-token-of-the-group-0123456789abcdef";

GroupIdentity Identity() {
  return {.version = "1", .model_hash = "a", .config_keys = {}, .numerics_class = "b"};
}

// Two authorities: "clients", which signed client.pem, server.pem and host.pem, and "workers", which signed
// leader.pem and worker.pem.
class WorkerTrustTest : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    dir_ = testing::TempDir() + "worker_trust_" + std::to_string(getpid());
    std::filesystem::create_directories(dir_);
    const std::string command =
        "cd " + dir_ +
        " && exec >openssl.log 2>&1 && set -e"
        " && printf 'subjectAltName=IP:127.0.0.1' > san"
        " && for ca in clients workers; do"
        "   openssl req -x509 -newkey rsa:2048 -nodes -keyout $ca.key -out $ca.pem -days 2 -subj /CN=$ca; "
        "done"
        " && for name in clients/client clients/server workers/leader workers/worker; do ca=${name%/*}; "
        "name=${name#*/};"
        "   openssl req -newkey rsa:2048 -nodes -keyout $name.key -out $name.csr -subj /CN=$name;"
        "   openssl x509 -req -in $name.csr -CA $ca.pem -CAkey $ca.key -CAcreateserial -out $name.pem -days 2"
        "     -extfile san; done"
        // One of the workers' authority that expires at once.
        " && openssl x509 -req -in worker.csr -CA workers.pem -CAkey workers.key -CAcreateserial"
        "     -out expired.pem -days 0 -extfile san && cp worker.key expired.key && sleep 1";
    ASSERT_EQ(std::system(command.c_str()), 0) << "see " << dir_ << "/openssl.log";
  }
  static void TearDownTestSuite() { std::filesystem::remove_all(dir_); }
  static std::string Path(const std::string& name) { return dir_ + "/" + name; }

  void SetUp() override {
    InstallLogSink([](LogLevel, std::string_view, const LogFields&) {});
    config_.parallel.attention_dp = config_.parallel.moe_ep = 2;
    config_.server.tls = {
        .cert = Path("server.pem"), .key = Path("server.key"), .client_ca = Path("clients.pem")};
  }
  void TearDown() override {
    leader_.reset();
    InstallLogSink(nullptr);
  }
  void UseToken() {
    config_.parallel.token_file = Path("token");
    std::ofstream(Path("token")) << kToken << "\n";
  }
  void UseAuthority() {
    config_.parallel.tls = {.cert = Path("leader.pem"), .key = Path("leader.key"), .ca = Path("workers.pem")};
  }
  void Listen() {
    LeaderOptions options;
    options.rank_count = 2;
    options.address = "127.0.0.1:0";
    leader_.reset();
    trust_ = *WorkerPortTrust::Load(config_);
    options.credentials = trust_->credentials();
    options.secrets = trust_->secrets();
    options.trust_certificates = TrustsCertificates(config_.parallel);
    options.identity = Identity();
    options.identity.numerics_class = "";
    leader_ = *Leader::Listen(options);
    leader_->BeginGroup();
  }
  // A worker with these certificates and this secret.
  absl::Status Join(const std::string& name, const std::string& authority, const std::string& secret) {
    Config config = config_;
    config.parallel.tls = {
        .cert = Path(name + ".pem"), .key = Path(name + ".key"), .ca = Path(authority + ".pem")};
    WorkerOptions options;
    options.leader = "127.0.0.1:" + std::to_string(leader_->port());
    options.credentials = *WorkerCredentials(config, options.leader);
    options.secret = secret;
    options.identity = Identity();
    options.join_timeout = milliseconds(1000);
    return WorkerSession::Join(options).status();
  }

  static std::string dir_;
  // As WorkerGroup does.
  void Reload() {
    trust_->Reload();
    leader_->SetSecrets(trust_->secrets());
  }
  // Whether a worker joins within 30 s: gRPC takes up to a second to use new certificates.
  bool Joins(const std::string& name, const std::string& authority, const std::string& secret) {
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(30);
    while (std::chrono::steady_clock::now() < deadline) {
      if (Join(name, authority, secret).ok()) return true;
    }
    return false;
  }
  // A worker that joined has left, which ended the group's life.
  void NextLife() {
    leader_->Abort(absl::UnavailableError("the next life"), milliseconds(0));
    leader_->BeginGroup();
  }
  void Copy(const std::string& from, const std::string& to) {
    std::filesystem::copy_file(Path(from), Path(to), std::filesystem::copy_options::overwrite_existing);
  }

  Config config_;
  std::unique_ptr<WorkerPortTrust> trust_;
  std::unique_ptr<Leader> leader_;
};
std::string WorkerTrustTest::dir_;

TEST_F(WorkerTrustTest, AnAuthorityOfItsOwnKeepsClientsOut) {
  UseAuthority();
  Listen();
  EXPECT_EQ(Join("client", "workers", "").code(), absl::StatusCode::kDeadlineExceeded)
      << "the handshake fails";
  EXPECT_EQ(Join("client", "workers", kToken).code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_TRUE(Join("worker", "workers", "").ok());
}

TEST_F(WorkerTrustTest, ATokenKeepsClientsOutWhereOneAuthoritySignsForAll) {
  UseToken();
  Listen();
  EXPECT_EQ(Join("client", "clients", "").code(), absl::StatusCode::kFailedPrecondition);
  const absl::Status wrong = Join("client", "clients", std::string(kToken) + "0");
  EXPECT_EQ(wrong.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(wrong.message()), HasSubstr("parallel.token_file must have the same secret"));
  EXPECT_TRUE(Join("client", "clients", kToken).ok());
}

TEST_F(WorkerTrustTest, WithBothAWorkerNeedsBoth) {
  UseAuthority();
  UseToken();
  Listen();
  EXPECT_EQ(Join("worker", "workers", "").code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(Join("client", "workers", kToken).code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_TRUE(Join("worker", "workers", kToken).ok());
}

TEST_F(WorkerTrustTest, RefusesTheClientsAuthorityUnderAnotherName) {
  UseAuthority();
  std::filesystem::copy_file(Path("clients.pem"), Path("copy.pem"));
  config_.parallel.tls.ca = Path("copy.pem");
  EXPECT_THAT(std::string(WorkerPortTrust::Load(config_).status().message()),
              HasSubstr("the same authority as server.tls.client_ca"));
  UseToken();
  EXPECT_TRUE(WorkerPortTrust::Load(config_).ok());
}

TEST_F(WorkerTrustTest, NamesTheKeyOfAFileAtFault) {
  UseAuthority();
  config_.parallel.tls.key = Path("worker.key");
  EXPECT_THAT(
      std::string(WorkerPortTrust::Load(config_).status().message()),
      HasSubstr("parallel.tls.key: " + Path("worker.key") + ": does not belong to parallel.tls.cert"));
  config_.parallel.tls.key = Path("none");
  EXPECT_THAT(std::string(WorkerPortTrust::Load(config_).status().message()),
              HasSubstr("parallel.tls.key: " + Path("none") + ": cannot be read"));
}

TEST_F(WorkerTrustTest, AnExpiredCertificateIsRefused) {
  UseAuthority();
  config_.parallel.tls.cert = Path("expired.pem");
  config_.parallel.tls.key = Path("expired.key");
  EXPECT_THAT(std::string(WorkerPortTrust::Load(config_).status().message()),
              testing::ContainsRegex("parallel.tls.cert: .*expired.pem: expired on 20.* UTC, so every client "
                                     "refuses it; allowed a certificate that is valid now"));
}

TEST_F(WorkerTrustTest, ANewTokenCountsForTheNextJoinAndABadOneChangesNothing) {
  UseAuthority();
  UseToken();
  std::vector<std::string> lines;
  Listen();
  const std::string next = std::string("b") + kToken;
  std::ofstream(Path("token"), std::ios::trunc) << "too short\n";
  InstallLogSink([&lines](LogLevel, std::string_view line, const LogFields&) { lines.emplace_back(line); });
  trust_->Reload();
  InstallLogSink([](LogLevel, std::string_view, const LogFields&) {});
  EXPECT_THAT(lines, testing::Contains(HasSubstr("the workers' token in force stays: parallel.token_file: " +
                                                 Path("token") + ": 9 characters")));
  leader_->SetSecrets(trust_->secrets());
  EXPECT_TRUE(Join("worker", "workers", kToken).ok());
  std::ofstream(Path("token"), std::ios::trunc) << next << "\n";
  Reload();
  EXPECT_EQ(Join("worker", "workers", kToken).code(), absl::StatusCode::kFailedPrecondition);
  NextLife();
  EXPECT_TRUE(Join("worker", "workers", next).ok());
  EXPECT_THAT(trust_->secrets(), testing::Contains(trust_->own_secret()));
}

// Both ends' files are replaced by those of another authority.
TEST_F(WorkerTrustTest, NewCertificatesCountForTheNextJoinAndBadOnesChangeNothing) {
  UseAuthority();
  UseToken();  // or the clients' authority could not be the next
  for (const char* name : {"leader.pem", "leader.key", "workers.pem"})
    Copy(name, std::string("live_") + name);
  config_.parallel.tls = {
      .cert = Path("live_leader.pem"), .key = Path("live_leader.key"), .ca = Path("live_workers.pem")};
  Listen();
  std::vector<std::string> lines;
  InstallLogSink([&lines](LogLevel, std::string_view line, const LogFields&) { lines.emplace_back(line); });
  Copy("server.pem", "live_leader.pem");  // without its key
  trust_->Reload();
  Copy("expired.pem", "live_leader.pem");
  Copy("expired.key", "live_leader.key");
  trust_->Reload();
  InstallLogSink([](LogLevel, std::string_view, const LogFields&) {});
  EXPECT_THAT(
      lines, testing::ElementsAre(testing::AllOf(HasSubstr("the certificate in use on the worker port stays"),
                                                 HasSubstr("does not belong to parallel.tls.cert")),
                                  testing::AllOf(HasSubstr("the certificate in use on the worker port stays"),
                                                 HasSubstr("expired on"))));
  EXPECT_TRUE(Join("worker", "workers", kToken).ok()) << "the old ones are in use";

  Copy("server.pem", "live_leader.pem");
  Copy("server.key", "live_leader.key");
  Copy("clients.pem", "live_workers.pem");
  Listen();
  Copy("leader.pem", "live_leader.pem");
  Copy("leader.key", "live_leader.key");
  Copy("workers.pem", "live_workers.pem");
  EXPECT_TRUE(Joins("client", "clients", kToken));
  NextLife();
  Reload();
  EXPECT_TRUE(Joins("worker", "workers", kToken));
  NextLife();
  EXPECT_FALSE(Join("client", "clients", kToken).ok()) << "of the authority that was replaced";
}

TEST_F(WorkerTrustTest, TheTokenFileIsOneLongLine) {
  UseToken();
  EXPECT_EQ(*ReadWorkerToken(config_.parallel), kToken);
  const auto refusal = [this](const std::string& content) {
    std::ofstream(Path("token")) << content;
    return std::string(ReadWorkerToken(config_.parallel).status().message());
  };
  const std::string file = "parallel.token_file: " + Path("token") + ": ";
  EXPECT_EQ(refusal(""), file + "0 characters, allowed at least 32");
  EXPECT_EQ(refusal(std::string(31, 'x')), file + "31 characters, allowed at least 32");
  EXPECT_THAT(refusal(std::string(20, 'x') + "\n" + std::string(20, 'x')), HasSubstr("allowed one line"));
  EXPECT_THAT(refusal(std::string(40, '\xe4')), HasSubstr("allowed one line"));
  EXPECT_THAT(refusal(std::string(5000, 'x')), HasSubstr("larger than 4096 bytes"));
  config_.parallel.token_file = Path("fifo");
  ASSERT_EQ(mkfifo(Path("fifo").c_str(), 0600), 0);
  EXPECT_THAT(std::string(ReadWorkerToken(config_.parallel).status().message()),
              HasSubstr("not a regular file"));
}

TEST(WorkerSecret, IsRandomAndReadOnceFromAnInheritedFile) {
  Config config;
  const auto trust = WorkerPortTrust::Load(config);
  ASSERT_TRUE(trust.ok()) << trust.status();
  const std::string secret = (*trust)->own_secret();
  EXPECT_EQ(secret.size(), 64u);
  EXPECT_NE(secret, (*WorkerPortTrust::Load(config))->own_secret());
  const auto file_with = [](const std::string& content) {
    const int file = memfd_create("secret", MFD_CLOEXEC);
    EXPECT_EQ(write(file, content.data(), content.size()), static_cast<ssize_t>(content.size()));
    lseek(file, 0, SEEK_SET);
    return file;
  };
  const int file = file_with(secret);
  EXPECT_EQ(*TakeInheritedSecret(file), secret);
  EXPECT_THAT(std::string(TakeInheritedSecret(file).status().message()), HasSubstr("Bad file descriptor"));
  EXPECT_THAT(std::string(TakeInheritedSecret(file_with("")).status().message()), HasSubstr("it is empty"));
}

}  // namespace
}  // namespace foredraft
