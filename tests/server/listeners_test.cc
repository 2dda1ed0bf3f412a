// Who may do what on which listener, tried as an attacker would.

#include <gmock/gmock.h>
#include <grpcpp/create_channel.h>
#include <grpcpp/generic/generic_stub.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <future>
#include <sstream>
#include <thread>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "server/api/vllm_engine/messages.h"
#include "tests/server/serving_fixture.h"
#include "vllm/grpc/engine/vllm_engine.pb.h"

namespace foredraft {
namespace {

using grpc::StatusCode;
using testing::AllOf;
using testing::HasSubstr;

constexpr char kApiToken[] = "token-of-a-client";
constexpr char kAdminToken[] = "token-of-an-operator";
constexpr char kMetricsToken[] = "token-of-prometheus";

std::string TestFile(const std::string& name) {
  return absl::StrCat(testing::TempDir(), "/foredraft_", name, "_", getpid());
}

void WriteTokens(const std::string& file, bool with_api = true) {
  std::ofstream out(file, std::ios::trunc);
  if (with_api) out << TokenLine(Role::kApi, "alice", kApiToken) << "\n";
  out << TokenLine(Role::kAdmin, "bob", kAdminToken) << "\n"
      << TokenLine(Role::kMetrics, "prometheus", kMetricsToken) << "\n";
}

// The status of a call without arguments.
grpc::Status CallEmpty(const std::shared_ptr<grpc::Channel>& channel, const std::string& method,
                       const std::string& token = "") {
  grpc::GenericStub stub(channel);
  grpc::ClientContext context;
  if (!token.empty()) context.AddMetadata("authorization", "Bearer " + token);
  const grpc::ByteBuffer request(nullptr, 0);
  grpc::ByteBuffer response;
  std::promise<grpc::Status> done;
  stub.UnaryCall(&context, method, {}, &request, &response,
                 [&done](grpc::Status status) { done.set_value(std::move(status)); });
  return done.get_future().get();
}

std::vector<std::string> MethodsOf(const google::protobuf::FileDescriptor& file) {
  std::vector<std::string> methods;
  for (int i = 0; i < file.service_count(); ++i) {
    for (int j = 0; j < file.service(i)->method_count(); ++j) {
      const auto* method = file.service(i)->method(j);
      methods.push_back(absl::StrCat("/", method->service()->full_name(), "/", method->name()));
    }
  }
  return methods;
}

std::vector<std::string> AllMethods() {
  std::vector<std::string> all;
  for (const auto* file : {v1::GenerateRequest::descriptor()->file(), v1::DrainRequest::descriptor()->file(),
                           vllm_wire::GenerateRequest::descriptor()->file()}) {
    for (std::string& method : MethodsOf(*file)) all.push_back(std::move(method));
  }
  return all;
}

TEST(AdminListener, DrainAndReloadAreRefusedElsewhere) {
  TestServer server;
  for (const char* method : {"Drain", "ReloadConfig"}) {
    const grpc::Status status =
        CallEmpty(server.channel(), absl::StrCat("/foredraft.v1.AdminService/", method));
    EXPECT_EQ(status.error_code(), StatusCode::PERMISSION_DENIED) << method;
    EXPECT_THAT(status.error_message(),
                HasSubstr("call it on server.admin_address, " + server.listeners().admin_address()));
  }
  EXPECT_EQ(server.frontend().health().state(), ServingState::kServing);
  for (const char* method : {"GetLoad", "GetConfig"}) {
    EXPECT_TRUE(CallEmpty(server.channel(), absl::StrCat("/foredraft.v1.AdminService/", method)).ok());
  }
  const auto admin =
      grpc::CreateChannel(server.listeners().admin_address(), grpc::InsecureChannelCredentials());
  EXPECT_EQ(CallEmpty(admin, "/foredraft.v1.GenerationService/GetModel").error_code(),
            StatusCode::UNIMPLEMENTED)
      << "the admin listener generates nothing";
  EXPECT_TRUE(CallEmpty(admin, "/foredraft.v1.AdminService/Drain").ok());
  EXPECT_EQ(server.frontend().health().state(), ServingState::kDraining);
}

TEST(AdminListener, IsForItsOwnerAndForOneDaemon) {
  TestServer server;
  const std::string path = server.listeners().admin_address().substr(5);
  EXPECT_EQ(std::filesystem::status(path).permissions(), std::filesystem::perms(0600));
  FrontendOptions options = TestServerOptions().frontend;
  options.server.admin_address = "unix:" + path;
  EXPECT_THAT(
      std::string(Frontend::Listen(options, {}).status().message()),
      AllOf(HasSubstr("server.admin_address: unix:" + path), HasSubstr("another process listens there")));
  // With the default address the second daemon serves all the same.
  options.admin_is_default = true;
  const auto frontend = Frontend::Listen(options, {});
  ASSERT_TRUE(frontend.ok()) << frontend.status();
  EXPECT_EQ((*frontend)->listeners().admin_address(), "");
  EXPECT_TRUE(std::filesystem::exists(path)) << "the first daemon's";
}

TEST(AdminListener, NoneLeavesTheSignals) {
  TestServerOptions options;
  options.frontend.server.admin_address = kNoListener;
  TestServer server(options);
  EXPECT_THAT(CallEmpty(server.channel(), "/foredraft.v1.AdminService/Drain").error_message(),
              HasSubstr("server.admin_address is none: send SIGTERM to drain"));
}

class Tokens : public testing::Test {
 protected:
  Tokens() {
    WriteTokens(file_);
    options_.frontend.server.auth.tokens_file = file_;
    options_.frontend.server.metrics_address = "127.0.0.1:0";
    options_.frontend.file_period = std::chrono::milliseconds(50);
  }
  ~Tokens() override { std::filesystem::remove(file_); }

