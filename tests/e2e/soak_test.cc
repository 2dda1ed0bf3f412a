// The soak of tests/server on the real engine with abacus. The expected tokens of each request come from the
// same daemon, one request at a time, before the clients start.

#include <grpcpp/create_channel.h>
#include <gtest/gtest.h>

#include <chrono>
#include <condition_variable>
#include <future>
#include <mutex>
#include <random>

#include "base/check.h"
#include "foredraft/v1/admin.grpc.pb.h"
#include "foredraft/v1/generation.grpc.pb.h"
#include "server/daemon.h"
#include "tests/server/soak_clients.h"

namespace foredraft {
namespace {

class AddressObserver : public StartObserver {
 public:
  void Serving(const ServedAddresses& addresses) override { address = addresses.grpc; }

  std::string address;
};

std::vector<SoakRequest> AskOneByOne(v1::GenerationService::Stub& stub) {
  const std::vector<std::string> questions = {"What is 31 * 9?",
                                              "Compute 368+6234.",
                                              "Put 7, 1, 9, 4, 8, 3 in descending order.",
                                              "Count the letter m in noma.",
                                              "What is 8 weeks in days?",
                                              "Which is larger, 7060 or 886?"};
  std::vector<SoakRequest> requests;
  for (int i = 0; i < 24; ++i) {
    SoakRequest asked;
    v1::ChatMessage* message = asked.request.mutable_chat()->add_messages();
    message->set_role("user");
    message->set_content(questions[i % questions.size()]);
    asked.request.mutable_sampling()->set_temperature(i % 2 == 0 ? 0 : 0.8f);
    asked.request.mutable_sampling()->set_seed(i);
    asked.request.set_max_tokens(1 + i * 11 % 80);
    asked.request.set_ignore_eos(i % 3 == 0);
    v1::GenerateResponse response;
    grpc::ClientContext context;
    const grpc::Status status = stub.Generate(&context, asked.request, &response);
    CHECK(status.ok()) << status.error_message();
    asked.token_ids.assign(response.token_ids().begin(), response.token_ids().end());
    requests.push_back(std::move(asked));
  }
  return requests;
}

v1::GetLoadResponse Load(v1::AdminService::Stub& admin) {
  v1::GetLoadResponse load;
  grpc::ClientContext context;
  EXPECT_TRUE(admin.GetLoad(&context, {}, &load).ok());
  return load;
}

TEST(Soak, TheRealEngineLeavesNothingBehindAndServesTheOthersCorrectly) {
  const auto read = [] {
    return ReadConfig(
        "deploy/configs/abacus-cpu.yaml", {},
        {{"server.grpc_address", "127.0.0.1:0"},
         {"server.metrics_address", "127.0.0.1:0"},
         {"server.http_address", "127.0.0.1:0"},
         {"max_batch_size", "8"},
         {"max_seq_len", "256"},
         {"kv_cache_config.max_tokens", "768"},  // less than eight requests need, so some are swapped
         {"cpu.pin", "false"}});
  };
  absl::StatusOr<LoadedConfig> loaded = read();
  ASSERT_TRUE(loaded.ok()) << loaded.status().ToString();
  absl::StatusOr<ResolvedConfig> resolved = ResolveConfig(*std::move(loaded));
  ASSERT_TRUE(resolved.ok()) << resolved.status().ToString();
  absl::StatusOr<std::unique_ptr<Daemon>> daemon = Daemon::Start(*std::move(resolved), read);
  ASSERT_TRUE(daemon.ok()) << daemon.status().ToString();
  AddressObserver observer;
  const absl::Status status = (*daemon)->Load(observer);
  ASSERT_TRUE(status.ok()) << status.ToString();
  auto run = std::async(std::launch::async, [&daemon] { return (*daemon)->Run(); });

  const auto channel = grpc::CreateChannel(observer.address, grpc::InsecureChannelCredentials());
  const auto stub = v1::GenerationService::NewStub(channel);
  const auto admin = v1::AdminService::NewStub(channel);
  const std::vector<SoakRequest> requests = AskOneByOne(*stub);
  const uint64_t seed = std::random_device{}();
  SCOPED_TRACE("seed " + std::to_string(seed));
  ExpectSoakPassed(RunSoak(observer.address, requests, seed));

  std::mutex mutex;
  std::condition_variable tick;
  std::unique_lock<std::mutex> lock(mutex);
  v1::GetLoadResponse load = Load(*admin);
  for (int i = 0; i < 1000 && load.open_streams() + load.running() + load.blocks_used() > 0; ++i) {
    tick.wait_for(lock, std::chrono::milliseconds(10));
    load = Load(*admin);
  }
  EXPECT_EQ(load.open_streams(), 0);
  EXPECT_EQ(load.running(), 0);
  EXPECT_EQ(load.waiting(), 0);
  EXPECT_EQ(load.swapped(), 0);
  EXPECT_EQ(load.slots_used(), 0);
  EXPECT_EQ(load.blocks_used(), 0);
  (*daemon)->RequestDrain();
  EXPECT_TRUE(run.get().ok());
}

}  // namespace
}  // namespace foredraft
