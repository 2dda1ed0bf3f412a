#include "kernels/cpu/device/thread_pool.h"

#include <atomic>
#include <numeric>
#include <thread>
#include <vector>

#include "gtest/gtest.h"

namespace foredraft {
namespace {

constexpr int64_t kHeavy = 1 << 20;  // an item cost that makes each item a unit

TEST(ThreadPool, VisitsEveryItemOnce) {
  for (const int threads : {1, 2, 3, 8}) {
    ThreadPool pool(threads, /*pin=*/false);
    EXPECT_EQ(pool.thread_count(), threads);
    for (const int64_t count : {0, 1, 2, 7, 64, 1000}) {
      for (const int64_t cost : {int64_t{0}, int64_t{1}, kHeavy}) {
        std::vector<int> visits(count, 0);
        pool.ParallelFor(count, cost, [&](int64_t begin, int64_t end) {
          for (int64_t i = begin; i < end; ++i) ++visits[i];
        });
        EXPECT_EQ(visits, std::vector<int>(count, 1)) << threads << " threads, " << count << " items";
      }
    }
  }
}

TEST(ThreadPool, ResultsOfAJobAreVisibleToTheNext) {
  ThreadPool pool(4, false);
  std::vector<int64_t> values(64, 0);
  for (int job = 0; job < 3000; ++job) {
    pool.ParallelFor(64, kHeavy, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) values[i] += job;
    });
    pool.ParallelFor(64, kHeavy, [&](int64_t begin, int64_t end) {
      // Reads values that another thread may have written in the previous job.
      for (int64_t i = begin; i < end; ++i) EXPECT_EQ(values[63 - i] * 2, int64_t{job} * (job + 1));
    });
  }
}

TEST(ThreadPool, KeepsSmallWorkOnTheCaller) {
  ThreadPool pool(4, false);
  const std::thread::id caller = std::this_thread::get_id();
  for (int job = 0; job < 100; ++job) {
    pool.ParallelFor(100, 1, [&](int64_t begin, int64_t end) {
      EXPECT_EQ(std::this_thread::get_id(), caller);
      EXPECT_EQ(end - begin, 100);
    });
  }
}

TEST(ThreadPool, TakesCallersFromSeveralThreads) {
  ThreadPool pool(3, false);
  std::atomic<int64_t> sum{0};
  std::vector<std::thread> callers;
  for (int caller = 0; caller < 3; ++caller) {
    callers.emplace_back([&] {
      for (int job = 0; job < 200; ++job) {
        pool.ParallelFor(16, kHeavy, [&](int64_t begin, int64_t end) { sum += end - begin; });
      }
    });
  }
  for (std::thread& caller : callers) caller.join();
  EXPECT_EQ(sum, 3 * 200 * 16);
}

TEST(ThreadPool, WorkersRunPinnedWhereTheyFit) {
  ThreadPool pool(static_cast<int>(std::thread::hardware_concurrency()), /*pin=*/true);
  std::atomic<int64_t> sum{0};
  for (int job = 0; job < 100; ++job) {
    pool.ParallelFor(64, kHeavy, [&](int64_t begin, int64_t end) { sum += end - begin; });
  }
  EXPECT_EQ(sum, 6400);
}

TEST(ThreadPool, NeitherSpinsNorPinsWherePoolsOutnumberCores) {
  const int cores = static_cast<int>(std::thread::hardware_concurrency());
  struct Case {
    int threads, pools;
    bool spins, pinned;
  };
  for (const Case& c :
       {Case{cores, 1, true, true}, Case{cores + 1, 1, false, false}, Case{1, cores, true, false},
        Case{1, cores + 1, false, false}, Case{cores, 2, false, false}}) {
    const ThreadPool pool(c.threads, /*pin=*/true, c.pools);
    EXPECT_EQ(pool.spins(), c.spins) << c.threads << " threads of each of " << c.pools;
    EXPECT_EQ(pool.pinned(), c.pinned) << c.threads << " threads of each of " << c.pools;
  }
}

}  // namespace
}  // namespace foredraft
