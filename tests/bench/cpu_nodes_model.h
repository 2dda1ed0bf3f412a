#pragma once

// How long a decode step of one sequence should take on a CPU server with several NUMA nodes: a model for
// machines that are not there. Everything here is predicted from a few rates, nothing is measured.
//
// A step is a list of jobs of the thread pool. Every node reads its own stripes of each weight; its threads
// take them one at a time, because a thread that has none left steals from the others. The slowest node ends
// a job. Then comes the barrier:
//
// clang-format off
//   the caller writes a cache line per group             groups x line
//   the threads of a group read it one after another     threads of the group x line
//   a group's threads count down one counter             threads of the group x line
//   the caller reads a counter per group                 groups x line
// clang-format on
//
// Lines between nodes take far_line_seconds.

#include <cstdint>
#include <string>
#include <vector>

namespace foredraft {

struct CpuMachine {
  std::string name;  // "2 x 32"
  int nodes = 1;
  int threads_of_node = 1;
  double node_rate = 0;         // bytes per second that the memory of one node gives its own threads
  double core_rate = 0;         // that one thread takes
  double line_seconds = 0;      // to take a cache line that another core of the node wrote
  double far_line_seconds = 0;  // that a core of another node wrote
  double small_op_seconds = 0;  // an op of one row, on one thread

  int threads() const { return nodes * threads_of_node; }
};

// A job that reads weights: `calls` of them in a step.
struct StepJob {
  std::string name;
  int64_t calls = 0;
  int64_t weights = 1;  // read by a call, each cut over the nodes
  int64_t stripes = 0;  // of a weight
  double stripe_bytes = 0;
  double bytes() const { return static_cast<double>(calls * weights * stripes) * stripe_bytes; }
};

struct DecodeStep {
  std::vector<StepJob> jobs;
  int64_t other_jobs = 0;  // that read no weight, and keys: divided, a barrier each
  int64_t small_ops = 0;   // on one thread
  double key_bytes = 0;    // read by all threads in equal parts
};

// DeepSeek-R1, one sequence, no drafts; 4-bit weights in groups of 32 with BF16 scales, but for embedding,
// head, router and kv_b, which are BF16.
DecodeStep R1Int4Step(int context);

struct PredictedStep {
  double seconds = 0;
  double barrier_seconds = 0;
  double small_op_seconds = 0;
  double uneven_seconds = 0;  // while threads of a node have no stripe left
  int64_t barriers = 0;
  double bytes = 0;
  double least_thread_bytes = 0;  // of weights
  double most_thread_bytes = 0;
};

double BarrierSeconds(const CpuMachine& machine);
// A barrier with one cache line per thread, one counter, and thieves who ask every thread.
double FlatBarrierSeconds(const CpuMachine& machine);

PredictedStep PredictStep(const DecodeStep& step, const CpuMachine& machine);

}  // namespace foredraft
