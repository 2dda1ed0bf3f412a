// Probes of a server whose threads are all in requests, and of one under attack.

#include "server/api/health_service.h"

#include <gmock/gmock.h>
#include <grpcpp/create_channel.h>
#include <grpcpp/generic/generic_stub.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <deque>
#include <functional>
#include <latch>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "tests/base/dial.h"
#include "tests/server/serving_fixture.h"

namespace foredraft {
namespace {

using grpc::StatusCode;
using std::chrono::milliseconds;
using std::chrono::steady_clock;
using testing::HasSubstr;

constexpr char kCheck[] = "/grpc.health.v1.Health/Check";
constexpr char kServing[] = "\x08\x01";
constexpr char kNotServing[] = "\x08\x02";
constexpr char kServiceUnknown[] = "\x08\x03";

// A connection of its own. Calls wait on completion queues of the client: gRPC's callback threads are the
// server's too in this process, and the tests keep them busy.
std::shared_ptr<grpc::Channel> OwnChannel(const std::string& address) {
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  return grpc::CreateCustomChannel(address, grpc::InsecureChannelCredentials(), arguments);
}

struct Answer {
  grpc::Status status;
  std::string bytes;
};
Answer Call(const std::shared_ptr<grpc::Channel>& channel, const std::string& method,
            const std::string& request, std::chrono::seconds patience = std::chrono::seconds(60)) {
  grpc::GenericStub stub(channel);
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + patience);
  grpc::CompletionQueue queue;
  const grpc::ByteBuffer bytes = Bytes(request);
  const auto call = stub.PrepareUnaryCall(&context, method, bytes, &queue);
  call->StartCall();
  Answer answer;
  grpc::ByteBuffer response;
  call->Finish(&response, &answer.status, nullptr);
  void* tag = nullptr;
  bool ok = false;
  EXPECT_TRUE(queue.Next(&tag, &ok));
  if (answer.status.ok()) answer.bytes = Text(response);
  return answer;
}

// Waits longer than the fixture: the machine may be busy with other tests.
bool Soon(TestServer& server, const std::function<bool()>& condition) {
  for (int i = 0; i < 12; ++i) {
    if (server.Eventually(condition)) return true;
  }
  return false;
}

std::string NameRequest(const std::string& name) {
  return name.empty() ? "" : std::string("\x0a") + static_cast<char>(name.size()) + name;
}

// A call of Watch, read message by message.
class Watcher {
 public:
  Watcher(const std::shared_ptr<grpc::Channel>& channel, const std::string& name) : stub_(channel) {
    context_.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(60));
    call_ = stub_.PrepareCall(&context_, "/grpc.health.v1.Health/Watch", &queue_);
    call_->StartCall(nullptr);
    if (!Wait()) return;  // the server is gone; Next then says so
    call_->WriteLast(Bytes(NameRequest(name)), {}, nullptr);
    Wait();
  }
  ~Watcher() {
    context_.TryCancel();
    grpc::Status status;
    call_->Finish(&status, nullptr);
    Wait();
  }
  // Empty: the stream has ended.
  std::string Next() {
    grpc::ByteBuffer message;
    call_->Read(&message, nullptr);
    return Wait() ? Text(message) : "";
  }

 private:
  bool Wait() {
    void* tag = nullptr;
    bool ok = false;
    return queue_.Next(&tag, &ok) && ok;
  }

  grpc::GenericStub stub_;
  grpc::ClientContext context_;
  grpc::CompletionQueue queue_;
  std::unique_ptr<grpc::GenericClientAsyncReaderWriter> call_;
};

TEST(HealthService, ChecksByName) {
  TestServerOptions options;
  options.serve = false;
  TestServer server(options);
  for (const char* name :
       {"", "foredraft.v1.GenerationService", "foredraft.v1.AdminService", "vllm.grpc.engine.VllmEngine"}) {
    EXPECT_EQ(Call(server.channel(), kCheck, NameRequest(name)).bytes, kNotServing) << name;
  }
  server.Serve();
  EXPECT_EQ(Call(server.channel(), kCheck, "").bytes, kServing);
  EXPECT_EQ(Call(server.channel(), kCheck, NameRequest("other")).status.error_code(), StatusCode::NOT_FOUND);
  for (const std::string& request :
       {std::string("\x0a\x7f"), std::string(257, 'x'), std::string(1 << 20, 'x')}) {
    const grpc::Status status = Call(server.channel(), kCheck, request).status;
    EXPECT_EQ(status.error_code(), StatusCode::INVALID_ARGUMENT) << request.size();
    EXPECT_THAT(status.error_message(), HasSubstr("HealthCheckRequest"));
  }
}

