// Rates of strangers and clients, with a clock of the test.

#include "net/guard/frame_budget.h"

#include <gtest/gtest.h>

#include "net/guard/guard_report.h"
#include "net/guard/guard_table.h"
#include "net/guard/peer_name.h"
#include "net/guard/stranger_budgets.h"

namespace foredraft {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

const GuardTime kStart{seconds(1000)};
constexpr Frame kCall = {.kind = FrameKind::kStream, .header_bytes = 200};

// Frames of a kind that pass until one does not, at most 1,000,000.
int CountPassing(FrameBudget& budget, GuardTime now, const Frame& frame) {
  budget.Begin(now);
  int count = 0;
  while (count < 1'000'000 && budget.Admit(frame)) ++count;
  return count;
}

TEST(TokenBucket, GivesTheBurstAndThenTheRate) {
  TokenBucket bucket({.burst = 10, .per_second = 5}, kStart);
  int taken = 0;
  for (; bucket.Take(1, kStart); ++taken) continue;
  EXPECT_EQ(taken, 10);
  EXPECT_FALSE(bucket.IsFull(kStart));
  for (taken = 0; bucket.Take(1, kStart + seconds(1)); ++taken) continue;
  EXPECT_EQ(taken, 5);
  EXPECT_TRUE(bucket.IsFull(kStart + seconds(3)));
  TokenBucket large({.burst = 10, .per_second = 5}, kStart);
  EXPECT_TRUE(large.Take(30, kStart)) << "more than the burst passes once";
  EXPECT_FALSE(large.Take(1, kStart + seconds(3)));
  EXPECT_TRUE(large.Take(1, large.ready_at()));
}

TEST(FrameBudget, AStrangerIsClosedForFloodsThatAClientIsSlowedFor) {
  StreamBudget address(kAddressRates, kStart);
  for (const auto& [kind, event] : {std::pair{FrameKind::kReset, GuardEvent::kResets},
                                    {FrameKind::kPing, GuardEvent::kPings},
                                    {FrameKind::kSettings, GuardEvent::kSettings},
                                    {FrameKind::kOther, GuardEvent::kFrames}}) {
    FrameBudget stranger(address, kStart);
    const int burst = CountPassing(stranger, kStart, {.kind = kind});
    EXPECT_LE(burst, 4000);
    EXPECT_EQ(stranger.excess(), event);
    FrameBudget client(address, kStart);
    client.BecomeClient(kStart);
    EXPECT_GE(CountPassing(client, kStart, {.kind = kind}), 10 * burst);
    EXPECT_FALSE(client.excess().has_value());
    EXPECT_GT(client.resume_at(), kStart);
    EXPECT_LT(client.resume_at(), kStart + milliseconds(100));
  }
}

TEST(FrameBudget, StrangersOfAnAddressShareStreamsAndEachHasAFewOfItsOwn) {
  StrangerBudgets budgets;
  FrameBudget flood(budgets.Enter("ipv4:10.0.0.1", kStart), kStart);
  EXPECT_LE(CountPassing(flood, kStart, kCall), 1100);
  EXPECT_FALSE(flood.excess().has_value()) << "slowed, not closed";
  FrameBudget neighbour(budgets.Enter("ipv4:10.0.0.1", kStart), kStart);
  EXPECT_EQ(CountPassing(neighbour, kStart, kCall), 16);
  neighbour.BecomeClient(kStart);
  EXPECT_GT(CountPassing(neighbour, kStart, kCall), 10'000) << "a client has nothing to do with strangers";
  FrameBudget other(budgets.Enter("ipv4:10.0.0.2", kStart), kStart);
  EXPECT_GT(CountPassing(other, kStart, kCall), 1000) << "another address has a budget of its own";
  EXPECT_LE(CountPassing(flood, kStart + seconds(1), kCall), 210);
}

TEST(FrameBudget, LargeHeadersCountByTheirBytes) {
  StrangerBudgets budgets;
  FrameBudget stranger(budgets.Enter("ipv4:10.0.0.1", kStart), kStart);
  const Frame large = {.kind = FrameKind::kStream, .header_bytes = 16384};
  EXPECT_LE(CountPassing(stranger, kStart, large), 35);
  EXPECT_LE(CountPassing(stranger, kStart + seconds(10), large), 45);
}

TEST(StrangerBudgets, ClosingAllConnectionsGivesNoNewBudget) {
  StrangerBudgets budgets;
  {
    FrameBudget first(budgets.Enter("a", kStart), kStart);
    CountPassing(first, kStart, kCall);
    budgets.Leave("a");
  }
  budgets.Sweep(kStart + seconds(1));
  FrameBudget second(budgets.Enter("a", kStart + seconds(1)), kStart + seconds(1));
  EXPECT_LE(CountPassing(second, kStart + seconds(1), kCall), 16 + 210);
}

TEST(PeerName, RoundTripsThroughTheNameThatGrpcShows) {
  for (const char* address : {"ipv4:10.0.0.7:51234", "ipv6:[fe80::1]:51234", "unix:"}) {
    std::string shown = "unix-abstract:" + AbstractName({.id = 42, .address = address});
    for (size_t at; (at = shown.find('[')) != std::string::npos;) shown.replace(at, 1, "%5B");
    for (size_t at; (at = shown.find(']')) != std::string::npos;) shown.replace(at, 1, "%5D");
    const std::optional<GuardedPeer> peer = ReadGuardedPeer(shown);
    ASSERT_TRUE(peer.has_value()) << shown;
    EXPECT_EQ(peer->id, 42u);
    EXPECT_EQ(peer->address, address);
    EXPECT_EQ(ShownPeer(shown), address);
    EXPECT_LT(AbstractName({.id = ~uint64_t{0}, .address = address}).size(), 107u);
  }
  for (const char* other :
       {"ipv4:10.0.0.7:51234", "unix-abstract:foredraft-1/7/ipv4:1.2.3.4:5", "unix:", ""}) {
    EXPECT_FALSE(ReadGuardedPeer(other).has_value());
    EXPECT_EQ(ShownPeer(other), other);
  }
}

TEST(PeerName, AnAddressOfIpv6IsLimitedByItsNetwork) {
  EXPECT_EQ(LimitedAddress("ipv4:10.0.0.7:51234"), "ipv4:10.0.0.7");
  EXPECT_EQ(LimitedAddress("ipv6:[2001:db8:1:2:3:4:5:6]:51234"), "ipv6:[2001:db8:1:2::]/64");
  EXPECT_EQ(LimitedAddress("unix:"), "unix");
}

TEST(GuardReport, AFloodIsWhatMakesMemoryGrow) {
  int counted = 0;
  GuardReport report([&counted](GuardEvent) { ++counted; });
  EXPECT_FALSE(report.TakeFlood());
  report.Record(GuardEvent::kHandshake, "ipv4:10.0.0.7:51234", kStart);
  EXPECT_FALSE(report.TakeFlood());
  report.Record(GuardEvent::kResets, "ipv4:10.0.0.7:51234", kStart);
  EXPECT_TRUE(report.TakeFlood());
  EXPECT_FALSE(report.TakeFlood());
  for (int i = 0; i < 300; ++i) report.StrangerLeft();
  EXPECT_TRUE(report.TakeFlood());
  EXPECT_EQ(counted, 2);
}

}  // namespace
}  // namespace foredraft
