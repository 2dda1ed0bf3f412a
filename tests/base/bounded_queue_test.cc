#include "base/bounded_queue.h"

#include <gtest/gtest.h>

#include <memory>
#include <thread>

namespace foredraft {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

TEST(BoundedQueue, KeepsOrder) {
  BoundedQueue<int> queue(3);
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(queue.TryPush(int{i}));
  for (int i = 0; i < 3; ++i) EXPECT_EQ(queue.Pop(milliseconds(0)), i);
}

TEST(BoundedQueue, LeavesTheValueAloneWhenFull) {
  BoundedQueue<std::unique_ptr<int>> queue(1);
  EXPECT_TRUE(queue.TryPush(std::make_unique<int>(1)));
  auto second = std::make_unique<int>(2);
  EXPECT_FALSE(queue.TryPush(std::move(second)));
  EXPECT_EQ(*second, 2);  // NOLINT(bugprone-use-after-move): TryPush moves what it takes, nothing else
  EXPECT_EQ(queue.size(), 1u);
}

TEST(BoundedQueue, GivesUpAtTheDeadline) {
  BoundedQueue<int> queue(1);
  EXPECT_EQ(queue.Pop(milliseconds(1)), std::nullopt);
}

TEST(BoundedQueue, HandsOutWhatIsLeftAfterClose) {
  BoundedQueue<int> queue(2);
  EXPECT_TRUE(queue.TryPush(1));
  queue.Close();
  EXPECT_TRUE(queue.closed());
  EXPECT_FALSE(queue.TryPush(2));
  EXPECT_EQ(queue.Pop(seconds(10)), 1);
  EXPECT_EQ(queue.Pop(seconds(10)), std::nullopt);  // at once
}

TEST(BoundedQueue, WakesAWaitingReader) {
  BoundedQueue<int> queue(1);
  std::optional<int> got;
  std::thread reader([&] { got = queue.Pop(seconds(30)); });
  EXPECT_TRUE(queue.TryPush(7));
  reader.join();
  EXPECT_EQ(got, 7);
}

TEST(BoundedQueue, WakesAWaitingReaderByClosing) {
  BoundedQueue<int> queue(1);
  std::optional<int> got = 1;
  std::thread reader([&] { got = queue.Pop(seconds(30)); });
  queue.Close();
  reader.join();
  EXPECT_EQ(got, std::nullopt);
}

}  // namespace
}  // namespace foredraft
