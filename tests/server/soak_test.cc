// 64 clients at once, with random cancels, deadlines and disconnects: nothing may be left behind, and who
// survives gets the right tokens. 10 s; 60 s where FOREDRAFT_FULL is set.

#include <grpcpp/create_channel.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <fstream>
#include <random>
#include <thread>

#include "tests/server/serving_fixture.h"

namespace foredraft {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

constexpr int kClients = 64;

int64_t ResidentBytes() {
  std::ifstream statm("/proc/self/statm");
  int64_t size = 0, resident = 0;
  statm >> size >> resident;
  return resident * 4096;
}

class Client {
 public:
  Client(TestServer& server, int number, uint64_t seed) : server_(server), number_(number), random_(seed) {}

  void Run(steady_clock::time_point end) {
    Connect();
    while (steady_clock::now() < end) OneRequest();
  }

  int finished() const { return finished_; }
  int cut_short() const { return cut_short_; }
  const std::string& fault() const { return fault_; }

 private:
  void Connect() {
    grpc::ChannelArguments own_connection;  // a connection of its own, so that it can be dropped
    own_connection.SetInt("client", number_ * 1000 + connections_++);
    channel_ =
        grpc::CreateCustomChannel(server_.address(), grpc::InsecureChannelCredentials(), own_connection);
    stub_ = v1::GenerationService::NewStub(channel_);
  }

  void OneRequest() {
    const uint64_t seed = random_() % 1000;
    v1::GenerateRequest request = SimpleRequest(seed, 1 + static_cast<int>(random_() % 120));
    if (random_() % 4 == 0) request.set_max_draft_tokens(static_cast<int>(random_() % 4));
    request.set_priority(static_cast<int>(random_() % 3));
    grpc::ClientContext context;
    if (random_() % 5 == 0) {
      context.set_deadline(std::chrono::system_clock::now() + milliseconds(1 + random_() % 100));
    } else if (random_() % 5 == 0) {
      request.set_timeout_s(0.001 + static_cast<double>(random_() % 100) / 1000);
    }
    const int cancel_after = random_() % 4 == 0 ? static_cast<int>(random_() % 10) : -1;
    const bool disconnects = random_() % 40 == 0;
    const auto reader = stub_->GenerateStream(&context, request);
    std::vector<int32_t> ids;
    v1::GenerateChunk chunk, last;
    for (int chunks = 0; chunks != cancel_after && reader->Read(&chunk); ++chunks) {
      ids.insert(ids.end(), chunk.token_ids().begin(), chunk.token_ids().end());
      last = chunk;
    }
    if (cancel_after >= 0) context.TryCancel();
    if (disconnects) Connect();  // the old connection goes with its last call
    const grpc::Status status = reader->Finish();
    Judge(seed, request.max_tokens(), ids, last, status);
  }

  void Judge(uint64_t seed, int max_tokens, const std::vector<int32_t>& ids, const v1::GenerateChunk& last,
             const grpc::Status& status) {
    for (size_t i = 0; i < ids.size() && fault_.empty(); ++i) {
      if (ids[i] != server_.rank().TokenAt(seed, static_cast<int>(i)))
        fault_ = "wrong token, seed " + std::to_string(seed);
    }
    if (status.ok()) {
      ++finished_;
      if (static_cast<int>(ids.size()) != max_tokens) fault_ = "tokens missing, seed " + std::to_string(seed);
      if (last.usage().completion_tokens() !=
          1 + last.speculation().steps() + last.speculation().accepted_tokens()) {
        fault_ = "books do not close, seed " + std::to_string(seed);
      }
    } else if (status.error_code() == grpc::StatusCode::CANCELLED ||
               status.error_code() == grpc::StatusCode::DEADLINE_EXCEEDED) {
      ++cut_short_;
    } else {
      fault_ = "status " + std::to_string(status.error_code()) + " " + status.error_message();
    }
  }

  TestServer& server_;
  const int number_;
  std::mt19937_64 random_;
  int connections_ = 0;
  std::shared_ptr<grpc::Channel> channel_;
  std::unique_ptr<v1::GenerationService::Stub> stub_;
  int finished_ = 0;
  int cut_short_ = 0;
  std::string fault_;
};

TEST(Soak, LeavesNothingBehindAndServesSurvivorsRight) {
  TestServerOptions options;
  options.scheduler.max_queue_size = 2 * kClients;
  options.scheduler.block_count = 60;  // fewer than eight long requests need: some are swapped out and back
  options.scheduler.host_block_count = 200;
  options.rank.step_time = std::chrono::microseconds(300);
  TestServer server(options);
  const uint64_t seed = std::random_device{}();
  SCOPED_TRACE("seed " + std::to_string(seed));
  const auto length = std::chrono::seconds(std::getenv("FOREDRAFT_FULL") != nullptr ? 60 : 10);
  const auto start = steady_clock::now();
  std::vector<std::unique_ptr<Client>> clients;
  std::vector<std::thread> threads;
  for (int i = 0; i < kClients; ++i) {
    clients.push_back(std::make_unique<Client>(server, i, seed + i));
    threads.emplace_back([&client = *clients.back(), end = start + length] { client.Run(end); });
  }
  server.Eventually([&] { return steady_clock::now() > start + length / 2; });
  const int64_t middle_bytes = ResidentBytes();
  for (std::thread& thread : threads) thread.join();
  const int64_t end_bytes = ResidentBytes();

  int finished = 0, cut_short = 0;
  for (const auto& client : clients) {
    EXPECT_EQ(client->fault(), "");
    finished += client->finished();
    cut_short += client->cut_short();
  }
  RecordProperty("finished", finished);
  RecordProperty("cut_short", cut_short);
  EXPECT_GT(finished, kClients);
  EXPECT_GT(cut_short, kClients);
  EXPECT_TRUE(server.Eventually([&] { return server.IsIdle(); }));
  EXPECT_EQ(server.Metric("kv_cache_blocks", {{"state", "free"}}), 59);
  EXPECT_EQ(server.Metric("requests_total", {{"outcome", "error"}}), 0);
  // Flat: connections and arenas come and go, growth per request does not.
  EXPECT_LT(end_bytes, middle_bytes + (32 << 20)) << finished + cut_short << " requests";
}

}  // namespace
}  // namespace foredraft
