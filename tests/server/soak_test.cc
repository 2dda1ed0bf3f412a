#include <gtest/gtest.h>

#include <random>

#include "tests/server/serving_fixture.h"
#include "tests/server/soak_clients.h"

namespace foredraft {
namespace {

TEST(Soak, LeavesNothingBehindAndServesTheOthersCorrectly) {
  TestServerOptions options;
  options.loop.max_queue_size = 2 * kSoakClients;
  options.scheduler.groups[0].block_count =
      60;  // fewer than eight long requests need: some are swapped out and back
  options.scheduler.host_frame_count = 200;
  options.rank.step_time = std::chrono::microseconds(300);
  TestServer server(options);
  std::vector<SoakRequest> requests;
  for (uint64_t seed = 0; seed < 500; ++seed) {
    const int max_tokens = 1 + static_cast<int>(seed * 37 % 120);
    requests.push_back({.request = SimpleRequest(seed, max_tokens)});
    for (int i = 0; i < max_tokens; ++i) {
      requests.back().token_ids.push_back(server.rank().ScriptedTokenAt(seed, i));
    }
  }
  const uint64_t seed = std::random_device{}();
  SCOPED_TRACE("seed " + std::to_string(seed));
  ExpectSoakPassed(RunSoak(server.address(), requests, seed));
  EXPECT_TRUE(server.Eventually([&] { return server.IsIdle(); }));
  EXPECT_EQ(server.Metric("kv_cache_blocks", {{"state", "free"}}), 59);
  EXPECT_EQ(server.Metric("requests_total", {{"outcome", "error"}}), 0);
  EXPECT_EQ(server.Metric("requests_total", {{"outcome", "rejected"}}), 0);
}

}  // namespace
}  // namespace foredraft
