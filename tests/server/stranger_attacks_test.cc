// Strangers at the API's port while a client with a token calls: floods of frames, connections without end,
// peers that do not go on.

#include <gmock/gmock.h>
#include <grpcpp/create_channel.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <fstream>
#include <functional>
#include <memory>
#include <mutex>
#include <stop_token>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/match.h"
#include "base/log.h"
#include "tests/base/dial.h"
#include "tests/net/http2_frames.h"
#include "tests/server/resident_memory.h"
#include "tests/server/serving_fixture.h"

namespace foredraft {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using std::chrono::steady_clock;

// Within which a call is answered whatever strangers do. With a sanitizer, gRPC's share of each of their
// frames takes several times as long.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr seconds kSoon(15);
#else
constexpr seconds kSoon(3);
#endif

constexpr char kToken[] = "token-of-a-client";
constexpr char kPath[] = "/foredraft.v1.GenerationService/Generate";

TestServerOptions WithToken(const std::string& file) {
  std::ofstream(file) << TokenLine(Role::kApi, "alice", kToken) << "\n";
  TestServerOptions options;
  options.frontend.server.auth.tokens_file = file;
  options.frontend.server.metrics_address = "127.0.0.1:0";
  options.frontend.probe_period = seconds(1);
  return options;
}

class Strangers : public testing::Test {
 protected:
  Strangers() : options_(WithToken(file_)) {}
  ~Strangers() override { unlink(file_.c_str()); }

  // A call on a connection of its own, as a new client makes it; how long it took.
  milliseconds CallOnNewConnection(TestServer& server) {
    grpc::ChannelArguments alone;
    alone.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    return Call(grpc::CreateCustomChannel(server.address(), grpc::InsecureChannelCredentials(), alone));
  }
  milliseconds Call(const std::shared_ptr<grpc::Channel>& channel) {
    grpc::ClientContext context;
    context.AddMetadata("authorization", std::string("Bearer ") + kToken);
    context.set_deadline(std::chrono::system_clock::now() + seconds(30));
    v1::GenerateResponse response;
    const auto begin = steady_clock::now();
    const grpc::Status status =
        v1::GenerationService::NewStub(channel)->Generate(&context, SimpleRequest(1, 2), &response);
    EXPECT_TRUE(status.ok()) << status.error_message();
    return std::chrono::duration_cast<milliseconds>(steady_clock::now() - begin);
  }

  // Runs `count` attackers for as long as what it returns lives. Each opens connections and sends `begin`,
  // and then `more` for as long as it is taken.
  std::vector<std::jthread> Attack(int port, int count, const std::string& begin,
                                   const std::function<std::string()>& more) {
    std::vector<std::jthread> attackers;
    for (int i = 0; i < count; ++i) {
      attackers.emplace_back([port, begin, more](const std::stop_token& stop) {
        while (!stop.stop_requested()) {
          const int fd = Dial(port);
          bool taken = SendAll(fd, begin);
          while (taken && !stop.stop_requested()) taken = SendAll(fd, more());
          close(fd);
        }
      });
    }
    return attackers;
  }
  static bool SendAll(int fd, std::string_view text) {
    timeval second = {.tv_sec = 1, .tv_usec = 0};
    setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &second, sizeof(second));
    char answers[65536];
    while (!text.empty()) {
      const ssize_t sent = send(fd, text.data(), text.size(), MSG_NOSIGNAL);
      if (sent <= 0) return false;
      text.remove_prefix(static_cast<size_t>(sent));
      while (recv(fd, answers, sizeof(answers), MSG_DONTWAIT) > 0) continue;
    }
    return true;
  }
  static bool IsClosedWithin(int fd, seconds timeout) {
    const auto end = steady_clock::now() + timeout;
    char bytes[4096];
    while (steady_clock::now() < end) {
      pollfd polled = {.fd = fd, .events = POLLIN, .revents = 0};
      if (poll(&polled, 1, 100) > 0 && recv(fd, bytes, sizeof(bytes), 0) <= 0) return true;
    }
    return false;
  }
  // Whether the peer sends `text`, or closes.
  static bool IsAnsweredOrClosed(int fd, const std::string& text, seconds patience) {
    const auto end = steady_clock::now() + patience;
    std::string received;
    char bytes[4096];
    while (steady_clock::now() < end && !absl::StrContains(received, text)) {
      pollfd polled = {.fd = fd, .events = POLLIN, .revents = 0};
      if (poll(&polled, 1, 100) <= 0) continue;
      const ssize_t count = recv(fd, bytes, sizeof(bytes), 0);
      if (count <= 0) return true;
      received.append(bytes, static_cast<size_t>(count));
    }
    return absl::StrContains(received, text);
  }
  static int DialSocket(const std::string& path) {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    path.copy(address.sun_path, sizeof(address.sun_path) - 1);
    const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    return connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0 ? fd : -1;
  }
  double Closed(TestServer& server, const std::string& reason) {
    return server.Metric("connections_closed_total", {{"reason", reason}});
  }
  double Slowed(TestServer& server, const std::string& who) {
    return server.Metric("connections_slowed_total", {{"who", who}});
  }

