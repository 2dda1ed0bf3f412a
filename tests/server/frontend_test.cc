#include "server/frontend.h"

#include <gmock/gmock.h>
#include <grpcpp/create_channel.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/security/credentials.h>
#include <gtest/gtest.h>

#include <condition_variable>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <future>
#include <sstream>
#include <thread>

#include "absl/strings/str_cat.h"
#include "server/port_probe.h"
#include "tests/server/serving_fixture.h"

namespace foredraft {
namespace {

using grpc::StatusCode;
using testing::HasSubstr;

// grpc.health.v1.Health/Check by hand: its request has the name as field 1, its response the state (1 =
// SERVING).
bool IsServing(TestServer& server, const std::string& name) {
  grpc::GenericStub stub(server.channel());
  const grpc::ByteBuffer request =
      Bytes(name.empty() ? "" : absl::StrCat("\x0a", std::string(1, name.size()), name));
  grpc::ByteBuffer response;
  grpc::ClientContext context;
  std::promise<grpc::Status> done;
  stub.UnaryCall(&context, "/grpc.health.v1.Health/Check", {}, &request, &response,
                 [&done](grpc::Status status) { done.set_value(std::move(status)); });
  const grpc::Status status = done.get_future().get();
  EXPECT_TRUE(status.ok()) << name << ": " << status.error_message();
  return Text(response) == "\x08\x01";
}

TEST(Frontend, HealthFollowsTheStateUnderEachName) {
  TestServerOptions options;
  options.serve = false;
  TestServer server(options);
  const auto expect_all = [&](bool serving) {
    for (const char* name :
         {"", "foredraft.v1.GenerationService", "foredraft.v1.AdminService", "vllm.grpc.engine.VllmEngine"}) {
      EXPECT_EQ(IsServing(server, name), serving) << name;
    }
  };
  expect_all(false);
  server.Serve();
  expect_all(true);
  server.frontend().BeginDrain();
  expect_all(false);
}

TEST(Frontend, ReflectionListsTheServices) {
  TestServer server;
  grpc::GenericStub stub(server.channel());
  grpc::ClientContext context;
  grpc::CompletionQueue queue;
  const auto call =
      stub.PrepareCall(&context, "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo", &queue);
  void* tag = nullptr;
  bool ok = false;
  const auto wait = [&] { return queue.Next(&tag, &ok) && ok; };
  call->StartCall(nullptr);
  ASSERT_TRUE(wait());
  call->Write(Bytes(std::string("\x3a\x00", 2)), nullptr);  // list_services
  ASSERT_TRUE(wait());
  grpc::ByteBuffer response;
  call->Read(&response, nullptr);
  ASSERT_TRUE(wait());
  EXPECT_THAT(Text(response), HasSubstr("foredraft.v1.GenerationService"));
  EXPECT_THAT(Text(response), HasSubstr("foredraft.v1.AdminService"));
  EXPECT_THAT(Text(response), HasSubstr("grpc.health.v1.Health"));
  context.TryCancel();
  grpc::Status status;
  call->Finish(&status, nullptr);
  queue.Next(&tag, &ok);
  queue.Shutdown();
}

TEST(Frontend, EveryMetricExistsFromTheStart) {
  TestServerOptions options;
  options.serve = false;
  TestServer server(options);
  for (const char* name : {"spec_decode_drafts_total",
                           "spec_decode_draft_tokens_total",
                           "spec_decode_accepted_tokens_total",
                           "spec_decode_accepted_tokens_per_position_total",
                           "spec_decode_relaxed_tokens_total",
                           "spec_decode_acceptance_rate",
                           "spec_decode_draft_length",
                           "spec_decode_forced",
                           "rank_failures_total",
                           "group_restarts_total",
                           "time_to_first_token_seconds",
                           "time_per_output_token_seconds",
                           "e2e_request_duration_seconds",
                           "queue_duration_seconds",
                           "requests_running",
                           "requests_waiting",
                           "requests_total",
                           "prompt_tokens_total",
                           "generation_tokens_total",
                           "prefix_cache_queried_tokens_total",
                           "prefix_cache_hit_tokens_total",
                           "preemptions_total",
                           "wasted_steps_total",
                           "kv_cache_usage_ratio",
                           "kv_cache_blocks",
                           "step_duration_seconds",
                           "step_batch_size",
                           "graph_replays_total",
                           "eager_steps_total",
                           "rewound_blocks_total",
                           "spec_decode_calibration_error",
                           "spec_decode_cut_tokens_total",
                           "config_reloads_total"}) {
    EXPECT_EQ(server.Metric(name, {{"model_name", "scripted"}}), 0) << name;
  }
  EXPECT_EQ(server.Metric("build_info", {{"model_name", "scripted"}}), 1);
  EXPECT_EQ(server.Metric("config_info", {{"model_name", "scripted"}}), 1);
}

TEST(Frontend, RefusesPortsInUseByName) {
  TestServerOptions with_metrics;
  with_metrics.frontend.server.metrics_address = "127.0.0.1:0";
  TestServer server(with_metrics);
  FrontendOptions options;
  options.server.grpc_address = server.address();
  options.server.metrics_address = "127.0.0.1:0";
  EXPECT_THAT(std::string(Frontend::Listen(options, {}).status().message()),
              AllOf(HasSubstr("server.grpc_address: " + server.address()), HasSubstr("in use")));
  options.server.grpc_address = "127.0.0.1:0";
  options.server.metrics_address = absl::StrCat("127.0.0.1:", server.listeners().metrics_port());
  EXPECT_THAT(std::string(Frontend::Listen(options, {}).status().message()),
              AllOf(HasSubstr("server.metrics_address: 127.0.0.1:"), HasSubstr("in use")));
}

TEST(Frontend, DrainLetsStreamsFinishAndRefusesNewOnes) {
  TestServerOptions options;
  options.rank.step_time = std::chrono::milliseconds(1);
  TestServer server(options);
  grpc::ClientContext context;
  const auto reader = server.stub().GenerateStream(&context, SimpleRequest(1, 300));
  v1::GenerateChunk chunk;
  ASSERT_TRUE(reader->Read(&chunk));
  v1::DrainResponse drain;
  grpc::ClientContext drain_context;
  ASSERT_TRUE(server.admin().Drain(&drain_context, {}, &drain).ok());
  EXPECT_EQ(drain.open_streams(), 1);
  EXPECT_EQ(ReadStream(server.stub(), SimpleRequest(2, 5)).status.error_code(), StatusCode::UNAVAILABLE);
  int tokens = chunk.token_ids_size();
  while (reader->Read(&chunk)) tokens += chunk.token_ids_size();
  EXPECT_TRUE(reader->Finish().ok());
  EXPECT_EQ(tokens, 300);
  EXPECT_TRUE(server.frontend().WaitForNoCalls(std::chrono::steady_clock::now() + std::chrono::seconds(5)));
}

TEST(Frontend, ShutdownEndsWhatIsLeftWithUnavailable) {
  TestServerOptions options;
  options.rank.step_time = std::chrono::milliseconds(1);
  TestServer server(options);
  grpc::ClientContext context;
  v1::GenerateRequest request = SimpleRequest(1, 500);
  request.set_max_draft_tokens(0);
  const auto reader = server.stub().GenerateStream(&context, request);
  v1::GenerateChunk chunk;
  ASSERT_TRUE(reader->Read(&chunk));
  EXPECT_FALSE(server.frontend().WaitForNoCalls(std::chrono::steady_clock::now()));
  auto shutdown = std::async(std::launch::async, [&server] { server.frontend().Shutdown(); });
  while (reader->Read(&chunk)) continue;
  EXPECT_EQ(reader->Finish().error_code(), StatusCode::UNAVAILABLE);
  shutdown.get();
}

TEST(Frontend, AdminShowsLoadConfigAndARefusedReload) {
  TestServer server;
  v1::GetLoadResponse load;
  grpc::ClientContext load_context;
  ASSERT_TRUE(server.admin().GetLoad(&load_context, {}, &load).ok());
  EXPECT_EQ(load.state(), "serving");
  EXPECT_EQ(load.serving_state(), v1::SERVING_STATE_SERVING);
  EXPECT_EQ(load.draft_len(), 3);
  EXPECT_EQ(load.blocks_free(), 264);
  v1::GetConfigResponse config;
  grpc::ClientContext config_context;
  ASSERT_TRUE(server.admin().GetConfig(&config_context, {}, &config).ok());
  EXPECT_EQ(config.yaml(), "model: scripted\n");
  v1::ReloadConfigResponse reload;
  grpc::ClientContext reload_context;
  const grpc::Status status = server.admin().ReloadConfig(&reload_context, {}, &reload);
  EXPECT_EQ(status.error_code(), StatusCode::INVALID_ARGUMENT);
  EXPECT_THAT(status.error_message(), HasSubstr("nearest is model"));
}

TEST(Frontend, DraftLengthChangesWhileServing) {
  TestServer server;
  server.frontend().SetSpeculation({.draft_len = 0}, {});
  const StreamResult none = ReadStream(server.stub(), SimpleRequest(4, 60));
  server.frontend().SetSpeculation({.draft_len = 3}, {.begin = 7, .end = 8});
  const StreamResult some = ReadStream(server.stub(), SimpleRequest(4, 60));
  EXPECT_EQ(none.last().speculation().accepted_tokens(), 0);
  EXPECT_GT(some.last().speculation().accepted_tokens(), 0);
  EXPECT_EQ(none.token_ids(), some.token_ids());
  v1::GetModelResponse model;
  grpc::ClientContext context;
  ASSERT_TRUE(server.stub().GetModel(&context, {}, &model).ok());
  EXPECT_EQ(model.begin_thinking_token_id(), 7);
  EXPECT_EQ(model.end_thinking_token_id(), 8);
}

// Certificates made by openssl in the test's own directory: one authority, a server and a client that it
// signed, and a client certificate that it did not sign.
class Tls : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    dir_ = testing::TempDir() + "/foredraft_tls";
    std::filesystem::create_directories(dir_);
    const std::string command = absl::StrCat(
        "cd ", dir_,
        " && exec >openssl.log 2>&1 && set -e"
        " && openssl req -x509 -newkey rsa:2048 -nodes -keyout ca.key -out ca.pem -days 2 -subj /CN=ca"
        " && echo 'subjectAltName=IP:127.0.0.1,DNS:localhost' >san"
        " && for name in server client; do"
        "   openssl req -newkey rsa:2048 -nodes -keyout $name.key -out $name.csr -subj /CN=$name;"
        "   openssl x509 -req -in $name.csr -CA ca.pem -CAkey ca.key -CAcreateserial -out $name.pem -days 2 "
        "-extfile san;"
        " done"
        " && openssl req -x509 -newkey rsa:2048 -nodes -keyout unsigned.key -out unsigned.pem -days 2 -subj "
        "/CN=x"
        " && openssl req -x509 -newkey rsa:2048 -nodes -keyout next_ca.key -out next_ca.pem -days 2 -subj "
        "/CN=next"
        " && openssl req -newkey rsa:2048 -nodes -keyout next.key -out next.csr -subj /CN=server"
        " && openssl x509 -req -in next.csr -CA next_ca.pem -CAkey next_ca.key -CAcreateserial -out next.pem "
        "-days 2 -extfile san");
    ASSERT_EQ(std::system(command.c_str()), 0) << "see " << dir_ << "/openssl.log";
  }

