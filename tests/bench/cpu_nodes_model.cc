#include "tests/bench/cpu_nodes_model.h"

#include <algorithm>
#include <cmath>

namespace foredraft {
namespace {

constexpr int kGroupThreads = 16;     // kernels/cpu/device/thread_pool.cc
constexpr int64_t kStripeWidth = 32;  // kernels/cpu/device/isa.h

enum class Stored { kBf16, kInt4 };

StepJob Weight(const char* name, int64_t calls, int64_t n, int64_t k, Stored stored, int64_t weights = 1) {
  const double element_bytes = stored == Stored::kInt4 ? 0.5 + 2.0 / 32 : 2.0;
  return {.name = name,
          .calls = calls,
          .weights = weights,
          .stripes = (n + kStripeWidth - 1) / kStripeWidth,
          .stripe_bytes = element_bytes * static_cast<double>(kStripeWidth * k)};
}

// Threads take one unit of their node each while all have one, then the rest.
struct NodeTime {
  double even_seconds = 0;
  double uneven_seconds = 0;
  int64_t least_units = 0;  // of a thread
  int64_t most_units = 0;
};

NodeTime TimeOf(int64_t units, double unit_bytes, const CpuMachine& machine) {
  const auto rate = [&](int64_t threads) {
    return std::min(machine.core_rate, machine.node_rate / static_cast<double>(threads));
  };
  const int64_t threads = machine.threads_of_node, rounds = units / threads, rest = units % threads;
  NodeTime time{.even_seconds = static_cast<double>(rounds) * unit_bytes / rate(threads),
                .least_units = rounds,
                .most_units = rounds};
  if (rest > 0) {
    time.uneven_seconds = unit_bytes / rate(rest);
    ++time.most_units;
  }
  return time;
}

int GroupCount(const CpuMachine& machine) {
  return machine.nodes * ((machine.threads_of_node + kGroupThreads - 1) / kGroupThreads);
}

}  // namespace

DecodeStep R1Int4Step(int context) {
  constexpr int64_t kLayers = 61, kDense = 3, kMoe = kLayers - kDense, kHidden = 7168, kHeads = 128;
  const Stored four = Stored::kInt4, bf16 = Stored::kBf16;
  DecodeStep step;
  step.jobs = {Weight("q_a, kv_a", kLayers, 1536 + 576, kHidden, four),
               Weight("q_b", kLayers, kHeads * 192, 1536, four),
               Weight("w_uk", kLayers, 512, 128, bf16, kHeads),
               Weight("w_uv", kLayers, 128, 512, bf16, kHeads),
               Weight("o_proj", kLayers, kHidden, kHeads * 128, four),
               Weight("dense gate, up", kDense, 2 * 18432, kHidden, four),
               Weight("dense down", kDense, kHidden, 18432, four),
               Weight("router", kMoe, 256, kHidden, bf16),
               Weight("shared gate, up", kMoe, 2 * 2048, kHidden, four),
               Weight("shared down", kMoe, kHidden, 2048, four),
               Weight("experts gate, up", kMoe, 2 * 2048, kHidden, four, 8),
               Weight("experts down", kMoe, kHidden, 2048, four, 8),
               Weight("head", 1, 129280, kHidden, bf16)};
  // Attention and the sum of its splits; the experts' activation; argmax.
  step.other_jobs = 2 * kLayers + kMoe + 1;
  // Two norms, kv_write, rope; of an MLP its activation; of MoE also route, group, combine.
  step.small_ops = 5 * kLayers + 3 * kMoe + 1;
  step.key_bytes = static_cast<double>(kLayers) * context * (512 + 64) * 2;
  return step;
}

double BarrierSeconds(const CpuMachine& machine) {
  const double far = machine.nodes > 1 ? machine.far_line_seconds : machine.line_seconds;
  const int counting = std::min(machine.threads_of_node, kGroupThreads);
  return 2 * GroupCount(machine) * far + 2 * counting * machine.line_seconds;
}

double FlatBarrierSeconds(const CpuMachine& machine) {
  // A thread's line written and read, the counter, and the lines of the others. All but a node's share of the
  // lines come from other nodes.
  const double far_share = 1 - 1.0 / machine.nodes;
  const double line = far_share * machine.far_line_seconds + (1 - far_share) * machine.line_seconds;
  return (4 * machine.threads() - 1) * line;
}

PredictedStep PredictStep(const DecodeStep& step, const CpuMachine& machine) {
  PredictedStep predicted;
  const int64_t nodes = machine.nodes;
  for (const StepJob& job : step.jobs) {
    NodeTime slowest;
    int64_t least = -1, most = 0;
    for (int64_t node = 0; node < nodes; ++node) {
      const int64_t stripes = job.stripes * (node + 1) / nodes - job.stripes * node / nodes;
      const NodeTime time = TimeOf(job.weights * stripes, job.stripe_bytes, machine);
      if (time.even_seconds + time.uneven_seconds > slowest.even_seconds + slowest.uneven_seconds) {
        slowest = time;
      }
      least = least < 0 ? time.least_units : std::min(least, time.least_units);
      most = std::max(most, time.most_units);
    }
    const auto calls = static_cast<double>(job.calls);
    predicted.seconds += calls * (slowest.even_seconds + slowest.uneven_seconds);
    predicted.uneven_seconds += calls * slowest.uneven_seconds;
    predicted.barriers += job.calls;
    predicted.bytes += job.bytes();
    predicted.least_thread_bytes += calls * static_cast<double>(least) * job.stripe_bytes;
    predicted.most_thread_bytes += calls * static_cast<double>(most) * job.stripe_bytes;
  }
  const double all_rate =
      machine.nodes * std::min(machine.node_rate, machine.threads_of_node * machine.core_rate);
  predicted.bytes += step.key_bytes;
  predicted.seconds += step.key_bytes / all_rate;
  predicted.barriers += step.other_jobs;
  predicted.barrier_seconds = static_cast<double>(predicted.barriers) * BarrierSeconds(machine);
  predicted.small_op_seconds = static_cast<double>(step.small_ops) * machine.small_op_seconds;
  predicted.seconds += predicted.barrier_seconds + predicted.small_op_seconds;
  return predicted;
}

}  // namespace foredraft