TEST(HealthService, WatchFollowsTheState) {
  TestServerOptions options;
  options.serve = false;
  TestServer server(options);
  Watcher all(server.channel(), ""), one(server.channel(), "foredraft.v1.GenerationService");
  Watcher unknown(server.channel(), "other");
  EXPECT_EQ(all.Next(), kNotServing);
  EXPECT_EQ(one.Next(), kNotServing);
  EXPECT_EQ(unknown.Next(), kServiceUnknown);
  server.Serve();
  EXPECT_EQ(all.Next(), kServing);
  EXPECT_EQ(one.Next(), kServing);
  {
    Watcher leaves(server.channel(), "");
    EXPECT_EQ(leaves.Next(), kServing);
  }
  server.frontend().BeginDrain();
  EXPECT_EQ(all.Next(), kNotServing);
  server.frontend().Shutdown();
  EXPECT_EQ(all.Next(), "") << "ended by the shutdown";
}

// Calls arrive, and watchers are told, until the server is gone.
TEST(HealthService, CallsThatArriveWithTheShutdownEnd) {
  for (int round = 0; round < 20; ++round) {
    TestServerOptions options;
    TestServer server(options);
    std::atomic<bool> over = false;
    std::vector<std::thread> clients;
    for (int i = 0; i < 4; ++i) {
      clients.emplace_back([&, channel = OwnChannel(server.address())] {
        while (!over.load()) Call(channel, kCheck, "");
      });
      clients.emplace_back([&, channel = OwnChannel(server.address())] {
        Watcher watcher(channel, "");
        while (!watcher.Next().empty()) continue;
      });
    }
    EXPECT_TRUE(Soon(server, [&] { return Call(server.channel(), kCheck, "").bytes == kServing; }));
    server.frontend().BeginDrain();
    server.frontend().Shutdown();
    over = true;
    for (std::thread& client : clients) client.join();
  }
}

// The structural claim, without a clock: as many requests as gRPC has threads for, and more, do not return,
// and every probe is answered.
TEST(HealthService, NoAnswerWaitsForARequest) {
  constexpr int kRequests = 40;  // gRPC has at most 16 threads for callbacks
  std::latch released(1);
  std::atomic<int> inside = 0;
  TestServerOptions options;
  options.frontend.server.metrics_address = "127.0.0.1:0";
  options.reload = [&]() -> absl::StatusOr<ReloadReport> {
    ++inside;
    released.wait();
    return ReloadReport{};
  };
  TestServer server(options);
  const auto probe = OwnChannel(server.address());
  EXPECT_EQ(Call(probe, kCheck, "").bytes, kServing);

  std::vector<std::thread> requests;
  const auto admin = OwnChannel(server.listeners().admin_address());
  std::atomic<int> ended = 0;
  for (int i = 0; i < kRequests; ++i) {
    requests.emplace_back([&] {
      EXPECT_TRUE(
          Call(admin, "/foredraft.v1.AdminService/ReloadConfig", "", std::chrono::seconds(300)).status.ok());
      ++ended;
    });
  }
  EXPECT_TRUE(Soon(server, [&] { return inside.load() >= 2; }));
  // Ordinary requests wait now, on this machine's gRPC; the probes do not.
  const Answer ordinary = Call(probe, "/foredraft.v1.AdminService/GetLoad", "", std::chrono::seconds(1));
  RecordProperty("ordinary_request", static_cast<int>(ordinary.status.error_code()));
  for (int i = 0; i < 5 && !HasFailure(); ++i) {
    EXPECT_EQ(Call(probe, kCheck, "").bytes, kServing);
    EXPECT_EQ(Call(OwnChannel(server.address()), kCheck, "").bytes, kServing) << "a new connection";
    EXPECT_THAT(server.Http("/healthz"), HasSubstr(" 200 OK"));
    EXPECT_THAT(server.Http("/readyz"), HasSubstr(" 200 OK"));
  }
  Watcher watcher(probe, "");
  EXPECT_EQ(watcher.Next(), kServing);
  EXPECT_EQ(ended.load(), 0) << "the probes were answered before a request was";
  released.count_down();
  for (std::thread& request : requests) request.join();
}

double Quantile(std::vector<double> values, double share) {
  std::sort(values.begin(), values.end());
  return values.empty() ? 0 : values[static_cast<size_t>(share * static_cast<double>(values.size() - 1))];
}

// Milliseconds of one call.
template <class Action>
double Timed(const Action& action) {
  const auto begin = steady_clock::now();
  action();
  return std::chrono::duration<double, std::milli>(steady_clock::now() - begin).count();
}

// Clients that keep the server busy in every way that a request or a connection can.
class Attack {
 public:
  explicit Attack(TestServer& server) : server_(server) {
    FillQueue();
    // More than gRPC has threads, so that some of them always wait.
    const int clients =
        static_cast<int>(std::clamp(std::thread::hardware_concurrency() / 2, 2u, 16u)) / 2 + 1;
    const std::string text = "\x0a" + Varint(1 << 18) + std::string(1 << 18, 'a');  // TokenizeRequest.text
    const std::string ids(1 << 17, '\x05');  // DetokenizeRequest.token_ids, packed
    Start(clients, "/foredraft.v1.GenerationService/Tokenize", text);
    Start(clients, "/foredraft.v1.GenerationService/Detokenize", "\x0a" + Varint(ids.size()) + ids);
    Start(1, "/foredraft.v1.GenerationService/Generate", std::string(4 << 20, '\x07'));
    Start(1, "/foredraft.v1.GenerationService/Generate", SimpleRequest(1, 5).SerializeAsString());
    threads_.emplace_back([this](const std::stop_token& stop) { Connect(stop); });
  }
  ~Attack() {
    for (std::jthread& thread : threads_) thread.request_stop();
    threads_.clear();
    for (const auto& context : contexts_) context->TryCancel();
    server_.rank().Release();
  }
  int requests() const { return requests_.load(); }

