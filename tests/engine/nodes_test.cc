// The engine with any number of threads, on any number of NUMA nodes: the same tokens, with the same bits of
// their logprobs.

#include <gtest/gtest.h>

#include <bit>
#include <string>
#include <vector>

#include "tests/engine/engine_harness.h"
#include "tests/engine/test_requests.h"

namespace foredraft {
namespace {

std::vector<uint32_t> LogprobBits(const RequestRecord& record) {
  std::vector<uint32_t> bits;
  for (const TokenLogprob& token : record.logprobs) {
    bits.push_back(std::bit_cast<uint32_t>(token.logprob));
    for (const TopLogprob& top : token.top) bits.push_back(std::bit_cast<uint32_t>(top.logprob));
  }
  return bits;
}

TEST(Nodes, ThreadsAndNodesChangeNoToken) {
  const Setting setting{.draft_len = 3, .max_num_tokens = 64};
  const std::vector<Request> requests = TestRequests({.count = 4, .sampled = true, .logprobs = true});
  const RunRecord expected = RunRequests(LoadModelOnce(kAbacusDir), setting, requests);
  const DeviceOptions cases[] = {
      {.threads = 1},
      {.threads = 64},
      {.threads = 2, .numa = true},
      {.threads = 2, .numa = true, .topology = "numa:2 core:1 pu:1"},
      {.threads = 5, .numa = true, .topology = "numa:3 core:2 pu:1"},
      {.threads = 64, .numa = true, .topology = "package:2 numa:2 core:16 pu:1"},
  };
  for (const DeviceOptions& options : cases) {
    SCOPED_TRACE(testing::Message() << options.threads << " threads, machine \"" << options.topology << "\"");
    const LoadedModel model = LoadModel(kAbacusDir, TestBackend(), {}, options);
    const RunRecord run = RunRequests(model, setting, requests);
    size_t logprobs = 0;
    for (size_t id = 0; id < requests.size(); ++id) {
      ASSERT_EQ(run.requests[id].token_ids, expected.requests[id].token_ids) << "request " << id;
      logprobs += run.requests[id].logprobs.size();
      EXPECT_EQ(LogprobBits(run.requests[id]), LogprobBits(expected.requests[id])) << "request " << id;
    }
    EXPECT_GT(logprobs, 0u);
  }
}

}  // namespace
}  // namespace foredraft
