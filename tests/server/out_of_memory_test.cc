// Requests for which the process gets no memory, on the scripted rank.

#include "base/out_of_memory.h"

#include <gmock/gmock.h>
#include <grpcpp/create_channel.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <future>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/base/failing_allocator.h"
#include "tests/server/http/http_client.h"
#include "tests/server/serving_fixture.h"

namespace foredraft {
namespace {

using grpc::StatusCode;
using nlohmann::json;
using testing::HasSubstr;

// This process may take so much more address space, until the end of the scope.
class AddressSpace {
 public:
  explicit AddressSpace(size_t more_bytes) {
    getrlimit(RLIMIT_AS, &saved_);
    size_t pages = 0;
    std::ifstream("/proc/self/statm") >> pages;
    rlimit limit = saved_;
    limit.rlim_cur = pages * static_cast<size_t>(sysconf(_SC_PAGESIZE)) + more_bytes;
    EXPECT_EQ(setrlimit(RLIMIT_AS, &limit), 0);
  }
  ~AddressSpace() { setrlimit(RLIMIT_AS, &saved_); }

 private:
  rlimit saved_{};
};

TEST(OutOfMemory, ACallIsRefusedWithATextAndTheOthersGoOn) {
  TestServer server;
  v1::TokenizeRequest request;
  request.set_text(std::string(size_t{3} << 20, '\n'));  // needs 80 MB
  const auto tokenize = [&] {
    grpc::ClientContext context;
    v1::TokenizeResponse response;
    return server.stub().Tokenize(&context, request, &response);
  };
  ASSERT_TRUE(tokenize().ok());  // every thread has its memory pools
  {
    const AddressSpace little(size_t{48} << 20);
    for (int i = 0; i < 5; ++i) {
      const grpc::Status status = tokenize();
      EXPECT_EQ(status.error_code(), StatusCode::RESOURCE_EXHAUSTED) << status.error_message();
      EXPECT_THAT(status.error_message(), HasSubstr("out of memory"));
    }
    EXPECT_TRUE(ReadStream(server.stub(), SimpleRequest(1, 5)).status.ok());
  }
  EXPECT_TRUE(tokenize().ok());
}

// The answers to one request, and what it would have been with enough memory.
struct Answer {
  bool is_whole = false;
  std::vector<int32_t> token_ids;  // so far
  std::string error;               // empty: the connection was closed, or is_whole
};

// Four requests at a time, two of them constrained, over both protocols.
class Clients {
 public:
  explicit Clients(TestServer& server) : server_(server) {}

  std::vector<Answer> Run() {
    std::vector<std::future<Answer>> running;
    running.push_back(std::async(std::launch::async, [this] { return Whole(); }));
    running.push_back(std::async(std::launch::async, [this] { return Stream(); }));
    running.push_back(std::async(std::launch::async, [this] { return Grpc(); }));
    running.push_back(std::async(std::launch::async, [this] { return NewConnection(); }));
    std::vector<Answer> answers;
    for (std::future<Answer>& one : running) answers.push_back(one.get());
    return answers;
  }

 private:
  static json Body(uint64_t seed) {
    return {{"prompt", {5, 6, 7}}, {"seed", seed}, {"max_tokens", 24}, {"return_token_ids", true}};
  }
  static void Add(const json& choice, Answer& answer) {
    for (const json& id : choice["token_ids"]) answer.token_ids.push_back(id);
  }
  Answer Whole() const {
    json body = Body(3);
    body["structured_outputs"] = {{"regex", "([a-z]{3,9} ){2,40}"}};
    const HttpReply reply = Ask(server_.listeners().http_port(), "POST", "/v1/completions", body.dump());
    Answer answer{.is_whole = reply.status == 200};
    if (answer.is_whole) {
      Add(json::parse(reply.body)["choices"][0], answer);
    } else if (reply.status != 0) {
      answer.error = absl::StrCat(reply.status, " ", reply.body);
    }
    return answer;
  }
  Answer Stream() const {
    json body = Body(4);
    body["stream"] = true;
    const HttpReply reply = Ask(server_.listeners().http_port(), "POST", "/v1/completions", body.dump());
    Answer answer;
    if (reply.status != 200) {
      if (reply.status != 0) answer.error = absl::StrCat(reply.status, " ", reply.body);
      return answer;
    }
    for (const std::string& event : EventsOf(reply.body)) {
      if (event == "[DONE]") {
        answer.is_whole = answer.error.empty();
        continue;
      }
      const json parsed = json::parse(event, nullptr, /*allow_exceptions=*/false);
      if (parsed.is_discarded()) continue;  // cut
      if (parsed.contains("error")) {
        answer.error = event;
      } else {
        for (const json& choice : parsed["choices"]) Add(choice, answer);
      }
    }
    return answer;
  }
  Answer Grpc() const {
    v1::GenerateRequest request = SimpleRequest(5, 24);
    request.mutable_constraint()->set_regex("([a-z]{2,8}[0-9]){2,40}");
    const StreamResult result = ReadStream(server_.stub(), request);
    return {.is_whole = result.status.ok(),
            .token_ids = result.token_ids(),
            .error = result.status.error_message()};
  }