  static std::string Path(const std::string& name) { return dir_ + "/" + name; }
  static std::string Read(const std::string& name) {
    std::ifstream file(Path(name));
    std::ostringstream content;
    content << file.rdbuf();
    return content.str();
  }
  static grpc::Status Call(const TestServer& server, const std::string& client,
                           const std::string& authority = "ca.pem") {
    grpc::SslCredentialsOptions options;
    options.pem_root_certs = Read(authority);
    if (!client.empty()) {
      options.pem_cert_chain = Read(client + ".pem");
      options.pem_private_key = Read(client + ".key");
    }
    const auto stub =
        v1::GenerationService::NewStub(grpc::CreateChannel(server.address(), grpc::SslCredentials(options)));
    return ReadStream(*stub, SimpleRequest(1, 5)).status;
  }

  static std::string dir_;
};
std::string Tls::dir_;

TEST_F(Tls, ServesOverTlsAndRefusesPlainText) {
  TestServerOptions options;
  options.frontend.server.tls = {.cert = Path("server.pem"), .key = Path("server.key")};
  TestServer server(options);
  EXPECT_TRUE(Call(server, "").ok());
  EXPECT_EQ(ReadStream(server.stub(), SimpleRequest(1, 5)).status.error_code(), StatusCode::UNAVAILABLE);
}

