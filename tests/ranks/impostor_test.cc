// A server that is not the leader listens on the leader's address: the worker sends it no secret and refuses
// its plans.

#include <gmock/gmock.h>
#include <grpcpp/security/credentials.h>
#include <grpcpp/server.h>
#include <grpcpp/server_builder.h>
#include <gtest/gtest.h>

#include <functional>
#include <mutex>
#include <string>
#include <vector>

#include "absl/strings/escaping.h"
#include "ranks/group_secret.h"
#include "ranks/worker_session.h"
#include "tests/ranks/leader_fixture.h"

namespace foredraft {
namespace {

using testing::HasSubstr;
using testing::Not;

using Script = std::function<std::vector<worker::v1::LeaderMessage>(const std::string& authorization)>;

// Sends scripted messages to every caller, and records what it receives.
class FakeLeader final : public worker::v1::WorkerService::Service {
 public:
  explicit FakeLeader(Script script) : script_(std::move(script)) {
    grpc::ServerBuilder builder;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port_);
    builder.RegisterService(this);
    server_ = builder.BuildAndStart();
  }
  ~FakeLeader() override {
    server_->Shutdown(std::chrono::system_clock::now());
    server_->Wait();
  }
  int port() const { return port_; }
  // All bytes of metadata and messages.
  std::string heard() {
    std::lock_guard<std::mutex> lock(mutex_);
    return heard_;
  }
  int messages() {
    std::lock_guard<std::mutex> lock(mutex_);
    return messages_;
  }

 private:
  grpc::Status Work(
      grpc::ServerContext* context,
      grpc::ServerReaderWriter<worker::v1::LeaderMessage, worker::v1::WorkerMessage>* stream) override {
    std::string authorization;
    {
      std::lock_guard<std::mutex> lock(mutex_);
      for (const auto& [key, value] : context->client_metadata()) {
        heard_.append(value.data(), value.size()).append("\n");
        if (key == "authorization") authorization.assign(value.data(), value.size());
      }
    }
    for (const worker::v1::LeaderMessage& message : script_(authorization)) stream->Write(message);
    worker::v1::WorkerMessage message;
    while (stream->Read(&message)) {
      std::lock_guard<std::mutex> lock(mutex_);
      heard_.append(message.SerializeAsString());
      ++messages_;
    }
    return grpc::Status::OK;
  }

  const Script script_;
  int port_ = 0;
  std::unique_ptr<grpc::Server> server_;
  std::mutex mutex_;
  std::string heard_;  // guarded by mutex_
  int messages_ = 0;   // guarded by mutex_
};

absl::Status Join(int port) {
  WorkerOptions options;
  options.leader = "127.0.0.1:" + std::to_string(port);
  options.credentials = grpc::InsecureChannelCredentials();
  options.secret = kSecret;
  options.identity = Identity();
  options.device = "scripted";
  options.heartbeat_timeout = kHeartbeatTimeout;
  options.join_timeout = kPatience;
  return WorkerSession::Join(options).status();
}

worker::v1::LeaderMessage Challenge(const std::string& nonce, const std::string& proof) {
  worker::v1::LeaderMessage message;
  message.mutable_challenge()->set_nonce(nonce);
  message.mutable_challenge()->set_proof(proof);
  return message;
}

worker::v1::LeaderMessage Welcome() {
  worker::v1::LeaderMessage message;
  message.mutable_welcome();
  return message;
}

worker::v1::LeaderMessage Plan() {
  worker::v1::LeaderMessage message;
  message.set_plan("no plan");
  return message;
}

TEST(Impostor, LearnsNothingAndIsNotObeyed) {
  const std::string nonce(32, 'n');
  const std::string other = "not-the-secret-of-the-group-012345";
  const std::vector<std::pair<const char*, Script>> scripts = {
      {"welcomes at once",
       [](const auto&) {
         return std::vector{Welcome(), Plan()};
       }},
      {"has no proof",
       [&](const auto&) {
         return std::vector{Challenge(nonce, ""), Welcome(), Plan()};
       }},
      {"has another secret",
       [&](const auto& authorization) {
         const std::string worker_nonce = absl::HexStringToBytes(authorization.substr(12, 64));
         return std::vector{Challenge(nonce, ProofOf(GroupEnd::kLeader, other, worker_nonce, nonce)),
                            Welcome(), Plan()};
       }},
      {"sends the opening back",
       [&](const auto& authorization) {
         return std::vector{Challenge("", absl::HexStringToBytes(authorization.substr(77))), Welcome()};
       }},
      {"has seen the challenge of another call", [&](const auto&) {
         return std::vector{
             Challenge(nonce, ProofOf(GroupEnd::kLeader, kSecret, std::string(32, 'w'), nonce)), Welcome()};
       }}};
  for (const auto& [name, script] : scripts) {
    SCOPED_TRACE(name);
    FakeLeader leader(script);
    const absl::Status status = Join(leader.port());
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("does not prove that it has the group's secret"));
    EXPECT_THAT(leader.heard(), Not(HasSubstr(kSecret)));
    EXPECT_THAT(leader.heard(), Not(HasSubstr(Identity().model_hash)));
    EXPECT_EQ(leader.messages(), 0);
  }
}

}  // namespace
}  // namespace foredraft
