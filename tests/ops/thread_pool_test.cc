#include "kernels/cpu/device/thread_pool.h"

#include <sched.h>

#include <algorithm>
#include <atomic>
#include <map>
#include <mutex>
#include <numeric>
#include <set>
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

TEST(ThreadPool, DividesAJobWhereThatSavesItsCallerFiveMicroseconds) {
  ThreadPool pool(2, false);
  int64_t longest = 0;  // of the ranges that the caller was given
  const auto run = [&](int64_t count) {
    const std::thread::id caller = std::this_thread::get_id();
    longest = 0;
    pool.ParallelFor(count, 1 << 13, [&](int64_t begin, int64_t end) {
      if (std::this_thread::get_id() == caller) longest = std::max(longest, end - begin);
    });
  };
  run(3);  // a half of it is 4 us
  EXPECT_EQ(longest, 3);
  run(8);
  EXPECT_LT(longest, 8);
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

// The cores that the calling thread may run on.
std::vector<int> CoresOfThisThread() {
  cpu_set_t set;
  CPU_ZERO(&set);
  EXPECT_EQ(sched_getaffinity(0, sizeof(set), &set), 0);
  std::vector<int> cores;
  for (int core = 0; core < CPU_SETSIZE; ++core) {
    if (CPU_ISSET(core, &set)) cores.push_back(core);
  }
  return cores;
}

TEST(ThreadPool, PinsTheCallerBesideItsWorkers) {
  const std::vector<int> all = CoresOfThisThread();
  struct Case {
    int threads;
    bool pin;
    size_t caller_cores;
  };
  for (const Case& c :
       {Case{static_cast<int>(all.size()), true, 1}, Case{static_cast<int>(all.size()), false, all.size()},
        Case{1, true, all.size()}, Case{static_cast<int>(all.size()) + 1, true, all.size()}}) {
    std::thread([&] {
      ThreadPool pool(c.threads, c.pin);
      pool.PinCaller();
      std::vector<int> cores = CoresOfThisThread();
      ASSERT_EQ(cores.size(), all.size() == 1 ? 1 : c.caller_cores) << c.threads << " threads, pin " << c.pin;
      if (cores.size() == all.size()) return;
      // No worker runs on the caller's core: while the caller waits inside its item, each other core takes
      // one.
      std::mutex mutex;
      std::map<std::thread::id, int> core_of;
      std::atomic<int> arrived{0};
      pool.ParallelFor(c.threads, kHeavy, [&](int64_t, int64_t) {
        {
          std::lock_guard<std::mutex> lock(mutex);
          core_of[std::this_thread::get_id()] = sched_getcpu();
        }
        ++arrived;
        while (arrived < c.threads) std::this_thread::yield();
      });
      std::set<int> used;
      for (const auto& [thread, core] : core_of) used.insert(core);
      EXPECT_EQ(used.size(), all.size());
      EXPECT_EQ(core_of.at(std::this_thread::get_id()), cores[0]);
    }).join();
  }
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
