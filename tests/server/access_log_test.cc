// The access log: who was refused, from where, in lines that no client can forge.

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <thread>

#include "absl/strings/str_cat.h"
#include "server/api/admission.h"
#include "server/api/request_id.h"
#include "server/output/request_log.h"
#include "tests/server/http/http_client.h"
#include "tests/server/serving_fixture.h"

namespace foredraft {
namespace {

using grpc::StatusCode;
using testing::AllOf;
using testing::HasSubstr;
using testing::MatchesRegex;
using testing::Not;

// The daemon's log as lines in a file, through descriptor 2.
class LogFile {
 public:
  explicit LogFile(LogFormat format = LogFormat::kText, LogLevel level = LogLevel::kInfo)
      : path_(absl::StrCat(testing::TempDir(), "/foredraft_log_", getpid())), saved_(dup(2)) {
    const int fd = open(path_.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
    dup2(fd, 2);
    close(fd);
    InstallLog(level, format);
  }
  ~LogFile() {
    InstallLogSink(nullptr);
    SetLogLevel(LogLevel::kInfo);
    dup2(saved_, 2);
    close(saved_);
    std::filesystem::remove(path_);
  }
  std::string Text() const {
    std::ifstream file(path_);
    std::ostringstream text;
    text << file.rdbuf();
    return text.str();
  }

 private:
  const std::string path_;
  const int saved_;
};

std::string Trailer(const grpc::ClientContext& context, const char* name = kRequestIdMetadata) {
  const auto& trailers = context.GetServerTrailingMetadata();
  const auto found = trailers.find(name);
  return found == trailers.end() ? "" : std::string(found->second.data(), found->second.size());
}

TEST(AccessLog, ARefusalHasItsIdAndItsPeer) {
  const LogFile log;
  TestServer server;
  grpc::ClientContext context;
  v1::GenerateRequest request = SimpleRequest(1, 5);
  request.mutable_token_ids()->add_ids(-1);
  EXPECT_EQ(ReadStream(server.stub(), request, &context).status.error_code(), StatusCode::INVALID_ARGUMENT);
  const std::string id = Trailer(context);
  EXPECT_THAT(id, MatchesRegex("r-[0-9a-f]{16}"));
  EXPECT_THAT(log.Text(), HasSubstr(absl::StrCat("request ", id, " refused, peer ipv4:127.0.0.1:")));
  EXPECT_THAT(log.Text(), HasSubstr(": INVALID_ARGUMENT token_ids"));
}

// Lines of one request, from its arrival to its end, and none of what it says.
TEST(AccessLog, DebugFollowsARequest) {
  for (const LogLevel level : {LogLevel::kInfo, LogLevel::kDebug}) {
    const LogFile log(LogFormat::kText, level);
    TestServerOptions options;
    options.frontend.server.http_address = "127.0.0.1:0";
    TestServer server(options);
    v1::GenerateRequest request = SimpleRequest(1, 5);
    request.set_request_id("mine");
    request.mutable_sampling()->set_temperature(0.5);
    EXPECT_TRUE(ReadStream(server.stub(), request).status.ok());
    const HttpReply models = Ask(server.listeners().http_port(), "GET", "/v1/models?secret=1", "");
    EXPECT_EQ(models.status, 200);
    const bool debug = level == LogLevel::kDebug;
    const std::string text = log.Text();
    EXPECT_THAT(text, HasSubstr("request mine length: prompt "));
    EXPECT_EQ(text.find("request mine accepted, peer ipv4:127.0.0.1:") != text.npos, debug) << text;
    EXPECT_EQ(text.find(" up to 5 tokens, temperature 0.5, top_p 1, ") != text.npos, debug) << text;
    EXPECT_EQ(text.find("request mine first token: 0 of ") != text.npos, debug) << text;
    EXPECT_EQ(text.find("http GET /v1/models: 200, peer ipv4:127.0.0.1:") != text.npos, debug) << text;
    EXPECT_THAT(text, Not(HasSubstr("secret")));
  }
}

TEST(AccessLog, EveryAnswerHasAnId) {
  TestServer server;
  grpc::ClientContext good;
  v1::GenerateRequest request = SimpleRequest(1, 5);
  request.set_request_id("mine 7%");
  EXPECT_TRUE(ReadStream(server.stub(), request, &good).status.ok());
  EXPECT_EQ(Trailer(good), "mine%207%25");
  grpc::ClientContext unary;
  v1::GenerateResponse response;
  EXPECT_TRUE(server.stub().Generate(&unary, SimpleRequest(1, 5), &response).ok());
  EXPECT_EQ(Trailer(unary), response.request_id());
  grpc::ClientContext other;
  v1::TokenizeResponse tokens;
  server.stub().Tokenize(&other, {}, &tokens);
  EXPECT_THAT(Trailer(other), MatchesRegex("r-[0-9a-f]{16}"));
}

// The attack on the log: a request_id that holds a line of its own.
TEST(AccessLog, AClientsTextCannotForgeALine) {
  const LogFile log;
  TestServer server;
  v1::GenerateRequest request = SimpleRequest(1, 5);
  request.set_request_id("x\n2026-01-01T00:00:00.000Z error   all ranks lost\x1b[2J");
  request.mutable_token_ids()->add_ids(-1);
  grpc::ClientContext context;
  EXPECT_EQ(ReadStream(server.stub(), request, &context).status.error_code(), StatusCode::INVALID_ARGUMENT);
  Log(LogLevel::kInfo, "%s", "a\nb");
  LogRequest(LogLevel::kInfo, "i\nj", "k\rl");
  std::istringstream lines(log.Text());
  for (std::string line; std::getline(lines, line);) {
    EXPECT_THAT(line, MatchesRegex("[0-9-]+T[0-9:.]+Z (info|warning|error) .*"));
    EXPECT_THAT(line, AllOf(Not(HasSubstr("\x1b")), Not(HasSubstr("\r"))));
    EXPECT_EQ(line.find("error   all ranks"), std::string::npos);
  }
  EXPECT_THAT(log.Text(), AllOf(HasSubstr("a\\x0ab"), HasSubstr("request i\\x0aj k\\x0dl")));
}

// What terminals act on besides C0: CSI, OSC and NEL as C1, separators, and the direction of text. The
// request is served, so its id stands in the line of its end.
TEST(AccessLog, AClientsTextCannotDriveATerminal) {
  const std::string id = "x\xc2\x9b\x32J\xc2\x9d\xc2\x85\xe2\x80\xa8\xe2\x80\xae-\xe4\xb8\xad";
  for (const LogFormat format : {LogFormat::kText, LogFormat::kJson}) {
    const LogFile log(format);
    TestServer server;
    v1::GenerateRequest request = SimpleRequest(1, 5);
    request.set_request_id(id);
    EXPECT_TRUE(ReadStream(server.stub(), request).status.ok());
    const bool json = format == LogFormat::kJson;
    ASSERT_TRUE(server.Eventually([&] { return log.Text().find("u009b2J") != std::string::npos; }));
    EXPECT_THAT(log.Text(), HasSubstr(json ? "x\\u009b2J\\u009d\\u0085\\u2028\\u202e-\\u4e2d"
                                           : "x\\u009b2J\\u009d\\u0085\\u2028\\u202e-\xe4\xb8\xad"));
    for (const char* raw : {"\xc2\x9b", "\xc2\x9d", "\xc2\x85", "\xe2\x80\xa8", "\xe2\x80\xae"}) {
      EXPECT_THAT(log.Text(), Not(HasSubstr(raw)));
    }
  }
}

nlohmann::json LineWith(const LogFile& log, const std::string& member) {
  std::istringstream lines(log.Text());
  for (std::string line; std::getline(lines, line);) {
    if (const auto json = nlohmann::json::parse(line, nullptr, false); json.contains(member)) return json;
  }
  return {};
}

constexpr char kTraceParent[] = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

TEST(AccessLog, AJsonLineHasTheRequestsAccounting) {
  const LogFile log(LogFormat::kJson);
  TestServer server;
  grpc::ClientContext context;
  context.AddMetadata("traceparent", kTraceParent);
  v1::GenerateRequest request = SimpleRequest(1, 25);
  request.set_request_id("mine");
  const StreamResult result = ReadStream(server.stub(), request, &context);
  ASSERT_TRUE(result.status.ok());
  ASSERT_TRUE(server.Eventually([&] { return !LineWith(log, "outcome").is_null(); }));
  const nlohmann::json line = LineWith(log, "outcome");
  const v1::Usage& usage = result.last().usage();
  const v1::Speculation& speculation = result.last().speculation();
  EXPECT_EQ(line["outcome"], "length");
  EXPECT_EQ(line["request_id"], "mine");
  EXPECT_EQ(line["client"], "ipv4:127.0.0.1");
  EXPECT_EQ(line["prompt_tokens"], usage.prompt_tokens());
  EXPECT_EQ(line["completion_tokens"], 25);
  EXPECT_EQ(line["steps"], speculation.steps());
  EXPECT_EQ(line["draft_tokens"], speculation.draft_tokens());
  EXPECT_EQ(line["accepted_tokens"], speculation.accepted_tokens());
  EXPECT_EQ(line["forced_acceptance"], false);
  EXPECT_GE(line["total_ms"].get<double>(), line["ttft_ms"].get<double>());
  EXPECT_EQ(line["trace_id"], "4bf92f3577b34da6a3ce929d0e0e4736");
  EXPECT_EQ(line["parent_span_id"], "00f067aa0ba902b7");
  EXPECT_EQ(Trailer(context, "traceparent"),
            absl::StrCat("00-4bf92f3577b34da6a3ce929d0e0e4736-", line["span_id"].get<std::string>(), "-01"));
}

TEST(AccessLog, AStreamThatADrainCutIsNotCancelled) {
  const LogFile log(LogFormat::kJson);
  TestServerOptions options;
  options.rank.step_time = std::chrono::milliseconds(1);
  TestServer server(options);
  grpc::ClientContext context;
  const auto reader = server.stub().GenerateStream(&context, SimpleRequest(1, 500));
  v1::GenerateChunk chunk;
  ASSERT_TRUE(reader->Read(&chunk));
  server.frontend().Shutdown();
  while (reader->Read(&chunk)) continue;
  EXPECT_EQ(reader->Finish().error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_EQ(LineWith(log, "outcome")["outcome"], "drained");
}

TEST(AccessLog, ARefusalIsFoundByItsTrace) {
  for (const LogFormat format : {LogFormat::kText, LogFormat::kJson}) {
    const LogFile log(format);
    TestServer server;
    grpc::ClientContext context;
    context.AddMetadata("traceparent", kTraceParent);
    v1::GenerateRequest request = SimpleRequest(1, 5);
    request.mutable_token_ids()->add_ids(-1);
    EXPECT_FALSE(ReadStream(server.stub(), request, &context).status.ok());
    EXPECT_THAT(Trailer(context, "traceparent"), HasSubstr("4bf92f3577b34da6a3ce929d0e0e4736"));
    if (format == LogFormat::kText) {
      EXPECT_THAT(log.Text(), HasSubstr(", trace 4bf92f3577b34da6a3ce929d0e0e4736\n"));
      continue;
    }
    const nlohmann::json line = LineWith(log, "outcome");
    EXPECT_EQ(line["outcome"], "refused");
    EXPECT_EQ(line["code"], "INVALID_ARGUMENT");
    EXPECT_EQ(line["trace_id"], "4bf92f3577b34da6a3ce929d0e0e4736");
  }
}

// A client's trace is no place for a line of its own, and none is named that is not there.
TEST(AccessLog, AMalformedTraceIsNone) {
  const LogFile log;
  TestServer server;
  grpc::ClientContext context;
  context.AddMetadata("traceparent", "00-forged, all ranks lost");
  EXPECT_TRUE(ReadStream(server.stub(), SimpleRequest(1, 5), &context).status.ok());
  EXPECT_EQ(Trailer(context, "traceparent"), "");
  EXPECT_THAT(log.Text(), Not(HasSubstr("forged")));
}

TEST(AccessLog, AFloodOfRefusalsIsCounted) {
  const LogFile log;
  const auto start = std::chrono::steady_clock::now();
  for (int i = 0; i < 5000; ++i) LogRefusal("r", "ipv4:10.0.0.1:1", absl::UnavailableError("loading"));
  std::this_thread::sleep_for(std::chrono::milliseconds(1100));
  LogRefusal("r", "ipv4:10.0.0.1:1", absl::UnavailableError("loading"));
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
  const std::string text = log.Text();
  EXPECT_THAT(text, HasSubstr(" refusals were not logged\n"));
  EXPECT_LE(std::count(text.begin(), text.end(), '\n'), (kRefusalLinesPerSecond + 1) * (took.count() + 2));
}

TEST(QueueShare, CountsEachClientAlone) {
  QueueShare share;
  auto first = share.Take("a", 2);
  auto second = share.Take("a", 2);
  ASSERT_TRUE(first.ok() && second.ok());
  const auto third = share.Take("a", 2);
  EXPECT_TRUE(absl::IsResourceExhausted(third.status()));
  EXPECT_THAT(std::string(third.status().message()), HasSubstr("server.max_queue_share"));
  EXPECT_TRUE(share.Take("b", 2).ok());
  first->reset();
  EXPECT_TRUE(share.Take("a", 2).ok());
  EXPECT_EQ(ClientOf("ipv4:10.0.0.7:4242"), "ipv4:10.0.0.7");
  EXPECT_EQ(ClientOf("ipv6:%5B::1%5D:4242"), "ipv6:%5B::1%5D");
  EXPECT_EQ(ClientOf("unix:"), "unix:");
}

// The attack on the queue: one client sends all it can, another one still gets its turn.
TEST(QueueShare, OneClientCannotFillTheQueue) {
  TestServerOptions options;
  options.frontend.server.max_queue_share = 0.25;
  options.frontend.max_queue_size = 16;
  options.loop.max_queue_size = 16;
  TestServer server(options);
  server.rank().Hold();
  std::vector<std::unique_ptr<grpc::ClientContext>> contexts;
  std::vector<std::unique_ptr<grpc::ClientReader<v1::GenerateChunk>>> readers;
  for (int i = 0; i < 4; ++i) {
    contexts.push_back(std::make_unique<grpc::ClientContext>());
    readers.push_back(server.stub().GenerateStream(contexts.back().get(), SimpleRequest(1, 5)));
  }
  ASSERT_TRUE(server.Eventually([&] { return server.frontend().open_calls() == 4; }));
  const StreamResult fifth = ReadStream(server.stub(), SimpleRequest(1, 5));
  EXPECT_EQ(fifth.status.error_code(), StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_THAT(fifth.status.error_message(), HasSubstr("4 requests of this client wait"));
  // Another client: in this process, so with another peer.
  const auto other = v1::GenerationService::NewStub(server.listeners().InProcessChannel());
  grpc::ClientContext context;
  auto reader = other->GenerateStream(&context, SimpleRequest(1, 5));
  ASSERT_TRUE(server.Eventually([&] { return server.frontend().open_calls() == 5; }));
  server.rank().Release();
  v1::GenerateChunk chunk;
  readers.push_back(std::move(reader));
  for (auto& each : readers) {
    while (each->Read(&chunk)) continue;
    EXPECT_TRUE(each->Finish().ok());
  }
  EXPECT_TRUE(ReadStream(server.stub(), SimpleRequest(1, 5)).status.ok()) << "the places are free again";
}

}  // namespace
}  // namespace foredraft