  const std::string file_ = testing::TempDir() + "/strangers_" + std::to_string(getpid());
  TestServerOptions options_;
};

// One string of HPACK that never ends, in CONTINUATION frames: gRPC parses it from its start with each piece.
TEST_F(Strangers, AFloodOfHeadersHoldsUpNobody) {
  TestServer server(options_);
  std::string string_without_end("\0\4name", 6);
  string_without_end += '\x7f';
  string_without_end += "\xff\xff\xff\x7f";
  const auto attackers =
      Attack(server.listeners().grpc_port(), 4, kClientBegin + HeadersFrame(1, string_without_end, 0),
             [] { return Http2Frame(kContinuation, 0, 1, std::string(400, 'c')); });
  ASSERT_TRUE(server.Eventually([&] { return Closed(server, "header_block") > 4; }));
  for (int i = 0; i < 20; ++i) EXPECT_LT(CallOnNewConnection(server), kSoon);
  EXPECT_EQ(server.Metric("port_probe_failures_total"), 0);
  EXPECT_THAT(server.Http("/healthz"), testing::HasSubstr("200 OK"));
}

TEST_F(Strangers, ResetsArePaidByTheirSenderAlone) {
  TestServer server(options_);
  CallOnNewConnection(server);
  const int64_t before = ResidentBytes();
  std::atomic<uint32_t> stream = 1;
  const std::string headers = CallHeaders(kPath);
  const auto attackers = Attack(server.listeners().grpc_port(), 4, kClientBegin, [&] {
    std::string text;
    for (int i = 0; i < 100; ++i) {
      const uint32_t id = stream.fetch_add(2);
      text += HeadersFrame(id, headers, kEndHeaders) + Http2Frame(kRstStream, 0, id, kFourBytes);
    }
    return text;
  });
  ASSERT_TRUE(server.Eventually([&] { return Closed(server, "resets") + Slowed(server, "stranger") > 4; }));
  for (int i = 0; i < 20; ++i) EXPECT_LT(CallOnNewConnection(server), kSoon);
  EXPECT_LT(ResidentBytes(), before + 100'000'000 + kQuarantineBytes);
}

