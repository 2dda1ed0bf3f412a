// The prefix cache's metrics against what clients are told.

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <thread>
#include <vector>

#include "tests/server/serving_fixture.h"

namespace foredraft {
namespace {

// Also where clients go away in the prefill, around the first token, and later: what the metric counts is
// what the streams were told.
TEST(PrefixMetric, HitsAreThoseOfTheStreamsThatGotAFirstToken) {
  TestServerOptions options;
  options.scheduler.enable_block_reuse = true;
  TestServer server(options);
  v1::GenerateRequest request = SimpleRequest(7, 40);
  for (int i = 0; i < 100; ++i) request.mutable_token_ids()->add_ids(10 + i % 50);
  ASSERT_TRUE(ReadStream(server.stub(), request).status.ok());  // fills the cache
  EXPECT_EQ(server.Metric("prefix_cache_hit_tokens_total"), 0);
  const int cached = ReadStream(server.stub(), request).last().usage().cached_tokens();
  ASSERT_GT(cached, 0);
  EXPECT_EQ(server.Metric("prefix_cache_hit_tokens_total"), cached);

  server.rank().Hold();  // the first of these leave before their first token exists
  std::vector<std::thread> clients;
  std::atomic<int> ended_well = 0;
  for (int client = 0; client < 8; ++client) {
    clients.emplace_back([&, client] {
      for (int i = 0; i < 25; ++i) {
        grpc::ClientContext context;
        std::thread leaver;
        const int microseconds = (client * 25 + i) * 37 % 3000;
        if (i % 3 != 2) {
          leaver = std::thread([&context, microseconds] {
            std::this_thread::sleep_for(std::chrono::microseconds(microseconds));
            context.TryCancel();
          });
        }
        if (i == 2) server.rank().Release();
        const StreamResult stream = ReadStream(server.stub(), request, &context);
        if (leaver.joinable()) leaver.join();
        if (!stream.status.ok()) continue;
        ++ended_well;
        EXPECT_EQ(stream.last().usage().cached_tokens(), cached);
      }
    });
  }
  for (std::thread& client : clients) client.join();
  ASSERT_TRUE(server.Eventually([&] { return server.IsIdle(); }));
  const double first_tokens = server.Metric("time_to_first_token_seconds") - 1;
  EXPECT_GE(first_tokens, ended_well);
  EXPECT_EQ(server.Metric("prefix_cache_hit_tokens_total"), first_tokens * cached);
}

}  // namespace
}  // namespace foredraft
