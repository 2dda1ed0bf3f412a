#include "tests/server/soak_clients.h"

#include <grpcpp/create_channel.h>
#include <gtest/gtest.h>

#include <condition_variable>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <random>
#include <thread>

#include "foredraft/v1/generation.grpc.pb.h"
#include "tests/server/resident_memory.h"

namespace foredraft {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

constexpr int64_t kGrowthBytes = (int64_t{32} << 20) + kQuarantineBytes;

class Client {
 public:
  Client(const std::string& address, const std::vector<SoakRequest>& requests, int number, uint64_t seed)
      : address_(address), requests_(requests), number_(number), random_(seed) {}

  void Run(steady_clock::time_point end) {
    Connect();
    while (steady_clock::now() < end) OneRequest(requests_[random_() % requests_.size()]);
  }

  int finished() const { return finished_; }
  int cut_short() const { return cut_short_; }
  const std::string& fault() const { return fault_; }

 private:
  void Connect() {
    grpc::ChannelArguments own_connection;  // not shared with other clients, so that it can be dropped
    own_connection.SetInt("client", number_ * 100'000 + connections_++);
    stub_ = v1::GenerationService::NewStub(
        grpc::CreateCustomChannel(address_, grpc::InsecureChannelCredentials(), own_connection));
  }

  void OneRequest(const SoakRequest& asked) {
    v1::GenerateRequest request = asked.request;
    if (random_() % 4 == 0) request.set_max_draft_tokens(static_cast<int>(random_() % 4));
    request.set_priority(static_cast<int>(random_() % 3));
    grpc::ClientContext context;
    // gRPC 1.51 reads errno of a pending connect too late and can take it for a refusal; this makes it try
    // again.
    context.set_wait_for_ready(true);
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
    if (disconnects) Connect();  // the old connection closes with its last call
    const grpc::Status status = reader->Finish();
    // After a cancel, the status proves nothing: the answer may have been complete, but unread.
    const std::string fault =
        JudgeTokens(asked, ids) + (cancel_after >= 0 ? "" : JudgeEnd(asked, ids, last, status));
    if (cancel_after >= 0) ++cut_short_;
    if (fault_.empty()) fault_ = fault;
  }

  // What is wrong with the tokens so far; empty = nothing.
  static std::string JudgeTokens(const SoakRequest& asked, const std::vector<int32_t>& ids) {
    for (size_t i = 0; i < ids.size(); ++i) {
      if (i < asked.token_ids.size() && ids[i] == asked.token_ids[i]) continue;
      return "token " + std::to_string(ids[i]) + " at " + std::to_string(i) + " of " +
             asked.request.ShortDebugString();
    }
    return "";
  }

  // What is wrong with the end of an answer that was read to its end; empty = nothing.
  std::string JudgeEnd(const SoakRequest& asked, const std::vector<int32_t>& ids,
                       const v1::GenerateChunk& last, const grpc::Status& status) {
    if (status.error_code() == grpc::StatusCode::DEADLINE_EXCEEDED) {
      ++cut_short_;
      return "";
    }
    if (!status.ok()) return "status " + std::to_string(status.error_code()) + " " + status.error_message();
    ++finished_;
    if (ids.size() != asked.token_ids.size()) return "tokens missing of " + asked.request.ShortDebugString();
    const int counted = 1 + last.speculation().steps() + last.speculation().accepted_tokens();
    return last.usage().completion_tokens() == counted
               ? ""
               : "inconsistent accounting: " + last.ShortDebugString();
  }

  const std::string address_;
  const std::vector<SoakRequest>& requests_;
  const int number_;
  std::mt19937_64 random_;
  int connections_ = 0;
  std::unique_ptr<v1::GenerationService::Stub> stub_;
  int finished_ = 0;
  int cut_short_ = 0;
  std::string fault_;  // the first
};

}  // namespace

std::chrono::seconds SoakLength() {
  return std::chrono::seconds(std::getenv("FOREDRAFT_FULL") != nullptr ? 60 : 10);
}

SoakReport RunSoak(const std::string& address, const std::vector<SoakRequest>& requests, uint64_t seed) {
  SoakReport report;
  const auto start = steady_clock::now();
  std::vector<std::unique_ptr<Client>> clients;
  std::vector<std::thread> threads;
  for (int i = 0; i < kSoakClients; ++i) {
    clients.push_back(std::make_unique<Client>(address, requests, i, seed + i));
    threads.emplace_back([&client = *clients.back(), start] { client.Run(start + SoakLength()); });
  }
  std::mutex mutex;
  std::condition_variable half_time;
  std::unique_lock<std::mutex> lock(mutex);
  half_time.wait_until(lock, start + SoakLength() / 2, [] { return false; });
  report.middle_bytes = ResidentBytes();
  for (std::thread& thread : threads) thread.join();
  report.end_bytes = ResidentBytes();
  for (const auto& client : clients) {
    report.finished += client->finished();
    report.cut_short += client->cut_short();
    if (!client->fault().empty()) report.faults.push_back(client->fault());
  }
  return report;
}

void ExpectSoakPassed(const SoakReport& report) {
  EXPECT_EQ(report.faults, std::vector<std::string>());
  EXPECT_GT(report.finished, kSoakClients / 2);
  EXPECT_GT(report.cut_short, kSoakClients);
  // The slack allows for connections and arenas, but not for growth with every request.
  EXPECT_LT(report.end_bytes, report.middle_bytes + kGrowthBytes)
      << report.finished + report.cut_short << " requests";
  testing::Test::RecordProperty("finished", report.finished);
  testing::Test::RecordProperty("cut_short", report.cut_short);
  testing::Test::RecordProperty("growth_kib",
                                static_cast<int>((report.end_bytes - report.middle_bytes) >> 10));
}

}  // namespace foredraft
