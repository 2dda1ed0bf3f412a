#include "tests/bench/read_bandwidth.h"

#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <thread>
#include <vector>

#include "base/check.h"

namespace foredraft {
namespace {

using Clock = std::chrono::steady_clock;

constexpr size_t kHugePage = size_t{2} << 20;
constexpr size_t kLineWords = 8;  // 64 bytes
constexpr ReadBandwidth::Way kWays[] = {{1, 0}, {2, 0}, {4, 0}, {1, 2048}, {2, 2048}, {4, 2048}};
constexpr int kTrials = 3;

// A cache line in vector registers.
using Words = uint64_t __attribute__((vector_size(64)));

// Sums all words: four lines of one stream, then four of the next.
__attribute__((noinline)) uint64_t Sum(const uint64_t* data, size_t words, const ReadBandwidth::Way& way) {
  const size_t part = words / way.streams / (4 * kLineWords) * (4 * kLineWords);
  Words sums[4] = {};
  for (size_t i = 0; i < part; i += 4 * kLineWords) {
    for (int stream = 0; stream < way.streams; ++stream) {
      const uint64_t* const lines = data + stream * part + i;
      for (int line = 0; line < 4; ++line) {
        const uint64_t* const words_of_line = lines + line * kLineWords;
        if (way.prefetch_bytes > 0) {
          __builtin_prefetch(reinterpret_cast<const char*>(words_of_line) + way.prefetch_bytes);
        }
        sums[line] += *reinterpret_cast<const Words*>(words_of_line);
      }
    }
  }
  uint64_t sum = 0;
  for (const Words& words_sum : sums) {
    for (size_t i = 0; i < kLineWords; ++i) sum += words_sum[i];
  }
  return sum;
}

}  // namespace

ReadBandwidth::ReadBandwidth(int threads, size_t bytes)
    : threads_(threads), bytes_(bytes), mapped_bytes_(bytes + kHugePage) {
  mapping_ = mmap(nullptr, mapped_bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  CHECK(mapping_ != MAP_FAILED) << "no memory for a buffer of " << bytes << " bytes";
  const uintptr_t address = reinterpret_cast<uintptr_t>(mapping_);
  auto* const data = reinterpret_cast<char*>((address + kHugePage - 1) / kHugePage * kHugePage);
  madvise(data, bytes, MADV_HUGEPAGE);  // if refused, small pages, like the weights
  // All pages differ, because a host may merge equal pages.
  auto* const words = reinterpret_cast<uint64_t*>(data);
  for (size_t i = 0; i < bytes / sizeof(uint64_t); ++i) words[i] = i * 0x9e3779b97f4a7c15u;
  data_ = words;
  double best = 0;
  for (const Way& way : kWays) {
    const double rate = Fastest(way);
    if (rate > best) {
      best = rate;
      way_ = way;
    }
  }
}

ReadBandwidth::~ReadBandwidth() { munmap(mapping_, mapped_bytes_); }

double ReadBandwidth::Measure() { return Fastest(way_); }

double ReadBandwidth::Fastest(const Way& way) const {
  double rate = 0;
  for (int trial = 0; trial < kTrials; ++trial) rate = std::max(rate, Read(way));
  return rate;
}

double ReadBandwidth::Read(const Way& way) const {
  const size_t words = bytes_ / sizeof(uint64_t) / threads_;
  std::atomic<int> ready{0};
  std::atomic<bool> go{false};
  std::atomic<uint64_t> sum{0};  // keeps the compiler from removing the reads
  std::vector<std::thread> others;
  for (int i = 1; i < threads_; ++i) {
    others.emplace_back([&, i] {
      ++ready;
      while (!go) {
      }
      sum += Sum(data_ + i * words, words, way);
    });
  }
  while (ready < threads_ - 1) std::this_thread::yield();
  const Clock::time_point start = Clock::now();
  go = true;
  sum += Sum(data_, words, way);
  for (std::thread& other : others) other.join();
  const double seconds = std::chrono::duration<double>(Clock::now() - start).count();
  CHECK(sum != 0);
  return static_cast<double>(words * sizeof(uint64_t)) * threads_ / seconds;
}

}  // namespace foredraft