  // Over a connection of its own, which is made for it.
  Answer NewConnection() const {
    grpc::ChannelArguments own;
    own.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    const auto channel =
        grpc::CreateCustomChannel(server_.address(), grpc::InsecureChannelCredentials(), own);
    const auto stub = v1::GenerationService::NewStub(channel);
    const StreamResult result = ReadStream(*stub, SimpleRequest(6, 12));
    return {.is_whole = result.status.ok(),
            .token_ids = result.token_ids(),
            .error = result.status.error_message()};
  }

  TestServer& server_;
};

class OutOfMemoryOn : public testing::TestWithParam<const char*> {
 protected:
  static TestServerOptions Options() {
    TestServerOptions options;
    options.frontend.server.http_address = "127.0.0.1:0";
    options.scheduler.mask_threads = 2;
    return options;
  }
  // Constraints are compiled anew.
  void EmptyCache() {
    constraints_.max_nodes += constraints_.max_nodes % 2 == 0 ? 1 : -1;
    server_.frontend().SetConstraints(constraints_);
  }

  TestServer server_{Options()};
  ConstraintsConfig constraints_;
  Clients clients_{server_};
};

// gRPC's own threads, those of the clients among them.
bool IsOfGrpc(const std::string& thread) {
  return thread == "nexting_thread" || thread == "default-executo" || thread == "event_engine";
}

TEST_P(OutOfMemoryOn, RequestsEndAndTheOthersAreRight) {
  const std::vector<Answer> wanted = clients_.Run();
  for (const Answer& answer : wanted) ASSERT_TRUE(answer.is_whole) << answer.error;
  ASSERT_FALSE(wanted[0].token_ids == wanted[2].token_ids);
  int64_t cases = 0, ended = 0;
  // How much a thread does differs from run to run; the end is where several make no `n` allocations.
  for (int64_t n = 0, quiet = 0; quiet < 8;) {
    EmptyCache();
    bool has_failed = false;
    std::vector<Answer> answers;
    {
      // Also a shortage that lasts longer than the reserve.
      const FailingAllocations failing(GetParam(), n, cases % 3 == 0 ? 6 : 1);
      answers = clients_.Run();
      has_failed = failing.has_failed();
    }
    RefillMemoryReserve();
    cases += has_failed ? 1 : 0;
    quiet = has_failed ? 0 : quiet + 1;
    n += has_failed ? 1 + n / 24 : 0;
    for (size_t i = 0; i < answers.size(); ++i) {
      const Answer& answer = answers[i];
      const std::vector<int32_t>& ids = wanted[i].token_ids;
      if (answer.is_whole) {
        ASSERT_EQ(answer.token_ids, ids) << "request " << i << ", allocation " << n;
        continue;
      }
      ++ended;
      ASSERT_LE(answer.token_ids.size(), ids.size());
      ASSERT_TRUE(std::equal(answer.token_ids.begin(), answer.token_ids.end(), ids.begin()))
          << "request " << i << ", allocation " << n;
      if (answer.error.empty()) continue;  // the connection was closed
      ASSERT_THAT(answer.error, HasSubstr("out of memory")) << n;
    }
    const StreamResult after = ReadStream(server_.stub(), SimpleRequest(7, 5));
    ASSERT_TRUE(after.status.ok()) << after.status.error_message();
  }
  const std::string thread = GetParam();
  if (cases == 0 && IsOfGrpc(thread)) GTEST_SKIP() << "this gRPC has no such thread, or it allocates nothing";
  EXPECT_GT(cases, 4) << "no such thread";
  // What a request needs alone ends it; what all need waits for memory.
  if (thread.starts_with("http") || thread == "tokenize") {
    EXPECT_GT(ended, 0);
  } else if (thread == "accept") {
    EXPECT_EQ(ended, 0);
  }
  std::printf("%s: %lld allocations failed, %lld of %lld requests ended\n", GetParam(),
              static_cast<long long>(cases), static_cast<long long>(ended),
              4 * static_cast<long long>(cases));
  // Blocks, slots and calls are all given back.
  EXPECT_TRUE(server_.Eventually([&] { return server_.IsIdle(); }));
  for (const Answer& answer : clients_.Run()) EXPECT_TRUE(answer.is_whole) << answer.error;
}

// Beginnings of names: "guard" has the strangers' thread, too.
INSTANTIATE_TEST_SUITE_P(Threads, OutOfMemoryOn,
                         testing::Values("http-io", "http-work", "tokenize", "output", "scheduler", "masks",
                                         "accept", "guard", "nexting_thread", "default-executo",
                                         "event_engine"),
                         [](const auto& info) {
                           std::string name = info.param;
                           std::erase_if(name, [](char c) { return c == '-' || c == '_'; });
                           return name;
                         });

}  // namespace
}  // namespace foredraft