TEST_F(Tls, WithAClientCaEveryRpcNeedsACertificateItSigned) {
  TestServerOptions options;
  options.frontend.server.tls = {
      .cert = Path("server.pem"), .key = Path("server.key"), .client_ca = Path("ca.pem")};
  TestServer server(options);
  EXPECT_TRUE(Call(server, "client").ok());
  EXPECT_EQ(Call(server, "").error_code(), StatusCode::UNAVAILABLE);
  EXPECT_EQ(Call(server, "unsigned").error_code(), StatusCode::UNAVAILABLE);
}

// With client_ca, too, where the daemon has no certificate that it could show itself.
TEST_F(Tls, TheDaemonsProbeIsAnswered) {
  for (const char* client_ca : {"", "ca.pem"}) {
    TestServerOptions options;
    options.frontend.server.tls = {.cert = Path("server.pem"),
                                   .key = Path("server.key"),
                                   .client_ca = *client_ca == '\0' ? "" : Path(client_ca)};
    TestServer server(options);
    const absl::Status answer =
        Probe({.address = server.address(), .tls = true, .timeout = std::chrono::seconds(20)});
    EXPECT_TRUE(answer.ok()) << answer;
  }
}

// The certificate is renewed on disk; a half-done renewal must not take the port down.
TEST_F(Tls, ANewCertificateIsUsedWithoutARestart) {
  const auto install = [](const std::string& cert, const std::string& key) {
    const auto replace = std::filesystem::copy_options::overwrite_existing;
    std::filesystem::copy_file(Path(cert), Path("live.pem"), replace);
    std::filesystem::copy_file(Path(key), Path("live.key"), replace);
  };
  install("server.pem", "server.key");
  TestServerOptions options;
  options.frontend.server.tls = {.cert = Path("live.pem"), .key = Path("live.key")};
  options.frontend.file_period = std::chrono::milliseconds(50);
  TestServer server(options);
  EXPECT_TRUE(Call(server, "").ok());
  EXPECT_FALSE(Call(server, "", "next_ca.pem").ok());
  EXPECT_GT(server.Metric("tls_certificate_expiry_timestamp_seconds"), 1e9);

  install("next.pem", "server.key");  // a pair that does not belong together
  server.frontend().ReloadFiles();
  std::this_thread::sleep_for(std::chrono::milliseconds(1500));  // gRPC looks each second
  EXPECT_TRUE(Call(server, "").ok()) << "the old certificate stays";

  install("next.pem", "next.key");  // noticed without a signal
  EXPECT_TRUE(server.Eventually([&] { return Call(server, "", "next_ca.pem").ok(); }));
  EXPECT_FALSE(Call(server, "").ok());
}

