// cpu_nodes: what a decode step of R1 in INT4 should take on CPU servers with one and two sockets
// (cpu_nodes_model.h). The costs of cache lines and small ops, and the bandwidth of a core, are
// measured on this machine; the bandwidth of a socket is given. So its numbers are predicted.
//
// clang-format off
//   cpu_nodes [--node-gbs 250] [--far-percent 250] [--line-ns N] [--context 4096]
//             [--buffer-mb 128] [--rounds 20]
//
//   --node-gbs     what the memory of one node gives its threads, in GB/s
//   --line-ns      the cost of a cache line from another core, instead of measuring it here
//   --far-percent  the cost of a cache line from another node, in percent of one from the same
// clang-format on

#include <pthread.h>
#include <sched.h>
#include <sys/mman.h>
#include <time.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <iostream>
#include <thread>
#include <vector>

#include "absl/strings/str_format.h"
#include "base/check.h"
#include "kernels/device.h"
#include "tests/bench/bench_flags.h"
#include "tests/bench/cpu_nodes_model.h"
#include "tests/bench/read_bandwidth.h"

namespace foredraft {
namespace {

using Clock = std::chrono::steady_clock;

struct Options {
  int node_gbs = 250;
  int far_percent = 250;  // a line of another node against one of the same
  int line_ns = 0;        // 0: measured
  int context = 4096;
  int buffer_mb = 128;
  int rounds = 20;
};

// The least of `rounds` timings of fn(), per repeat: other processes only add.
template <class Fn>
double Least(int rounds, int64_t repeats, const Fn& fn) {
  double least = 1e9;
  for (int round = 0; round < rounds; ++round) {
    const auto start = Clock::now();
    fn();
    const std::chrono::duration<double> seconds = Clock::now() - start;
    least = std::min(least, seconds.count() / static_cast<double>(repeats));
  }
  return least;
}

// From a store on one core to its sight on the other, of the quickest turns: while another process has one
// of the two cores, turns take its time slices.
double LineSeconds(int rounds) {
  constexpr int kTurns = 100;  // timed together
  const int blocks = rounds * 1000;
  alignas(64) std::atomic<int> turn{0};
  const auto wait_for = [&](int wanted) {
    while (turn.load(std::memory_order_acquire) != wanted) {
    }
  };
  std::thread second([&] {
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(1, &set);
    pthread_setaffinity_np(pthread_self(), sizeof(set), &set);
    for (int i = 0; i < blocks * kTurns; ++i) {
      wait_for(2 * i + 1);
      turn.store(2 * i + 2, std::memory_order_release);
    }
  });
  double least = 1e9;
  for (int block = 0, i = 0; block < blocks; ++block) {
    const auto start = Clock::now();
    for (int end = i + kTurns; i < end; ++i) {
      turn.store(2 * i + 1, std::memory_order_release);
      wait_for(2 * i + 2);
    }
    const std::chrono::duration<double> seconds = Clock::now() - start;
    least = std::min(least, seconds.count() / (2 * kTurns));
  }
  second.join();
  return least;
}

// An RMSNorm of R1's hidden row, as ops of one row are.
double SmallOpSeconds(int rounds) {
  constexpr int kWidth = 7168, kRepeats = 200;
  const auto device = *CreateDevice("cpu", {.threads = 1});
  const auto stream = device->CreateStream();
  float* const x = *device->AllocateArray<float>(kWidth);
  float* const weight = *device->AllocateArray<float>(kWidth);
  float* const out = *device->AllocateArray<float>(kWidth);
  const RmsNormParams params{
      .out = {out, 1, kWidth, kWidth}, .x = {x, 1, kWidth, kWidth}, .weight = weight, .eps = 1e-6f};
  return Least(rounds, kRepeats, [&] {
    for (int i = 0; i < kRepeats; ++i) device->ops().rms_norm(*stream, params);
  });
}

// Bytes per second of one thread, of the fastest read.
double CoreRate(int rounds, size_t bytes) {
  ReadBandwidth bandwidth(1, bytes);
  double most = 0;
  for (int round = 0; round < rounds; ++round) most = std::max(most, bandwidth.Measure());
  return most;
}

// Memory that is read from end to end, in pages of 2 MB or of 4 KB.
class PagedBuffer {
 public:
  PagedBuffer(size_t bytes, bool huge) : bytes_(bytes) {
    void* const memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(memory != MAP_FAILED);
    madvise(memory, bytes, huge ? MADV_HUGEPAGE : MADV_NOHUGEPAGE);
    std::memset(memory, 1, bytes);
    words_ = static_cast<const uint64_t*>(memory);
  }
  ~PagedBuffer() { munmap(const_cast<uint64_t*>(words_), bytes_); }

