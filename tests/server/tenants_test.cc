// What one client of the daemon can do to another: clients are told apart by their tokens.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <future>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "server/api/access.h"
#include "server/api/vllm_engine/messages.h"
#include "tests/server/serving_fixture.h"
#include "vllm/grpc/engine/vllm_engine.grpc.pb.h"

namespace foredraft {
namespace {

using grpc::StatusCode;

std::string TokenOf(const std::string& name) { return "token-of-" + name; }

void Authorize(grpc::ClientContext& context, const std::string& name) {
  context.AddMetadata("authorization", "Bearer " + TokenOf(name));
}

// alice and bob have the role api, root is admin.
class Tenants : public testing::Test {
 protected:
  Tenants() {
    std::ofstream out(file_, std::ios::trunc);
    for (const char* name : {"alice", "bob"}) out << TokenLine(Role::kApi, name, TokenOf(name)) << "\n";
    out << TokenLine(Role::kAdmin, "root", TokenOf("root")) << "\n";
    options_.frontend.server.auth.tokens_file = file_;
    options_.rank.step_time = std::chrono::milliseconds(2);
  }
  ~Tenants() override { std::filesystem::remove(file_); }

  const std::string file_ = absl::StrCat(testing::TempDir(), "/foredraft_tenants_", getpid());
  TestServerOptions options_;
};

struct VllmAnswer {
  grpc::Status status;
  std::string finish_reason;
  int tokens = 0;
};

VllmAnswer VllmGenerate(vllm_wire::VllmEngine::Stub& stub, const std::string& caller, const std::string& id,
                        int max_tokens) {
  vllm_wire::GenerateRequest request;
  request.set_request_id(id);
  for (uint32_t token : {5, 6, 7}) request.mutable_tokenized()->add_input_ids(token);
  request.mutable_sampling_params()->set_max_tokens(max_tokens);
  request.mutable_sampling_params()->set_seed(1);
  grpc::ClientContext context;
  Authorize(context, caller);
  const auto reader = stub.Generate(&context, request);
  VllmAnswer answer;
  vllm_wire::GenerateResponse response;
  while (reader->Read(&response)) {
    if (!response.has_complete()) continue;
    answer.finish_reason = response.complete().finish_reason();
    answer.tokens = response.complete().output_ids_size();
  }
  answer.status = reader->Finish();
  return answer;
}

grpc::Status VllmAbort(vllm_wire::VllmEngine::Stub& stub, const std::string& caller, const std::string& id) {
  vllm_wire::AbortRequest request;
  request.add_request_ids(id);
  vllm_wire::AbortResponse response;
  grpc::ClientContext context;
  Authorize(context, caller);
  return stub.Abort(&context, request, &response);
}

TEST_F(Tenants, AbortReachesRequestsOfTheSameTokenOnly) {
  TestServer server(options_);
  const auto stub = vllm_wire::VllmEngine::NewStub(server.channel());
  auto alice =
      std::async(std::launch::async, [&] { return VllmGenerate(*stub, "alice", "chatcmpl-1", 450); });
  ASSERT_TRUE(server.Eventually([&] { return server.Metric("generation_tokens_total") > 5; }));
  for (const char* other : {"bob", "root"}) EXPECT_TRUE(VllmAbort(*stub, other, "chatcmpl-1").ok()) << other;
  const VllmAnswer whole = alice.get();
  EXPECT_TRUE(whole.status.ok()) << whole.status.error_message();
  EXPECT_EQ(whole.finish_reason, "length");
  EXPECT_EQ(whole.tokens, 450);

  alice = std::async(std::launch::async, [&] { return VllmGenerate(*stub, "alice", "chatcmpl-1", 450); });
  ASSERT_TRUE(server.Eventually([&] { return server.Metric("generation_tokens_total") > 455; }));
  EXPECT_TRUE(VllmAbort(*stub, "alice", "chatcmpl-1").ok());
  EXPECT_EQ(alice.get().finish_reason, "abort");
}

TEST_F(Tenants, AnIdIsFreeWhenItsClientHearsOfTheEnd) {
  TestServer server(options_);
  const auto stub = vllm_wire::VllmEngine::NewStub(server.channel());
  std::vector<std::future<void>> clients;  // many, so that threads of the server wait for a core
  for (int client = 0; client < 12; ++client) {
    clients.push_back(std::async(std::launch::async, [&, client] {
      for (int i = 0; i < 60; ++i) {
        const VllmAnswer answer = VllmGenerate(*stub, "alice", absl::StrCat("chatcmpl-", client), 1);
        ASSERT_TRUE(answer.status.ok()) << "after " << i << " calls: " << answer.status.error_message();
      }
    }));
  }
  for (std::future<void>& client : clients) client.get();
}

TEST_F(Tenants, AnIdInUseIsFreeForAnotherToken) {
  TestServer server(options_);
  const auto stub = vllm_wire::VllmEngine::NewStub(server.channel());
  auto bob = std::async(std::launch::async, [&] { return VllmGenerate(*stub, "bob", "chatcmpl-1", 450); });
  ASSERT_TRUE(server.Eventually([&] { return server.Metric("requests_running") == 1; }));
  EXPECT_EQ(VllmGenerate(*stub, "bob", "chatcmpl-1", 3).status.error_code(), StatusCode::ALREADY_EXISTS);
  const VllmAnswer alice = VllmGenerate(*stub, "alice", "chatcmpl-1", 3);
  EXPECT_TRUE(alice.status.ok()) << alice.status.error_message();
  EXPECT_EQ(alice.tokens, 3);
  EXPECT_TRUE(VllmAbort(*stub, "bob", "chatcmpl-1").ok());
  EXPECT_EQ(bob.get().finish_reason, "abort");
}

// The texts take seconds together, and gRPC has few threads: a request with a short prompt, and another
// client's text, wait for none of bob's but the one that is being tokenized.
TEST_F(Tenants, LongTextsHoldUpNobodyElse) {
  TestServer server(options_);
  v1::TokenizeRequest request;
  request.set_text(std::string(size_t{3} << 20, '\n'));
  std::atomic<int> done = 0;
  const auto tokenize = [&](const std::string& caller) {
    grpc::ClientContext context;
    Authorize(context, caller);
    v1::TokenizeResponse response;
    const grpc::Status status = server.stub().Tokenize(&context, request, &response);
    EXPECT_TRUE(status.ok()) << status.error_message();
    return response.token_ids_size();
  };
  constexpr int kTexts = 10;
  std::vector<std::future<int>> texts;
  for (int i = 0; i < kTexts; ++i) {
    texts.push_back(std::async(std::launch::async, [&] {
      const int count = tokenize("bob");
      ++done;
      return count;
    }));
  }
  std::this_thread::sleep_for(std::chrono::milliseconds(100));  // most have arrived
  grpc::ClientContext context;
  Authorize(context, "alice");
  EXPECT_TRUE(ReadStream(server.stub(), SimpleRequest(1, 1), &context).status.ok());
  EXPECT_LE(done.load(), kTexts / 2) << "a short prompt waited for texts";
  EXPECT_GT(tokenize("alice"), 1'000'000);
  EXPECT_LE(done.load(), kTexts - 2) << "alice's text waited for all of bob's";
  for (std::future<int>& text : texts) EXPECT_GT(text.get(), 1'000'000);
}

// How many tokens of a prompt of 100 ids were found in the cache.
int CachedTokens(TestServer& server, const std::string& caller) {
  v1::GenerateRequest request = SimpleRequest(7, 3);
  for (int i = 0; i < 100; ++i) request.mutable_token_ids()->add_ids(10 + i % 50);
  grpc::ClientContext context;
  Authorize(context, caller);
  const StreamResult stream = ReadStream(server.stub(), request, &context);
  EXPECT_TRUE(stream.status.ok()) << stream.status.error_message();
  return stream.status.ok() ? stream.last().usage().cached_tokens() : -1;
}

TEST_F(Tenants, BlocksAreSharedInTheirScope) {
  options_.scheduler.enable_block_reuse = true;
  for (const bool by_token : {false, true}) {
    options_.frontend.reuse_by_token = by_token;
    TestServer server(options_);
    EXPECT_EQ(CachedTokens(server, "alice"), 0);
    const int of_alice = CachedTokens(server, "alice");
    EXPECT_GT(of_alice, 0);
    EXPECT_EQ(CachedTokens(server, "bob"), by_token ? 0 : of_alice);
    EXPECT_EQ(CachedTokens(server, "bob"), of_alice) << "bob's own";
    EXPECT_EQ(CachedTokens(server, "alice"), of_alice);
  }
}

}  // namespace
}  // namespace foredraft
