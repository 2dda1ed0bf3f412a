#include "server/api/tokenizer_pool.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <future>
#include <mutex>
#include <string>
#include <vector>

#include "base/error_reason.h"

namespace foredraft {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

// A pool of one thread, which the first job holds until Release.
class HeldPool : public testing::Test {
 protected:
  HeldPool() {
    pool_.Start(1);
    std::promise<void> running;
    EXPECT_TRUE(pool_
                    .Add("holder", 8,
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
    return pool_.Add(client, max_waiting, [this, client](const absl::Status& status) {
      std::lock_guard<std::mutex> lock(mutex_);
      (status.ok() ? served_ : refused_).push_back(client);
    });
  }
  // Those served so far, once `client`, which is to have the most jobs that wait, has been served once more.
  std::vector<std::string> ServedUntil(const std::string& client) {
    std::promise<void> last;
    EXPECT_TRUE(pool_.Add(client, 100, [&last](const absl::Status&) { last.set_value(); }).ok());
    last.get_future().wait();
    std::lock_guard<std::mutex> lock(mutex_);
    return served_;
  }

  std::mutex mutex_;
  std::vector<std::string> served_, refused_;  // guarded by mutex_
  std::promise<void> gate_;
  bool released_ = false;
  TokenizerPool pool_;  // last: its threads use the others
};

TEST_F(HeldPool, ClientsTakeTurns) {
  for (int i = 0; i < 4; ++i) EXPECT_TRUE(Add("bob").ok());
  EXPECT_TRUE(Add("alice").ok());
  EXPECT_TRUE(Add("alice").ok());
  EXPECT_TRUE(Add("carol").ok());
  std::promise<void> last;
  for (const char* client : {"bob", "alice"}) EXPECT_TRUE(Add(client).ok());
  EXPECT_TRUE(pool_.Add("bob", 100, [&last](const absl::Status&) { last.set_value(); }).ok());
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
