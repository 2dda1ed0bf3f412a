// A group whose threads get no memory for a while: no end of it dies, and its results are right.

#include "base/out_of_memory.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <cstdio>
#include <string>

#include "tests/base/failing_allocator.h"
#include "tests/ranks/test_worker.h"

namespace foredraft {
namespace {

class GroupOutOfMemoryOn : public GroupFixture, public testing::WithParamInterface<const char*> {};

// From the start of the leader to the stop.
TEST_P(GroupOutOfMemoryOn, TheGroupGoesOn) {
  KeepMemoryReserve();
  int64_t cases = 0;
  for (int64_t n = 0, quiet = 0; quiet < 3;) {
    // Both ends are patient: the test's process may stand still for a while.
    LeaderOptions options = TestLeaderOptions();
    options.heartbeat_timeout = kPatience;
    bool has_failed = false;
    {
      // Also a shortage that lasts longer than the reserve.
      const FailingAllocations failing(GetParam(), n, cases % 3 == 0 ? 6 : 1);
      Open(options);
      TestWorker first(leader_->port(), 0, {}, kPatience), second(leader_->port(), 1, {}, kPatience);
      ASSERT_TRUE(WaitReady()) << "allocation " << n << ": " << leader_->health();
      Launch(1);
      for (uint64_t number = 2; number < 6; ++number) {
        Launch(number);
        ExpectResults(number - 1);
      }
      ExpectResults(5);
      leader_->Stop(kPatience);
      EXPECT_TRUE(first.End().ok()) << "allocation " << n;
      EXPECT_TRUE(second.End().ok()) << "allocation " << n;
      has_failed = failing.has_failed();
    }
    RefillMemoryReserve();
    ASSERT_FALSE(HasFailure()) << "allocation " << n;
    cases += has_failed ? 1 : 0;
    quiet = has_failed ? 0 : quiet + 1;
    n += has_failed ? 1 + n / 8 : 0;
  }
  const std::string thread = GetParam();
  const bool is_of_grpc =
      thread == "nexting_thread" || thread == "default-executo" || thread == "event_engine";
  if (cases == 0 && is_of_grpc) GTEST_SKIP() << "this gRPC has no such thread, or it allocates nothing";
  EXPECT_GT(cases, 0) << "no such thread";
  std::printf("%s: %lld allocations failed\n", GetParam(), static_cast<long long>(cases));
}

INSTANTIATE_TEST_SUITE_P(Threads, GroupOutOfMemoryOn,
                         testing::Values("leader", "session", "launcher", "accept", "nexting_thread",
                                         "default-executo", "event_engine"),
                         [](const auto& info) {
                           std::string name = info.param;
                           std::erase_if(name, [](char c) { return c == '-' || c == '_'; });
                           return name;
                         });

}  // namespace
}  // namespace foredraft
