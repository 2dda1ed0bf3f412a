// The thread pool on made-up nodes, and with more threads than this machine has cores.

#include <atomic>
#include <chrono>
#include <map>
#include <mutex>
#include <numeric>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/cpu/device/thread_pool.h"

namespace foredraft {
namespace {

constexpr int64_t kHeavy = 1 << 20;  // an item cost that makes each item a unit

// Nodes of so many threads, which run wherever they like.
ThreadPlacement Nodes(const std::vector<int>& threads) {
  ThreadPlacement placement;
  for (size_t i = 0; i < threads.size(); ++i) {
    placement.nodes.push_back({.os_index = static_cast<int>(i), .threads = threads[i]});
  }
  return placement;
}

// Pools of one node, of several groups, of several nodes, with threads to spare.
const std::vector<std::vector<int>> kPools = {{1},      {3},      {17},      {64},         {1, 1},
                                              {32, 32}, {40, 24}, {1, 2, 3}, {8, 8, 8, 8}, {20, 1}};

std::string NameOf(const std::vector<int>& pool) {
  std::string name;
  for (const int threads : pool) name += std::to_string(threads) + " ";
  return name;
}

TEST(ThreadPoolNodes, VisitEveryItemOnce) {
  for (const std::vector<int>& threads : kPools) {
    ThreadPool pool(Nodes(threads));
    EXPECT_EQ(pool.thread_count(), std::accumulate(threads.begin(), threads.end(), 0));
    for (const int64_t count : {0, 1, 2, 7, 64, 1000}) {
      for (const int64_t cost : {int64_t{1}, int64_t{3000}, kHeavy}) {
        std::vector<std::atomic<int>> visits(3 * count), panel_visits(3 * count);
        pool.ParallelFor(3 * count, cost, [&](int64_t begin, int64_t end) {
          for (int64_t i = begin; i < end; ++i) ++visits[i];
        });
        pool.ParallelForPanels(count, 3, cost, [&](int64_t begin, int64_t end) {
          for (int64_t i = begin; i < end; ++i) ++panel_visits[i];
        });
        for (int64_t i = 0; i < 3 * count; ++i) {
          ASSERT_EQ(visits[i], 1) << NameOf(threads) << "threads, item " << i << " of " << 3 * count;
          ASSERT_EQ(panel_visits[i], 1) << NameOf(threads) << "threads, item " << i << " of " << 3 * count;
        }
      }
    }
  }
}

TEST(ThreadPoolNodes, ResultsOfAJobAreVisibleToTheNext) {
  for (const std::vector<int>& threads : kPools) {
    ThreadPool pool(Nodes(threads));
    std::vector<int64_t> values(64, 0);
    for (int job = 0; job < 200; ++job) {
      pool.ParallelForPanels(64, 1, kHeavy, [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i) values[i] += job;
      });
      pool.ParallelFor(64, kHeavy, [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i) ASSERT_EQ(values[63 - i] * 2, int64_t{job} * (job + 1));
      });
    }
  }
}

TEST(ThreadPoolNodes, SmallJobsEndWithMostThreadsIdle) {
  ThreadPool pool(Nodes({32, 32}));
  for (int job = 0; job < 2000; ++job) {
    std::atomic<int64_t> sum{0};
    pool.ParallelFor(2 + job % 5, kHeavy, [&](int64_t begin, int64_t end) { sum += end - begin; });
    ASSERT_EQ(sum, 2 + job % 5);
  }
}

// Shares that no job has touched since the generations began again.
TEST(ThreadPoolNodes, OutlastsItsGenerations) {
  ThreadPool pool(Nodes({1, 1}));
  std::atomic<int64_t> sum{0};
  const auto run = [&](int64_t count) {
    pool.ParallelFor(count, kHeavy, [&](int64_t begin, int64_t end) { sum += end - begin; });
  };
  for (int job = 0; job < 140'000; ++job) run(job % 1000 == 0 ? 9 : 2);
  EXPECT_EQ(sum, 140 * 9 + 139'860 * 2);
}

TEST(ThreadPoolNodes, PanelsAreCutByThreads) {
  const ThreadPool pool(Nodes({3, 1}));
  EXPECT_EQ(pool.FirstPanel(8, 0), 0);
  EXPECT_EQ(pool.FirstPanel(8, 1), 6);
  EXPECT_EQ(pool.FirstPanel(8, 2), 8);
  EXPECT_EQ(pool.FirstPanel(1, 1), 0) << "the last node takes what does not divide";
}

// While every thread waits inside its first item, no panel of one node is on a thread of the other.
TEST(ThreadPoolNodes, ThreadsBeginWithThePanelsOfTheirNode) {
  constexpr int kThreads = 8;
  ThreadPool pool(Nodes({4, 4}));
  std::mutex mutex;
  std::set<std::thread::id> seen;
  std::map<std::string, int> node_of;  // of a thread's name
  std::atomic<int> arrived{0};
  std::this_thread::sleep_for(std::chrono::milliseconds(30));  // until they park: each has to be woken
  // 8 panels x 2 items: each thread's share is two units.
  pool.ParallelForPanels(8, 2, kHeavy, [&](int64_t begin, int64_t) {
    char name[16] = "";
    pthread_getname_np(pthread_self(), name, sizeof(name));
    {
      std::lock_guard<std::mutex> lock(mutex);
      if (!seen.insert(std::this_thread::get_id()).second) return;
      node_of[std::string(name).rfind("cpu-", 0) == 0 ? name : "cpu-0"] = begin < 8 ? 0 : 1;
    }
    ++arrived;
    while (arrived < kThreads) std::this_thread::yield();
  });
  ASSERT_EQ(node_of.size(), size_t{kThreads});
  for (int thread = 0; thread < kThreads; ++thread) {
    EXPECT_EQ(node_of.at("cpu-" + std::to_string(thread)), thread / 4) << thread;
  }
}

// The worker waits inside the first item of its node until all others are done.
TEST(ThreadPoolNodes, ThreadsWithoutPanelsTakeThoseOfOtherNodes) {
  for (const std::vector<int>& threads : {std::vector<int>{1, 1}, {17}, {16, 16}}) {
    ThreadPool pool(Nodes(threads));
    const std::thread::id caller = std::this_thread::get_id();
    const int64_t count = 4 * pool.thread_count();
    for (int job = 0; job < 20; ++job) {
      std::atomic<int64_t> done{0};
      std::atomic<bool> waits{false};
      pool.ParallelForPanels(count, 1, kHeavy, [&](int64_t, int64_t) {
        if (std::this_thread::get_id() != caller && !waits.exchange(true)) {
          while (done < count - 1) std::this_thread::yield();
        }
        ++done;
      });
      EXPECT_EQ(done, count);
    }
  }
}

// A range never has items of two nodes, however small the items are.
TEST(ThreadPoolNodes, RangesEndWhereANodeEnds) {
  ThreadPool pool(Nodes({1, 1, 1}));
  const std::set<int64_t> ends = {5 * 2, 5 * 4};  // of 7 panels x 5 items
  pool.ParallelForPanels(7, 5, 2000, [&](int64_t begin, int64_t end) {
    if (end - begin == 35) return;
    for (const int64_t node_end : ends) EXPECT_FALSE(begin < node_end && node_end < end) << begin;
  });
}

}  // namespace
}  // namespace foredraft