  // Time of this thread alone, without that of others on its core.
  double ReadSeconds() const {
    timespec start{}, end{};
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &start);
    uint64_t sums[8] = {};
    for (size_t i = 0; i < bytes_ / sizeof(uint64_t); i += 8) {
      for (int j = 0; j < 8; ++j) sums[j] += words_[i + j];
    }
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &end);
    for (const uint64_t sum : sums) CHECK_EQ(sum, bytes_ / 64 * 0x0101010101010101u);
    return static_cast<double>(end.tv_sec - start.tv_sec) +
           1e-9 * static_cast<double>(end.tv_nsec - start.tv_nsec);
  }

 private:
  const size_t bytes_;
  const uint64_t* words_ = nullptr;
};

// Medians of reads in turns: small pages over huge ones.
double HugePageGain(int rounds, size_t bytes) {
  const PagedBuffer small(bytes, false), huge(bytes, true);
  std::vector<double> ratios;
  for (int round = 0; round < rounds; ++round) {
    const double seconds = small.ReadSeconds();
    ratios.push_back(seconds / huge.ReadSeconds());
  }
  std::nth_element(ratios.begin(), ratios.begin() + rounds / 2, ratios.end());
  return ratios[rounds / 2];
}

void Print(const CpuMachine& machine, const PredictedStep& step, double one_node_seconds) {
  std::cout << absl::StreamFormat(
      "| %s | %.1f | %.1f | %.2f | %d | %.1f | %.1f | %.2f | %.2f | %.2f | %.0f-%.0f |\n", machine.name,
      step.seconds * 1e3, 1 / step.seconds, one_node_seconds / step.seconds, step.barriers,
      BarrierSeconds(machine) * 1e6, FlatBarrierSeconds(machine) * 1e6, step.barrier_seconds * 1e3,
      step.small_op_seconds * 1e3, step.uneven_seconds * 1e3, step.least_thread_bytes / 1e6,
      step.most_thread_bytes / 1e6);
}

int Run(const Options& options) {
  CpuMachine machine{
      .node_rate = options.node_gbs * 1e9,
      .core_rate = CoreRate(options.rounds, size_t(options.buffer_mb) << 20),
      .line_seconds = options.line_ns > 0 ? options.line_ns * 1e-9 : LineSeconds(options.rounds),
      .small_op_seconds = SmallOpSeconds(options.rounds)};
  machine.far_line_seconds = options.far_percent / 100.0 * machine.line_seconds;
  std::cout << absl::StreamFormat(
      "Measured here: a core reads %.1f GB/s, an op of one row takes %.1f us. %s: a cache line %.0f ns. "
      "Given: %d GB/s "
      "a node, a line of another node %.1f lines.\n\n",
      machine.core_rate / 1e9, machine.small_op_seconds * 1e6,
      options.line_ns > 0 ? "Given" : "Measured here", machine.line_seconds * 1e9, options.node_gbs,
      options.far_percent / 100.0);
  std::cout << absl::StreamFormat("Reading in pages of 4 KB takes %.2f times as long as in huge ones.\n\n",
                                  HugePageGain(options.rounds, size_t(options.buffer_mb) << 20));
  const DecodeStep step = R1Int4Step(options.context);
  std::cout << absl::StreamFormat("R1 in INT4, one stream, %d positions: %.1f GB a step. Predicted:\n\n",
                                  options.context, PredictStep(step, machine).bytes / 1e9);
  std::cout << "| nodes x cores | step ms | tokens/s | over one node | barriers | barrier us | flat us | "
               "barriers ms "
               "| small ops ms | uneven ms | MB a thread |\n|---|---|---|---|---|---|---|---|---|---|---|\n";
  for (const int cores : {16, 32, 64}) {
    machine.threads_of_node = cores;
    double one_node_seconds = 0;
    for (const int nodes : {1, 2}) {
      machine.nodes = nodes;
      machine.name = absl::StrFormat("%d x %d", nodes, cores);
      const PredictedStep predicted = PredictStep(step, machine);
      if (nodes == 1) one_node_seconds = predicted.seconds;
      Print(machine, predicted, one_node_seconds);
    }
  }
  return 0;
}

}  // namespace
}  // namespace foredraft

int main(int argc, char** argv) {
  foredraft::Options options;
  foredraft::ParseBenchFlags(argc, argv,
                             {{"--node-gbs", &options.node_gbs},
                              {"--far-percent", &options.far_percent},
                              {"--line-ns", &options.line_ns},
                              {"--context", &options.context},
                              {"--buffer-mb", &options.buffer_mb},
                              {"--rounds", &options.rounds}});
  return foredraft::Run(options);
}