 private:
  static std::string Varint(size_t value) {
    std::string bytes;
    for (; value >= 128; value >>= 7) bytes += static_cast<char>(value | 128);
    return bytes + static_cast<char>(value);
  }
  // All slots and places of the queue are taken and none is given back: further requests are refused.
  void FillQueue() {
    server_.rank().Hold();
    for (int i = 0; i < 40; ++i) {
      contexts_.push_back(std::make_unique<grpc::ClientContext>());
      streams_.push_back(server_.stub().GenerateStream(contexts_.back().get(), SimpleRequest(1, 50)));
      std::this_thread::sleep_for(milliseconds(5));
    }
    EXPECT_EQ(Call(OwnChannel(server_.address()), "/foredraft.v1.GenerationService/Generate",
                   SimpleRequest(1, 5).SerializeAsString())
                  .status.error_code(),
              StatusCode::RESOURCE_EXHAUSTED);
  }
  void Start(int clients, const std::string& method, const std::string& request) {
    for (int i = 0; i < clients; ++i) {
      threads_.emplace_back([this, method, request](const std::stop_token& stop) {
        const auto channel = OwnChannel(server_.address());
        while (!stop.stop_requested()) {
          Call(channel, method, request);
          ++requests_;
        }
      });
    }
  }
  // Takes every connection that there is, and asks for more, each of which is refused.
  void Connect(const std::stop_token& stop) {
    const sockaddr_in address = AddressOf("127.0.0.1", server_.listeners().grpc_port());
    std::deque<int> held;
    while (!stop.stop_requested()) {
      held.push_back(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
      static_cast<void>(connect(held.back(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)));
      std::this_thread::sleep_for(milliseconds(1));
      if (held.size() <= kConnections) continue;
      close(held.front());
      held.pop_front();
    }
    for (const int fd : held) close(fd);
  }

 public:
  static constexpr int kQueue = 4;
  static constexpr size_t kConnections = 400;

 private:
  TestServer& server_;
  std::atomic<int> requests_ = 0;
  std::vector<std::unique_ptr<grpc::ClientContext>> contexts_;
  std::vector<std::unique_ptr<grpc::ClientReader<v1::GenerateChunk>>> streams_;
  std::vector<std::jthread> threads_;
};

// How long probes take under attack. 100 ms is the promise; on a machine so busy that even this takes longer,
// a probe must still be faster than what does wait for the attackers' requests: a small call beside them.
TEST(HealthService, AnswersWithin100MsUnderAttack) {
  TestServerOptions options;
  options.frontend.server.metrics_address = "127.0.0.1:0";
  options.frontend.server.max_connections = Attack::kConnections;
  options.loop.max_queue_size = Attack::kQueue;
  TestServer server(options);
  const auto probe = OwnChannel(server.address());
  const auto ordinary = OwnChannel(server.address());
  Call(probe, kCheck, "");
  Call(ordinary, "/foredraft.v1.GenerationService/GetModel", "");
  std::vector<double> grpc_ms, http_ms, ordinary_ms;
  {
    Attack attack(server);
    EXPECT_TRUE(Soon(server, [&] { return attack.requests() >= 8; }));
    std::jthread beside([&](const std::stop_token& stop) {
      while (!stop.stop_requested()) {
        ordinary_ms.push_back(Timed([&] { Call(ordinary, "/foredraft.v1.GenerationService/GetModel", ""); }));
      }
    });
    const auto end = steady_clock::now() + std::chrono::seconds(10);  // fewer probes where each takes long
    for (int i = 0; i < 200 && (i < 10 || steady_clock::now() < end) && !HasFailure(); ++i) {
      grpc_ms.push_back(Timed([&] { EXPECT_EQ(Call(probe, kCheck, "").bytes, kServing); }));
      http_ms.push_back(Timed(
          [&] { EXPECT_THAT(server.Http(i % 2 == 0 ? "/healthz" : "/readyz"), HasSubstr(" 200 OK")); }));
      std::this_thread::sleep_for(milliseconds(2));
    }
  }
  printf("p50 / p99 ms under attack: grpc health %.1f / %.1f, http %.1f / %.1f, small call %.1f / %.1f\n",
         Quantile(grpc_ms, 0.5), Quantile(grpc_ms, 0.99), Quantile(http_ms, 0.5), Quantile(http_ms, 0.99),
         Quantile(ordinary_ms, 0.5), Quantile(ordinary_ms, 0.99));
  const double bound = std::max(100.0, Quantile(ordinary_ms, 0.5));
  EXPECT_LE(Quantile(grpc_ms, 0.99), bound);
  EXPECT_LE(Quantile(http_ms, 0.99), bound);
}

}  // namespace
}  // namespace foredraft
