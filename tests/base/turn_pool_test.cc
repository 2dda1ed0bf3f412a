#include "base/turn_pool.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <future>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "base/error_reason.h"

namespace foredraft {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
constexpr TurnPool::Size kLong = TurnPool::Size::kLong;
constexpr TurnPool::Size kShort = TurnPool::Size::kShort;

// A pool of one thread, which the first job holds until Release.
class HeldPool : public testing::Test {
 protected:
  HeldPool() {
    pool_.Start({.thread_name = "turns", .waiting = " long inputs wait to be tokenized, max_queue_size is "});
    std::promise<void> running;
    EXPECT_TRUE(pool_
                    .Add("holder", kLong, 8,
                         [&running, this](const absl::Status&) {
                           running.set_value();
                           gate_.get_future().wait();
                         })
                    .ok());
    running.get_future().wait();
  }
  ~HeldPool() override { Release(); }

  void Release() {
    if (!released_) gate_.set_value();
    released_ = true;
  }
  absl::Status Add(const std::string& client, int max_waiting = 100) {
    return pool_.Add(client, kLong, max_waiting, [this, client](const absl::Status& status) {
      std::lock_guard<std::mutex> lock(mutex_);
      (status.ok() ? served_ : refused_).push_back(client);
    });
  }
  // Those served so far, once `client`, which is to have the most jobs that wait, has been served once more.
  std::vector<std::string> ServedUntil(const std::string& client) {
    std::promise<void> last;
    EXPECT_TRUE(pool_.Add(client, kLong, 100, [&last](const absl::Status&) { last.set_value(); }).ok());
    last.get_future().wait();
    std::lock_guard<std::mutex> lock(mutex_);
    return served_;
  }

  std::mutex mutex_;
  std::vector<std::string> served_, refused_;  // guarded by mutex_
  std::promise<void> gate_;
  bool released_ = false;
  TurnPool pool_;  // last: its threads use the others
};

TEST_F(HeldPool, ClientsTakeTurns) {
  for (int i = 0; i < 4; ++i) EXPECT_TRUE(Add("bob").ok());
  EXPECT_TRUE(Add("alice").ok());
  EXPECT_TRUE(Add("alice").ok());
  EXPECT_TRUE(Add("carol").ok());
  std::promise<void> last;
  for (const char* client : {"bob", "alice"}) EXPECT_TRUE(Add(client).ok());
  EXPECT_TRUE(pool_.Add("bob", kLong, 100, [&last](const absl::Status&) { last.set_value(); }).ok());
  Release();
  last.get_future().wait();
  std::lock_guard<std::mutex> lock(mutex_);
  EXPECT_THAT(served_, ElementsAre("bob", "alice", "carol", "bob", "alice", "bob", "alice", "bob", "bob"));
}

TEST_F(HeldPool, AFullQueueRefuses) {
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(Add("bob", 3).ok());
  const absl::Status full = Add("alice", 3);
  EXPECT_TRUE(absl::IsResourceExhausted(full)) << full;
  EXPECT_THAT(std::string(full.message()),
              HasSubstr("3 long inputs wait to be tokenized, max_queue_size is 3"));
  EXPECT_EQ(ReasonOf(full), kReasonQueueFull);
  EXPECT_TRUE(Add("alice", 4).ok()) << "the bound may change";
  Release();
  EXPECT_EQ(ServedUntil("bob").size(), 4u);
}

TEST(TurnPool, AShortJobWaitsForNoLongOne) {
  std::promise<void> gate;
  const std::shared_future<void> opened = gate.get_future().share();
  std::atomic<int> long_done = 0;
  TurnPool pool;
  pool.Start({.thread_name = "turns", .threads = 2, .short_threads = 1});
  const auto hold = [&](const absl::Status&) {
    opened.wait();
    ++long_done;
  };
  for (int i = 0; i < 10; ++i) EXPECT_TRUE(pool.Add("bob", kLong, 100, hold).ok());
  for (int i = 0, ready = 1; i < 10 && ready != 0; ++i) {
    const auto done = std::make_shared<std::promise<void>>();
    EXPECT_TRUE(pool.Add("bob", kShort, 100, [done](const absl::Status&) { done->set_value(); }).ok());
    ready = done->get_future().wait_for(std::chrono::seconds(10)) == std::future_status::ready;
    EXPECT_TRUE(ready);
  }
  EXPECT_EQ(long_done, 0);
  gate.set_value();
  pool.Stop();
  EXPECT_EQ(long_done, 10) << "with OkStatus, or with the reason of Stop";
}

TEST_F(HeldPool, ClosingEndsWhatWaits) {
  EXPECT_TRUE(Add("bob").ok());
  EXPECT_TRUE(Add("alice").ok());
  pool_.Close(absl::UnavailableError("draining"));
  {
    std::lock_guard<std::mutex> lock(mutex_);
    EXPECT_THAT(refused_, ElementsAre("bob", "alice"));
    EXPECT_TRUE(served_.empty());
  }
  EXPECT_EQ(Add("carol"), absl::UnavailableError("draining"));
}

}  // namespace
}  // namespace foredraft