TEST_F(Tls, NamesTheFileAtFault) {
  std::ofstream(Path("text")) << "not a certificate\n";
  struct Case {
    TlsConfig tls;
    std::string says;
  };
  for (const Case& test : std::vector<Case>{
           {{.cert = Path("none"), .key = Path("server.key")},
            "server.tls.cert: " + Path("none") + ": cannot be read"},
           {{.cert = Path("server.pem"), .key = Path("none")},
            "server.tls.key: " + Path("none") + ": cannot be read"},
           {{.cert = Path("text"), .key = Path("server.key")},
            "server.tls.cert: " + Path("text") + ": not a PEM"},
           {{.cert = Path("server.pem"), .key = Path("text")},
            "server.tls.key: " + Path("text") + ": not a PEM"},
           {{.cert = Path("server.pem"), .key = Path("client.key")}, "does not belong to server.tls.cert"},
           {{.cert = Path("server.pem"), .key = Path("server.key"), .client_ca = Path("text")},
            "server.tls.client_ca"},
           {{.client_ca = Path("ca.pem")}, "server.tls.cert: empty"},
           {{.cert = Path("server.pem")}, "server.tls.key: empty"}}) {
    FrontendOptions options = TestServerOptions().frontend;
    options.server.tls = test.tls;
    EXPECT_THAT(std::string(Frontend::Listen(options, {}).status().message()), HasSubstr(test.says));
  }
}

}  // namespace
}  // namespace foredraft