TEST_F(Strangers, FloodsOfSmallFramesAreClosed) {
  TestServer server(options_);
  for (const auto& [reason, frame] :
       {std::pair<std::string, std::string>{"pings", Http2Frame(kPing, 0, 0, "12345678")},
        {"settings", Http2Frame(kSettings, 0, 0, std::string("\0\3\0\0\0\1", 6))},
        {"frames", Http2Frame(kData, 0, 1, "")},
        {"frame", Http2Frame(kPing, 0, 0, "123456789")},
        {"preface", ""}}) {
    SCOPED_TRACE(reason);
    const int peer = Dial(server.listeners().grpc_port());
    ASSERT_GE(peer, 0);
    SendAll(peer, reason == "preface" ? "GET / HTTP/1.1\r\n\r\n" : kClientBegin);
    std::string flood;
    for (int i = 0; i < 10'000; ++i) flood += frame;
    SendAll(peer, flood);
    EXPECT_TRUE(IsClosedWithin(peer, seconds(10)));
    EXPECT_TRUE(server.Eventually([&, reason = reason] { return Closed(server, reason) == 1; }));
    close(peer);
  }
}

TEST_F(Strangers, CallsThatAreLeftUnfinishedAreBounded) {
  TestServer server(options_);
  std::vector<int> peers;
  uint32_t stream = 1;
  for (int i = 0; i < 40; ++i) {  // from many addresses, so that no address is slowed
    const std::string from = "127.0.1." + std::to_string(i + 1);
    peers.push_back(Dial(server.listeners().grpc_port(), from.c_str()));
    std::string text = kClientBegin;
    for (int call = 0; call < 500; ++call, stream += 2) {
      text += HeadersFrame(stream, CallHeaders(kPath), kEndHeaders);
    }
    SendAll(peers.back(), text);
  }
  EXPECT_TRUE(server.Eventually([&] { return Closed(server, "streams") > 0; }));
  EXPECT_LT(CallOnNewConnection(server), kSoon);
  for (const int peer : peers) close(peer);
}

TEST_F(Strangers, IdleConnectionsGiveWayAndClientsStay) {
  options_.frontend.server.max_connections = 64;
  TestServer server(options_);
  const auto client = grpc::CreateChannel(server.address(), grpc::InsecureChannelCredentials());
  Call(client);
  std::vector<int> idle;
  for (int i = 0; i < 300; ++i) {
    idle.push_back(Dial(server.listeners().grpc_port()));
    SendAll(idle.back(), kClientBegin);
  }
  EXPECT_TRUE(server.Eventually([&] { return Closed(server, "evicted") >= 230; }));
  for (int i = 0; i < 5; ++i) EXPECT_LT(CallOnNewConnection(server), kSoon);
  EXPECT_EQ(client->GetState(false), GRPC_CHANNEL_READY);
  EXPECT_LT(Call(client), kSoon);
  EXPECT_TRUE(IsClosedWithin(idle.front(), seconds(10))) << "the first to come is the first to go";
  EXPECT_FALSE(IsClosedWithin(idle.back(), seconds(1)));
  EXPECT_EQ(server.Metric("connections_refused_total"), 0);
  for (const int fd : idle) close(fd);
}

// A byte in time prolongs nothing.
TEST_F(Strangers, WhoDripsItsFirstFramesOrItsHeadersIsClosed) {
  options_.frontend.server.handshake_timeout_s = 1;
  TestServer server(options_);
  for (const std::string& text :
       {kClientBegin, kClientBegin + HeadersFrame(1, CallHeaders(kPath), kEndHeaders)}) {
    const size_t at_once = text.size() - kClientBegin.size();  // all but 33 bytes
    const int peer = Dial(server.listeners().grpc_port());
    ASSERT_GE(peer, 0);
    SendAll(peer, text.substr(0, at_once));
    const double before = Closed(server, "handshake");
    const auto begin = steady_clock::now();
    for (size_t at = at_once; at < text.size() && steady_clock::now() - begin < seconds(8); ++at) {
      if (!SendAll(peer, text.substr(at, 1))) break;
      std::this_thread::sleep_for(milliseconds(100));
    }
    EXPECT_TRUE(IsClosedWithin(peer, seconds(5)));
    EXPECT_EQ(Closed(server, "handshake"), before + 1);
    close(peer);
  }
}

// What the guard must not touch: many streams at once on a new connection, large requests, calls that are
// cancelled, and the address of who calls.
TEST_F(Strangers, AClientNoticesNothing) {
  options_.loop.max_queue_size = 4096;
  options_.frontend.max_queue_size = 4096;
  TestServer server(options_);
  grpc::ChannelArguments alone;
  alone.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  const auto channel = grpc::CreateCustomChannel(server.address(), grpc::InsecureChannelCredentials(), alone);
  std::vector<std::thread> calls;
  for (int i = 0; i < 128; ++i) calls.emplace_back([&] { Call(channel); });
  for (std::thread& call : calls) call.join();
  v1::GenerationService::Stub stub(channel);
  for (int i = 0; i < 300; ++i) {
    grpc::ClientContext context;
    context.AddMetadata("authorization", std::string("Bearer ") + kToken);
    const auto stream = stub.GenerateStream(&context, SimpleRequest(1, 400));
    context.TryCancel();
    stream->Finish();
  }
  grpc::ClientContext context;
  context.AddMetadata("authorization", std::string("Bearer ") + kToken);
  v1::GenerateRequest text = SimpleRequest(1, 2);
  text.set_text(std::string(4 << 20, 'x'));
  v1::GenerateResponse response;
  EXPECT_EQ(stub.Generate(&context, text, &response).error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_LT(Call(channel), seconds(10));
  for (const char* reason : {"preface", "frame", "header_block", "resets", "pings", "settings", "frames",
                             "streams", "handshake", "evicted"}) {
    EXPECT_EQ(Closed(server, reason), 0) << reason;
  }
  EXPECT_EQ(Slowed(server, "client") + Slowed(server, "stranger"), 0);
}

// CVE-2023-1428: an odd value of one of three headers, then more than the 8 KB of headers that gRPC takes.
// The API's port is behind the guard, the admin socket is gRPC's alone.
TEST_F(Strangers, OddHeadersBeforeTooManyEndNothing) {
  TestServer server(options_);
  std::string too_many;
  for (int i = 0; i < 100; ++i) too_many += HpackHeader("x-" + std::to_string(i), std::string(120, 'x'));
  const std::string admin = server.listeners().admin_address();
  ASSERT_TRUE(absl::StartsWith(admin, "unix:"));
  for (const auto& [name, value] : {std::pair<std::string, std::string>{"te", "odd"},
                                    {":scheme", "odd"},
                                    {"grpclb_client_stats", "odd"}}) {
    for (const bool guarded : {true, false}) {
      SCOPED_TRACE(name + (guarded ? " at the guard" : " at gRPC"));
      const int peer = guarded ? Dial(server.listeners().grpc_port()) : DialSocket(admin.substr(5));
      ASSERT_GE(peer, 0);
      const std::string block = HpackHeader(":method", "POST") + HpackHeader(":path", kPath) +
                                HpackHeader(":authority", "localhost") + HpackHeader(name, value) + too_many;
      ASSERT_GT(block.size(), size_t{8 << 10});
      SendAll(peer, kClientBegin + HeadersFrame(1, block, kEndHeaders));
      // More than one ping: SendAll throws away what comes meanwhile.
      bool is_read = false;
      for (int i = 0; i < 20 && !is_read; ++i) {
        SendAll(peer, Http2Frame(kPing, 0, 0, "answered"));
        is_read = IsAnsweredOrClosed(peer, "answered", seconds(1));
      }
      EXPECT_TRUE(is_read) << "gRPC has not read the headers";
      close(peer);
    }
  }
  EXPECT_LT(CallOnNewConnection(server), kSoon);
  EXPECT_EQ(server.Metric("port_probe_failures_total"), 0);
}

TEST_F(Strangers, TheLogHasOneLineOfAKind) {
  std::mutex mutex;
  std::vector<std::string> lines;
  InstallLogSink([&](LogLevel, std::string_view line, const LogFields&) {
    std::lock_guard<std::mutex> lock(mutex);
    lines.emplace_back(line);
  });
  {
    TestServer server(options_);
    std::vector<int> peers;
    for (int i = 0; i < 20; ++i) {
      peers.push_back(Dial(server.listeners().grpc_port()));
      SendAll(peers.back(), "no HTTP/2");
    }
    for (const int peer : peers) {
      EXPECT_TRUE(IsClosedWithin(peer, seconds(10)));
      close(peer);
    }
    EXPECT_TRUE(server.Eventually([&] { return Closed(server, "preface") == 20; }));
  }
  InstallLogSink(nullptr);
  const auto said = std::count_if(lines.begin(), lines.end(), [](const std::string& line) {
    return absl::StrContains(
        line, "connections closed: no HTTP/2; 1 since the last such line, peer ipv4:127.0.0.1:");
  });
  EXPECT_EQ(said, 1);
}

}  // namespace
}  // namespace foredraft