  const std::string file_ = TestFile("tokens");
  TestServerOptions options_;
};

// Every method there is, so that none that comes later can be forgotten.
TEST_F(Tokens, NoMethodAnswersWithoutOne) {
  TestServer server(options_);
  const std::vector<std::string> methods = AllMethods();
  EXPECT_GE(methods.size(), 16u);
  for (const std::string& method : methods) {
    if (CallEmpty(server.channel(), method, kAdminToken).error_code() == StatusCode::UNIMPLEMENTED) continue;
    const grpc::Status none = CallEmpty(server.channel(), method);
    EXPECT_EQ(none.error_code(), StatusCode::UNAUTHENTICATED) << method << ": " << none.error_message();
    EXPECT_THAT(none.error_message(), HasSubstr("authorization: Bearer TOKEN"));
    EXPECT_EQ(CallEmpty(server.channel(), method, "guessed").error_code(), StatusCode::UNAUTHENTICATED)
        << method;
    EXPECT_EQ(CallEmpty(server.channel(), method, kMetricsToken).error_code(), StatusCode::PERMISSION_DENIED)
        << method;
    const StatusCode allowed = CallEmpty(server.channel(), method, kApiToken).error_code();
    EXPECT_NE(allowed, StatusCode::UNAUTHENTICATED) << method;
  }
  EXPECT_TRUE(CallEmpty(server.channel(), "/grpc.health.v1.Health/Check").ok()) << "probes have none";
  EXPECT_EQ(server.Metric("requests_total", {{"outcome", "stop"}}), 0);
}

TEST_F(Tokens, GenerateWithAToken) {
  TestServer server(options_);
  grpc::ClientContext context;
  context.AddMetadata("authorization", absl::StrCat("Bearer ", kApiToken));
  EXPECT_TRUE(ReadStream(server.stub(), SimpleRequest(1, 5), &context).status.ok());
}

TEST_F(Tokens, TheAdminListenerByTcpNeedsTheRole) {
  options_.frontend.server.admin_address = "127.0.0.1:0";
  TestServer server(options_);
  const auto admin =
      grpc::CreateChannel(server.listeners().admin_address(), grpc::InsecureChannelCredentials());
  for (const char* method : {"Drain", "ReloadConfig", "GetLoad", "GetConfig"}) {
    const std::string path = absl::StrCat("/foredraft.v1.AdminService/", method);
    EXPECT_EQ(CallEmpty(admin, path).error_code(), StatusCode::UNAUTHENTICATED) << method;
    const grpc::Status api = CallEmpty(admin, path, kApiToken);
    EXPECT_EQ(api.error_code(), StatusCode::PERMISSION_DENIED) << method;
    EXPECT_EQ(api.error_message(), "the token alice has the role api, this needs admin");
  }
  EXPECT_EQ(server.frontend().health().state(), ServingState::kServing);
  EXPECT_TRUE(CallEmpty(admin, "/foredraft.v1.AdminService/Drain", kAdminToken).ok());
  EXPECT_EQ(server.frontend().health().state(), ServingState::kDraining);
}

TEST_F(Tokens, TheUnixSocketIsEnoughAndAGatewayHasItsListener) {
  options_.frontend.server.gateway_address = "127.0.0.1:0";
  TestServer server(options_);
  grpc::ClientContext context;
  v1::GetLoadResponse load;
  EXPECT_TRUE(server.admin().GetLoad(&context, {}, &load).ok());
  const auto gateway =
      grpc::CreateChannel(server.listeners().gateway_address(), grpc::InsecureChannelCredentials());
  EXPECT_TRUE(CallEmpty(gateway, "/vllm.grpc.engine.VllmEngine/GetModelInfo").ok());
}

TEST_F(Tokens, TheFileIsReadAgainAndABadOneChangesNothing) {
  TestServer server(options_);
  const auto get_load = [&] {
    return CallEmpty(server.channel(), "/foredraft.v1.AdminService/GetLoad", kApiToken).error_code();
  };
  EXPECT_EQ(get_load(), StatusCode::OK);
  std::ofstream(file_, std::ios::trunc) << "api alice no-hash\n";
  server.frontend().ReloadFiles();
  EXPECT_EQ(get_load(), StatusCode::OK);
  WriteTokens(file_, /*with_api=*/false);  // noticed without a signal
  EXPECT_TRUE(server.Eventually([&] { return get_load() == StatusCode::UNAUTHENTICATED; }));
  WriteTokens(file_);
  server.frontend().ReloadFiles();
  EXPECT_EQ(get_load(), StatusCode::OK);
}

// A file that is being written when it is read again: nothing, a part of a line, all but the last line break.
// Had it been taken, /metrics would be open, because no line has the role metrics.
TEST_F(Tokens, AnEmptyOrCutFileChangesNothing) {
  TestServer server(options_);
  std::ostringstream whole;
  whole << std::ifstream(file_).rdbuf();
  int refused = 0;
  const std::string admin = TokenLine(Role::kAdmin, "bob", kAdminToken);
  for (const std::string& cut : {std::string(), std::string("\n"), std::string("# tokens\n"), admin,
                                 admin.substr(0, 30), whole.str().substr(0, whole.str().size() - 1)}) {
    std::ofstream(file_, std::ios::trunc) << cut;
    server.frontend().ReloadFiles();
    EXPECT_GE(server.Metric("config_reloads_total", {{"result", "refused"}}), ++refused) << cut;
    EXPECT_TRUE(CallEmpty(server.channel(), "/foredraft.v1.AdminService/GetLoad", kApiToken).ok()) << cut;
    EXPECT_THAT(server.Http("/metrics"), HasSubstr(" 401 ")) << cut;
  }
  std::ofstream(file_, std::ios::trunc) << whole.str();
  server.frontend().ReloadFiles();
  EXPECT_TRUE(CallEmpty(server.channel(), "/foredraft.v1.AdminService/GetLoad", kApiToken).ok());
}

TEST_F(Tokens, AFileWithAnErrorIsNoStart) {
  std::ofstream(file_, std::ios::trunc) << "api alice no-hash\n";
  EXPECT_THAT(std::string(Frontend::Listen(options_.frontend, {}).status().message()),
              HasSubstr("server.auth.tokens_file: " + file_ + ":1: SHA-256"));
  std::ofstream(file_, std::ios::trunc) << "";
  EXPECT_EQ(
      Frontend::Listen(options_.frontend, {}).status().message(),
      "server.auth.tokens_file: " + file_ + ": no token, allowed at least 1 (foredraft token makes them)");
}

TEST_F(Tokens, MetricsNeedOneProbesDoNot) {
  TestServer server(options_);
  EXPECT_THAT(server.Http("/metrics"), AllOf(HasSubstr(" 401 "), HasSubstr("WWW-Authenticate: Bearer")));
  EXPECT_THAT(server.Http("/metrics", "guessed"), HasSubstr(" 401 "));
  for (const char* token : {kMetricsToken, kApiToken, kAdminToken}) {
    EXPECT_THAT(server.Http("/metrics", token), HasSubstr("foredraft_requests_running"));
  }
  EXPECT_THAT(server.Http("/healthz"), HasSubstr("\r\n\r\nlive\n"));
  EXPECT_THAT(server.Http("/readyz"), HasSubstr("\r\n\r\nserving\n"));
}

TEST_F(Tokens, MetricsAreOpenWhileNoLineHasTheirRole) {
  std::ofstream(file_, std::ios::trunc) << TokenLine(Role::kApi, "alice", kApiToken) << "\n";
  TestServer server(options_);
  EXPECT_THAT(server.Http("/metrics"), HasSubstr("foredraft_requests_running"));
}

TEST(Probes, FollowTheState) {
  TestServerOptions options;
  options.serve = false;
  options.frontend.server.metrics_address = "127.0.0.1:0";
  TestServer server(options);
  EXPECT_THAT(server.Http("/healthz"), HasSubstr(" 200 OK")) << "a restart would not make it load faster";
  EXPECT_THAT(server.Http("/readyz"), AllOf(HasSubstr(" 503 "), HasSubstr("loading\n")));
  server.Serve();
  EXPECT_THAT(server.Http("/readyz"), AllOf(HasSubstr(" 200 OK"), HasSubstr("serving\n")));
  server.frontend().BeginDrain();
  EXPECT_THAT(server.Http("/healthz"), HasSubstr(" 200 OK"));
  EXPECT_THAT(server.Http("/readyz"), AllOf(HasSubstr(" 503 "), HasSubstr("draining\n")));
}

TEST(Probes, AHangIsNotLive) {
  TestServerOptions options;
  options.frontend.server.metrics_address = "127.0.0.1:0";
  options.frontend.longest_turn = std::chrono::seconds(1);
  TestServer server(options);
  server.rank().Hold();
  grpc::ClientContext context;
  const auto reader = server.stub().GenerateStream(&context, SimpleRequest(1, 50));
  EXPECT_TRUE(server.Eventually([&] { return absl::StrContains(server.Http("/healthz"), " 503 "); }));
  server.rank().Release();
  context.TryCancel();
}

// The attack that made the port deaf: more connections than descriptors, then new ones.
TEST(Connections, TooManyAreRefusedAndNewOnesAnsweredAfterwards) {
  TestServerOptions options;
  options.frontend.server.max_connections = 8;
  options.frontend.probe_period = std::chrono::milliseconds(100);
  TestServer server(options);
  const auto call = [&](int index) {
    grpc::ChannelArguments own;
    own.SetInt("test.connection", index);  // no two channels share a connection
    own.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    const auto channel = grpc::CreateCustomChannel(server.address(), grpc::InsecureChannelCredentials(), own);
    return std::make_pair(channel, CallEmpty(channel, "/foredraft.v1.AdminService/GetLoad").error_code());
  };
  std::vector<std::shared_ptr<grpc::Channel>> open;
  for (int i = 0; i < 8; ++i) {
    const auto [channel, code] = call(i);
    EXPECT_EQ(code, StatusCode::OK) << i;
    open.push_back(channel);
  }
  EXPECT_EQ(call(8).second, StatusCode::UNAVAILABLE);
  EXPECT_GT(server.Metric("connections_refused_total"), 0);
  // The daemon's own probes get through, so it stays live.
  std::this_thread::sleep_for(std::chrono::seconds(1));
  EXPECT_EQ(server.Metric("port_probe_failures_total"), 0);
  open.clear();
  int answered = 0;
  for (int i = 0; i < 40; ++i) {
    EXPECT_TRUE(server.Eventually([&] { return call(100 + i).second == StatusCode::OK; })) << i;
    ++answered;
  }
  EXPECT_EQ(answered, 40);
}

}  // namespace
}  // namespace foredraft
